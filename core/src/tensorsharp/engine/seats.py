"""Seats: what a running sequence occupies besides its blocks.

Seat i is Tail ring i, recurrent slot i and row i of every group's table array, so the tables of a batch are one
indexing operation a group.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorsharp.engine.blocks import BlockPool, BlockTable, empty_tables
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.layout import Layout, Slot, block_groups


class Seat:
    """One place for a running sequence. index: Tail ring; slot: recurrent slot, -1 if the layout has none."""

    __slots__ = ("index", "slot", "tables")

    def __init__(self, index: int, slot: int, tables: tuple[BlockTable, ...]) -> None:
        self.index = index
        self.slot = slot
        self.tables = tables

    def fits(self, length: int) -> bool:
        """Whether every position below `length` can be mapped now."""
        return all(t.missing(length) <= t.pool.free for t in self.tables)

    def grow(self, length: int) -> None:
        """Map every position below `length`; only after `fits`."""
        for table in self.tables:
            table.grow(length)

    def trim(self, computed: int) -> None:
        for table in self.tables:
            table.trim(computed)

    def clear(self) -> None:
        for table in self.tables:
            table.clear()


class Seats:
    """All seats and pools of one state store.

    context: positions a sequence may have; `limit` is that or what the pools can hold for one sequence, if less.
    rows: most rows of a sequence in one step. CapacityError if a pool cannot hold one sequence's window.
    """

    def __init__(self, layout: Layout, sizes: StateSizes, context: int, rows: int) -> None:
        self.block_tokens = sizes.block_tokens
        self.rows = rows
        capacity = -(-context // sizes.block_tokens)
        groups = block_groups(layout)
        self.pools: dict[int | None, BlockPool] = {g: BlockPool(sizes.blocks[g]) for g in groups}
        self.tables: Mapping[int | None, I32] = {g: empty_tables(sizes.sequences, capacity) for g in groups}
        has_slots = any(isinstance(s, Slot) for s in layout.values())
        self._seats = [
            Seat(
                i,
                i if has_slots else -1,
                tuple(BlockTable(self.pools[g], self.tables[g][i], sizes.block_tokens, g, sizes.slack) for g in groups),
            )
            for i in range(sizes.sequences)
        ]
        self._free = self._seats[::-1]
        self.limit = context
        for table in self._seats[0].tables:
            if table.window is None:
                self.limit = min(self.limit, table.pool.total * sizes.block_tokens)
        for table in self._seats[0].tables:
            need = table.peak(self.limit, rows)
            if need > table.pool.total:
                raise CapacityError(
                    f"The block group of window {table.window} has {table.pool.total} blocks of {sizes.block_tokens} positions; "
                    f"one sequence computed {rows} rows a step needs {need}.",
                    hint="Give the store more blocks, or compute fewer rows a step.",
                )

    @property
    def total(self) -> int:
        return len(self._seats)

    @property
    def free(self) -> int:
        return len(self._free)

    def need(self, length: int) -> list[int]:
        """For each group the most blocks that a sequence of `length` positions holds at once."""
        return [table.peak(length, self.rows) for table in self._seats[0].tables]

    def take(self) -> Seat:
        """A free seat; only while `free` is not 0."""
        return self._free.pop()

    def give(self, seat: Seat) -> None:
        """Take a seat back and free its blocks."""
        seat.clear()
        self._free.append(seat)

    def check(self) -> None:
        """RuntimeError if a block is lost, held by nobody, or mapped by two sequences."""
        for number, (group, pool) in enumerate(self.pools.items()):
            pool.check()
            mapped = [b for seat in self._seats for b in seat.tables[number].row.tolist() if b >= 0]
            held = sum(seat.tables[number].held for seat in self._seats)
            if len(set(mapped)) != len(mapped) or len(mapped) != pool.used or held != pool.used:
                raise RuntimeError(f"group {group}: {len(mapped)} blocks mapped, {held} held, {pool.used} used")
