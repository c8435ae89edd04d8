"""Whole sweeps on the small default model."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.sweep.sweep import _Console

from .conftest import SMALL, Sweep, results, write_policy

NAMES = """job status policy runtime budget ctx threshold margin block_size granularity model weights dtype device workload seed
requests prompt_tokens output_tokens concurrency_peak preemptions evictions
live_tokens blocks_held blocks_ideal utilization waste blocks_held_peak plans moves bytes_moved blocks_freed output_tok_s total_tok_s
ttft_ms_p50 ttft_ms_p95 ttft_ms_p99 itl_ms_p50 itl_ms_p95 itl_ms_p99 tpot_ms_p50 tpot_ms_p95 tpot_ms_p99 e2el_ms_p50 e2el_ms_p95 e2el_ms_p99
model_ms policy_ms table_ms plan_ms copy_ms nll kl top1"""
FIRST_NAMES = NAMES.split()


def test_the_main_columns_come_first() -> None:
    assert list(COLUMNS)[: len(FIRST_NAMES)] == FIRST_NAMES


def test_one_command_compares_the_runtimes(vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep("policy=random", *SMALL, "dir=out")
    assert done.code == 0, done
    rows = results("out")
    by = {row["runtime"]: row for row in rows}
    assert list(by) == ["native", "naive", "refill", "vtoken", "page1"]
    for row in rows:
        assert row["status"] == "done"
        assert (row["prompt_tokens"], row["output_tokens"], row["requests"]) == (256, 40, 2)
        assert row["output_tok_s"] > 0
        assert row["ttft_ms_p50"] <= row["e2el_ms_p50"]
        assert (row["weights"], row["device"], row["block_size"]) == ("dummy", "cpu", 1 if row["runtime"] == "page1" else 16)
        assert row["nll"] is None  # dummy weights
    native, vtoken = by["native"], by["vtoken"]
    for name in ("policy", "budget", "evictions", "policy_ms", "plans", "moves", "bytes_moved", "plan_ms", "copy_ms", "threshold"):
        assert native[name] is None, name
    assert all(by[name]["moves"] is None for name in ("naive", "refill", "page1"))
    assert vtoken["moves"] > 0
    assert vtoken["blocks_held"] < by["naive"]["blocks_held"] <= native["blocks_held"]
    assert len({by[name]["victims_sha256"] for name in ("naive", "refill", "vtoken", "page1")}) == 1
    assert len({by[name]["tokens_sha256"] for name in ("naive", "refill", "vtoken", "page1")}) == 1
    assert "evicted the same tokens" in done.out

    # what is on the screen, and where to look further
    assert "5 jobs, 0 already done, 5 to run" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out
    assert "CPU timing, one run a job" in done.out.replace("\n", " ")
    last = done.out.splitlines()[-3:]
    assert last == ["Report: out/report.html", "Results: out/results.parquet", "W&B: disabled"]

    # the record of a job
    folder = Path("out/jobs") / vtoken["job"]
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    held = [s for s in steps if s["slots_held"]]
    assert vtoken["blocks_held"] == pytest.approx(sum(s["blocks_held"] for s in held) / len(held))
    assert vtoken["blocks_held_peak"] == max(s["blocks_held"] for s in steps)
    record = json.loads((folder / "result.json").read_text())["provenance"]
    for name in ("command", "date", "python", "version_torch", "device_name", "model_sha256", "policy_sha256"):
        assert record[name], name
    assert record["command"].startswith("vtoken-sweep policy=random")
    assert json.loads(Path("out/plan.json").read_text())["axes"] == {"runtime": list(by)}

    # its config alone runs it again, with the same figures but for times
    again = vtoken_sweep("--config-dir", str(folder), "--config-name", "config", "dir=again")
    assert again.code == 0, again
    (row,) = results("again")
    assert row["job"] == vtoken["job"]
    times = {n for n in COLUMNS if n.endswith(("_ms", "_tok_s", "seconds", "_throughput", "_goodput")) or "_ms_p" in n}
    assert {k: v for k, v in row.items() if k not in times} == {k: v for k, v in vtoken.items() if k not in times}


def test_a_finished_sweep_is_not_run_again(vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vtoken_sweep(*SMALL, "runtime=native,naive", "dir=out").code == 0
    stamp = {p: p.stat().st_mtime_ns for p in Path("out/jobs").glob("*/result.json")}
    more = vtoken_sweep(*SMALL, "runtime=native,naive,refill", "dir=out")
    assert "3 jobs, 2 already done, 1 to run" in more.out
    assert all(p.stat().st_mtime_ns == t for p, t in stamp.items())
    assert [row["status"] for row in results("out")] == ["done"] * 3

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtoken_sdk.sweep.sweep.write_report", interrupt)  # Ctrl-C once all jobs are done
    late = vtoken_sweep(*SMALL, "runtime=native,naive,refill", "dir=out")
    assert late.code == 130
    assert "Interrupted. To go on: vtoken-sweep" in late.out and "before any job ran" not in late.err


def test_a_half_written_job_and_an_edited_policy_are_run_again(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "pass")
    args = ("policy=./mine.py", *SMALL, "runtime=native,naive", "dir=out")
    assert vtoken_sweep(*args).code == 0
    native = Path("out/jobs") / results("out")[0]["job"]
    (native / "result.json").write_text((native / "result.json").read_text()[:100])
    assert "2 jobs, 1 already done, 1 to run" in vtoken_sweep(*args).out
    write_policy("mine", "x = 1")
    edited = vtoken_sweep(*args).out
    assert "2 jobs, 1 already done, 1 to run" in edited
    assert "out/jobs has 1 job of another command or an edited policy, not in these results" in edited
    assert [row["status"] for row in results("out")] == ["done"] * 2


FAULTS = {
    "raises": ("raise ValueError('my own fault')", "ValueError: my own fault"),
    "exits": ("os._exit(0)", "ended by itself (exit code 0)"),
    "asks_to_exit": ("raise SystemExit(0)", "SystemExit: 0"),
    "crashes": ("ctypes.string_at(0)", "SIGSEGV"),
    "is_killed": ("os.kill(os.getpid(), signal.SIGKILL)", "probably out of memory"),
    "asks_too_much": ("torch.empty(1 << 50)", "allocate memory"),
    "fills_the_disk": ("resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", "File too large"),
    "leaves_a_thread": ("threading.Thread(target=threading.Event().wait).start()", None),
}


def test_a_failed_job_is_a_row_and_loses_no_other(vtoken_sweep: Sweep) -> None:
    for name, (body, _) in FAULTS.items():
        write_policy(name, body)
    done = vtoken_sweep(f"policy={','.join(f'./{name}.py' for name in FAULTS)}", "runtime=native,naive", *SMALL, "dir=out")
    assert done.code == 3, done
    rows = {Path(row["policy"] or "native").stem: row for row in results("out")}
    assert len(rows) == 1 + len(FAULTS)
    assert rows["native"]["status"] == "done"
    for name, (_, says) in FAULTS.items():
        row = rows[name]
        if says is None:
            assert row["status"] == "done"
            continue
        assert row["status"] == "failed", name
        assert says in row["error"], name
        assert says in (Path("out/jobs") / row["job"] / "error.txt").read_text(), name
        assert row["blocks_held"] is None
        assert f"failed: naive, ./{name}.py" in done.out.replace("\n", " ")
    assert "Segmentation fault" in (Path("out/jobs") / rows["crashes"]["job"] / "error.txt").read_text()
    assert "raises.py" in rows["raises"]["error"]
    log = (Path("out/jobs") / rows["raises"]["job"] / "log.txt").read_text()
    assert "Traceback" in log and "raise ValueError('my own fault')" in log
    assert rows["raises"]["job"] in Path("out/report.html").read_text()


@pytest.mark.parametrize("name", ["o [/b] [red]t", "q,u", "it's"])
def test_folders_may_have_any_name(name: str, vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = "'" + name.replace("'", "\\'") + "'"
    done = vtoken_sweep(*SMALL, "runtime=native", f"dir={quoted}")
    assert done.code == 0, done
    assert f"to run in {name}" in done.out
    assert results(name)[0]["status"] == "done"
    monkeypatch.chdir(name)  # and so may the folder that it is started from
    assert vtoken_sweep(*SMALL, "runtime=native", "dir=out").code == 0


def test_results_that_cannot_be_written_are_told(vtoken_sweep: Sweep) -> None:
    Path("out/results.parquet").mkdir(parents=True)
    done = vtoken_sweep(*SMALL, "runtime=native", "dir=out")
    assert done.code == 3
    assert "results.parquet could not be written" in done.out
    assert Path("out/report.html").is_file()


WAIT = """
if Path("gate").exists():
    Path("gate").write_text(str(os.getpid()))
    threading.Event().wait()
"""
INTERRUPTED = (*SMALL, "policy=./mine.py", "runtime=native,naive,refill", "dir=out")


def wait_for_job() -> int:
    """Until the second job says that it runs: its process id."""
    return int(Path("gate").read_text())


def ended(pid: int) -> bool:
    """Within ten seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    return bool(select.select([handle], [], [], 10)[0])


def test_an_interrupted_sweep_goes_on_where_it_was(spawn_sweep: Callable[..., subprocess.Popen[str]], vtoken_sweep: Sweep) -> None:
    """Interrupted in its second job, in three ways, one after the other."""
    write_policy("mine", WAIT)
    os.mkfifo("gate")
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = spawn_sweep(*INTERRUPTED)
        job = wait_for_job()
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # as a terminal does
        else:
            process.send_signal(how)
        out, err = process.communicate(timeout=120)
        assert ended(job), how
        assert f"3 jobs, {0 if how == signal.SIGINT else 1} already done" in out, how
        if how != signal.SIGKILL:
            assert process.returncode == 130, (how, out, err)
            assert "Traceback" not in out + err
            assert out.splitlines()[-1] == f"Interrupted. To go on: vtoken-sweep {' '.join(INTERRUPTED)}"
            assert [row["status"] for row in results("out")] == ["done", "missing", "missing"]
    Path("gate").unlink()
    done = vtoken_sweep(*INTERRUPTED)
    assert "3 jobs, 1 already done, 2 to run" in done.out
    assert done.code == 0
    assert [row["status"] for row in results("out")] == ["done"] * 3


def test_closed_streams_and_a_reader_that_leaves_do_no_harm(spawn_sweep: Callable[..., Any]) -> None:
    process = spawn_sweep(*SMALL, "runtime=native,naive", "dir=out")
    process.stdout.close()
    process.wait(timeout=120)
    assert process.returncode == 0, process.stderr.read()
    assert [row["status"] for row in results("out")] == ["done"] * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
def test_a_full_disk_under_the_output_costs_the_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        console = _Console(file=full)
        for _ in range(2):
            console.print("a line")
    assert console.quiet
