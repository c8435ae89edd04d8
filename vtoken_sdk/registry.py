"""From what a user writes after `policy=` to a policy class, and from options to an instance.

A spec is the name of a bundled or installed policy (entry points, group `vtoken_sdk.policies`), `pkg.mod:Class`,
`./file.py[:Class]`, or the bare name of a file in the current folder (`mine` for ./mine.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.nearest import did_you_mean

if TYPE_CHECKING:  # torch comes with it, and who only lists names must not wait for that
    from vtoken_sdk.policy import EvictionPolicy

GROUP = "vtoken_sdk.policies"
MEANT = " Did you mean {}?"
FORMS = "a policy's name, pkg.mod:Class, or ./file.py[:Class]"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


class RegistryError(ValueError):
    """A policy cannot be found or made. The message names the spec or the option, and the mend."""


def available_policies() -> dict[str, str]:
    """Name -> module, or module:Class, of every bundled and installed policy, sorted by name. Imports none of them."""
    return {name: sources[0] for name, sources in sorted(_installed().items())}


def load_policy_class(spec: str) -> type[EvictionPolicy]:
    """The class that `spec` names; the same class again as long as its file is unchanged. Raises RegistryError."""
    where, colon, class_name = ("", "", "")
    if isinstance(spec, str):
        where, colon, class_name = (spec, "", "") if spec.endswith(".py") or ":" not in spec else spec.rpartition(":")
    if not where or (colon and not class_name.isidentifier()):
        raise RegistryError(f"policy={spec!r}: write {FORMS}; the names are {', '.join(available_policies())}")
    if where.endswith(".py"):
        return _pick(spec, where, _load_file(spec, Path(where)), class_name)
    if "/" in where or where.startswith((".", "~")):
        raise RegistryError(f"policy={spec}: the name of a policy's file ends in .py; write {where}.py, or else {FORMS}")
    if colon:
        return _pick(spec, where, _load_module(spec, where), class_name)
    if "." in where:
        module, _, last = where.rpartition(".")
        raise RegistryError(f"policy={spec}: write {module}:{last} if {last} is a class, {where}:Class if it is a module, or else {FORMS}")
    return _load_name(spec)


def load_policy(spec: str, options: Mapping[str, object] | None = None) -> EvictionPolicy:
    """An instance with these options, whose names and types are checked before it is made. Raises RegistryError."""
    cls, options = load_policy_class(spec), dict(options or {})
    known = _options(cls)
    for key in options:
        if key not in known:
            raise RegistryError(_unknown_option(spec, str(key), list(known)))
    for name, field in known.items():
        if name not in options and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RegistryError(f"policy={spec}: its option {name} has no default; set {name}, or give it a default in {cls.__name__}")
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise RegistryError(f"policy={spec}: an annotation of {cls.__name__} cannot be read ({error}); import that name there") from error
    for key, value in options.items():
        try:
            options[key] = _fit(value, hints[key])
        except (TypeError, OverflowError) as error:
            raise RegistryError(f"policy={spec}: {key}={value!r} is of the wrong type; {key} wants {error}") from None
    try:
        return cls(**options)
    except Warning:  # a warning that was made an error is no fault of the options
        raise
    except Exception as error:
        raise RegistryError(f"policy={spec}: {error}") from error


def policy_source(cls: type) -> tuple[str, str]:
    """(path, SHA-256 of the file as it was loaded), or for an importable policy (module, SHA-256 of its file as it is now)."""
    module = sys.modules[cls.__module__]
    if (loaded := getattr(module, "__vtoken_source__", None)) is not None:
        return str(loaded[0]), str(loaded[1])
    file = getattr(module, "__file__", None)
    if not file:
        raise RegistryError(f"{cls.__name__} has no source file, so a run with it could not be repeated; put it into a file")
    return cls.__module__, hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _installed() -> dict[str, list[str]]:
    """Name -> where it may come from, the bundled one first. More than one source is a clash, for whoever asks for that name."""
    package = importlib.util.find_spec(GROUP)
    folders = package.submodule_search_locations if package else None
    found = {m.name: [f"{GROUP}.{m.name}"] for m in pkgutil.iter_modules(folders or []) if not m.name.startswith("_")}
    for point in importlib.metadata.entry_points(group=GROUP):
        sources = found.setdefault(point.name, [])
        if point.value not in sources and point.module not in sources:  # ours are listed there too, and stale metadata lists twice
            sources.append(point.value)
    return found


def _load_name(name: str) -> type[EvictionPolicy]:
    installed, local = _installed(), Path(f"{name}.py")
    if name not in installed:
        if local.is_file():
            return _pick(name, f"./{local}", _load_file(name, local), "")
        near = did_you_mean(name, [*installed, *(p.stem for p in Path().glob("*.py"))], MEANT)
        names = ", ".join(sorted(installed))
        raise RegistryError(f"policy={name}: no such policy, and no {Path.cwd() / local}.{near} The names are {names}; or write {FORMS}")
    if len(installed[name]) > 1:
        raise RegistryError(f"policy={name}: several installed policies have this name; write which one: {' or '.join(installed[name])}")
    where, _, class_name = installed[name][0].partition(":")
    module = _load_module(name, where)
    if local.is_file() and not (module.__file__ and local.samefile(module.__file__)):
        warnings.warn(f"policy={name} is the installed policy; for the file in this folder write ./{local}", UserWarning, stacklevel=3)
    return _pick(name, where, module, class_name)


def _load_module(spec: str, name: str) -> types.ModuleType:
    _also_search(Path.cwd())  # a console script's sys.path lacks it
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            message = f"policy={spec}: there is no module {error.name}, neither installed nor in {Path.cwd()}"
            raise RegistryError(message) from error
        raise _broken(spec, error, None) from error


def _load_file(spec: str, path: Path) -> types.ModuleType:
    """The file as a module named by path and content: an unchanged file gives the same module, and pickle finds its classes."""
    path = path.expanduser().resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        near = did_you_mean(path.stem, [p.stem for p in path.parent.glob("*.py")], " Did you mean {}.py?")
        raise RegistryError(f"policy={spec}: {path} cannot be read: {error.strerror}.{near}") from error
    digest = hashlib.sha256(source).hexdigest()
    name = f"vtoken_policy_{path.stem}_{hashlib.sha256(f'{path}:{digest}'.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    _also_search(path.parent)  # a policy may import what lies beside it
    module = types.ModuleType(name)
    vars(module).update(__file__=str(path), __vtoken_source__=(str(path), digest))
    sys.modules[name] = module  # dataclasses look there for the module of the class that they make
    try:
        # Not by a loader: its cached byte code passes for the file after a quick edit of equal size, and litters the user's folder.
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _broken(spec, error, path) from error
        raise
    return module


def _also_search(folder: Path) -> None:
    """Put a folder at the end of sys.path; not in front, where a user's random.py would hide the standard library's."""
    if all(Path(entry).resolve() != folder for entry in sys.path):
        sys.path.append(str(folder))
    importlib.invalidate_caches()  # a file may be younger than Python's listing of its folder


def _broken(spec: str, error: BaseException, path: Path | None) -> RegistryError:
    """The user's code failed while it was loaded: what, where, and last of all the user's own line."""
    if isinstance(error, SyntaxError) and error.filename:
        what, file, number, line = error.msg, error.filename, error.lineno, error.text
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__ and not f.filename.startswith("<frozen")]
        own = [f for f in frames if f.filename == str(path)] or frames
        what, file, number, line = str(error), *((own[-1].filename, own[-1].lineno, own[-1].line) if own else (spec, None, None))
    at = f"{file}, line {number}:\n    {(line or '').strip()}" if number else file
    return RegistryError(f"policy={spec} could not be loaded: {type(error).__name__}: {what}\n  {at}")


def _pick(spec: str, where: str, module: types.ModuleType, class_name: str) -> type[EvictionPolicy]:
    """The named class of a module, or else its only policy; `where` is the part of a spec that leads to the module."""
    from vtoken_sdk.policy import EvictionPolicy

    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    if class_name and class_name not in classes:
        near = did_you_mean(class_name, [n for n, c in classes.items() if issubclass(c, EvictionPolicy) and c is not EvictionPolicy], MEANT)
        raise RegistryError(f"policy={spec}: {where} has no class {class_name}.{near}")
    if not class_name:
        own = {n: c for n, c in classes.items() if c.__module__ == module.__name__ and not n.startswith("_")}
        policies = [n for n, c in own.items() if issubclass(c, EvictionPolicy) and not inspect.isabstract(c)]
        if len(policies) > 1:
            raise RegistryError(f"policy={spec}: {where} has several policies; write {' or '.join(f'{where}:{n}' for n in policies)}")
        found = policies or [n for n, c in own.items() if issubclass(c, EvictionPolicy) or hasattr(c, "evict_token")]
        if not found:
            raise RegistryError(f"policy={spec}: {where} has no policy: a @dataclass that subclasses vtoken_sdk.policy.EvictionPolicy")
        class_name = found[0]
    cls = classes[class_name]
    if not issubclass(cls, EvictionPolicy):
        raise RegistryError(f"policy={spec}: {class_name} is no policy; subclass vtoken_sdk.policy.EvictionPolicy")
    if inspect.isabstract(cls):
        raise RegistryError(f"policy={spec}: {class_name} is abstract; write its method {', '.join(sorted(cls.__abstractmethods__))}")
    fields = [n for n, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
    if "__dataclass_params__" not in vars(cls) and (fields or not dataclasses.is_dataclass(cls)):
        raise RegistryError(f"policy={spec}: {class_name} is not a dataclass, so it has no options; put @dataclass above the class")
    return cls


def _options(cls: type[EvictionPolicy]) -> dict[str, dataclasses.Field[typing.Any]]:
    return {f.name: f for f in dataclasses.fields(typing.cast(typing.Any, cls)) if f.init}


def _unknown_option(spec: str, key: str, known: list[str]) -> str:
    bundled = {n: source[0] for n, source in _installed().items() if source[0] == f"{GROUP}.{n}"}
    owners = [n for n, m in bundled.items() if key in _options(_pick(n, m, _load_module(n, m), ""))]
    belongs = f" {key} is an option of {', '.join(owners)}." if owners else ""
    have = f"Its options are {', '.join(known)}" if known else "It has no options"
    near = did_you_mean(key, known, MEANT)
    return f"policy={spec} has no option {key}.{near}{belongs} {have}; the run's own, such as budget, do not belong here"


def _fit(value: object, hint: typing.Any) -> object:
    """`value` as an annotation wants it: an int for a float and a list for a tuple are converted. Raises TypeError with what is wanted."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    wanted = TypeError(_WORDS.get(hint) or (hint.__name__ if isinstance(hint, type) and not args else str(hint)))
    if origin is typing.Annotated:
        return _fit(value, args[0])
    if origin is typing.Literal:
        if any(value == a and type(value) is type(a) for a in args):
            return value
        raise TypeError(f"one of {', '.join(map(str, args))}")
    if origin in (typing.Union, types.UnionType):
        if type(value) in args:
            return value
        for arg in args:
            try:
                return _fit(value, arg)
            except TypeError:
                continue
        raise wanted
    if hint is float and type(value) is int:
        return float(value)
    kind = origin if isinstance(origin, type) else hint
    if kind is tuple and isinstance(value, list):  # YAML has no tuples
        value = tuple(value)
    if isinstance(kind, type) and (not isinstance(value, kind) or (isinstance(value, bool) and kind is int)):
        raise wanted
    if kind in (list, tuple) and len(set(args) - {...}) == 1:
        return kind(_fit(v, args[0]) for v in typing.cast("list[object]", value))
    return value
