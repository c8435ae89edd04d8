"""The comparison on the terminal, and what a run says in sentences."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from vtoken_sdk.report import print_comparison
from vtoken_sdk.report.compare import RUNTIMES, Row, grouped
from vtoken_sdk.report.figures import figures
from vtoken_sdk.report.verdict import verdict

from .made import FIVE, MANY, row


def on_terminal(rows: list[Row], width: int, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_comparison(Console(file=out, width=width, force_terminal=terminal, legacy_windows=False), rows)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("rows", [FIVE, MANY], ids=["five", "many"])
def test_the_terminal_shows_every_figure_at_any_width(rows: list[Row], width: int) -> None:
    text = on_terminal(rows, width)
    assert "\x1b" not in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in RUNTIMES:
        assert re.search(rf"^.*\b{name}\b.*\d", text, re.MULTILINE), name
    words = text.split()
    for figure in figures(rows):
        assert all(word in words for word in figure.head.split()), figure.head
        assert figure.cell(rows[-1]) in words


def test_two_hundred_columns_hold_it_all_in_one_table() -> None:
    assert on_terminal(FIVE, 200).count("native ") == 1
    assert on_terminal(FIVE, 80).count("native ") > 1


def test_names_that_leave_no_room_become_numbers_and_are_not_cut() -> None:
    """Of options, those that differ; what is longer than its column goes on in the next line."""
    shared = "slack=0 move_cap=4096 publish_after=2 refill=False"
    rows = [
        row("vtoken", f"./policies/of_a_long_name_{n}.py", evict_prefill=when, threshold=t, margin=8, reclaim=f"packing={how} {shared}")
        for n in range(3)
        for when, t, how in (("chunk", 0.25, "fill"), ("end", 0.5, "fresh"))
    ]
    text = on_terminal(rows, 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    names, *_ = text.split("#", 2)[1:]
    assert "move_cap" not in text
    assert all(re.search(rf"^{n} +vtoken .*packing=", names, re.MULTILINE) for n in range(1, 7))
    assert len(re.findall(r"^6 +vtoken +[\d.,]+", text, re.MULTILINE)) >= 2


def test_naive_against_vtoken_is_the_verdict() -> None:
    assert verdict(FIVE) == [
        "h2o, budget=0.5: naive holds 1.98 and vtoken 1.02 times the blocks that the live tokens need; "
        "5,427 blocks should hold 10 requests of 16,384 + 32 tokens under vtoken, 5 under native.",
        "The runtimes evicted the same tokens and generated the same text: their figures compare.",
    ]


def test_many_combinations_are_summed_up() -> None:
    assert verdict(MANY)[0] == "Over 25 combinations, at most: naive holds 1.98 and vtoken 1.02 times the blocks that the live tokens need."


@pytest.mark.parametrize(("column", "word"), [("victims_sha256", "evicted"), ("tokens_sha256", "generated")])
def test_runtimes_that_disagree_are_told(column: str, word: str) -> None:
    rows = [*FIVE[:-1], row("page1", **{column: "another"})]
    assert verdict(rows)[-1].startswith(f"Attention: the runtimes {word} different tokens (h2o, budget=0.5)")


def test_a_ratio_and_a_token_are_two_budgets() -> None:
    rows = [row("naive", budget=1), row("naive", budget=1.0, job="other")]
    assert len(grouped(rows)) == 2
    assert re.findall(r"^([\d.]+) +naive", on_terminal(rows, 200), re.MULTILINE) == ["1", "1.0"]


def test_a_policy_that_ignores_its_budget_is_told_of() -> None:
    greedy, idle, fair = (row("vtoken", name, kept=kept, evictions=n) for name, kept, n in (("a", 1.4, 9), ("b", 2.0, 0), ("c", 1.0, 9)))
    said = " ".join(verdict([greedy, idle, fair]))
    assert "Attention: a, budget=0.5 keeps 1.40 times its budget." in said
    assert "b, budget=0.5: nothing was evicted" in said
    assert "c, budget=0.5 keeps" not in said
    assert "nothing was evicted" not in " ".join(verdict([fair]))


def test_seeds_are_one_sentence_with_their_mean() -> None:
    rows = [row(name, seed=seed) for name in ("native", "naive", "vtoken") for seed in (0, 1)]
    rows[-1]["blocks_held"] = 530.0
    (said, *_) = verdict(rows)
    assert said.startswith("h2o, budget=0.5: naive holds 1.98 and vtoken 1.04 times the blocks")


def test_options_of_reclaiming_are_a_range_and_say_what_the_estimate_leaves_out() -> None:
    loose, shipped = row("vtoken", threshold=0.3, blocks_held=600, admits_5427=5), row("vtoken", threshold=1.0)
    first, second, *_ = verdict([row("native"), loose, shipped])
    assert first.startswith("h2o, budget=0.5: vtoken holds 1.02 to 1.20 times the blocks that the live tokens need; ")
    assert first.endswith("should hold 10 requests of 16,384 + 32 tokens under vtoken (threshold=1.0), 5 under native.")
    assert second.startswith("'fit in' counts what a runtime promises; ")
    assert not any("promises" in said for said in verdict([row("native"), shipped]))
    slack = [row("vtoken", reclaim=f"slack={n} move_cap=4096", admits_5427=10 + n) for n in (0, 1)]
    assert "requests of 16,384 + 32 tokens under vtoken (slack=1), 5" in verdict([row("native"), *slack])[0]


def test_only_groups_of_several_rows_have_a_gap_between_them() -> None:
    def gaps(runtimes: tuple[str, ...]) -> int:
        text = on_terminal([row(name, requests=n) for n in (1, 2, 3) for name in runtimes], 200)
        return len(re.findall(r"\n *\n(?=\d)", text))

    assert gaps(("native",)) == 0
    assert gaps(("naive", "vtoken")) == 2


def test_names_hold_no_options_that_all_jobs_share() -> None:
    reclaim = "packing=fill slack={} move_cap=4096"
    rows = [row("vtoken", reclaim=reclaim.format(n), status="failed", error="no", job=str(n)) for n in (0, 1)]
    assert "failed: vtoken, slack=1 (jobs/1): no" in on_terminal(rows, 200)


def test_what_quality_is_judged_on_is_not_the_load() -> None:
    said = "Quality is judged on text of its own, apart from this workload."
    assert said in on_terminal([row("naive", judged=8, weights="real")], 200)
    assert said not in on_terminal(FIVE, 200)
