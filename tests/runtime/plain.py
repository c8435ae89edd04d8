"""Plain twins of block pool, Token Table and planner: dictionaries and loops, the same semantics, no tensors.

They are exact: block ids, the order of the free stack and of the slot map are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.token_table import TokenTable
from vtoken_sdk.runtime.upkeep import DEAD, FREE, NEVER, RESERVE, RESERVED


def rebuild_map(table: TokenTable, rows: Tensor) -> None:
    """Write the slot maps of these rows anew: live slots in token order, then slots that may be appended to."""
    table.pool.upkeep.settle_tokens(table, rows, None)
    table.pool.upkeep.settle_blocks(table, rows, table.max_blocks, close=False)


Place = tuple[int, int]  # ordinal of a block in a row's list, offset in the block


class PlainPool:
    """A stack of free blocks and the number of owners of each other one."""

    def __init__(self, n_blocks: int) -> None:
        self.stack = list(reversed(range(n_blocks)))
        self.owners = [0] * n_blocks

    def pop(self) -> int:
        block = self.stack.pop()
        assert self.owners[block] == 0
        self.owners[block] = 1
        return block

    def free(self, blocks: Iterable[int]) -> int:
        """Drop one owner of each; those without any go back, in ascending order."""
        blocks = list(blocks)
        for block in blocks:
            self.owners[block] -= 1
            assert self.owners[block] >= 0
        gone = sorted({block for block in blocks if self.owners[block] == 0})
        self.stack += gone
        return len(gone)


@dataclass
class PlainRow:
    """blocks: by ordinal. held: what each slot holds, token id or FREE, DEAD, reserved. free: slots for new tokens, in order."""

    length: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    held: dict[Place, int] = field(default_factory=dict)
    free: list[Place] = field(default_factory=list)
    died_at: dict[int, int] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)

    @property
    def live(self) -> dict[int, Place]:
        return {token: place for place, token in sorted(self.held.items(), key=lambda x: x[1]) if token >= 0}

    def live_in(self, ordinal: int) -> int:
        n, o = 0, 0
        while (token := self.held.get((ordinal, o))) is not None:
            n, o = n + (token >= 0), o + 1
        return n


@dataclass
class PlainPlan:
    """moves: (row, source, target, token). leaving: by row."""

    rows: list[int]
    moves: list[tuple[int, Place, Place, int]]
    leaving: dict[int, set[int]]


class PlainTable:
    def __init__(self, rows: int, n_blocks: int, block_size: int, *, refill: bool) -> None:
        self.pool, self.size, self.refill = PlainPool(n_blocks), block_size, refill
        self.rows = [PlainRow() for _ in range(rows)]

    def private(self, row: int, ordinal: int) -> bool:
        return self.pool.owners[self.rows[row].blocks[ordinal]] == 1

    def append(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        for r, count in zip(rows, counts, strict=True):
            row = self.rows[r]
            while len(row.free) < count:
                row.free += [(j, o) for j in self.open(r, 1) for o in range(self.size)]
            for place in row.free[:count]:
                row.held[place] = row.length
                row.length += 1
            del row.free[:count]

    def open(self, r: int, n: int) -> list[int]:
        """New blocks at the lowest ordinals that are free."""
        row, opened = self.rows[r], []
        for _ in range(n):
            j = next(j for j in range(len(row.blocks) + 1) if j not in row.blocks)
            row.blocks[j] = self.pool.pop()
            row.held |= {(j, o): FREE for o in range(self.size)}
            opened.append(j)
        return opened

    def evict(self, rows: Sequence[int], kill: Sequence[set[int]]) -> tuple[int, int]:
        """Returns tokens that died and blocks that became free."""
        died, owners = 0, list(self.pool.owners)
        for r, ids in zip(rows, kill, strict=True):
            row = self.rows[r]
            for token, place in row.live.items():
                if token in ids:
                    own = owners[row.blocks[place[0]]] == 1
                    row.held[place] = FREE if self.refill and own else DEAD
                    row.died_at.setdefault(token, row.length)
                    died += 1
        return died, self.settle(rows)

    def settle(self, rows: Sequence[int]) -> int:
        """Drop the blocks that hold nothing any more; list the free slots anew."""
        dropped = []
        for r in rows:
            row = self.rows[r]
            for j in sorted(row.blocks):
                values = [row.held[j, o] for o in range(self.size)]
                if j not in row.leaving and not any(v >= 0 or v <= RESERVED for v in values):
                    dropped.append(row.blocks.pop(j))
                    for o in range(self.size):
                        del row.held[j, o]
            self.list_free(r)
        return self.pool.free(dropped)

    def list_free(self, r: int) -> None:
        row = self.rows[r]
        row.free = sorted(p for p, v in row.held.items() if v == FREE and p[0] not in row.leaving)

    def adopt(self, r: int, blocks: Sequence[int]) -> None:
        row = self.rows[r]
        for j, block in enumerate(blocks):
            self.pool.owners[block] += 1
            row.blocks[j] = block
            row.held |= {(j, o): j * self.size + o for o in range(self.size)}
        row.length = len(blocks) * self.size

    def release(self, rows: Sequence[int]) -> int:
        blocks = [block for r in rows for block in self.rows[r].blocks.values()]
        for r in rows:
            self.rows[r] = PlainRow()
        return self.pool.free(blocks)

    # -- moves ----------------------------------------------------------------------------------------------------------

    def begin(self, plan: PlainPlan) -> None:
        for r, _, target, _ in plan.moves:
            self.rows[r].held[target] -= RESERVE
        for r in plan.rows:
            self.rows[r].leaving = set(plan.leaving[r])
            self.list_free(r)

    def apply(self, plan: PlainPlan) -> tuple[int, int]:
        """Returns moves that counted and blocks that became free."""
        counted = 0
        for r, source, target, token in plan.moves:
            row = self.rows[r]
            if row.held[source] == token:
                row.held[target] = token
                counted += 1
            else:
                row.held[target] += RESERVE
        for r in plan.rows:
            row = self.rows[r]
            row.held |= {p: DEAD for p in row.held if p[0] in row.leaving}
            row.leaving = set()
        return counted, self.settle(plan.rows)

    def cancel(self, plan: PlainPlan) -> int:
        for r in plan.rows:
            row = self.rows[r]
            row.held |= {p: v + RESERVE for p, v in row.held.items() if v <= RESERVED}
            row.leaving = set()
        return self.settle(plan.rows)

    # -- planner --------------------------------------------------------------------------------------------------------

    def plan(self, rows: Sequence[int], options: ReclaimOptions) -> PlainPlan:
        """Choose and mark, as `vtoken_sdk.runtime.planner.plan`."""
        made = self._fill(rows, options) if options.packing == "fill" else self._fresh(rows, options)
        self.begin(made)
        return made

    def open_in(self, r: int) -> set[int]:
        """Blocks that new tokens go to, where dead slots do not serve again."""
        return set() if self.refill else {j for (j, _), value in self.rows[r].held.items() if value == FREE}

    def sparse_first(self, r: int, options: ReclaimOptions) -> tuple[list[int], list[int]]:
        """Private and shared blocks that may leave and that the threshold lets leave, sparsest first."""
        row, most = self.rows[r], int(options.threshold * self.size)
        stay = self.open_in(r) if options.packing == "fill" else set()
        by_live = sorted(row.blocks.keys() - stay, key=lambda j: (row.live_in(j), j))
        fit = [j for j in by_live if row.live_in(j) <= most]
        return [j for j in fit if self.private(r, j)], [j for j in fit if not self.private(r, j)]

    def _under_room(self, r: int, shared: Sequence[int], room: int) -> list[int]:
        taken = []
        room = max(0, room)
        for j in shared:
            room -= self.rows[r].live_in(j)
            if room < 0:
                break
            taken.append(j)
        return taken

    def _fill(self, rows: Sequence[int], options: ReclaimOptions) -> PlainPlan:
        wishes = []  # (shared, live, place in the batch, rank, row, ordinal)
        for i, r in enumerate(rows):
            row = self.rows[r]
            private, shared = self.sparse_first(r, options)
            room = sum(self.size - row.live_in(j) for j in row.blocks if self.private(r, j)) - options.slack
            private = private[: max(0, room // self.size)]
            taken = private + self._under_room(r, shared, room - self.size * len(private))
            wishes += [(j not in private, row.live_in(j), i, rank, r, j) for rank, j in enumerate(taken)]
        leaving: dict[int, list[int]] = {r: [] for r in rows}
        left = options.move_cap
        for _, live, _, _, r, j in sorted(wishes):
            left -= live
            if left < 0:
                break
            leaving[r].append(j)
        moves = []
        for r in rows:
            row = self.rows[r]
            stay = [j for j in row.blocks if self.private(r, j) and j not in leaving[r]]
            stay.sort(key=lambda j: (j not in self.open_in(r), row.live_in(j), j), reverse=True)
            holes = [(j, o) for j in stay for o in range(self.size) if row.held[j, o] < 0]
            moves += self.moves(r, leaving[r], holes)
        return PlainPlan(list(rows), moves, {r: set(js) for r, js in leaving.items()})

    def _fresh(self, rows: Sequence[int], options: ReclaimOptions) -> PlainPlan:
        spare = max(0, len(self.pool.stack) - options.margin)
        wishes = {}  # row: (gain, pops, ordinals that leave, moves)
        for r in rows:
            row, taken, moved = self.rows[r], [], 0
            private, shared = ([j for j in js if row.live_in(j) < self.size] for js in self.sparse_first(r, options))
            for j in private:
                moved += row.live_in(j)
                if moved > options.move_cap or -(-(moved + options.slack) // self.size) > spare:
                    moved -= row.live_in(j)
                    break
                taken.append(j)
            pops = -(-(moved + options.slack) // self.size)
            gain = len(taken) - pops
            if gain > 0:
                taken += self._under_room(r, shared, min(pops * self.size - options.slack, options.move_cap) - moved)
                wishes[r] = (gain, pops, taken, sum(row.live_in(j) for j in taken))
        queue = sorted(wishes, key=lambda r: -wishes[r][0])
        for cost, limit in ((1, spare), (3, options.move_cap)):
            fits, used = [], 0
            for r in queue:
                used += wishes[r][cost]  # type: ignore[operator]  # both are numbers
                if used <= limit:
                    fits.append(r)
            queue = fits
        moves, leaving = [], {}
        opened = {r: self.open(r, wishes[r][1] if r in queue else 0) for r in rows}
        for r in rows:
            leaving[r] = set(wishes[r][2]) if r in queue else set()
            holes = [(j, o) for j in opened[r] for o in range(self.size)]
            moves += self.moves(r, wishes[r][2] if r in queue else [], holes)
        return PlainPlan(list(rows), moves, leaving)

    def moves(self, r: int, sources: Sequence[int], holes: Sequence[Place]) -> list[tuple[int, Place, Place, int]]:
        held = self.rows[r].held
        live = [(j, o) for j in sources for o in range(self.size) if held[j, o] >= 0]
        assert len(live) <= len(holes)
        return [(r, source, target, held[source]) for source, target in zip(live, holes, strict=False)]

    # -- comparison -----------------------------------------------------------------------------------------------------

    def slots(self, r: int, places: Iterable[Place]) -> list[int]:
        return [self.rows[r].blocks[j] * self.size + o for j, o in places]

    def assert_same(self, table: TokenTable) -> None:
        """The tensors say what the dictionaries say, every entry of them."""
        pool = table.pool
        assert pool.stack[: int(pool.top)].tolist() == self.pool.stack
        assert pool.owners[:-1].tolist() == self.pool.owners
        for r, row in enumerate(self.rows):
            live = row.live
            assert int(table.length[r]) == row.length
            assert int(table.n_live[r]) == len(live)
            assert int(table.n_free[r]) == len(row.free)
            assert table.map[r, : len(live) + len(row.free)].tolist() == self.slots(r, [*live.values(), *row.free])
            slot = dict(zip(live, self.slots(r, live.values()), strict=True))
            assert table.slot[r].tolist() == [slot.get(t, -1) for t in range(table.max_tokens)]
            assert table.died_at[r].tolist() == [row.died_at.get(t, NEVER) for t in range(table.max_tokens)]
            ordinals = range(table.max_blocks)
            assert table.blocks[r].tolist() == [row.blocks.get(j, pool.trash) for j in ordinals]
            assert table.leaving[r].tolist() == [j in row.leaving for j in ordinals]
            held = [row.held.get((j, o), DEAD) for j in ordinals for o in range(self.size)]
            assert table.held[r].tolist() == held
            assert all(int(pool.home[block]) == j for j, block in row.blocks.items())
