"""Seats: what a running sequence occupies besides its blocks.

Seat i is Tail ring i, recurrent slot i and row i of every group's table array, so the tables of a batch are one
indexing operation a group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorsharp.engine.backing import Backing, Below
from tensorsharp.engine.blocks import BlockPool
from tensorsharp.engine.content import Content
from tensorsharp.engine.prefix import Link
from tensorsharp.engine.savepoints import Savepoints
from tensorsharp.engine.tables import BlockTable, empty_tables
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.layout import Layout, Paged, Slot, block_groups

Copy = Callable[[int | None, int, int], None]
"""(group, source, target): copy one block over another, in every store of the group."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A beginning inside a block: up to `position`, in copies of `sources`, one block for each group."""

    position: int
    sources: tuple[int, ...]


class Seat:
    """One place for a running sequence. index: Tail ring; slot: recurrent slot, -1 if the layout has none."""

    __slots__ = ("index", "slot", "tables")

    def __init__(self, index: int, slot: int, tables: tuple[BlockTable, ...]) -> None:
        self.index = index
        self.slot = slot
        self.tables = tables

    def fits(self, length: int) -> bool:
        """Whether every position below `length` can be mapped now."""
        return all(t.missing(length) <= t.pool.available for t in self.tables)

    def grow(self, length: int) -> None:
        """Map every position below `length`; only after `fits`."""
        for table in self.tables:
            table.grow(length)

    def adopt(self, links: Sequence[Link], position: int) -> None:
        """Begin at `position`, after the blocks of `links`, of which `Seats.reusable` said that they are there."""
        for table in self.tables:
            table.adopt(links, position)

    def bring(self, links: Sequence[Link]) -> None:
        """Map those of `links` that `adopt` did not find."""
        for table in self.tables:
            table.bring(links)

    def label(self, links: Sequence[Link], first: int) -> None:
        """The blocks from `first` on hold this: others may use them from now on."""
        for table in self.tables:
            table.label(links, first)

    def settle(self, first: int, stop: int) -> None:
        """Blocks first .. stop-1 have become full: nobody writes into them any more."""
        for table in self.tables:
            table.settle(first, stop)

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
    reuses: whether a sequence can begin after blocks that another one filled. Rings and recurrent state are not in
    blocks; a layout that has some needs `savepoints`, and reuses nothing without. backing: what lies below the pools.
    forks: whether a sequence can begin inside a block too. That takes `copy`, a layout that has all its state in blocks, and
    no lossy codec, as a block that became full holds then what later blocks read and not what its own rows do. stride: of
    how many positions such a beginning is a multiple, so that a row for several is copied whole or computed whole.
    """

    def __init__(
        self,
        layout: Layout,
        sizes: StateSizes,
        context: int,
        rows: int,
        savepoints: Savepoints | None = None,
        backing: Backing | None = None,
        copy: Copy | None = None,
    ) -> None:
        self.block_tokens = sizes.block_tokens
        self.rows = rows
        capacity = -(-context // sizes.block_tokens)
        groups = block_groups(layout)
        self.pools: dict[int | None, BlockPool] = {
            g: BlockPool(sizes.blocks[g], None if backing is None else Below(backing, g)) for g in groups
        }
        self.backing = backing
        self.tables: Mapping[int | None, I32] = {g: empty_tables(sizes.sequences, capacity) for g in groups}
        in_blocks = all(isinstance(s, Paged) for s in layout.values())
        self.savepoints = None if in_blocks else savepoints
        self.reuses = in_blocks or savepoints is not None
        self.forks = in_blocks and copy is not None and (backing is None or backing.codec.lossless)
        self.stride = math.lcm(*(s.stride for s in layout.values() if isinstance(s, Paged)))
        self._copy = copy
        if self.savepoints is not None and backing is not None:
            self.savepoints.below = backing.keep_state
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

    def room(self) -> list[int]:
        """For each group how many blocks can be taken."""
        return [pool.available for pool in self.pools.values()]

    def need(self, length: int, shared: int = 0) -> list[int]:
        """For each group the most blocks that a sequence of `length` positions takes, `shared` of which others hold.

        A window moves on from what it shares and takes as many as without.
        """
        return [t.peak(length, self.rows) - (shared if t.window is None else 0) for t in self._seats[0].tables]

    def in_use(self, links: Sequence[Link]) -> int:
        """How many of these blocks are held by somebody in the group that keeps everything."""
        pool = self.pools.get(None)
        if pool is None:
            return 0
        found = (pool.find(link) for link in links)
        return sum(block is not None and pool.references(block) > 0 for block in found)

    def owed(self, seat: Seat, length: int) -> list[int]:
        """For each group how many blocks more a seated sequence may take until its `length` positions are computed."""
        return [table.owed(length, self.rows) for table in seat.tables]

    def reusable(self, links: Sequence[Link]) -> int:
        """After how many of these blocks a sequence can begin: the most for which every group has what later rows see."""
        groups = [table.reusable(links) for table in self._seats[0].tables]
        return max(n for n in range(len(links) + 1) if all(found[n] for found in groups) and self._saved(links, n))

    def _saved(self, links: Sequence[Link], count: int) -> bool:
        if count == 0 or self.savepoints is None or links[count - 1] in self.savepoints:
            return True
        return self.backing is not None and self.backing.has_state(links[count - 1])

    def fetch(self, links: Sequence[Link], count: int) -> int:
        """Get what lies below the pools ready for `take`. After how many of the blocks a sequence can begin then: `count`,
        which `reusable` allowed, or fewer if something proves unusable."""
        while count and not (self._fetch_state(links[count - 1]) and all(t.fetch(links[:count]) for t in self._seats[0].tables)):
            count = self.reusable(links[:count])
        return count

    def _fetch_state(self, link: Link) -> bool:
        if self.savepoints is None or link in self.savepoints:
            return True
        data = None if self.backing is None else self.backing.fetch_state(link)
        if data is not None:
            self.savepoints.put(link, data)
        return data is not None

    def contents(self, seat: Seat, links: Sequence[Link]) -> list[Content]:
        """What a sequence needs to begin where `seat` is now, after the full blocks of `links`; only with a backing."""
        found: list[Content] = []
        if self.backing is None or not links:
            return found
        for group, table in zip(self.pools, seat.tables, strict=True):
            first = table.first_seen(len(links) * self.block_tokens)
            blocks = enumerate(table.row[first : len(links)].tolist(), first)
            found += [self.backing.content(group, block, links[number]) for number, block in blocks]
        if self.savepoints is not None:
            found.append(self.backing.state(links[-1], self.savepoints.current(seat.index, seat.slot)))
        return found

    def persist(self) -> None:
        """Have everything that a later sequence may find kept below, and what is in memory there written down."""
        if self.backing is None:
            return
        for group, pool in self.pools.items():
            for block, link in pool.held():
                self.backing.keep(group, block, link, wait=True)
        for link, data in [] if self.savepoints is None else self.savepoints.items():
            self.backing.keep_state(link, data, wait=True)
        self.backing.tiers.persist()

    def forget(self, links: Sequence[Link]) -> None:
        """Let nobody begin after these blocks any more."""
        for pool in self.pools.values():
            for link in links:
                pool.forget(link)
        if self.savepoints is not None:
            for link in links:
                self.savepoints.drop(link)
        if self.backing is not None:
            for link in links:
                self.backing.forget(link)

    def take(self, links: Sequence[Link] = (), fork: Fork | None = None) -> Seat:
        """A free seat, only while `free` is not 0, that begins after the blocks of `links`, which `reusable` allowed, or
        inside the next one. What the store raises goes on, with nothing held."""
        seat = self._free.pop()
        try:
            seat.adopt(links, len(links) * self.block_tokens if fork is None else fork.position)
            if fork is not None and self._copy is not None:
                for group, table, source in zip(self.pools, seat.tables, fork.sources, strict=True):
                    target = table.append(source)
                    if target != source:
                        self._copy(group, source, target)
            seat.bring(links)
            if links and self.savepoints is not None:
                self.savepoints.load(links[-1], seat.index, seat.slot)
        except Exception:
            self.give(seat)
            raise
        return seat

    def give(self, seat: Seat) -> None:
        """Take a seat back and free its blocks."""
        seat.clear()
        self._free.append(seat)

    def check_idle(self) -> None:
        """RuntimeError if seats or blocks are held, which nobody should do now. Costs next to nothing."""
        used = {group: pool.used for group, pool in self.pools.items()}
        if self.free != self.total or any(used.values()):
            raise RuntimeError(f"nothing runs, but {self.total - self.free} seats and {used} blocks are held")

    def check(self) -> None:
        """RuntimeError if a block is lost, or the references to it are not the tables that map it."""
        if self.savepoints is not None:
            self.savepoints.check()
        for number, (group, pool) in enumerate(self.pools.items()):
            pool.check()
            mapped = Counter(b for seat in self._seats for b in seat.tables[number].row.tolist() if b >= 0)
            held = sum(seat.tables[number].held for seat in self._seats)
            partial = [b for b in range(pool.total) if (link := pool.holds(b)) and len(link.tokens) < 4 * self.block_tokens]
            if any(pool.references(b) for b in partial):
                raise RuntimeError(f"group {group}: blocks {partial} are filled in part, and somebody writes on in one of them")
            if any(mapped[b] != pool.references(b) for b in range(pool.total)) or held != mapped.total():
                raise RuntimeError(f"group {group}: {mapped.total()} blocks mapped, {held} held, {pool.used} used")
