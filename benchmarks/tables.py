"""Rebuilds the tables of README.md and docs/gpu.md from benchmarks/results.

    python benchmarks/tables.py [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. With --check nothing is written, and exit code 1 says that a page is old.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "gpu.md")
PEERS_ON = "NVIDIA H200"
PAPER = {5427: (5, 8), 11519: (11, 22)}  # blocks: requests at once without and with reclaiming


def results(name: str) -> dict[str, Any]:
    whole = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    device = whole.get("provenance", {}).get("device", PEERS_ON)
    if name.endswith("_h200") and device != PEERS_ON:
        sys.exit(f"{name}.json is of {device}; the peers beside it were measured on {PEERS_ON}: measure them there, too (peer_*.py)")
    found: dict[str, Any] = whole["results"]
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def steps() -> str:
    ours, h2o, peer = results("decode_steps_native_h200"), results("decode_steps_h2o_h200"), results("peers_h200")["decode"]
    rows = []
    for shape, theirs in peer.items():
        native, other = ours[shape]["median_ms"], h2o.get(shape)
        row = [shape.replace("x", " x "), f"{theirs['step_ms']:.2f}", f"{native:.2f}", f"{theirs['step_ms'] / native:.2f}"]
        rows.append([*row, *([f"{other['median_ms']:.2f}", f"{other['median_ms'] / native - 1:+.1%}"] if other else ["-", "-"])])
    return table(["requests x live tokens", "vLLM 0.23.0, ms", "native, ms", "speed", "h2o, ms", "over native"], rows)


def pools() -> str:
    peer, rows = results("peers_h200")["pools"], []
    for blocks, requests, output in ((5427, 16, 256), (11519, 22, 256), (11519, 22, 2048)):
        theirs = peer[f"blocks{blocks}_C{requests}_out{output}"]["output_tok_s"]
        before, after = PAPER[blocks]
        for case, made in results(f"pool_{blocks}_{output}_h200").items():
            paper = str(before if case == "native" else after)
            speed = [f"{made['output_tok_s']:.0f}", f"{made['output_tok_s'] / theirs:.2f}"]
            name = case.replace("vtoken:", "").replace(" 0.5", "")
            rows.append([f"{blocks:,}", f"{output:,}", name, str(made["capacity"]), paper, *speed, f"{made['itl_ms_p95']:.0f}"])
        rows.append([f"{blocks:,}", f"{output:,}", "vLLM 0.23.0", "", "", f"{theirs:.0f}", "1.00", ""])
    return table(["blocks", "tokens out", "", "requests at once", "paper", "output tok/s", "x vLLM", "ITL p95, ms"], rows)


def attention() -> str:
    ours, peer = results("kernel_times_h200")["decode"], results("peers_h200")["fa3"]
    rows = []
    for shape, made in ours.items():
        theirs = peer[f"{shape}_page1"]["us"], peer[f"{shape}_page16"]["us"]
        figures = [made["floor_us"], *theirs, made["us"], made["with_mass_us"]]
        rows.append([shape.replace("x", " x "), *(f"{x:.0f}" for x in figures)])
    return table(["requests x tokens", "floor", "FA3, page 1", "FA3, page 16", "ours", "ours, with attention mass"], rows)


def chunk() -> str:
    keys = ("attend_ms", "attend_tflops", "mass_ms", "mass_tflops")
    rows = [
        [name, *(f"{made[k]:{'.2f' if k.endswith('ms') else '.0f'}}" for k in keys)]
        for name, made in results("kernel_times_h200")["chunk"].items()
    ]
    return table(["queries of tokens", "attention, ms", "TFLOP/s", "its mass, ms", "TFLOP/s"], rows)


def moves() -> str:
    made = results("kernel_times_h200")["moves"]
    return table(["tokens", "of the copy's bandwidth"], [[f"{int(n):,}", f"{x['share_of_copy']:.3f}"] for n, x in made.items()])


def host() -> str:
    rows = []
    for name, made in results("host_time_h200").items():
        parts = [made[k] for k in ("policy_us", "table_us", "plan_us", "table_policy_planner_us")]
        rows.append([name, *(f"{x:.0f}" for x in parts), str(made.get("nodes", "-"))])
    return table(["", "policy", "table", "planner", "together", "nodes of the decode graph"], rows)


def reclaim() -> str:
    rows = []
    for name, made in results("sustained_reclaim_h200").items():
        over = made["over_off"]
        keys = ("mean_ms", "p95_ms", "p99_ms")
        rows.append([name, *(f"{made[k]:.2f}" + (f" ({over[k]:+.1%})" if over else "") for k in keys)])
    return table(["tokens moved a step", "mean, ms", "p95, ms", "p99, ms"], rows)


def prefill() -> str:
    peer, native, mass = results("peers_h200")["prefill"], results("prefill_native_h200"), results("prefill_h2o_h200")
    rows = []
    for shape, theirs in peer.items():
        row = [shape.replace("x", " x "), f"{theirs['seconds']:.2f}"]
        for made in (native.get(shape), mass.get(shape)):
            row += [f"{made['prefill_s']:.2f}", f"{made['prefill_s'] / theirs['seconds']:.2f}"] if made else ["-", "-"]
        rows.append(row)
    return table(["prompts x tokens", "vLLM 0.23.0, s", "native, s", "x vLLM", "with attention mass, s", "x vLLM"], rows)


def runtimes() -> str:
    rows = []
    for case, made in results("five_runtimes_h200").items():
        name, _, budget = case.partition(" ")
        runtime, _, policy = name.partition(":")
        figures = [f"{made[k]:,.1f}" for k in ("output_tok_s", "itl_ms_p50", "itl_ms_p95", "blocks_held")]
        rows.append([policy or "-", budget or "-", runtime, str(made["concurrency"]), *figures, f"{made['waste']:.1%}",
                     f"{made['bytes_moved'] / 1e9:.2f}"])  # fmt: skip
    shown = ["requests at once", "output tok/s", "ITL p50, ms", "ITL p95, ms", "blocks held", "waste", "GB moved"]
    return table(["policy", "budget", "runtime", *shown], rows)


def offload() -> str:
    rows = [[name, f"{made['ms']:,.1f}", f"{made['GB_s']:.1f}"] for name, made in results("offload_h200").items()]
    return table(["", "ms", "GB/s"], rows)


PAPER_MODELS = ("mistral-7b", "llama-3.1-8b")
UNITS = {"%": ("{:+.1f}", " %"), "requests": ("{:.0f}", ""), "times": ("{:.2f}", " x")}


def paper() -> str:
    """Each figure that the paper gives beside what its experiment measured."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for experiment in ("memory", "capacity", "throughput", "chunks", "overhead"):
        for model in PAPER_MODELS:
            if not (RESULTS / f"experiment_{experiment}_{model}_h200.json").exists():
                continue
            for one in results(f"experiment_{experiment}_{model}_h200"):
                if one["paper"] is not None:
                    found.setdefault((one["metric"], one["setting"]), {})[model] = one
    rows = []
    for (metric, setting), by_model in found.items():
        cells = [_measured(by_model.get(model)) for model in PAPER_MODELS]
        rows.append([metric, setting, " / ".join(dict.fromkeys(_range(one) for one in by_model.values())), *cells])
    return table(["", "", "paper", "Mistral-7B's shape, 5,427 blocks", "Llama-3.1-8B's shape, 11,519 blocks"], rows)


def _measured(one: dict[str, Any] | None) -> str:
    if one is None:
        return "not run"
    form, unit = UNITS[one["unit"]]
    if one["metric"].startswith("throughput") and one["measured"] == -100:
        return f"none within it ({one['verdict']})"
    return f"{form.format(one['measured'])}{unit} ({one['verdict']})"


def _range(one: dict[str, Any]) -> str:
    form, unit = UNITS[one["unit"]]
    low, high = one["paper"]
    if low is None:
        return f"under {form.format(high).lstrip('+')}{unit}"
    return f"{form.format(low)}{unit}" if low == high else f"{form.format(low)} to {form.format(high)}{unit}"


TABLES: dict[str, Callable[[], str]] = {
    "steps": steps, "pools": pools, "attention": attention, "chunk": chunk, "moves": moves, "host": host, "reclaim": reclaim,
    "prefill": prefill, "runtimes": runtimes, "offload": offload, "paper": paper,
}  # fmt: skip


def rebuilt(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> int:
    old = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if rebuilt(text) != text:
            old.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(rebuilt(text), encoding="utf-8")
    print("rebuilt:" if "--check" not in sys.argv else "old:", ", ".join(old) or "nothing")
    return int("--check" in sys.argv and bool(old))


if __name__ == "__main__":
    sys.exit(main())
