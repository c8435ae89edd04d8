"""vtoken-replay. Imports nothing heavy before the command is understood."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.settings import KEYS, POLICY_OPTION, check_once, flatten, shipped_text
from vtoken_sdk.sweep.values import UsageError, Value

if TYPE_CHECKING:
    from vtoken_sdk.sweep.job import Job

USAGE = """vtoken-replay record FILE [KEY=VALUE ...]          run a model once with the full cache; write what a policy sees of it
vtoken-replay run FILE [KEY=VALUE[,VALUE...] ...]  replay policies over FILE without the model; every combination

  vtoken-replay record book.parquet model=smollm2 workload=text ctx=1k
  vtoken-replay run book.parquet policy=h2o,streaming_llm,./mine.py budget=0.1,0.25,0.5

Open-loop: evictions do not change what comes after, as they would in a real run. For that, use vtoken-sweep.
Policies may read attention, the norms of keys (kv.key_norms), or nothing; not queries, keys or values.

"""
RECORD_KEYS = (
    "model",
    "weights",
    "dtype",
    "device",
    "workload",
    "ctx",
    "lengths",
    "length_scale",
    "requests",
    "output_tokens",
    "chunk",
    "seed",
)
RUN_KEYS = (
    *("policy", "budget", "evict.prefill", "evict.every", "runtime", "threshold", "margin", "block_size", "seed"),
    *("reclaim.packing", "reclaim.slack", "reclaim.move_cap", "reclaim.publish_after", "reclaim.refill"),
)
DEFAULTS: dict[str, dict[str, Any]] = {"record": {"requests": 2}, "run": {"runtime": "naive,vtoken"}}


def main() -> None:
    """Exit codes: 0 good, 2 usage (nothing was written), 3 a policy failed (the others are shown)."""
    args = sys.argv[1:]
    if not args or {"-h", "--help"} & set(args):
        print(help_text(), end="")
        sys.exit(0 if args else 2)
    try:
        sys.exit(_main(args))
    except UsageError as error:
        print(f"vtoken-replay: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def help_text() -> str:
    """Usage, and the keys of each command with their comments."""
    comments = {line.split(":")[0].strip(): line.partition("#")[2].strip() for line in shipped_text().splitlines() if "#" in line}
    parts = [USAGE]
    for name, keys in (("record", RECORD_KEYS), ("run", RUN_KEYS)):
        parts.append(f"Keys of {name}:\n")
        parts += [f"  {key:<22} {comments.get(key.rpartition('.')[2], '')}\n" for key in keys]
    return "".join(parts)


def _main(args: Sequence[str]) -> int:
    command, *rest = args
    if command not in DEFAULTS:
        raise UsageError(f"{command}: use record or run{did_you_mean(command, DEFAULTS)}")
    if not rest or "=" in rest[0]:
        raise UsageError(f"{command}: name the file of the recording first, such as book.parquet")
    path, keys = Path(rest[0]), RECORD_KEYS if command == "record" else RUN_KEYS
    axes = axes_of(_options(command, rest[1:], keys))
    if command == "record":
        if many := [key for key in keys if len(axes[key]) > 1]:
            raise UsageError(f"{many[0]}: a recording has one value for it; make several recordings")
        return _record(path, {key: axes[key][0] for key in keys})
    return _run(path, axes)


def _options(command: str, words: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """Flat: what is shipped, what suits this command, what the user says. Raises UsageError."""
    from omegaconf import OmegaConf

    shipped = flatten(cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(shipped_text()))))
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = f"{POLICY_OPTION}{key.removeprefix('policy.')}" if key.startswith("policy.") else key
        if not equals:
            raise UsageError(f"{word}: not of the form KEY=VALUE")
        if key not in keys and not (command == "run" and key.startswith(POLICY_OPTION)):
            where = "vtoken-sweep has it" if key in KEYS else "unknown key"
            raise UsageError(f"{key}: {where}, not vtoken-replay {command}{did_you_mean(key, keys)}")
        check_once([*given, key])
        given[key] = {"true": True, "false": False, "null": None}.get(value.lower(), value)
    return {**shipped, **DEFAULTS[command], **given}


def _record(path: Path, options: Mapping[str, Value]) -> int:
    from vtoken_sdk.runtime import ConfigError, RequestRejected
    from vtoken_sdk.runtime.model_loader import load_model
    from vtoken_sdk.workloads import build_workload

    from .file import write_recording
    from .record import record

    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.exists():
        raise UsageError(f"{path}: there already; remove it, or name another file")
    given: Any = dict(options)
    try:
        model = load_model(given["model"], weights=given["weights"], dtype=given["dtype"], device=given["device"])
        sizes = {key: given[key] for key in ("requests", "ctx", "output_tokens", "seed", "lengths", "length_scale")}
        workload = build_workload(given["workload"], model, **sizes)
        run = record(model, workload, given["chunk"])
        write_recording(path, run)
    except (ConfigError, RequestRejected, OSError) as error:
        raise UsageError(str(error)) from error
    steps = sum(len(r.lengths) for r in run.requests)
    requests = f"{len(run.requests)} request{'s' if len(run.requests) > 1 else ''}"
    print(f"{requests}, {steps} steps, {path.stat().st_size / 1e6:.1f} MB in {path}")
    print(f"Now: vtoken-replay run {path} policy=h2o,streaming_llm budget=0.25,0.5")
    return 0


def _run(path: Path, axes: Mapping[str, list[Value]]) -> int:
    from vtoken_sdk.policy import PolicyError
    from vtoken_sdk.registry import RegistryError, load_policy
    from vtoken_sdk.runtime import ConfigError
    from vtoken_sdk.sweep.check import policy_facts
    from vtoken_sdk.sweep.plan import make_plan

    from .file import RecordingError, read_recording
    from .replay import Replay
    from .table import print_replays

    if "native" in axes["runtime"]:
        raise UsageError("runtime=native evicts nothing, so there is nothing to replay; use naive, refill, vtoken or page1")
    try:
        plan = make_plan(axes, {str(spec): policy_facts(str(spec)) for spec in axes["policy"]})
        ready = [(job, job.engine_config(), load_policy(cast(str, job.policy), job.option)) for job in plan.jobs]
        run = read_recording(path)
    except (RecordingError, RegistryError, ConfigError) as error:
        raise UsageError(str(error)) from error
    rows: list[tuple[Job, dict[str, Any]]] = []
    for job, config, policy in ready:
        try:
            rows.append((job, Replay(run, policy, config)().as_row()))
        except (PolicyError, SystemExit) as error:
            rows.append((job, {"error": str(error) if isinstance(error, PolicyError) else f"{job.policy} asked to exit ({error})"}))
    print_replays(path, run.about, rows, plan.notes)
    return 3 if any("error" in row for _, row in rows) else 0


if __name__ == "__main__":
    main()
