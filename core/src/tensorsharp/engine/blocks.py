"""Blocks of the paged state: a pool of block ids for each block group, and one table a sequence and group.

A block group is a window (None: everything is kept); all paged stores with that window share its blocks. Block ids
say nothing about memory: the state store owns that, this module only says who uses which block.
"""

from __future__ import annotations

import numpy as np

from tensorsharp.errors import CapacityError
from tensorsharp.protocols.batch import I32


class BlockPool:
    """The blocks of one group, with reference counts. free + used = total, always."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` blocks, referenced once. CapacityError, with nothing changed, if there are not as many."""
        if count > len(self._free):
            raise CapacityError(f"{count} blocks are wanted and {len(self._free)} of {self.total} are free.")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One reference more to a block that is in use."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one frees the block."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be released")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)

    def check(self) -> None:
        """RuntimeError if the books do not balance."""
        referenced = sum(1 for n in self._references if n > 0)
        if referenced + len(self._free) != self.total or len(set(self._free)) != len(self._free):
            raise RuntimeError(f"{referenced} blocks are referenced and {len(self._free)} are free, of {self.total}")


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

    def trim(self, computed: int) -> None:
        """Free the blocks that no row from position `computed` - slack on can see. Without a window there are none."""
        if self.window is None:
            return
        keep = max(0, computed - self.window + 1 - self.slack) // self.block_tokens
        self._release(self.begin, min(keep, self.end))
        self.begin = max(self.begin, min(keep, self.end))

    def clear(self) -> None:
        """Free everything."""
        self._release(self.begin, self.end)
        self.begin = self.end = 0

    def _release(self, first: int, stop: int) -> None:
        if first < stop:
            for block in self.row[first:stop][::-1].tolist():
                self.pool.release(block)
            self.row[first:stop] = -1

    def peak(self, length: int, rows: int) -> int:
        """The most blocks held at once while `length` positions are computed, at most `rows` a step."""
        whole = -(-length // self.block_tokens)
        return whole if self.window is None else min(whole, window_blocks(self.window, self.slack + rows, self.block_tokens))


def window_blocks(window: int, rows: int, block_tokens: int) -> int:
    """Blocks that window-1 rows and the next `rows` touch at most, wherever they begin."""
    return (window + rows - 2 + block_tokens - 1) // block_tokens + 1


def empty_tables(sequences: int, capacity: int) -> I32:
    """[sequences, capacity] of -1."""
    return np.full((sequences, capacity), -1, np.int32)
