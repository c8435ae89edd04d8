"""vtoken-new: what it writes works at once, and it writes over nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vtoken_sdk import cli, new
from vtoken_sdk.check import command

ROOT = Path(__file__).parents[1]
SWEEP = ("ctx=256", "requests=1", "output_tokens=8", "pool_blocks=64", "runtime=vtoken", "dir=out")


@dataclass
class Outcome:
    code: object
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[[Callable[[], None]], Command]:
    """Makes a command that runs in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which a policy's folder is added

    def command(main: Callable[[], None]) -> Command:
        def run(*args: str) -> Outcome:
            monkeypatch.setattr(sys, "argv", ["", *args])
            code: object = 0
            try:
                main()
            except SystemExit as end:
                code = end.code
            return Outcome(code, *capsys.readouterr())

        return run

    return command


@pytest.fixture
def vtoken_new(here: Callable[[Callable[[], None]], Command]) -> Command:
    return here(new.main)


@pytest.fixture
def vtoken_sweep(here: Callable[[Callable[[], None]], Command], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Its jobs share a fork server with those of other tests."""
    for name, value in {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    old = signal.getsignal(signal.SIGTERM)
    yield here(cli.main)
    signal.signal(signal.SIGTERM, old)


@pytest.fixture
def vtoken_check(here: Callable[[Callable[[], None]], Command]) -> Command:
    return here(command.main)


def files() -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(Path().rglob("*")) if path.is_file()}


def run(*command: str, cwd: Path | None = None) -> str:
    """A Python of this environment, as the command would be run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-P", "-m", *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_ruff_has_nothing_to_say(folder: Path, *options: str) -> None:
    """Run there, as a user does."""
    run("ruff", "check", "--no-cache", *options, cwd=folder)
    run("ruff", "format", "--check", "--no-cache", *options, cwd=folder)


def test_a_policy_works_at_once(vtoken_new: Command, vtoken_check: Command, vtoken_sweep: Command) -> None:
    done = vtoken_new("policy", "mine")
    assert (done.code, done.err) == (0, "")
    assert list(files()) == ["mine.py", "test_mine.py"]
    steps = done.out.partition("Next:\n")[2].splitlines()
    assert steps == [
        "  vtoken-check ./mine.py",
        "  python -m pytest test_mine.py",
        "  vtoken-sweep policy=./mine.py,h2o,streaming_llm ctx=2k budget=0.25 runtime=naive,vtoken",
    ]
    assert_ruff_has_nothing_to_say(Path(), "--isolated")  # its defaults, whatever lies in folders above

    done = vtoken_check("./mine.py")
    assert done.code == 0
    assert done.out.startswith("Mine of ./mine.py\n")
    assert "27 checks: 26 ok, 1 skipped" in done.out

    # Without the two checks that were just run and take longest.
    told = run("pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-k", "not engine and not device", "test_mine.py")
    assert "49 passed, 2 skipped, 4 deselected" in told

    done = vtoken_sweep("policy=./mine.py", "option.sinks=8", "budget=0.25", *SWEEP)
    assert not done.code, done
    rows = pq.read_table("out/results.parquet").to_pylist()
    assert [(row["runtime"], row["policy"], row["status"]) for row in rows] == [("vtoken", "./mine.py", "done")]
    assert rows[0]["evictions"] > 0


def test_a_project_works_once_it_is_installed(
    vtoken_new: Command, vtoken_check: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = vtoken_new("policy", "my_policy", "--package", "--dir", "work")
    assert (done.code, done.err) == (0, "")
    inside = ("README.md", "pyproject.toml", "src/my_policy/__init__.py", "src/my_policy/policy.py", "tests/test_my_policy.py")
    assert sorted(files()) == sorted(f"work/my_policy/{name}" for name in inside)
    assert "  cd work/my_policy\n" in done.out
    project = tmp_path / "work" / "my_policy"
    assert "{{" not in "".join(files().values())
    assert_ruff_has_nothing_to_say(project)
    assert_ruff_has_nothing_to_say(tmp_path)

    told = run("pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-k", "goes or budget", cwd=project)
    assert "7 passed" in told, "before it is installed"
    site = tmp_path / "site"
    run("pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), str(project))
    monkeypatch.syspath_prepend(str(site))
    done = vtoken_check("my_policy")
    assert done.code == 0
    assert done.out.startswith("MyPolicy of my_policy\n")
    assert "26 ok" in done.out


def test_nothing_is_overwritten(vtoken_new: Command) -> None:
    assert vtoken_new("policy", "mine").code == 0
    Path("other.py").write_text("mine")
    Path("test_third.py").write_text("mine")
    Path("fourth").mkdir()
    Path("fourth/__init__.py").write_text("mine")
    before = files()
    for args, what in (
        (("mine",), "mine.py"),
        (("other",), "other.py"),
        (("third",), "test_third.py"),
        (("fourth",), "fourth/__init__.py"),
        (("fourth", "--package"), "fourth"),
    ):
        done = vtoken_new("policy", *args)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"vtoken-new: {what} is already there, and nothing is overwritten; choose another name or another --dir\n"
    assert files() == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine.py", "give the name alone: mine"),
        ("my-policy", "perhaps my_policy"),
        ("3", "use a letter, then letters, digits and underscores"),
        ("", "use a letter"),
        ("_mine", "perhaps mine"),
        ("a/b", "perhaps a_b"),
        ("politik\u00e9", "perhaps politik"),
        ("class", "a keyword of Python"),
        ("none", "its class would be None"),
        ("tensor", "its class would be Tensor"),
        ("eviction_policy", "its class would be EvictionPolicy"),
        ("value_error", "its class would be ValueError"),
        ("h2o", "bundled or installed policy; choose another, such as my_h2o"),
        ("random", "bundled or installed policy"),
        ("json", "there is a Python module of this name"),
        ("torch", "there is a Python module of this name"),
        ("vtoken_sdk", "there is a Python module of this name"),
        ("conftest", "a name that is taken"),
    ],
)
def test_a_name_that_cannot_work_is_refused(vtoken_new: Command, name: str, says: str) -> None:
    done = vtoken_new("policy", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("vtoken-new: ")
    assert says in done.err
    assert files() == {}


@pytest.mark.parametrize("args", [(), ("policy",), ("polcy", "mine"), ("policy", "mine", "--packge")])
def test_usage_errors(vtoken_new: Command, args: tuple[str, ...]) -> None:
    done = vtoken_new(*args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("usage: vtoken-new")
    assert files() == {}


def test_a_folder_that_cannot_be_made_is_told(vtoken_new: Command) -> None:
    Path("file").write_text("")
    done = vtoken_new("policy", "mine", "--dir", "file/inside")
    assert done.code == 2
    assert "file/inside/mine.py cannot be written: Not a directory" in done.err


def test_paths_with_spaces_are_quoted_in_the_next_steps(vtoken_new: Command) -> None:
    done = vtoken_new("policy", "mine", "--dir", "my work")
    assert done.code == 0
    assert "  vtoken-check './my work/mine.py'\n  python -m pytest 'my work/test_mine.py'\n" in done.out


def test_where_pytest_is_missing_the_steps_begin_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    steps = new.plan_policy("mine", Path(), package=False).next_steps
    assert steps[1:3] == ("python -m pip install pytest", "python -m pytest test_mine.py")
