"""A job: one run of one engine, with every option resolved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from .quality import idle_quality
from .settings import JOB_KEYS, POLICY_OPTION, field_name, flatten, nest
from .values import Value

if TYPE_CHECKING:
    from vtoken_sdk.runtime import EngineConfig

_POLICY_FIELDS = ("policy", "policy_sha256", "budget", "evict_prefill", "evict_every", "granularity")
_RECLAIM_FIELDS = (
    "threshold",
    "margin",
    "reclaim_packing",
    "reclaim_slack",
    "reclaim_move_cap",
    "reclaim_publish_after",
    "reclaim_refill",
    "reclaim_stream",
)


@dataclass(frozen=True)
class Job:
    """Fields are the keys of the configuration, with "_" for "."; None where a key does not apply to the runtime.

    option: of the policy. policy_sha256, workload_sha256: of its source and of the file, so that an
    edited policy or trace is another job.
    """

    runtime: str
    model: str
    weights: str
    dtype: str
    device: str
    workload: str
    ctx: int
    lengths: str
    length_scale: float
    requests: int
    output_tokens: int
    arrivals: str
    num_warmups: int
    chunk: int
    max_running: int
    block_size: int
    pool_blocks: int
    prefix_cache: bool
    seed: int
    quality_mode: str
    quality_texts: int | None = None
    quality_tokens: int | None = None
    request_rate: float | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    step_ms: float | None = None
    goodput_ttft: float | None = None
    goodput_tpot: float | None = None
    goodput_e2el: float | None = None
    quality_needles: int | None = None
    quality_needles4: int | None = None
    quality_query: str | None = None
    quality_text: str | None = None
    quality_data: str | None = None
    quality_items: int | None = None
    quality_prompts: str | None = None
    quality_sha256: str | None = None
    policy: str | None = None
    option: Mapping[str, Value] = field(default_factory=dict)
    budget: float | int | None = None
    evict_prefill: str | None = None
    evict_every: int | None = None
    granularity: str | None = None
    threshold: float | None = None
    margin: int | None = None
    reclaim_packing: str | None = None
    reclaim_slack: int | None = None
    reclaim_move_cap: int | None = None
    reclaim_publish_after: int | None = None
    reclaim_refill: bool | None = None
    reclaim_stream: str | None = None
    policy_sha256: str | None = None
    workload_sha256: str | None = None

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Job:
        """From parsed values of all keys of a job; what does not apply to its runtime becomes None."""
        option = {key.removeprefix(POLICY_OPTION): value for key, value in flat.items() if key.startswith(POLICY_OPTION)}
        known = {field_name(key): flat.get(key) for key in JOB_KEYS}
        job: Job = cls(**known, option=option)  # type: ignore[arg-type]  # parsed by JOB_KEYS
        idle: dict[str, Any] = {}
        if job.runtime == "native":
            idle.update(dict.fromkeys(_POLICY_FIELDS), option={})
        if job.runtime != "vtoken":
            idle.update(dict.fromkeys(_RECLAIM_FIELDS))
        elif job.reclaim_packing != "fresh":
            idle["margin"] = None
        if job.request_rate is None or job.arrivals == "trace":
            idle["burstiness"] = None
        idle.update(dict.fromkeys(idle_quality(job)))
        return replace(job, **idle)

    @classmethod
    def from_config(cls, nested: Mapping[str, Any]) -> Job:
        """From what `config` gave, after a trip through a file."""
        return cls.from_flat(flatten(nested))

    def flat(self) -> dict[str, Value]:
        """The keys of the configuration with this job's values."""
        return {key: getattr(self, field_name(key)) for key in JOB_KEYS} | {POLICY_OPTION + k: v for k, v in self.option.items()}

    def config(self) -> dict[str, Any]:
        """The nested configuration: with it alone, vtoken-sweep runs this job again."""
        return nest(self.flat())

    @property
    def id(self) -> str:
        """The job's name: a hash of its resolved configuration."""
        text = json.dumps(self.flat(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """For people: policy, budget and runtime."""
        policy = f"{self.policy} {self.budget:g} " if self.policy is not None else ""
        return f"{policy}{self.runtime}"

    def engine_config(self) -> EngineConfig:
        """The engine's options. Raises ConfigError, which names the key."""
        from vtoken_sdk.runtime import EngineConfig, EvictOptions, ReclaimOptions

        evict = {"prefill": self.evict_prefill, "every": self.evict_every}
        reclaim = {
            f.name: getattr(self, f.name, None) if f.name in ("threshold", "margin") else getattr(self, f"reclaim_{f.name}")
            for f in fields(ReclaimOptions)
        }
        own = {f.name: getattr(self, f.name) for f in fields(EngineConfig) if hasattr(self, f.name)}
        given: dict[str, Any] = {k: v for k, v in own.items() if v is not None}
        return EngineConfig(
            **given,
            evict=EvictOptions(**{k: v for k, v in evict.items() if v is not None}),  # type: ignore[arg-type]  # checked by EvictOptions
            reclaim=ReclaimOptions(**{k: v for k, v in reclaim.items() if v is not None}),
        )
