"""Reading what sweeps left: whole, interrupted, merged, published without their jobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.report.compare import lines, varying
from vtoken_sdk.report.record import RecordError, read_record
from vtoken_sdk.report.write import view_of

from .made import FIVE, row, write_sweep


def test_a_sweep_that_was_killed_is_read_from_its_jobs(tmp_path: Path) -> None:
    """Without results.parquet: what is done, failed, running when it ended, and never begun."""
    rows = [*FIVE, row("vtoken", "a", status="failed", error="ValueError: x"), row("vtoken", "b", status="missing")]
    folder = write_sweep(tmp_path / "sweep", rows)
    (folder / "jobs" / FIVE[4]["job"] / "result.json").unlink()
    (folder / "jobs" / FIVE[4]["job"] / "status.json").write_text('{"status": "running"}')
    record = read_record([folder])
    by_job = {r["job"]: r for r in record.rows}
    assert [by_job[r["job"]]["status"] for r in rows] == ["done"] * 4 + ["missing", "failed", "missing"]
    assert by_job[FIVE[4]["job"]]["error"] == "it was running when its sweep ended"
    assert by_job[rows[5]["job"]]["error"] == "ValueError: x"
    for name in ("blocks_held", "output_tok_s", "kept"):
        assert [by_job[r["job"]][name] for r in FIVE[:4]] == [r[name] for r in FIVE[:4]]
    assert record.config(FIVE[3]["job"])["policy"] == "h2o"
    assert record.steps(FIVE[3]["job"]) is not None
    assert record.steps(FIVE[4]["job"]) is not None
    assert record.steps(rows[6]["job"]) is None


def test_several_folders_are_one_and_a_job_counts_once(tmp_path: Path) -> None:
    """The same native job is in both: of the finished one the figures are used."""
    native, other = row("native"), row("vtoken", "random")
    first = write_sweep(tmp_path / "first", [native | {"status": "failed", "error": "no"}, row("vtoken")])
    second = write_sweep(tmp_path / "second", [native, other])
    record = read_record([first, second, first])
    assert len(record.rows) == 3
    assert len(record.done) == 3
    assert record.homes[native["job"]].path == second
    assert record.notes == ["Jobs in more than one of the folders: 1. Each counts once, the first finished one."]
    assert record.name == "first, second"


def test_published_results_stand_for_jobs_that_are_gone(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", FIVE)
    pq.write_table(pa.Table.from_pylist([{name: r[name] for name in COLUMNS} for r in FIVE]), folder / "results.parquet")
    for gone in (), ("jobs",), ("jobs", "plan.json"), ("plan.json",):
        shutil.copytree(folder, tmp_path / "-".join(("out", *gone)))
        for name in gone:
            path = tmp_path / "-".join(("out", *gone)) / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        record = read_record([tmp_path / "-".join(("out", *gone))])
        assert [(r["runtime"], r["blocks_held"]) for r in record.rows] == [(r["runtime"], r["blocks_held"]) for r in FIVE]
        assert {r["status"] for r in record.rows} == {"done"}


def test_options_without_a_column_tell_jobs_apart(tmp_path: Path) -> None:
    """As those of a load do that a later version adds."""
    rows = [row("native"), row("native", job="fast"), row("vtoken"), row("vtoken", job="fast too")]
    config = {r["job"]: {"rate": rate, "output_tokens": 32, "name": "x"} for r, rate in zip(rows, (1, 4, 1, 4), strict=True)}
    record = read_record([write_sweep(tmp_path / "sweep", rows, config=config)])
    assert [r["setup"] for r in record.rows] == ["rate=1", "rate=4", "rate=1", "rate=4"]
    assert "setup" in varying(record.rows)


def test_an_edited_policy_is_no_repeat_of_the_first(tmp_path: Path) -> None:
    """Two contents under one name: a mean over both would be of nothing. What did not change is compared with both."""
    folders = []
    for name, held in (("before", 500.0), ("after", 800.0)):
        rows = [FIVE[0], row("naive", "mine", job=f"naive {name}", blocks_held=held), row("naive", "h2o")]
        folders.append(write_sweep(tmp_path / name, rows))
        path = folders[-1] / "jobs" / f"naive {name}" / "result.json"
        result = json.loads(path.read_text())
        result["provenance"]["policy_sha256"] = f"{name}-and-more"
        path.write_text(json.dumps(result))
    record = read_record(folders)
    assert [r["option"] for r in record.rows] == [None, "policy_sha256=before-a", None, "policy_sha256=after-an"]
    assert sorted(len(line.rows) for group in lines(record.done) for line in group) == [1, 1, 1, 1]
    view = view_of(record)
    assert {view.baselines(r)["job"] for r in record.rows[1:]} == {FIVE[0]["job"]}


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    """A result without figures is none; a broken table says nothing where the plan and the jobs do."""
    folder = write_sweep(tmp_path / "a", FIVE)
    (folder / "jobs" / FIVE[1]["job"] / "result.json").write_text('{"row": "gone"}')
    (folder / "results.parquet").write_bytes(b"PAR1")
    assert [r["status"] for r in read_record([folder]).rows] == ["done", "missing", "done", "done", "done"]


def test_a_folder_without_results_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=rf"{tmp_path}: no plan.json and no results.parquet; name the folder of a sweep"):
        read_record([tmp_path])
    (tmp_path / "results.parquet").write_bytes(b"not a table")
    with pytest.raises(RecordError, match="not the results of a sweep"):
        read_record([tmp_path])
