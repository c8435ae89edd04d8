"""A request while it is in the engine: what the host knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .config import EngineConfig
from .detokenizer import Detokenizer
from .request import RequestOutput, SamplingParams


@dataclass
class Saved:
    """What a preempted request takes along: its eviction log, int32 [tokens], and the policy's state, fp32 [G, tokens] each.

    blocks: the most that it held when it was preempted, so far.
    """

    died_at: Tensor
    state: dict[str, Tensor]
    blocks: int


@dataclass(eq=False)
class Sequence:
    """cursor: tokens whose keys and values are in the cache, or on the way in a launched step (an upper bound after an end token).

    replay_until: tokens before this one were run before a preemption; they are recomputed under the eviction log, unseen by the
    policy. decoded: decode steps launched. evictions: launched so far, fruitless: as many of them as a plan found nothing to move for.
    recorded: (length, attention fp32 [length], key norms fp32 [new]) of each step, where they are kept.
    failed: its policy did, in a launched step; whether the request had stopped before, the device knows.
    number: order of submission, which is also the order of precedence.
    """

    number: int
    prompt: list[int]
    params: SamplingParams
    output: RequestOutput
    budget: int
    seed: int
    end_ids: tuple[int, ...]
    detokenizer: Detokenizer | None = None
    row: int | None = None
    cursor: int = 0
    decoded: int = 0
    replay_until: int = 0
    evictions: int = 0
    fruitless: int = 0
    saved: Saved | None = None
    finished: bool = False
    failed: bool = False
    logits: list[Tensor] = field(default_factory=list)
    recorded: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    entered: int = 0

    @property
    def id(self) -> str:
        return self.output.request_id

    @property
    def held_row(self) -> int:
        """The row of a request that is running."""
        assert self.row is not None
        return self.row

    @property
    def total(self) -> int:
        """The most tokens whose keys and values it will ever have."""
        return len(self.prompt) + self.params.max_tokens - 1

    @property
    def prefilling(self) -> bool:
        return self.cursor < len(self.prompt) or self.cursor < self.replay_until

    @property
    def launched_all(self) -> bool:
        """Every step that the request can need is launched."""
        return self.decoded >= self.params.max_tokens - 1 and not self.prefilling

    @property
    def replaying(self) -> bool:
        return self.cursor < self.replay_until

    def chunk_end(self, config: EngineConfig) -> int:
        """Where the next chunk ends. Borders depend on the prompt and the options alone, never on the neighbors."""
        prompt, start = len(self.prompt), self.cursor
        if start < prompt:
            return min((start // config.chunk + 1) * config.chunk, prompt)
        # Recomputing generated tokens: not beyond the next eviction, so that no more tokens are held than the first time.
        stride = min(config.evict.every or config.chunk, config.chunk)
        return min(prompt + ((start - prompt) // stride + 1) * stride, self.replay_until)

    def tokens(self, first: int, last: int) -> list[int]:
        """Token ids at positions first .. last - 1."""
        prompt = len(self.prompt)
        return self.prompt[first:last] + self.output.token_ids[max(0, first - prompt) : max(0, last - prompt)]
