"""What cannot work is refused before anything runs: exit code 2, one line that names the key and the mend, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SMALL, Sweep, write_policy


def refused(vtoken_sweep: Sweep, *args: str) -> str:
    before = sorted(Path().rglob("*"))
    done = vtoken_sweep(*args)
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert sorted(p for p in Path().rglob("*") if "__pycache__" not in p.parts) == before
    message = done.err.strip()
    assert message.startswith("vtoken-sweep: ")
    assert "\n" not in message, message
    return message.removeprefix("vtoken-sweep: ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["budegt=0.5"], "unknown key budegt; did you mean budget?"),
        (["budget=0.5", "policy=h2o", "++budget=0.25"], "budget is given twice; write it once, with commas between its values"),
        (["num_prompts=3", "requests=4"], "requests is given twice"),
        (["dir=a", "dir=b"], "dir is given twice; write it once"),
        (["+bugdet=64"], "unknown key bugdet; did you mean budget?"),
        (["++bugdet=64,128"], "unknown key bugdet; did you mean budget?"),
        (["evict.evry=4"], "did you mean evict.every?"),
        (["policy=h20"], "Did you mean h2o?"),
        (["policy=h2o,randm"], "Did you mean random?"),
        (["budget=sixty"], "use a ratio of the prompt such as 0.5"),
        (["budget=0.5,sixty"], "budget=sixty"),
        (["block_size=16.0"], "write block_size=16"),
        (["budget=0"], "budget=0"),
        (["budget=1.5"], "a ratio is at most 1.0"),
        (["budget=1000000000000000000000000000"], "more tokens than any prompt has"),
        (["seed=10000000000000000000"], "up to 9223372036854775807"),
        ([r"dir='a\${oc.env:HOME}b'"], "name a folder without it"),
        (["dir=/proc/nowhere"], "name a folder that can be written"),
        (["runtime=vtokn"], "did you mean runtime=vtoken?"),
        (["ctx=16q"], "ctx=16q"),
        (["name=a,b"], "takes one value"),
        (["h2o"], "KEY=VALUE"),
        (["policy=~/mine.py"], "KEY=VALUE"),
        (["hydra.foo=1"], "hydra.foo"),
        (["hydra/launcher=nosuch"], "hydra/launcher/nosuch"),
        (["hydra/sweeper=basic"], "leave it out"),
        (["hydra.mode=RUN"], "leave it out"),
        (["ctx=interval(1,2)"], "list the values"),
        (["--config-name", "nosuch"], "nosuch"),
        (["--config-dir", "nosuch", "--config-name", "mine"], "nosuch"),
    ],
)
def test_refused_at_once(vtoken_sweep: Sweep, args: list[str], says: str) -> None:
    assert says in refused(vtoken_sweep, *args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["policy.bugdet=64"], "option.bugdet: no policy of this sweep has the option bugdet (h2o has recent); did you mean budget?"),
        (["+policy.bugdet=64"], "did you mean budget?"),
        (["++policy.bugdet=64"], "did you mean budget?"),
        (["policy.budget=sixty"], "write budget="),
        (["policy.budget=64,128"], "write budget="),
        (["policy.sinks=4"], "h2o has recent"),
        (["option.recent=2.0"], "recent=2.0"),
        (["option.recent=much"], "recent='much'"),
        (["block_size=12"], "block_size=12"),
        (["threshold=0"], "threshold=0"),
        (["granularity=head"], "granularity"),
        (["ctx=1024m", "pool_blocks=1024m"], "ctx=1073741824"),
        (["pool_blocks=100", "ctx=16k"], "pool_blocks=100: under native, a request of ctx=16384 needs 1025 blocks of 16"),
        (["model=tyni"], "Known are smollm2, tiny"),
        (["model=tiny", "weights=real"], "weights=real"),
        (["dtype=fp8"], "dtype"),
        (["device=cuda"], "device=cuda"),
        (["workload=nosuch.txt"], "workload=nosuch.txt"),
        (["quality.mode=on"], "quality.mode=on"),
        (["policy=./nosuch.py"], "nosuch.py"),
        (["policy_sha256=0000"], "policy_sha256=0000"),
    ],
)
def test_refused_by_what_it_would_load(vtoken_sweep: Sweep, args: list[str], says: str) -> None:
    keys = [word.partition("=")[0] for word in args]
    assert says in refused(vtoken_sweep, *(word for word in SMALL if word.partition("=")[0] not in keys), *args)


@pytest.mark.parametrize("word", ["budegt=0.5", "+policy.x.y=1", "evict=never"])
def test_a_misspelt_key_is_refused_before_anything_heavy(word: str) -> None:
    code = f"import sys; sys.argv = ['vtoken-sweep', 'policy=h2o', {word!r}]; from vtoken_sdk import cli\n"
    code += "try: cli.main()\nexcept SystemExit as end: print(end.code, {'torch', 'hydra', 'omegaconf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 set()\n"
    assert done.stderr.startswith("vtoken-sweep: ")


def test_a_typo_in_a_file_is_refused(vtoken_sweep: Sweep) -> None:
    Path("mine.yaml").write_text("policy: h2o\nbugdet: 64\n")
    assert "unknown key bugdet" in refused(vtoken_sweep, "--config-dir", ".", "--config-name", "mine")


def test_a_policy_that_ends_the_process_is_refused(vtoken_sweep: Sweep) -> None:
    Path("mine.py").write_text("import os\nos._exit(0)\n")
    assert "ended by itself" in refused(vtoken_sweep, "policy=./mine.py")


def test_a_policy_that_cannot_be_loaded_is_refused_with_its_line(vtoken_sweep: Sweep) -> None:
    Path("mine.py").write_text("import nosuchmodule\n")
    done = vtoken_sweep("policy=./mine.py")
    assert done.code == 2
    assert "nosuchmodule" in done.err
    assert "mine.py, line 1" in done.err
    assert not Path("outputs").exists()


def test_one_impossible_job_stops_the_whole_sweep(vtoken_sweep: Sweep) -> None:
    assert "pool_blocks=64" in refused(vtoken_sweep, "ctx=128,1m", *SMALL[1:])


def test_a_folder_in_use_is_refused(vtoken_sweep: Sweep) -> None:
    import fcntl

    os.makedirs("out/jobs")
    with open("out/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another vtoken-sweep" in refused(vtoken_sweep, *SMALL, "dir=out")


def test_options_may_come_from_a_file_and_the_command_line(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "pass")
    Path("config.yaml").write_text("policy: [./mine.py, random]\nbudget: 0.25,0.5\nruntime: naive\n")
    done = vtoken_sweep("--config-dir", ".", "--config-name", "config", *SMALL, "budget=64", "dir=out")
    assert done.code == 0, done
    assert "2 jobs" in done.out
