"""What an engine says of each step. Flat, plain numbers: a row of a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class StepRecord:
    """One engine step, seen at its end.

    time_s: host seconds since the first step. prefill_tokens, decode_tokens: tokens run. running, waiting: requests.
    live_tokens: over running requests; live_slots: the same, a slot shared by requests once. blocks_held: blocks in use by
    requests, each once; slots_held: their slots. blocks_ideal: sum over requests of ceil(live / block size).
    utilization: live slots / slots of held blocks; waste: 1 - utilization; both None when nothing is held.
    evicted: tokens killed. plans: reclaims begun. moves: tokens whose move was published; bytes_moved: read plus written.
    blocks_freed: by any cause. preempted: requests.
    *_ms: host milliseconds, exclusive of each other: the model's forward passes, the policy's own code (with what the runtime
    gathers for it), Token Table and pool, planner, the reclaimer's copies.
    """

    step: int
    time_s: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    live_tokens: int
    live_slots: int
    blocks_held: int
    slots_held: int
    blocks_ideal: int
    evicted: int
    plans: int
    moves: int
    bytes_moved: int
    blocks_freed: int
    preempted: int
    model_ms: float
    policy_ms: float
    table_ms: float
    plan_ms: float
    copy_ms: float

    @property
    def utilization(self) -> float | None:
        """Live slots / slots of held blocks; None when nothing is held."""
        return self.live_slots / self.slots_held if self.slots_held else None

    @property
    def waste(self) -> float | None:
        """1 - utilization; None when nothing is held."""
        return None if self.utilization is None else 1 - self.utilization

    def as_row(self) -> dict[str, float | int | None]:
        """Flat names and plain numbers, `utilization` and `waste` included."""
        return {**asdict(self), "utilization": self.utilization, "waste": self.waste}
