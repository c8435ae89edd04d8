"""Writes docs/policies/: a page for each bundled policy, made of its docstring, its options and the measured cost, and a table of all.

python docs/make_pages.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.registry import GROUP, available_policies, load_policy_class

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "policies"
COSTS = ROOT / "benchmarks" / "results" / "policy_cost_cpu.json"

HEADINGS = {
    "Definition": "Definition",
    "Acts": "When it acts",
    "Reads": "What it reads",
    "Folding": "How heads and layers are folded",
    "Fidelity": "How it differs from its paper",
    "Options": "Options",
}
NOTICE = "<!-- Made by docs/make_pages.py from the policy's docstring: change that, and run it again. -->"
GROUPS = """At token granularity, the only one so far, a token lives or dies in all layers and heads at once. Where a page says *exact at
head granularity*, that is what the code computes for each KV head; at token granularity the same code decides by the mean over them."""
CALLS = """| call | ms, median | calls timed | requests | tokens of each | layers | KV heads |
| --- | --- | --- | --- | --- | --- | --- |"""


def pages() -> dict[Path, str]:
    """Path -> text of every page."""
    classes = {name: load_policy_class(name) for name, module in available_policies().items() if module == f"{GROUP}.{name}"}
    costs = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    made = {FOLDER / f"{name}.md": page(name, cls, costs) for name, cls in classes.items()}
    return made | {FOLDER / "index.md": index(classes)}


def page(name: str, cls: type[EvictionPolicy], costs: Mapping[str, Any]) -> str:
    head, parts = sections(cls)
    defaults = options(cls)
    said = [f"# {name}", NOTICE, formatted(head)]
    for part, heading in HEADINGS.items():
        heading = "How exact it is" if part == "Fidelity" and "no paper" in head.lower() else heading
        said += [f"## {heading}", formatted(capital(parts[part], defaults), defaults if part == "Options" else ())]
    if defaults:
        rows = [f"| `{key}` | `{value!r}` |" for key, value in defaults.items()]
        said.append("\n".join(["| option | default |", "| --- | --- |", *rows]))
    graphs = " On a GPU, its calls are replayed as CUDA graphs (`capturable`)." if cls.capturable else ""
    said += ["## Cost", cost(name, costs) + graphs, "## Source"]
    said.append(f"[`policies/{name}.py`](../../policies/{name}.py): {code_lines(cls)} lines of code, without comments and docstrings.")
    return "\n\n".join(said) + "\n"


def index(classes: Mapping[str, type[EvictionPolicy]]) -> str:
    rows = [
        "| policy | what it does | needs | paper | fidelity | lines of code |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, cls in classes.items():
        head, parts = sections(cls)
        title, _, does = head.partition(": ")
        paper = re.search(r"arXiv \d{4}\.\d{5}", head)
        cells = [
            f"[`{name}`]({name}.md)",
            ("**Cheats.** " if "CHEATS" in title else "") + capital(re.split(r"(?<=\.) ", does)[0]),
            ", ".join(f"`{need}`" for need in sorted(cls.needs)) or "-",
            formatted(paper.group()) if paper else "-",
            re.split(r"\W", parts["Fidelity"])[0],
            str(code_lines(cls)),
        ]
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    needs = "*needs*: what a policy declares, because the runtime has to compute or keep it. Keys and values need no declaration."
    fidelity = "*fidelity*: of the bundled code to the paper, with the details on each page."
    return "\n\n".join(["# Bundled policies", NOTICE, "\n".join(rows), f"{needs} {fidelity}", GROUPS]) + "\n"


def sections(cls: type[EvictionPolicy]) -> tuple[str, dict[str, str]]:
    """What the docstring says before its sections, and the text of each section; each in one line."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    head, *rest = re.split(rf"(?:^| )({'|'.join(HEADINGS)}): ", text)
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    if missing := HEADINGS.keys() - parts.keys():
        raise ValueError(f"the docstring of {cls.__name__} has no section {', '.join(sorted(missing))}")
    return head, parts


def options(cls: type[EvictionPolicy]) -> dict[str, object]:
    """Option -> default."""
    return {field.name: field.default for field in dataclasses.fields(cast(Any, cls)) if field.init}


def cost(name: str, costs: Mapping[str, Any]) -> str:
    """Its measured calls, or how to measure them."""
    how = f"On your machine: `vtoken-check {name} --bench`."
    calls = costs.get("policies", {}).get(name)
    if not calls:
        return f"Not measured yet. {how}"
    rows = [CALLS]
    for call in calls:
        keys = (str(call["layers"]), f"{call['kv_heads']} of {call['head_size']}") if call["layers"] else ("-", "-")
        cells = (f"`{call['method']}`", f"{call['ms']:,.2f}", str(call["calls"]), str(call["requests"]), f"{call['tokens']:,}", *keys)
        rows.append(f"| {' | '.join(cells)} |")
    threads = f"{costs['threads']} thread{'s' if costs['threads'] > 1 else ''}"
    where = f"{costs['device']}, {threads}, PyTorch {costs['torch']}, {costs['date'][:10]}; all tokens live, half of them to be evicted."
    scored = "`cache.score` calls the policy once a request and layer, so this cost grows with both. " if calls[-1]["layers"] else ""
    own = "This is the policy's own code; what the runtime spends on attention or queries for it is in the model's time."
    return "\n\n".join(["\n".join(rows), f"{where} {scored}{own} {how}"])


def code_lines(cls: type[EvictionPolicy]) -> int:
    """Lines of its file that are neither blank, comment nor docstring."""
    source = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = (line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in documented)
    return sum(1 for line in lines if line and not line.startswith("#"))


def capital(text: str, names: Collection[str] = ()) -> str:
    """With a capital at the start, unless it starts with one of these names or with code."""
    word = re.match(r"[\w.]*", text)
    plain = word is not None and "." not in word.group().rstrip(".") and word.group() not in names
    return text[0].upper() + text[1:] if plain else text


def formatted(text: str, names: Collection[str] = ()) -> str:
    """Papers as links, expressions of the interface and these names, where a comma follows, as code."""
    code = "|".join([r"\b(?:new|cache|evict)\.[a-z]+(?: = \w+)?", *(rf"\b{name}(?=,| and \w+,)" for name in names)])
    pieces = text.split("`")
    pieces[::2] = [re.sub(code, lambda found: f"`{found.group().replace(' ', '')}`", piece) for piece in pieces[::2]]
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", "`".join(pieces))


def main() -> None:
    made = pages()
    for old in set(FOLDER.glob("*.md")) - made.keys():
        old.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
