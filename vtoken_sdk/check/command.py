"""vtoken-check. Imports nothing heavy: help and errors of usage do not wait for torch."""

from __future__ import annotations

import argparse
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

    from vtoken_sdk.policy import EvictionPolicy

    from .factory import PolicyFactory
    from .kit import Result

EPILOG = """examples:
  vtoken-check mine.py                          a file; mine.py:Class if it has several policies
  vtoken-check h2o --option recent=0.2          a bundled or installed policy, with an option
  vtoken-check mine.py --bench                  and what it costs a step on this machine

exit codes: 0 all good, 1 some check failed, 2 usage, or a policy that cannot be loaded (nothing ran)
"""


def main() -> None:
    """The command."""
    args = _parser().parse_args()
    try:
        sys.exit(check(args.policy, args.option, bench=args.bench))
    except KeyboardInterrupt:
        sys.exit(130)


def check(spec: str, options: Sequence[str], *, bench: bool) -> int:
    """Run the kit and print; returns the exit code."""
    from vtoken_sdk.registry import RegistryError, load_policy

    try:
        given = parse_options(options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            policy = load_policy(spec, given)
    except (RegistryError, ValueError) as error:
        print(f"vtoken-check: {error}", file=sys.stderr)
        return 2
    from rich.console import Console

    from .factory import factory_of, label_of

    make = factory_of(policy)

    console = Console(highlight=False)
    console.print(f"{label_of(policy)} of {spec}", style="bold", markup=False)
    for said in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        _entry(console, "warning", "", said)
    failed = print_checks(console, make)
    if said := told_of_graphs(type(policy)):
        console.print(said, markup=False, soft_wrap=True)
    if bench:
        print_costs(console, make)
    return int(failed)


def print_checks(console: Console, make: PolicyFactory) -> bool:
    """A line for each check as it ends, one for those that a failure leaves open, and the count. Returns whether some failed."""
    from .kit import UNTOLD, run_checks

    results = []
    untold: dict[str, list[str]] = {}
    for result in run_checks(make):
        results.append(result)
        if result.message.startswith(UNTOLD):
            untold.setdefault(result.message, []).append(result.name.removeprefix("check_"))
        else:
            print_result(console, result)
    for message, names in untold.items():
        if len(names) == 1:
            _entry(console, "skipped", names[0], message)
        else:
            _entry(console, "skipped", f"{len(names)} others", f"{message}: {', '.join(names)}")
    counts = {status: sum(r.status == status for r in results) for status in ("ok", "FAILED", "skipped")}
    told = [f"{n} {status}" for status, n in counts.items() if n or status == "ok"]
    told += [f"{n} warning{'s' if n > 1 else ''}"] if (n := sum(len(r.warnings) for r in results)) else []
    console.print(f"\n{len(results)} checks: {', '.join(told)}", style="red" if counts["FAILED"] else "green", markup=False)
    return counts["FAILED"] > 0


def told_of_graphs(cls: type[EvictionPolicy]) -> str:
    """What its `capturable` means, where there is something to tell."""
    if cls.capturable:
        return "It is `capturable`: on a GPU its calls are replayed as CUDA graphs, whose first answers are compared with its own."
    if any(getattr(base, "capturable", False) for base in cls.__mro__):
        return "It is not `capturable`, though a class above it is: the promise is not inherited."
    return ""


def print_result(console: Console, result: Result) -> None:
    from .kit import promise

    _entry(console, result.status, result.name, result.message or promise(result.name))
    for message in result.warnings:
        _entry(console, "warning", "", message)


def print_costs(console: Console, make: PolicyFactory) -> None:
    import torch

    from .bench import bench, device_name
    from .faults import CheckFailed

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console.print(f"\nCost a call, median, on {device_name(device)}:", markup=False)
    try:
        costs = bench(make, device)
    except CheckFailed as error:
        console.print(f"  not measured: {error}", markup=False)
        return
    for cost in costs:
        console.print(f"  {cost.method:16} {cost.ms:9.2f} ms  {cost.shape}", markup=False, soft_wrap=True)
    for cost in costs:
        if cost.shape.layers:
            shape = f"{cost.shape.heads} KV heads of {cost.shape.size}"
            console.print(f"  Keys by cache.score ({shape}): one call a request and layer, so the cost grows with both.", soft_wrap=True)


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """["recent=0.5"] -> {"recent": 0.5}, values as in YAML. Raises ValueError."""
    import yaml  # type: ignore[import-untyped]  # it has no annotations
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    given: dict[str, Any] = {}
    for text in options:
        key, equals, _ = text.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"--option {text}: write KEY=VALUE, where KEY is a field of the policy")
        try:
            value = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ValueError(f"--option {text}: the value cannot be read as YAML") from error
        given |= cast("dict[str, Any]", value)
    return given


def _entry(console: Console, status: str, name: str, text: str) -> None:
    """One result, its text wrapped beside the names."""
    from rich.text import Text

    style = {"ok": "green", "FAILED": "bold red", "warning": "yellow"}.get(status, "dim")
    names = f"  {status:9}{name.removeprefix('check_'):15}"
    first, *rest = textwrap.wrap(text, max(40, console.width - len(names)), break_long_words=False, break_on_hyphens=False)
    console.print(Text.assemble("  ", (status, style), f"{names[2 + len(status) :]}{first}"), soft_wrap=True)
    for line in rest:
        console.print(Text(f"{'':{len(names)}}{line}"), soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vtoken-check",
        description="Hold a KV-eviction policy to the contract: budget, purity, batching, precision, devices, and a run in a real engine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "policy", metavar="PATH|NAME", help="./file.py[:Class], pkg.mod:Class, or the name of a bundled or installed policy"
    )
    parser.add_argument("--option", metavar="KEY=VALUE", action="append", default=[], help="an option of the policy; may be repeated")
    parser.add_argument("--bench", action="store_true", help="also measure sync_new_tokens and evict_token, on CUDA if there is any")
    return parser


if __name__ == "__main__":
    main()
