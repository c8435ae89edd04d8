"""From a spec to a policy: every way to name one, and what is said when it cannot be had."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.registry import GROUP, RegistryError, available_policies, load_policy, load_policy_class, policy_source

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "adakv",
    "expected_attention",
    "full",
    "h2o",
    "keydiff",
    "knorm",
    "lagkv",
    "oracle",
    "pyramidkv",
    "r_kv",
    "random",
    "scissorhands",
    "snapkv",
    "streaming_llm",
    "tova",
    "window",
)
BUNDLED = {name: f"vtoken_sdk.policies.{name}" for name in NAMES}
MINE = """
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class Mine(EvictionPolicy):
    near: int = 4
    share: float = 0.5
    deep: bool = False
    label: str | None = None
    mode: Literal["sum", "max"] = "sum"
    layers: tuple[int, ...] = ()
    names: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=self.near)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; what a load adds to the import path and to the modules is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def error_of(spec: object, options: dict[str, object] | None = None) -> str:
    with pytest.raises(RegistryError) as caught:
        load_policy(spec, options)  # type: ignore[arg-type]  # some specs are wrong on purpose
    return str(caught.value)


def install(site: Path, name: str, points: str) -> None:
    """An installed distribution with these entry points, as pip would leave it."""
    info = site / f"{name}-1.0.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(info / "entry_points.txt", f"[{GROUP}]\n{points}\n")
    if str(site) not in sys.path:
        sys.path.append(str(site))


class TestNames:
    def test_the_bundled_ones_are_found(self) -> None:
        assert BUNDLED.items() <= available_policies().items()
        assert list(available_policies()) == sorted(available_policies())
        assert load_policy_class("h2o") is H2O
        for name in BUNDLED:
            assert issubclass(load_policy_class(name), EvictionPolicy)

    def test_the_project_installs_the_bundled_ones_as_entry_points(self) -> None:
        points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
        bundled = {name: module for name, module in available_policies().items() if module == f"{GROUP}.{name}"}
        assert points == {name: f"{module}:{load_policy_class(name).__name__}" for name, module in bundled.items()}

    def test_listing_waits_for_no_torch_and_needs_no_installation(self, folder: Path) -> None:
        for name in ("registry.py", "nearest.py"):
            write(folder / "src" / "vtoken_sdk" / name, (ROOT / "vtoken_sdk" / name).read_text())
        write(folder / "src" / "vtoken_sdk" / "policies" / "h2o.py", "raise SystemExit('imported')")
        write(folder / "src" / "vtoken_sdk" / "policies" / "_shared.py", "")
        code = "import sys; from vtoken_sdk.registry import *; print(available_policies(), 'torch' in sys.modules)"
        out = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": "src"}, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == "{'h2o': 'vtoken_sdk.policies.h2o'} False"

    def test_an_installed_one_is_found_by_its_entry_point(self, folder: Path) -> None:
        write(folder / "site" / "cutter" / "__init__.py", "")
        write(folder / "site" / "cutter" / "policies.py", MINE)
        install(folder / "site", "cutter", "cut = cutter.policies:Mine")
        assert available_policies()["cut"] == "cutter.policies:Mine"
        cls = load_policy_class("cut")
        assert (cls.__module__, cls.__name__) == ("cutter.policies", "Mine")

    def test_our_own_entry_points_are_no_clash_and_others_are(self, folder: Path) -> None:
        install(folder / "site", "vtoken", "h2o = vtoken_sdk.policies.h2o:H2O")
        install(folder / "site", "vtoken_old", "h2o = vtoken_sdk.policies.h2o:H2O")
        assert load_policy_class("h2o") is H2O
        install(folder / "site", "rival", "h2o = rival:Other")
        assert "vtoken_sdk.policies.h2o or rival:Other" in error_of("h2o")
        assert available_policies()["h2o"] == BUNDLED["h2o"]

    @pytest.mark.parametrize(("typo", "meant"), [("h20", "h2o"), ("H2O", "h2o"), ("streaming-llm", "streaming_llm"), ("randon", "random")])
    def test_a_typo_is_answered_with_the_nearest_and_the_list(self, typo: str, meant: str) -> None:
        message = error_of(typo)
        assert message.startswith(f"policy={typo}: ")
        assert f"Did you mean {meant}?" in message
        assert all(name in message for name in BUNDLED)

    def test_a_word_like_nothing_is_answered_with_the_list(self) -> None:
        message = error_of("zzz")
        assert "Did you mean" not in message
        assert "scissorhands" in message

    @pytest.mark.parametrize("spec", ["", " ", ":", ":H2O", "h2o:", "h2o:a b", None, 3])
    def test_what_is_no_spec_is_refused_with_the_forms(self, spec: object) -> None:
        message = error_of(spec)
        assert "policy=" in message
        assert "h2o" in message or "module" in message

    def test_a_bare_name_is_a_file_of_the_current_folder(self, folder: Path) -> None:
        write(folder / "mine.py", MINE)
        assert load_policy_class("mine") is load_policy_class("./mine.py")
        assert "Did you mean mine?" in error_of("mime")

    def test_an_installed_name_wins_over_a_file_and_says_so(self, folder: Path) -> None:
        write(folder / "h2o.py", MINE)
        with pytest.warns(UserWarning, match=r"policy=h2o is the installed policy; .* write \./h2o\.py"):
            assert load_policy_class("h2o") is H2O
        assert load_policy_class("./h2o.py").__name__ == "Mine"


class TestModules:
    def test_the_current_folder_is_searched_even_by_a_console_script(self, folder: Path) -> None:
        write(folder / "lab" / "__init__.py", "")
        write(folder / "lab" / "cut.py", MINE)
        code = "from vtoken_sdk.registry import load_policy as f; p = f('lab.cut:Mine', {'near': 2}); print(p.near, type(p).__module__)"
        run = [sys.executable, "-P", "-c", code]  # as in a console script, the current folder is not on the path
        out = subprocess.run(run, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
        assert out.stdout.strip() == "2 lab.cut", out.stderr

    def test_the_current_folder_hides_nothing(self, folder: Path) -> None:
        write(folder / "colorsys.py", "raise AssertionError('not the standard library')")
        write(folder / "lab2.py", "import colorsys\n" + MINE)
        sys.modules.pop("colorsys", None)
        assert load_policy_class("lab2:Mine").__name__ == "Mine"
        assert sys.path[-1] == str(folder)

    def test_a_bundled_module_and_class(self) -> None:
        assert load_policy_class("vtoken_sdk.policies.streaming_llm:StreamingLLM") is StreamingLLM

    def test_a_missing_module_names_the_part_that_is_missing(self, folder: Path) -> None:
        write(folder / "lab3" / "__init__.py", "")
        assert f"no module lab3.cut, neither installed nor in {folder}" in error_of("lab3.cut:Mine")
        assert "no module lab4," in error_of("lab4.cut:Mine")

    def test_what_a_module_lacks_itself_is_its_own_error(self, folder: Path) -> None:
        write(folder / "lab5.py", "import os\nimport not_there_at_all\n")
        message = error_of("lab5:Mine")
        assert "ModuleNotFoundError: No module named 'not_there_at_all'" in message
        assert message.endswith(f"{folder / 'lab5.py'}, line 2:\n    import not_there_at_all")

    def test_a_missing_class_is_answered_with_the_nearest(self) -> None:
        message = error_of("vtoken_sdk.policies.h2o:H20")
        assert "vtoken_sdk.policies.h2o has no class H20. Did you mean H2O?" in message

    def test_a_module_without_class_is_told_the_form(self) -> None:
        message = error_of("vtoken_sdk.policies.h2o")
        assert "vtoken_sdk.policies:h2o" in message
        assert "vtoken_sdk.policies.h2o:Class" in message


class TestFiles:
    @pytest.mark.parametrize("spec", ["./mine.py", "mine.py", "./mine.py:Mine", "sub/../mine.py"])
    def test_a_file_by_its_path(self, folder: Path, spec: str) -> None:
        (folder / "sub").mkdir()
        write(folder / "mine.py", MINE)
        cls = load_policy_class(spec)
        assert cls.__name__ == "Mine"
        assert cls is load_policy_class(str(folder / "mine.py"))

    def test_an_unchanged_file_is_loaded_once_and_a_changed_one_anew(self, folder: Path) -> None:
        path = write(folder / "mine.py", MINE)
        old = load_policy_class("mine.py")
        write(path, MINE)
        assert load_policy_class("mine.py") is old
        write(path, MINE.replace("near: int = 4", "near: int = 5"))  # of the same size, within the same second
        new = load_policy_class("mine.py")
        assert (new().near, old().near) == (5, 4)  # type: ignore[attr-defined]  # defined in the file
        assert not list(folder.rglob("__pycache__"))

    def test_equal_files_at_two_paths_are_two_policies(self, folder: Path) -> None:
        a, b = (load_policy_class(str(write(folder / d / "mine.py", MINE))) for d in ("a", "b"))
        assert a is not b
        assert a.__module__ != b.__module__

    def test_instances_survive_pickle(self, folder: Path) -> None:
        path = write(folder / "mine.py", MINE)
        old = load_policy("mine.py", {"near": 7})
        write(path, MINE + "\n# edited\n")
        new = load_policy("mine.py", {"near": 8})
        assert [pickle.loads(pickle.dumps(p)) for p in (old, new)] == [old, new]

    def test_the_source_is_what_was_loaded(self, folder: Path) -> None:
        path = write(folder / "mine.py", MINE)
        cls = load_policy_class("mine.py")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.write_text("edited = True")
        assert policy_source(cls) == (str(path), digest)
        h2o = hashlib.sha256((ROOT / "policies" / "h2o.py").read_bytes()).hexdigest()
        assert policy_source(H2O) == ("vtoken_sdk.policies.h2o", h2o)

    def test_a_file_may_import_what_lies_beside_it(self, folder: Path) -> None:
        write(folder / "deep" / "beside_me.py", "NEAR = 9")
        path = write(folder / "deep" / "mine.py", MINE.replace("near: int = 4", "near: int = NEAR") + "\n").read_text()
        write(folder / "deep" / "mine.py", "from beside_me import NEAR\n" + path)
        assert load_policy_class("deep/mine.py")().near == 9  # type: ignore[attr-defined]  # defined in the file

    def test_a_policy_may_build_on_a_bundled_one(self, folder: Path) -> None:
        text = "from vtoken_sdk.policies.h2o import H2O\nclass Mine(H2O):\n    '''No new options, so no @dataclass is needed.'''\n"
        write(folder / "mine.py", text)
        assert load_policy("mine", {"recent": 0.25}).recent == 0.25  # type: ignore[attr-defined]  # an option of H2O

    def test_a_missing_file_is_answered_with_the_nearest(self, folder: Path) -> None:
        write(folder / "mine.py", MINE)
        assert f"{folder / 'mime.py'} cannot be read: No such file or directory. Did you mean mine.py?" in error_of("./mime.py")

    def test_a_path_without_its_ending(self) -> None:
        assert "write ./mine.py, or else" in error_of("./mine")
        assert "write lab/mine.py, or else" in error_of("lab/mine")

    BROKEN = (
        ("x = 1\ndef f(:\n    pass\n", "SyntaxError: ", 2, "def f(:"),
        ("x = 1\n    y = 2\n", "IndentationError: ", 2, "y = 2"),
        ("import os\n\nimport not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'", 3, "import not_there_at_all"),
        ("import torch\ntorch.zeros(2) + torch.zeros(3)\n", "RuntimeError: ", 2, "torch.zeros(2) + torch.zeros(3)"),
        ("def f():\n    return {}['a']\nf()\n", "KeyError: 'a'", 2, "return {}['a']"),
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye", 2, "sys.exit('bye')"),
    )

    @pytest.mark.parametrize(("text", "what", "line", "code"), BROKEN)
    def test_a_broken_file_ends_the_message_with_its_own_line(self, folder: Path, text: str, what: str, line: int, code: str) -> None:
        path = write(folder / "mine.py", text)
        with pytest.raises(RegistryError) as caught:
            load_policy_class("mine.py")
        message = str(caught.value)
        assert message.startswith(f"policy=mine.py could not be loaded: {what}")
        assert message.endswith(f"{path}, line {line}:\n    {code}")
        assert type(caught.value.__cause__).__name__ == what.partition(":")[0]
        assert not [name for name in sys.modules if name.startswith("vtoken_policy_mine")]

    def test_undeclarable_needs_name_the_class(self, folder: Path) -> None:
        write(folder / "mine.py", MINE.replace("    near: int = 4", "    needs = frozenset({'querys'})\n    near: int = 4"))
        assert "TypeError: Mine.needs has ['querys']; allowed are" in error_of("mine.py")

    def test_several_policies_are_listed_with_the_form(self, folder: Path) -> None:
        write(folder / "two.py", MINE + MINE.partition("@dataclass")[2].join(["\n@dataclass", ""]).replace("Mine", "Other"))
        for spec in ("./two.py", "two"):
            assert "write ./two.py:Mine or ./two.py:Other" in error_of(spec)
        assert load_policy_class("./two.py:Other").__name__ == "Other"

    def test_helpers_and_imports_are_no_candidates(self, folder: Path) -> None:
        head = "from abc import abstractmethod\nfrom vtoken_sdk.policies.h2o import H2O\n"
        base = "\n@dataclass\nclass _Plain(EvictionPolicy):\n    def evict_token(self, cache): ...\n"
        shape = "\n@dataclass\nclass Shape(EvictionPolicy):\n    @abstractmethod\n    def size(self): ...\n"
        write(folder / "mine.py", head + MINE + base + shape)
        assert load_policy_class("mine").__name__ == "Mine"


class TestClasses:
    def file(self, folder: Path, body: str) -> None:
        imports = "from dataclasses import dataclass\nfrom vtoken_sdk.policy import EvictionPolicy\n"
        write(folder / "mine.py", imports + textwrap.dedent(body))

    def test_no_policy_at_all(self, folder: Path) -> None:
        self.file(folder, "x = 1")
        assert "./mine.py has no policy: a @dataclass that subclasses vtoken_sdk.policy.EvictionPolicy" in error_of("./mine.py")

    def test_no_subclass(self, folder: Path) -> None:
        self.file(folder, "class Mine:\n    def evict_token(self, cache): ...")
        for spec in ("mine", "./mine.py:Mine"):
            assert "Mine is no policy; subclass vtoken_sdk.policy.EvictionPolicy" in error_of(spec)

    def test_abstract(self, folder: Path) -> None:
        self.file(folder, "@dataclass\nclass Mine(EvictionPolicy):\n    def evict_tokens(self, cache): ...")
        for spec in ("mine", "./mine.py:Mine"):
            assert "Mine is abstract; write its method evict_token" in error_of(spec)

    @pytest.mark.parametrize("base", ["EvictionPolicy", "StreamingLLM"])
    def test_no_dataclass(self, folder: Path, base: str) -> None:
        head = "from vtoken_sdk.policies.streaming_llm import StreamingLLM\n"
        self.file(folder, f"{head}class Mine({base}):\n    near: int = 4\n    def evict_token(self, cache): ...")
        assert "Mine is not a dataclass, so it has no options; put @dataclass above the class" in error_of("mine")

    def test_an_option_without_a_default(self, folder: Path) -> None:
        self.file(folder, "@dataclass\nclass Mine(EvictionPolicy):\n    near: int\n    def evict_token(self, cache): ...")
        assert "its option near has no default" in error_of("mine")
        assert load_policy("mine", {"near": 3}).near == 3  # type: ignore[attr-defined]  # defined in the file

    def test_an_annotation_that_cannot_be_read(self, folder: Path) -> None:
        body = "@dataclass\nclass Mine(EvictionPolicy):\n    near: 'Nearness' = 4\n    def evict_token(self, cache): ..."
        self.file(folder, body)
        assert "an annotation of Mine cannot be read (name 'Nearness' is not defined)" in error_of("mine")

    def test_a_class_that_lives_in_no_file(self) -> None:
        code = "from vtoken_sdk.registry import policy_source\nclass X: ...\npolicy_source(X)"
        run = [sys.executable, "-c", code]
        out = subprocess.run(run, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
        assert "RegistryError: X has no source file" in out.stderr


class TestOptions:
    GOOD: tuple[dict[str, object], ...] = (
        {},
        {"near": 0},
        {"share": 0.25},
        {"share": 1},
        {"deep": True},
        {"label": "a"},
        {"label": None},
        {"mode": "max"},
        {"layers": (1, 2)},
        {"layers": [1, 2]},
        {"names": ["a"]},
        {"weights": {"a": 1.0}},
    )

    @pytest.mark.parametrize("options", GOOD, ids=str)
    def test_options_are_set(self, folder: Path, options: dict[str, object]) -> None:
        write(folder / "mine.py", MINE)
        policy = load_policy("mine", options)
        for name, value in options.items():
            got = getattr(policy, name)
            assert got == (tuple(value) if name == "layers" else value)  # type: ignore[arg-type]  # a sequence
            assert type(got) is {"share": float, "layers": tuple}.get(name, type(value))

    WRONG = (
        ({"near": "sixty"}, "a whole number"),
        ({"near": True}, "a whole number"),
        ({"near": 4.0}, "a whole number"),
        ({"near": None}, "a whole number"),
        ({"share": "half"}, "a number"),
        ({"share": False}, "a number"),
        ({"deep": 1}, "true or false"),
        ({"deep": "yes"}, "true or false"),
        ({"label": 3}, "str | None"),
        ({"mode": "mean"}, "one of sum, max"),
        ({"layers": 3}, "tuple"),
        ({"layers": [1, "two"]}, "a whole number"),
        ({"names": "a"}, "list"),
        ({"weights": ["a"]}, "dict"),
    )

    @pytest.mark.parametrize(("options", "wanted"), WRONG, ids=str)
    def test_a_value_of_a_wrong_type_is_refused_by_name(self, folder: Path, options: dict[str, object], wanted: str) -> None:
        write(folder / "mine.py", MINE)
        ((name, value),) = options.items()
        message = error_of("mine", options)
        assert message.startswith(f"policy=mine: {name}={value!r} is of the wrong type; {name} wants ")
        assert wanted in message

    def test_an_unknown_option_is_answered_with_the_nearest(self) -> None:
        message = error_of("h2o", {"recnt": 0.5})
        assert "policy=h2o has no option recnt. Did you mean recent?" in message
        assert "Its options are recent" in message

    def test_another_policys_option_is_refused_and_named(self) -> None:
        message = error_of("h2o", {"sinks": 4})
        assert "has no option sinks" in message
        assert "sinks is an option of expected_attention, lagkv, random, streaming_llm." in message

    def test_a_key_of_the_run_is_refused_with_a_hint(self) -> None:
        for key in ("budget", "bugdet"):
            message = error_of("h2o", {key: 64})
            assert f"has no option {key}." in message
            assert "the run's own, such as budget, do not belong here" in message

    def test_a_value_that_the_policy_refuses_is_named(self) -> None:
        assert error_of("h2o", {"recent": 1.5}) == "policy=h2o: recent=1.5: use the recent window's share of the budget, 0 <= x <= 1"
        assert "sinks=-1: use a whole number >= 0" in error_of("streaming_llm", {"sinks": -1})

    def test_a_policys_warning_passes_and_may_be_an_error(self) -> None:
        with pytest.warns(UserWarning, match="sinks=0"):
            load_policy("streaming_llm", {"sinks": 0})
        with pytest.raises(UserWarning, match="sinks=0"):
            load_policy("streaming_llm", {"sinks": 0})

    def test_the_options_given_are_not_changed(self) -> None:
        options: dict[str, object] = {"recent": 1}
        load_policy("h2o", options)
        assert options == {"recent": 1}
        assert type(options["recent"]) is int
