"""What the parts say: means and paired intervals over seeds, baselines, quality of any suite, the SLA, occupancy, gates, configurations."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from vtoken_sdk.report.compare import BaselineError, Line
from vtoken_sdk.report.document import Cell, Part, Table
from vtoken_sdk.report.gates import gates
from vtoken_sdk.report.parts import (
    View,
    capacity,
    compaction,
    configs,
    main_table,
    occupancy,
    over_steps,
    overhead,
    quality,
    throughput,
    trust,
)
from vtoken_sdk.report.stats import student_t
from vtoken_sdk.report.verdict import caveats

from .made import FIVE, row, view


def cell(table: Table, head: str, *names: str) -> Cell:
    """Of the row that has these names among its cells."""
    (found,) = [r for r in table.rows if set(names) <= {c.text for c in r}]
    return found[[column.title for column in table.columns].index(head)]


def states(shown: View) -> dict[str, str]:
    return {gate.name: gate.state for gate in gates(shown.rows, shown.baselines, shown.record)}


def test_means_are_over_seeds_and_differences_are_paired(tmp_path: Path) -> None:
    """Seeds of very different sizes: the paired difference is the same in each, so its interval is 0 while the means' are wide."""
    held = {0: 100.0, 1: 1000.0, 2: 5000.0}
    rows = [row(n, seed=s, blocks_held=h * (0.5 if n == "vtoken" else 1)) for s, h in held.items() for n in ("native", "vtoken")]
    (table,) = main_table.part(view(tmp_path, *rows)).tables
    shown = cell(table, "held", "vtoken")
    mean = fmean(held.values()) / 2
    spread = (sum((h / 2 - mean) ** 2 for h in held.values()) / 2) ** 0.5
    assert shown.text == f"{mean:,.0f}"
    assert shown.small == f"±{student_t(2) * spread / 3**0.5:,.0f}"
    assert (shown.change, shown.tone) == ("-50%", "good")
    assert cell(table, "n", "vtoken").text == "3"


def test_a_difference_within_chance_is_neither_good_nor_bad(tmp_path: Path) -> None:
    speed = {("native", 0): 100.0, ("native", 1): 100.0, ("vtoken", 0): 130.0, ("vtoken", 1): 80.0}
    rows = [row(name, seed=seed, output_tok_s=tok) for (name, seed), tok in speed.items()]
    (table,) = main_table.part(view(tmp_path, *rows)).tables
    shown = cell(table, "tok/s", "vtoken")
    assert shown.change.startswith("+5% ±")
    assert shown.tone == ""
    assert cell(main_table.part(view(tmp_path / "one", *rows[::2])).tables[0], "tok/s", "vtoken").tone == "good"


def test_the_baseline_may_be_a_runtime_or_a_policy(tmp_path: Path) -> None:
    rows = [*FIVE, row("vtoken", "random", blocks_held=255.0)]
    against_naive = main_table.part(view(tmp_path / "a", *rows, baseline="naive")).tables[0]
    assert cell(against_naive, "held", "vtoken", "h2o").change == "-48%"
    assert cell(against_naive, "held", "native").change == ""
    against_random = main_table.part(view(tmp_path / "b", *rows, baseline="random")).tables[0]
    assert cell(against_random, "held", "vtoken", "h2o").change == "+100%"
    assert cell(against_random, "held", "naive").change == ""
    with pytest.raises(BaselineError, match="--baseline nativ: no job has that runtime or policy; there are native, naive"):
        view(tmp_path / "c", *rows, baseline="nativ")


def judged(seed: int, **more: float) -> dict[str, object]:
    return {"weights": "real", "seed": seed, "nll_full": 3.0 + seed, "judged": 64, **more}


def test_quality_takes_the_columns_of_any_suite(tmp_path: Path) -> None:
    """NLL as what is lost on the same text; policies over one another, against budget and blocks; the full cache as a point."""
    rows = [row("native", **judged(s, nll=3.0 + s, kl=0.0, ruler_acc=1.0)) for s in (0, 1)]
    for policy, cost in (("h2o", 0.1), ("random", 0.4)):
        for budget in (0.25, 0.5):
            rows += [
                row(n, policy, budget, **judged(s, nll=3.0 + s + (cost + s / 1000) / budget, kl=cost, ruler_acc=0.5))
                for s in (0, 1)
                for n in ("naive", "vtoken")
            ]
    part = quality.part(view(tmp_path, *rows))
    (table,) = part.tables
    lost = cell(table, "NLL lost", "random", "0.25")
    assert (lost.text, lost.small) == ("+1.6020", f"±{student_t(1) * 0.002:.4f}")
    assert cell(table, "ruler acc", "h2o", "0.25").text == "0.5"
    assert cell(table, "n", "h2o", "0.25").text == "2"  # seeds, not seeds and runtimes
    assert [plot.title for plot in part.panels[0].plots] == ["NLL lost", "KL", "ruler acc"]
    names = {key.name for key in part.panels[1].plots[0].keys}
    assert names == {"full cache (native)", "h2o: naive", "h2o: vtoken", "random: naive", "random: vtoken"}


def test_quality_that_was_not_judged_says_why(tmp_path: Path) -> None:
    assert "dummy weights" in quality.part(view(tmp_path / "a", *FIVE)).reason
    assert (
        "quality.mode was off" in quality.part(view(tmp_path / "b", *(row("native", weights="real"), row("vtoken", weights="real")))).reason
    )


def test_the_sla_is_the_baselines_own(tmp_path: Path) -> None:
    times = {"native": 10.0, "naive": 10.4, "vtoken": 10.6}
    part = throughput.part(view(tmp_path, *(row(name, itl_ms_p95=ms, device="cuda") for name, ms in times.items())))
    (table,) = part.tables
    assert [cell(table, "SLA", name).text for name in times] == ["-", "kept", "missed"]
    assert cell(table, "SLA ms", "vtoken").text == "10.5"
    assert any(key.name == "SLA: 1.05 x native" for plot in part.panels[0].plots for key in plot.keys)
    (on_a_cpu,) = throughput.part(view(tmp_path / "cpu", *(row(name, itl_ms_p95=ms) for name, ms in times.items()))).tables
    assert [(c.text, c.tone) for c in (cell(on_a_cpu, "SLA", name) for name in ("naive", "vtoken"))] == [("not judged", "")] * 2


def test_points_of_throughput_name_their_policies(tmp_path: Path) -> None:
    rows = [row("native"), *(row("vtoken", policy, itl_ms_p95=ms) for policy, ms in (("h2o", 11.0), ("random", 9.0)))]
    for plot in throughput.part(view(tmp_path, *rows)).panels[0].plots:
        assert "h2o" in plot.svg
        assert "random" in plot.svg
    alone = throughput.part(view(tmp_path / "alone", *rows[:2])).panels[0].plots
    assert not any("h2o" in plot.svg for plot in alone)  # nothing to tell apart


def test_occupancy_is_drawn_where_it_is_recorded_and_never_made_up(tmp_path: Path) -> None:
    without = occupancy.part(view(tmp_path / "a", *FIVE))
    assert without.reason.startswith("The histogram is not recorded: steps.parquet has no column occupancy")
    assert without.panels == []
    assert cell(without.tables[0], "live tokens a block", "naive").text == f"{16 * 500 / 990:.1f}"
    with_it = occupancy.part(view(tmp_path / "b", *FIVE, occupancy=True))
    assert not with_it.reason
    assert {key.name for panel in with_it.panels for plot in panel.plots for key in plot.keys} == {"native", "naive", "refill", "vtoken"}


def test_compaction_and_overhead_are_told_a_block_and_a_step(tmp_path: Path) -> None:
    shown = view(tmp_path / "a", *FIVE)
    (moved,) = compaction.part(shown).tables
    assert [r[0].text for r in moved.rows] == ["vtoken"]
    assert cell(moved, "tokens a plan", "vtoken").text == "25.0"
    assert cell(moved, "MB a block freed", "vtoken").text == "0.02"
    (times,) = overhead.part(shown).tables
    assert cell(times, "added", "vtoken").text == f"{0.7 / 7.7:.1%}"
    assert "vtoken, the one runtime that moves" in compaction.part(view(tmp_path / "b", *FIVE[:2])).reason


def test_capacity_is_a_curve_over_pools_and_budgets(tmp_path: Path) -> None:
    rows = [
        row(n, budget=b, pool_blocks=p, concurrency_peak=p // 100) for n in ("naive", "vtoken") for b in (0.25, 0.5) for p in (1000, 2000)
    ]
    part = capacity.part(view(tmp_path, *rows))
    assert {"Measured over pools", "Estimate over the budget"} <= {plot.title for panel in part.panels for plot in panel.plots}
    assert cell(part.tables[0], "at once, measured", "vtoken", "0.25", "2,000").text == "20"


def test_configurations_show_what_differs_and_what_is_shared(tmp_path: Path) -> None:
    differs, jobs, shared = configs.part(view(tmp_path, *FIVE, row("vtoken", "random"))).tables
    assert cell(differs, "which", "policy").text == "h2o, random"
    assert len(jobs.rows) == 6
    assert cell(shared, "value", "ctx").text == "16384"


def test_gates_fail_where_a_comparison_does_not_stand(tmp_path: Path) -> None:
    good = states(view(tmp_path / "good", *FIVE))
    assert good.pop("p95 ITL within 1.05 x native") == "not judged"  # on a CPU
    assert set(good.values()) == {"passed"}
    faults = {
        "same victims": row("page1", victims_sha256="x"),
        "same text": row("page1", tokens_sha256="x"),
        "budget kept": row("page1", kept=1.3),
        "whole requests": row("page1", cut_short=2),
        "paired baseline": row("page1", seed=1),
    }
    for name, faulty in faults.items():
        failed = {gate for gate, state in states(view(tmp_path / name, *FIVE[:4], faulty)).items() if state == "failed"}
        assert failed == {name}
    assert states(view(tmp_path / "alone", row("vtoken")))["paired baseline"] == "not judged"
    changed = view(tmp_path / "changed", *FIVE, facts={"commit": "abc+"})
    assert states(changed)["one origin"] == "failed"
    slow = [row("native", device="cuda", itl_ms_p95=10.0), row("vtoken", device="cuda", itl_ms_p95=11.0)]
    assert states(view(tmp_path / "slow", *slow))["p95 ITL within 1.05 x native"] == "failed"
    again = [row("native", device="cuda", itl_ms_p95=10.0, seed=1), row("vtoken", device="cuda", itl_ms_p95=10.1, seed=1)]
    assert states(view(tmp_path / "chance", *slow, *again))["p95 ITL within 1.05 x native"] == "passed"  # 1.1 and 1.01: not clear


def test_loads_are_told_apart_where_one_has_no_limit(tmp_path: Path) -> None:
    """No limit is None in the results, as is what does not apply."""
    rows = [
        row(runtime, device="cuda", arrivals="rate", request_rate=rate, itl_ms_p95=p95)
        for rate, native, vtoken in ((1.0, 10.0, 11.3), (None, 20.0, 22.2))
        for runtime, p95 in (("native", native), ("vtoken", vtoken))
    ]
    seen = view(tmp_path, *rows)
    (table,) = main_table.part(seen).tables
    at = [column.title for column in table.columns].index("request_rate")
    assert [line[at].text for line in table.rows] == ["1.0", "1.0", "inf", "inf"]
    assert "request_rate" not in view(tmp_path / "one", *rows[2:]).subtitle  # nothing to say where all come at once
    assert states(seen)["p95 ITL within 1.05 x native"] == "failed"  # each load by itself: not two draws of one


def test_provenance_names_each_policys_source_and_what_differs(tmp_path: Path) -> None:
    part = trust.part(view(tmp_path, *FIVE))
    _, policies, facts = part.tables
    assert [[c.text for c in r] for r in policies.rows] == [["h2o", "h2o.py", "sha-of-h2o"]]
    assert cell(facts, "value", "commit").text == "abc123"
    assert "/home/you" not in str(part)


def test_a_part_is_never_empty_without_a_reason() -> None:
    with pytest.raises(AssertionError, match="shows nothing and does not say why"):
        Part("x", "X")
    assert Line(FIVE[:1]).runtime == "native"


def test_blocks_retained_and_waste_are_a_table_beside_their_curves(tmp_path: Path) -> None:
    part = over_steps.part(view(tmp_path / "a", *FIVE))
    (table,) = part.tables
    assert cell(table, "blocks of 16 retained", "page1").text == "500"  # its blocks of one token as blocks of 16
    assert cell(table, "of native", "vtoken").text == "0.51"
    assert cell(table, "waste F", "naive").text == f"{1 - 500 / 990:.1%}"
    assert part.panels
    assert "steps.parquet is missing" in over_steps.part(view(tmp_path / "b", *FIVE, steps=0)).reason


def test_requests_that_lost_their_blocks_are_told_of() -> None:
    rows = [row("native", preemptions=3), row("vtoken", preemptions=0)]
    assert any("began again (3 under native)" in note for note in caveats(rows))
    assert not any("began again" in note for note in caveats(rows[1:]))
