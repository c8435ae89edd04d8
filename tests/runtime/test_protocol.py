"""The reclaim protocol: clean as written, and every rule is needed."""

from __future__ import annotations

import pytest

from .protocol import RULES, Simulation

STEPS = 18


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_as_written_every_read_is_right(first: int) -> None:
    reads = stalls = 0
    for seed in range(first, first + 100):
        run = Simulation(seed)
        try:
            run.run(STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        reads += run.reads
        stalls += run.reclaimers[0].stalls
    assert reads > 20_000
    assert stalls > 20


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_something_breaks(rule: str) -> None:
    caught = 0
    for seed in range(40):
        try:
            Simulation(seed, rule).run(40)
        except Exception:  # a wrong read, a broken law, or an operation that finds what it cannot
            caught += 1
        if caught == 5:
            return
    pytest.fail(f"caught in {caught} of 40 runs")
