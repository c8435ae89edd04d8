"""vtoken-check as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from vtoken_sdk.check import bench, command
from vtoken_sdk.check.kit import BY_NAME, run_check
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.knorm import KNorm


@dataclass
class Outcome:
    code: object
    out: str
    err: str


Check = Callable[..., Outcome]


@pytest.fixture
def vtoken_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Check:
    """In this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which a policy's folder is added
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["vtoken-check", *args])
        with pytest.raises(SystemExit) as end:
            command.main()
        return Outcome(end.value.code, *capsys.readouterr())

    return run


MINE = """
from dataclasses import dataclass
from vtoken_sdk import EvictionPolicy
{decorator}
class Mine(EvictionPolicy):
    {body}
    def evict_token(self, cache):
        {evict}
"""


def mine(body: str = "pass", evict: str = "return cache.evict_lowest(cache.positions)", decorator: str = "@dataclass") -> None:
    Path("mine.py").write_text(MINE.format(body=body, evict=evict, decorator=decorator))


def test_a_good_policy_gets_a_line_a_check(vtoken_check: Check) -> None:
    done = vtoken_check("h2o", "--option", "recent=0.2")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "H2O(recent=0.2) of h2o"
    assert [line.split()[:2] for line in lines[1 : 1 + len(BY_NAME)]] == [
        ["skipped" if name == "check_bf16" else "ok", name.removeprefix("check_")] for name in BY_NAME
    ]
    assert lines[-2] == f"{len(BY_NAME)} checks: {len(BY_NAME) - 1} ok, 1 skipped"
    assert lines[-1].startswith("It is `capturable`: on a GPU")
    assert "\x1b" not in done.out


def test_a_promise_that_was_not_inherited_is_told() -> None:
    class Mine(H2O):
        pass

    class Kept(H2O):
        capturable = True

    assert "the promise is not inherited" in command.told_of_graphs(Mine)
    assert command.told_of_graphs(Kept).startswith("It is `capturable`")
    assert command.told_of_graphs(KNorm) == ""


def test_all_failures_at_once_each_with_its_mend(vtoken_check: Check) -> None:
    mine(
        "needs = frozenset({'attention'}); sinks: int = 4",
        "return ~cache.evict_lowest(-cache.positions)",
    )
    done = vtoken_check("mine.py")
    assert done.code == 1
    failed = re.findall(r"^  FAILED   (\w+)", done.out, re.MULTILINE)
    assert failed == ["only_live", "newest", "protected", "within_budget"]
    assert re.search(r"^  warning +declares attention", done.out, re.MULTILINE)
    assert "End with `& cache.live`" in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 100
    assert re.search(r"checks: \d+ ok, 4 FAILED, \d+ skipped, 1 warning$", done.out, re.MULTILINE)


def test_what_a_failure_leaves_open_is_one_line(vtoken_check: Check) -> None:
    mine(evict="raise ValueError('mine')")
    done = vtoken_check("mine.py")
    assert done.code == 1
    told = " ".join(done.out.split())
    assert re.search(r"skipped \d+ others cannot be told while check_answer fails: needs, only_live, newest, budget,", told)
    assert done.out.count("cannot be told") == 1


def test_a_policys_own_warning_is_shown_once(vtoken_check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtoken_sdk.check.kit.run_checks", lambda make: [run_check("check_budget", make)])
    done = vtoken_check("streaming_llm", "--option", "sinks=0")
    assert done.code == 0
    assert " ".join(done.out.split()).count("known to collapse") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["h20"], "Did you mean h2o?"),
        (["./nosuch.py"], "nosuch.py cannot be read"),
        (["h2o", "--option", "recent"], "--option recent: write KEY=VALUE"),
        (["h2o", "--option", "recent=["], "cannot be read as YAML"),
        (["h2o", "--option", "recnt=0.2"], "Did you mean recent?"),
        (["h2o", "--option", "recent=much"], "recent='much' is of the wrong type; recent wants a number"),
        (["h2o", "--option", "recent=7"], "0 <= x <= 1"),
        ([], "the following arguments are required: PATH|NAME"),
        (["h2o", "--bnch"], "unrecognized arguments: --bnch"),
    ],
)
def test_usage_errors_name_the_mend(vtoken_check: Check, args: list[str], says: str) -> None:
    done = vtoken_check(*args)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decorator": "", "body": "recent: int = 3"}, "put @dataclass above the class"),
        ({"body": 'needs = frozenset({"queries"})'}, "it must have a field `window: int`"),
        ({"body": "seen: list = []"}, "mutable default <class 'list'> for field seen"),
        ({"evict": "return cache.evict_lowest("}, "'(' was never closed"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(vtoken_check: Check, changes: dict[str, str], says: str) -> None:
    mine(**changes)
    done = vtoken_check("mine.py")
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_bench_names_the_device_and_the_shape(vtoken_check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtoken_sdk.check.kit.run_checks", lambda make: [run_check("check_budget", make)])
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    done = vtoken_check("h2o", "--bench")
    assert done.code == 0
    assert re.search(r"^Cost a call, median, on .+:$", done.out, re.MULTILINE)
    for method in ("sync_new_tokens", "evict_token    "):
        assert re.search(rf"^  {method} +\d+\.\d\d ms  64 requests x 16,384 tokens$", done.out, re.MULTILINE)
    mine(evict="raise ValueError('mine')")
    done = vtoken_check("./mine.py", "--bench")
    assert done.code == 0, "the one check that is left is skipped"
    assert "not measured: evict_token raised ValueError: mine (mine.py:8:" in " ".join(done.out.split())


NO_TORCH = """
import sys
from vtoken_sdk.check import command
from vtoken_sdk import new
for main, *args in (
    (command.main, "--help"), (command.main, "h20"), (command.main, "h2o", "--option", "x"), (command.main, "no.py"), (command.main,),
    (new.main, "--help"), (new.main, "policy", "--help"), (new.main, "policy", "h2o"), (new.main, "policy", "3"), (new.main, "polcy", "x"),
):
    sys.argv = ["x", *args]
    try:
        main()
    except SystemExit as end:
        print(end.code)
print("torch" in sys.modules)
"""


def test_help_and_usage_errors_do_not_wait_for_torch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_TORCH], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line in ("0", "2", "True", "False")]
    assert told == ["0", "2", "2", "2", "2", "0", "0", "2", "2", "2", "False"]
    assert "PATH|NAME" in done.stdout
    assert not list(tmp_path.iterdir())
