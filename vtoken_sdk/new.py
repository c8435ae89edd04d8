"""vtoken-new: a policy to start from, with its test and, if asked, a project around them. Does not import torch."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from vtoken_sdk import __version__
from vtoken_sdk.registry import available_policies

TAKEN_CLASSES = {"CacheView", "EvictionPolicy", "NewTokens", "State", "Tensor", *dir(builtins), *keyword.kwlist}
EPILOG = """examples:
  vtoken-new policy mine                 ./mine.py and ./test_mine.py
  vtoken-new policy mine --package       ./mine/, a project that others can install

exit codes: 0 written, 2 usage (nothing was written)
"""


class NewError(ValueError):
    """Nothing was written. The message names what is in the way, and the mend."""


@dataclass(frozen=True)
class Plan:
    """What to write, path -> template, and what to try next."""

    name: str
    files: dict[Path, str]
    module: str  # that the test imports
    next_steps: tuple[str, ...]


def plan_policy(name: str, folder: Path, *, package: bool) -> Plan:
    """Raises NewError if the name will not do, or if a file of it is already there."""
    check_name(name)
    if package:
        root = folder / name
        files = {
            root / "pyproject.toml": "package_pyproject.toml.j2",
            root / "README.md": "package_readme.md.j2",
            root / "src" / name / "__init__.py": "package_init.py.j2",
            root / "src" / name / "policy.py": "policy.py.j2",
            root / "tests" / f"test_{name}.py": "test_policy.py.j2",
        }
        steps: tuple[str, ...] = (
            f"cd {shlex.quote(str(root))}",
            'pip install -e ".[dev]"',
            f"vtoken-check {name}",
            "pytest",
            f"vtoken-sweep policy={name},h2o,streaming_llm ctx=2k budget=0.25 runtime=naive,vtoken",
        )
        in_the_way = [root]
    else:
        file, test = folder / f"{name}.py", folder / f"test_{name}.py"
        files = {file: "policy.py.j2", test: "test_policy.py.j2"}
        spec = str(file) if file.is_absolute() else f"./{file}"
        steps = (
            f"vtoken-check {shlex.quote(spec)}",
            *([] if importlib.util.find_spec("pytest") else ["python -m pip install pytest"]),
            f"python -m pytest {shlex.quote(str(test))}",
            shlex.join(["vtoken-sweep", f"policy={spec},h2o,streaming_llm", "ctx=2k", "budget=0.25", "runtime=naive,vtoken"]),
        )
        in_the_way = [file, test, folder / name / "__init__.py"]  # a package of this name would hide the file from its test
    for path in in_the_way:
        if path.exists() or path.is_symlink():
            raise NewError(f"{path} is already there, and nothing is overwritten; choose another name or another --dir")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise NewError(f"{name}: there is a Python module of this name, which would be imported instead; choose another name")
    return Plan(name, files, name, steps)


def check_name(name: str) -> None:
    """Raises NewError unless `name` does for a module, an entry point and, in capitals, a class."""
    if name.endswith(".py"):
        raise NewError(f"{name}: give the name alone: {name.removesuffix('.py')}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        near = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_0123456789")
        hint = f"; perhaps {near}" if near else ""
        raise NewError(f"{name!r} is no name for a policy: use a letter, then letters, digits and underscores{hint}")
    if keyword.iskeyword(name):
        raise NewError(f"{name} is a keyword of Python; choose another name")
    if name in available_policies():
        raise NewError(f"{name} is the name of a bundled or installed policy; choose another, such as my_{name}")
    if class_name(name) in TAKEN_CLASSES or name == "conftest":
        raise NewError(f"{name}: its class would be {class_name(name)}, a name that is taken; choose another, such as my_{name}")


def class_name(name: str) -> str:
    """my_policy -> MyPolicy."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def write(plan: Plan) -> None:
    """Raises NewError if a file cannot be written."""
    import jinja2

    loader = jinja2.PackageLoader("vtoken_sdk.templates", "")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    words = {
        "name": plan.name,
        "module": plan.module,
        "cls": class_name(plan.name),
        "project": plan.name.replace("_", "-").lower(),
        "version": __version__,
    }
    for path, template in plan.files.items():
        text = environment.get_template(template).render(words)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(text)
        except OSError as error:
            raise NewError(f"{path} cannot be written: {error.strerror}") from error


def main() -> None:
    """The command."""
    args = _parser().parse_args()
    try:
        plan = plan_policy(args.name, args.dir, package=args.package)
        write(plan)
    except NewError as error:
        print(f"vtoken-new: {error}", file=sys.stderr)
        sys.exit(2)
    print("Written:", *(f"  {path}" for path in plan.files), "", "Next:", *(f"  {step}" for step in plan.next_steps), sep="\n")


def _parser() -> argparse.ArgumentParser:
    about, raw = "Write a KV-eviction policy that works at once, and its test.", argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="vtoken-new", description=about, epilog=EPILOG, formatter_class=raw)
    kinds = parser.add_subparsers(metavar="policy", required=True)
    policy = kinds.add_parser("policy", help="a policy and its test", description=about, epilog=EPILOG, formatter_class=raw)
    policy.add_argument("name", metavar="NAME", help="of the module, such as mine or my_policy; the class is Mine or MyPolicy")
    policy.add_argument("--dir", type=Path, default=Path(), help="the folder to write into, made if it is not there (default: this one)")
    policy.add_argument("--package", action="store_true", help="a project of its own, with an entry point, to be installed")
    return parser


if __name__ == "__main__":
    main()
