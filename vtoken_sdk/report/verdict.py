"""What a run says, in sentences, and what a reader must know before quoting it."""

from __future__ import annotations

from collections.abc import Sequence

from .compare import LOAD_KEYS, Row, baseline, grouped, label, varying
from .figures import held_ratio


def verdict(rows: Sequence[Row]) -> list[str]:
    """What the run says, in sentences: one for each load, policy and budget, then whether the runtimes agreed."""
    done = [r for r in rows if r["status"] == "done"]
    keys = [k for k in varying(rows) if k in (*LOAD_KEYS, "policy", "option", "budget")] or ["policy", "budget"]
    sentences = []
    for group in grouped(r for r in done if r["runtime"] != "native"):
        by_name = {r["runtime"]: r for r in group}
        shown = [name for name in ("naive", "vtoken") if name in by_name] or list(by_name)[:2]
        ratios = {name: ratio for name in shown if (ratio := held_ratio(by_name[name])) is not None}
        if not ratios:
            continue
        holds = " and ".join(f"{name} {'holds ' * (i == 0)}{ratio:.2f}" for i, (name, ratio) in enumerate(ratios.items()))
        best, fit = by_name[shown[-1]], ""
        base = baseline(best, done)
        if base and best["admits_5427"] and base["admits_5427"] and best["admits_5427"] != base["admits_5427"]:
            fit = f"; 5,427 blocks admit {best['admits_5427']} such requests under {best['runtime']}, {base['admits_5427']} under native"
        sentences.append(f"{label(best, keys)}: {holds} times the blocks that the live tokens need{fit}.")
    return sentences + agreement(done)


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
        notes.append("CPU timing: compare ratios only")
    return notes
