"""What a run says, in sentences, and what a reader must know before quoting it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from vtoken_sdk.paper import ADMITS, ADMITS_SMALLER

from .compare import LOAD_KEYS, RECLAIM_KEYS, Row, baseline, grouped, label, names_of, trimmed, varying
from .figures import held_ratio

SPELLED_OUT = 8  # groups that get a sentence each


def verdict(rows: Sequence[Row]) -> list[str]:
    """What the run says, in sentences: one for each load, policy and budget if they are few, then whether the runtimes agreed."""
    done = [r for r in trimmed(rows) if r["status"] == "done"]
    keys = [k for k in names_of(rows) if k in (*LOAD_KEYS, "policy", "option", "budget")] or ["policy", "budget"]
    groups = grouped((r for r in done if r["runtime"] != "native" and held_ratio(r) is not None), seeds=False)
    if len(groups) <= SPELLED_OUT:
        each = [f"{label(g[0], keys)}: {holds(g)} times the blocks that the live tokens need{fit(g, done)}." for g in groups]
        return [*each, *promises(done), *budgets(done), *agreement(done)]
    worst = [max((r for g in groups for r in g if r["runtime"] == name), key=_ratio, default=None) for name in ("naive", "vtoken")]
    said = holds([row for row in worst if row is not None] or groups[0])
    return [
        f"Over {len(groups)} combinations, at most: {said} times the blocks that the live tokens need.",
        *promises(done),
        *budgets(done),
        *agreement(done),
    ]


def _ratio(row: Row) -> float:
    return held_ratio(row) or 0.0


def holds(group: Sequence[Row]) -> str:
    """ "naive holds 1.98 and vtoken 1.02", means over seeds, or other runtimes where these two did not run."""
    names = dict.fromkeys(r["runtime"] for r in group)
    shown = [name for name in ("naive", "vtoken") if name in names] or list(names)[:2]
    ratios = [_over_options([r for r in group if r["runtime"] == name]) for name in shown]
    return " and ".join(f"{name} {'holds ' * (i == 0)}{ratio}" for i, (name, ratio) in enumerate(zip(shown, ratios, strict=True)))


def _over_options(rows: Sequence[Row]) -> str:
    """A runtime's mean over seeds; from the least to the most where it ran with several options of reclaiming."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(label(row, RECLAIM_KEYS), []).append(_ratio(row))
    means = sorted({f"{fmean(ratios):.2f}" for ratios in found.values()}, key=float)
    return " to ".join(dict.fromkeys((means[0], means[-1])))


def fit(group: Sequence[Row], done: Sequence[Row]) -> str:
    """What it buys: requests that the paper's smaller pool admits, where that differs from native. A workload's own may be shorter."""
    blocks, column = ADMITS[ADMITS_SMALLER], ADMITS_SMALLER
    best = max((r for r in group if r["runtime"] == "vtoken"), key=lambda r: r[column], default=group[-1])
    base = baseline(best, done)
    if base is None or best[column] == base[column]:
        return ""
    options = label(best, [key for key in varying([r for r in group if r["runtime"] == "vtoken"]) if key in RECLAIM_KEYS])
    under = f"{best['runtime']}{f' ({options})' if options else ''}"
    size = f"{best['ctx']:,} + {best['max_tokens']:,} tokens"
    return f"; {blocks:,} blocks should hold {best[column]:,} requests of {size} under {under}, {base[column]:,} under native"


def promises(done: Sequence[Row]) -> list[str]:
    """Why an estimate does not see what a run gained. A margin belongs to reclaim.packing=fresh alone."""
    if not any(r["threshold"] not in (None, 1) or r["margin"] is not None for r in done):
        return []
    return ["'fit in' counts what a runtime promises; vtoken promises blocks back at threshold=1 with reclaim.packing=fill only."]


def budgets(done: Sequence[Row]) -> list[str]:
    """Policies that did not do what was asked of them."""
    said = []
    for group in grouped((r for r in done if r["kept"] is not None), seeds=False):
        row = group[0]
        name = label(row, ["policy", "option", "budget"])
        if not row["evictions"]:
            said.append(f"{name}: nothing was evicted; the budget is no less than the requests, or the policy does not keep to it.")
        elif not 0.45 <= row["kept"] <= 1.02:
            said.append(f"Attention: {name} keeps {row['kept']:.2f} times its budget.")
    return said


def agreement(done: Sequence[Row]) -> list[str]:
    """Did the runtimes of each group evict the same tokens and generate the same ones? They must."""
    groups = [g for g in grouped(r for r in done if r["runtime"] != "native" and not r["cut_short"]) if len({r["runtime"] for r in g}) > 1]
    if not groups:
        return []
    for what, name in (("victims_sha256", "evicted"), ("tokens_sha256", "generated")):
        split = [g for g in groups if len({r[what] for r in g}) > 1]
        if split:
            row = split[0][0]
            where = label(row, ["policy", "budget"])
            return [f"Attention: the runtimes {name} different tokens ({where}): their figures do not compare."]
    return ["The runtimes evicted the same tokens and generated the same text: their figures compare."]


def caveats(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before quoting a figure."""
    notes = []
    if any(r["weights"] == "dummy" for r in rows):
        notes.append("dummy weights: random values, so nothing here says how good the text is")
    if any(r["device"] == "cpu" for r in rows):
        once = ", one run a job" if len({r["seed"] for r in rows}) == 1 else ""
        notes.append(f"CPU timing{once}: only large ratios mean anything")
    preempted = {
        name: sum(r["preemptions"] or 0 for r in rows if r["runtime"] == name) for name in dict.fromkeys(r["runtime"] for r in rows)
    }
    if any(preempted.values()):
        told = ", ".join(f"{n} under {name}" for name, n in preempted.items() if n)
        notes.append(f"requests lost their blocks to others and began again ({told}): 'at once' counts them")
    if judged := [r["judged"] for r in rows if r["judged"] is not None]:
        notes.append(f"quality is judged on {min(judged)} tokens: small differences are chance")
    if any(r[f"{suite}_items"] is not None for suite in ("needle", "needle4", "longbench") for r in rows) or judged:
        notes.append("what eviction costs a small model does not say what it costs a large one")
    if any(r["device"] == "cuda" for r in rows):
        notes.append("model, policy, table, plan and copy ms are the host's, not the device's")
    return notes
