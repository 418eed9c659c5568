"""Block tables: which block holds which positions of a sequence, one table a sequence and group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsharp.engine.blocks import BlockPool
from tensorsharp.engine.prefix import Link
from tensorsharp.protocols.batch import I32


class BlockTable:
    """The blocks of one sequence in one group: logical blocks begin .. end-1 are mapped, all others are -1.

    row: [capacity] int32, a view of the array that the batch is made from. slack: rows that one step may take back,
    which a window therefore still has to keep.
    """

    __slots__ = ("begin", "block_tokens", "end", "pool", "row", "slack", "window")

    def __init__(self, pool: BlockPool, row: I32, block_tokens: int, window: int | None, slack: int = 0) -> None:
        self.pool = pool
        self.row = row
        self.block_tokens = block_tokens
        self.window = window
        self.slack = slack
        self.begin = 0
        self.end = 0

    @property
    def held(self) -> int:
        return self.end - self.begin

    def missing(self, length: int) -> int:
        """How many blocks more it takes to map every position below `length`."""
        return max(0, -(-length // self.block_tokens) - self.end)

    def grow(self, length: int) -> None:
        """Map every position below `length`. CapacityError, with nothing changed, if the pool has too few blocks."""
        count = self.missing(length)
        if count:
            self.row[self.end : self.end + count] = self.pool.take(count)
            self.end += count

    def first_seen(self, computed: int) -> int:
        """The first block that a row from position `computed` - slack on can see."""
        return 0 if self.window is None else max(0, computed - self.window + 1 - self.slack) // self.block_tokens

    def trim(self, computed: int) -> None:
        """Let go of the blocks that no row from position `computed` - slack on can see. Without a window there are none."""
        keep = min(self.first_seen(computed), self.end)
        self._release(self.begin, keep)
        self.begin = max(self.begin, keep)

    def clear(self) -> None:
        """Let go of everything."""
        self._release(self.begin, self.end)
        self.begin = self.end = 0

    def _release(self, first: int, stop: int) -> None:
        if first < stop:
            # what is released first is evicted first: of a prefix the end, of a window the beginning
            order = -1 if self.window is None else 1
            for block in self.row[first:stop][::order].tolist():
                if block >= 0:  # one that could not be brought has none
                    self.pool.release(block)
            self.row[first:stop] = -1

    def reusable(self, links: Sequence[Link]) -> list[bool]:
        """For each count of blocks, 0 to all of `links`: whether a sequence could begin after that many."""
        found, run = [True], 0
        for count, link in enumerate(links, 1):
            run = run + 1 if self.pool.reaches(link) else 0
            if self.window is None and not run:
                break
            found.append(run >= count - self.first_seen(count * self.block_tokens))
        return found + [False] * (len(links) + 1 - len(found))

    def adopt(self, links: Sequence[Link], position: int) -> None:
        """Begin an empty table at `position`, after the blocks of `links`: those that are there are shared, as far as they can
        still be seen."""
        self.end = len(links)
        self.begin = min(self.first_seen(position), self.end)
        for number in range(self.begin, self.end):
            block = self.pool.find(links[number])
            if block is not None:
                self.pool.share(block)
                self.row[number] = block

    def append(self, source: int) -> int:
        """Map one more block, which is to become a copy of `source`. It may be that block itself, if no other is left."""
        self.pool.touch(source)
        self.grow((self.end + 1) * self.block_tokens)
        return int(self.row[self.end - 1])

    def bring(self, links: Sequence[Link]) -> None:
        """The rest of `adopt`, once nothing that was found can be taken for it: what is not there is got from below."""
        for number in range(self.begin, len(links)):
            if self.row[number] < 0:
                self.row[number] = self.pool.bring(links[number])

    def fetch(self, links: Sequence[Link]) -> bool:
        """Get ready what `adopt` needs and no block holds. False if something is not to be had."""
        return all(self.pool.fetch(link) for link in links[self.first_seen(len(links) * self.block_tokens) :])

    def settle(self, first: int, stop: int) -> None:
        """Logical blocks first .. stop-1 have become full."""
        for block in self.row[max(first, self.begin) : stop].tolist():
            self.pool.settle(block)

    def label(self, links: Sequence[Link], first: int) -> None:
        """Say what the logical blocks from `first` on hold."""
        for number, link in enumerate(links, first):
            if number >= self.begin:
                self.pool.label(int(self.row[number]), link)

    def peak(self, length: int, rows: int) -> int:
        """The most blocks held at once while `length` positions are computed, at most `rows` a step."""
        whole = -(-length // self.block_tokens)
        return whole if self.window is None else min(whole, window_blocks(self.window, self.slack + rows, self.block_tokens))

    def owed(self, length: int, rows: int) -> int:
        """How many blocks more may have to be taken until `length` positions are computed."""
        if self.window is None:
            return self.missing(length)
        # what is shared does not come back to the pool when the window leaves it
        own = sum(self.pool.references(b) == 1 for b in self.row[self.begin : self.end].tolist())
        return max(0, self.peak(length, rows) - own)


def window_blocks(window: int, rows: int, block_tokens: int) -> int:
    """Blocks that window-1 rows and the next `rows` touch at most, wherever they begin."""
    return (window + rows - 2 + block_tokens - 1) // block_tokens + 1


def empty_tables(sequences: int, capacity: int) -> I32:
    """[sequences, capacity] of -1."""
    return np.full((sequences, capacity), -1, np.int32)
