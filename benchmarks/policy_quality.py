"""What each policy costs in quality on real text, and what its victims leave held: every bundled policy x budgets, one table.

    python benchmarks/policy_quality.py [--model smollm2] [--ctx 384] [--items 6] [--tokens 32] [--budgets 0.1 0.25 0.5] [--out FILE]
    python benchmarks/policy_quality.py --table FILE    the table of a file, as Markdown

Texts: windows of the bundled book; NLL of the true continuation, KL and top-1 agreement against the full cache. Needles: a fact in such a
window, asked for at its end (query-aware); NLL of the answer, and whether every token of it is the model's first choice. Needles that the
full cache itself fails are dropped and counted. One engine serves all items of a policy and budget under `vtoken`. Blocks a request:
`naive` from the victims at the prompt's end (blocks with a live token), `vtoken` and the ideal as measured over the decode steps.
95 % intervals: bootstrap over items, 2,000 draws. The file is written after each policy, and what is in it is not run again.
A small model does not speak for large ones.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from vtoken_sdk.needle import needles
from vtoken_sdk.quality import FullCache, compare
from vtoken_sdk.registry import available_policies, load_policy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, RequestOutput, SamplingParams, look_ahead
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import text

ROOT = Path(__file__).resolve().parent.parent
SIZE, EVERY, DRAWS = 16, 16, 2000


class Items:
    """Texts and needles, with the full cache's logits of each."""

    def __init__(self, model: LoadedModel, args: argparse.Namespace) -> None:
        self.model, full = model, FullCache(model)
        texts = text(model, requests=args.items, ctx=args.ctx, output_tokens=args.tokens, seed=args.seed)
        assert texts.continuations is not None
        self.texts = list(zip(texts.prompts, texts.continuations, strict=True))
        self.full_texts = [full.logits(*item) for item in self.texts]
        found = needles(model, items=args.items, ctx=args.ctx, seed=args.seed)
        judged = [(n, full.logits(n.prompt, n.forced)) for n in found]
        kept = [(n, logits) for n, logits in judged if correct(logits[n.answer :], n.forced[n.answer :])]
        self.needles = [n for n, _ in kept]
        self.failed_by_full = len(found) - len(kept)
        self.full_needle_nll = [nll(logits[n.answer :], n.forced[n.answer :]) for n, logits in kept]

    def run(self, name: str, budget: float, args: argparse.Namespace) -> dict[str, Any]:
        # Needles first: their answers are short, so that the last steps are the texts' alone.
        prompts = [n.prompt for n in self.needles] + [p for p, _ in self.texts]
        params = [SamplingParams(forced=tuple(ids), logits=True) for ids in [n.forced for n in self.needles] + [c for _, c in self.texts]]
        blocks = len(prompts) * (-(-(args.ctx + args.tokens) // SIZE) + 2)
        config = EngineConfig(pool_blocks=blocks, budget=budget, evict=EvictOptions("end", EVERY), max_running=len(prompts), chunk=args.ctx)
        policy = load_policy(name)
        engine = Engine(self.model, config, policy)
        if engine.reads_future:
            params = look_ahead(self.model, config, prompts, params)
        names = [engine.add_request(p, q) for p, q in zip(prompts, params, strict=True)]
        began, records = time.perf_counter(), list(engine.run())
        seconds = time.perf_counter() - began
        outputs = [engine.outputs[n] for n in names]
        asked, texts = outputs[: len(self.needles)], outputs[len(self.needles) :]
        scores = [
            compare(full, logits_of(output), torch.tensor(ids)).mean(1).tolist()
            for (_, ids), full, output in zip(self.texts, self.full_texts, texts, strict=True)
        ]
        answers = [(logits_of(o)[n.answer :], n.forced[n.answer :]) for n, o in zip(self.needles, asked, strict=True)]
        settled = [r for r in records if r.decode_tokens == len(self.texts) and not r.prefill_tokens]
        return {
            "policy": name,
            "budget": budget,
            "nll": interval([s[0] for s in scores]),
            "nll_full": interval([s[1] for s in scores]),
            "kl": interval([s[2] for s in scores]),
            "top1": interval([s[3] for s in scores]),
            "needle_nll": interval([nll(*a) for a in answers]),
            "needle_nll_full": interval(self.full_needle_nll),
            "needle_accuracy": interval([float(correct(*a)) for a in answers]),
            "needles": len(answers),
            "needles_failed_by_full": self.failed_by_full,
            "blocks_native": -(-args.ctx // SIZE),
            "blocks_naive": statistics.fmean(naive_blocks(o) for o in texts),
            "blocks_vtoken": statistics.fmean(r.blocks_held / r.running for r in settled),
            "blocks_ideal": statistics.fmean(r.blocks_ideal / r.running for r in settled),
            "seconds": round(seconds, 1),
        }


def logits_of(output: RequestOutput) -> torch.Tensor:
    assert output.logits is not None, output.error
    return output.logits.cpu()


def correct(logits: torch.Tensor, answer: Sequence[int]) -> bool:
    return logits.argmax(-1).tolist() == list(answer)


def nll(logits: torch.Tensor, answer: Sequence[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits.double(), torch.tensor(answer)))


def naive_blocks(output: RequestOutput) -> int:
    """Blocks with a live token after the eviction at the prompt's end."""
    dead = {t for e in output.evictions if e.length <= output.prompt_tokens for t in e.ids}
    return len({t // SIZE for t in range(output.prompt_tokens) if t not in dead})


def interval(values: Sequence[float]) -> list[float]:
    """[mean, low, high]: a 95 % bootstrap interval over the items."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(DRAWS)) if values else [float("nan")]
    return [statistics.fmean(values) if values else float("nan"), means[int(0.025 * len(means))], means[int(0.975 * len(means)) - 1]]


def as_markdown(known: dict[str, Any]) -> str:
    """One row a policy and budget, by budget and then by KL; means with their intervals."""
    head = ("budget", "policy", "KL", "top-1", "NLL", "needle NLL", "needles found", "naive", "vtoken", "ideal")
    lines = [" | ".join(("", *head, "")).strip(), "|" + " --- |" * len(head)]
    for row in sorted(known["rows"], key=lambda r: (r["budget"], r["kl"][0])):
        figures = [_with_interval(row[name], digits) for name, digits in (("kl", 3), ("top1", 2), ("nll", 2), ("needle_nll", 2))]
        blocks = [f"{row[f'blocks_{name}']:.1f}" for name in ("naive", "vtoken", "ideal")]
        found = f"{round(row['needle_accuracy'][0] * row['needles'])} of {row['needles']}"
        lines.append(" | ".join(("", f"{row['budget']:g}", f"`{row['policy']}`", *figures, found, *blocks, "")).strip())
    setup, full = known["setup"], known["rows"][0]
    where = f"{setup['dtype'].removeprefix('torch.')} on {setup['device']}, {known['date'][:10]}, commit {known['commit']}"
    sizes = f"{setup['items']} texts of {setup['ctx']} tokens, {setup['tokens']} tokens judged in each"
    found = f"{full['needles']} needles that the full cache finds ({full['needles_failed_by_full']} more it does not)"
    base = f"NLL {full['nll_full'][0]:.2f}, needle NLL {full['needle_nll_full'][0]:.2f}, {full['blocks_native']} blocks a request"
    lines += [
        "",
        f"{setup['model']}, {setup['weights']} weights, {where}: {sizes}; {found}. Full cache: {base}. "
        "In brackets: 95 % bootstrap intervals over the items.",
    ]
    return "\n".join(lines) + "\n"


def _with_interval(values: Sequence[float], digits: int) -> str:
    mean, low, high = (f"{value:.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ctx", type=int, default=384)
    parser.add_argument("--items", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--policies", nargs="+", default=sorted(available_policies()))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "policy_quality.json")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of FILE and stop")
    args = parser.parse_args()
    if args.table is not None:
        print(as_markdown(json.loads(args.table.read_text())), end="")
        return
    model = load_model(args.model, device=args.device)
    setup = {key: getattr(args, key) for key in ("model", "ctx", "items", "tokens", "seed")}
    setup |= {"weights": model.weights, "dtype": str(model.dtype), "device": model.device.type, "evict.every": EVERY, "block_size": SIZE}
    known = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows = known["rows"] if known.get("setup") == setup else []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    items = Items(model, args)
    for name in args.policies:
        for budget in args.budgets:
            if any(r["policy"] == name and r["budget"] == budget for r in rows):
                continue
            rows.append(row := items.run(name, budget, args))
            print(f"{name:<20} {budget:<5} KL {row['kl'][0]:.3f}  needle {row['needle_accuracy'][0]:.2f}  {row['seconds']} s", flush=True)
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit, "versions": versions}
        args.out.write_text(json.dumps({"setup": setup, **facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
