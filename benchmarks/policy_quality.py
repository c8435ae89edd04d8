"""What each policy costs in quality on real text, and what its victims leave held: every bundled policy x budgets, one table.

    python benchmarks/policy_quality.py [--model smollm2] [--ctx 256] [--seeds 0 1 2 ...] [--items 1] [--budgets 0.1 0.25 0.5] [--out FILE]
    python benchmarks/policy_quality.py --table FILE    the table of a file, as Markdown

Each seed has texts and needles of its own, and its requests have seeds of their own. Texts: windows of the bundled book; NLL of the true
continuation, KL and top-1 agreement against the full cache. Needles: a fact in such a window, asked for at its end (query-aware); NLL of
the answer, and whether every token of it is the model's first choice. Needles that the full cache itself fails are dropped and counted.
One engine serves all items of a policy and budget under `vtoken`. Blocks a request: `naive` from the victims at the prompt's end (blocks
with a live token), `vtoken` and the ideal as measured over the decode steps.

The file has one value a seed: the mean over its items. 95 % intervals: bootstrap over the seeds, 2,000 draws, the same for all policies,
so that differences are paired. With few seeds such intervals are too narrow. The file is written after each policy, and what is in it is
not run again. A small model does not speak for large ones.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from vtoken_sdk.bootstrap import interval
from vtoken_sdk.quality import FullCache, Item, compare, needles
from vtoken_sdk.registry import available_policies, load_policy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, RequestOutput, SamplingParams, look_ahead
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import text

ROOT = Path(__file__).resolve().parent.parent
SIZE, EVERY = 16, 16
BASE = "streaming_llm"  # the cheapest policy that works: whoever reads more should do better


class Items:
    """Texts and needles of all seeds, with the full cache's logits of each. `text_seeds`, `needle_seeds`: the seed of each."""

    def __init__(self, model: LoadedModel, args: argparse.Namespace) -> None:
        self.model, self.seeds, full = model, args.seeds, FullCache(model)
        self.texts: list[tuple[list[int], list[int]]] = []
        self.needles: list[Item] = []
        self.text_seeds: list[int] = []
        self.needle_seeds: list[int] = []
        self.failed_by_full = 0
        for seed in args.seeds:
            texts = text(model, requests=args.items, ctx=args.ctx, output_tokens=args.tokens, seed=seed)
            assert texts.continuations is not None
            self.texts += zip(texts.prompts, texts.continuations, strict=True)
            self.text_seeds += [seed] * args.items
            found = needles(model, items=args.items, ctx=args.ctx, seed=seed)
            kept = [n for n in found if correct(full.logits(n.prompt, n.forced)[n.answer :], n.wanted)]
            self.needles += kept
            self.needle_seeds += [seed] * len(kept)
            self.failed_by_full += len(found) - len(kept)
        if lost := set(args.seeds) - set(self.needle_seeds):
            raise SystemExit(f"the full cache fails all needles of seed {min(lost)}: take another seed, or more --items")
        self.full_texts = [full.logits(*item) for item in self.texts]
        self.full_needle_nll = [nll(full.logits(n.prompt, n.forced)[n.answer :], n.wanted) for n in self.needles]

    def run(self, name: str, budget: float, args: argparse.Namespace) -> dict[str, Any]:
        # Needles first: their answers are short, so that the last steps are the texts' alone.
        prompts = [n.prompt for n in self.needles] + [p for p, _ in self.texts]
        forced = [n.forced for n in self.needles] + [c for _, c in self.texts]
        seeds = self.needle_seeds + self.text_seeds
        params = [
            SamplingParams(forced=tuple(ids), logits=True, seed=(seed << 32) + i)
            for i, (ids, seed) in enumerate(zip(forced, seeds, strict=True))
        ]
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
        answers = [(logits_of(o)[n.answer :], n.wanted) for n, o in zip(self.needles, asked, strict=True)]
        settled = [r for r in records if r.decode_tokens == len(self.texts) and not r.prefill_tokens]
        of_texts = {key: self.by_seed([s[i] for s in scores], self.text_seeds) for i, key in enumerate(("nll", "nll_full", "kl", "top1"))}
        of_needles = {
            "needle_nll": [nll(*a) for a in answers],
            "needle_nll_full": self.full_needle_nll,
            "needle_accuracy": [float(correct(*a)) for a in answers],
        }
        return {
            "policy": name,
            "budget": budget,
            **of_texts,
            **{key: self.by_seed(values, self.needle_seeds) for key, values in of_needles.items()},
            "needles": [self.needle_seeds.count(seed) for seed in self.seeds],
            "needles_failed_by_full": self.failed_by_full,
            "blocks_native": -(-args.ctx // SIZE),
            "blocks_naive": self.by_seed([float(naive_blocks(o)) for o in texts], self.text_seeds),
            "blocks_vtoken": statistics.fmean(r.blocks_held / r.running for r in settled),
            "blocks_ideal": statistics.fmean(r.blocks_ideal / r.running for r in settled),
            "seconds": round(seconds, 1),
        }

    def by_seed(self, values: Sequence[float], seeds: Sequence[int]) -> list[float]:
        """The mean over each seed's items."""
        return [statistics.fmean(v for v, s in zip(values, seeds, strict=True) if s == seed) for seed in self.seeds]


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


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, low, high of one value a seed: a 95 % bootstrap interval over the seeds. The same seeds are drawn for all figures."""
    found = interval({seed: [value] for seed, value in enumerate(values)})
    low, high = (found.mean if bound is None else bound for bound in (found.low, found.high))
    return found.mean, low, high


def as_markdown(known: dict[str, Any]) -> str:
    """One row a policy and budget, by budget and then by KL; means over the seeds with their intervals."""
    costs = ("KL", f"KL above `{BASE}`", "top-1", "NLL above full", "needle NLL", "needles found")
    head = ("budget", "policy", *costs, "naive", "vtoken", "ideal")
    lines = [" | ".join(("", *head, "")).strip(), "|" + " --- |" * len(head)]
    base = {row["budget"]: row["kl"] for row in known["rows"] if row["policy"] == BASE}
    for row in sorted(known["rows"], key=lambda r: (r["budget"], statistics.fmean(r["kl"]))):
        figures = [
            _with_interval(row["kl"], 3),
            _with_interval(_less(row["kl"], base[row["budget"]]), 3) if base else "-",
            _with_interval(row["top1"], 2),
            _with_interval(_less(row["nll"], row["nll_full"]), 2),
            _with_interval(row["needle_nll"], 2),
            _with_interval(row["needle_accuracy"], 2),
        ]
        blocks = [f"{statistics.fmean(row['blocks_naive']):.1f}", *(f"{row[f'blocks_{name}']:.1f}" for name in ("vtoken", "ideal"))]
        lines.append(" | ".join(("", f"{row['budget']:g}", f"`{row['policy']}`", *figures, *blocks, "")).strip())
    setup, full = known["setup"], known["rows"][0]
    where = f"{setup['dtype'].removeprefix('torch.')} on {setup['device']}, {known['date'][:10]}, commit {known['commit']}"
    each = f"{setup['items']} text{'s' * (setup['items'] > 1)} of {setup['ctx']} tokens ({setup['tokens']} tokens judged)"
    sizes = f"{len(setup['seeds'])} seeds, each with {each} and {setup['items']} needle{'s' * (setup['items'] > 1)}"
    found = f"{sum(full['needles'])} needles that the full cache finds ({full['needles_failed_by_full']} more it does not)"
    nlls = "NLL {:.2f}, needle NLL {:.2f}".format(*(statistics.fmean(full[name]) for name in ("nll_full", "needle_nll_full")))
    lines += [
        "",
        f"{setup['model']}, {setup['weights']} weights, {where}: {sizes}; {found}. "
        f"Full cache: {nlls}, {full['blocks_native']} blocks a request. In brackets: 95 % bootstrap intervals over the seeds, "
        f"which are the same for all policies; {len(setup['seeds'])} seeds are few, and such intervals too narrow.",
    ]
    return "\n".join(lines) + "\n"


def _less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]


def _with_interval(values: Sequence[float], digits: int) -> str:
    mean, low, high = (f"{round(value, digits) + 0.0:.{digits}f}" for value in over_seeds(values))  # no -0.00
    return f"{mean} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--items", type=int, default=1, help="texts of a seed, and needles of a seed")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--policies", nargs="+", default=sorted(available_policies()))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "policy_quality.json")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of FILE and stop")
    args = parser.parse_args()
    if args.table is not None:
        print(as_markdown(json.loads(args.table.read_text())), end="")
        return
    model = load_model(args.model, device=args.device)
    setup = {key: getattr(args, key) for key in ("model", "ctx", "seeds", "items", "tokens")}
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
            kl, found = statistics.fmean(row["kl"]), statistics.fmean(row["needle_accuracy"])
            print(f"{name:<20} {budget:<5} KL {kl:.3f}  needle {found:.2f}  {row['seconds']} s", flush=True)
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit, "versions": versions}
        args.out.write_text(json.dumps({"setup": setup, **facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
