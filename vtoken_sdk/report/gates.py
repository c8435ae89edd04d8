"""What must hold for a comparison to be quoted. `vtoken-report --strict` fails where one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vtoken_sdk.paper import LATENCY_FACTOR as SLA

from .compare import LOAD_KEYS, Baselines, Row, grouped, label, varying
from .record import Record
from .stats import Estimate

KEPT = (0.45, 1.02)  # live tokens after the last eviction, of the budget


@dataclass(frozen=True)
class Gate:
    """state: "not judged" where the record cannot tell, which is no failure. detail: a sentence."""

    name: str
    state: Literal["passed", "failed", "not judged"]
    detail: str


def gates(rows: Sequence[Row], baselines: Baselines, record: Record) -> list[Gate]:
    done = [row for row in rows if row["status"] == "done"]
    if not done:
        return [Gate("results", "not judged", "no job is done")]
    return [
        _same(done, "victims_sha256", "same victims", "evicted"),
        _same(done, "tokens_sha256", "same text", "generated"),
        _budget(done),
        _whole_requests(done),
        _baseline(done, baselines),
        _one_origin(done, record),
        _sla(done, baselines),
    ]


def _gate(name: str, wrong: Sequence[str], right: str) -> Gate:
    shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return Gate(name, "failed", shown) if wrong else Gate(name, "passed", right)


def _same(done: Sequence[Row], column: str, name: str, did: str) -> Gate:
    """Runtimes must not change what a policy does."""
    groups = [g for g in grouped(r for r in done if r["runtime"] != "native" and not r["cut_short"]) if len({r["runtime"] for r in g}) > 1]
    if not groups:
        return Gate(name, "not judged", "no policy ran under two runtimes")
    split = [label(g[0], ("policy", "option", "budget", "seed")) for g in groups if len({r[column] for r in g}) > 1]
    return _gate(name, [f"the runtimes {did} different tokens under {where}" for where in split], f"all runtimes {did} the same tokens")


def _budget(done: Sequence[Row]) -> Gate:
    judged = [row for row in done if row["kept"] is not None]
    if not judged:
        return Gate("budget kept", "not judged", "nothing evicts")
    low, high = KEPT
    off = {label(r, ("policy", "option", "budget")): r["kept"] for r in judged if r["evictions"] and not low <= r["kept"] <= high}
    return _gate(
        "budget kept", [f"{name} keeps {kept:.2f} times its budget" for name, kept in off.items()], "every policy keeps to its budget"
    )


def _whole_requests(done: Sequence[Row]) -> Gate:
    short = [f"{row['cut_short']} in job {row['job']}" for row in done if row["cut_short"]]
    return _gate("whole requests", short, "no request was cut short by the pool")


def _baseline(done: Sequence[Row], baselines: Baselines) -> Gate:
    if not baselines.of:
        return Gate("paired baseline", "not judged", f"no {baselines.name} job is done, so nothing is compared with it")
    told = ("policy", "budget", *(key for key in varying(done) if key in LOAD_KEYS))
    without = [f"{label(row, told)} under {row['runtime']}" for row in done if row["job"] not in baselines.of]
    right = f"every job has its {baselines.name} of the same load and seed"
    wrong = [f"none for {where}" for where in dict.fromkeys(without)]
    if wrong:
        wrong.insert(0, f"run {baselines.name} under the same loads, too")
    return _gate("paired baseline", wrong, right)


def _one_origin(done: Sequence[Row], record: Record) -> Gate:
    """Figures of different code or machines do not compare."""
    wrong = []
    for key, what in (("commit", "commits"), ("device_name", "devices"), ("version_torch", "versions of torch")):
        values = {str(record.provenance(row["job"]).get(key)) for row in done}
        if len(values) > 1:
            wrong.append(f"{len(values)} {what}: {', '.join(sorted(values))}")
        if key == "commit" and any(value.endswith("+") for value in values):
            wrong.append("the code had changes that no commit has (+)")
    known = all(record.provenance(row["job"]).get("commit") for row in done)
    right = (
        "one commit, one device, one version of torch" if known else "one device, one version of torch; an installed package has no commit"
    )
    return _gate("one origin", wrong, right)


def _sla(done: Sequence[Row], baselines: Baselines) -> Gate:
    """On a CPU times are noise, and not judged."""
    name = f"p95 ITL within {SLA:g} x {baselines.name}"
    judged: dict[str, list[float]] = {}
    loads = [key for key in varying(done) if key in LOAD_KEYS and key != "seed"]  # each is judged by itself, over its seeds
    for row in done:
        base = baselines(row)
        if base is not None and row["device"] != "cpu" and row["itl_ms_p95"] and base["itl_ms_p95"]:
            where = f"{label(row, ('policy', 'option', 'budget', 'threshold', 'margin', 'setup', *loads))} under {row['runtime']}"
            judged.setdefault(where, []).append(row["itl_ms_p95"] / base["itl_ms_p95"])
    if not judged:
        return Gate(name, "not judged", "CPU timing, or nothing to compare with")
    ratios = {where: estimate for where, values in judged.items() if (estimate := Estimate.of(values))}
    over = [f"{where}: {ratio.mean:.2f}" for where, ratio in ratios.items() if ratio.mean - (ratio.half or 0.0) > SLA]
    return _gate(name, over, f"at most {max(ratio.mean for ratio in ratios.values()):.2f}, or over it by no more than chance")
