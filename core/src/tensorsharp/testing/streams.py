"""Several token streams over one state store: ragged batches, block tables in a drawn order, poisoned memory.

What an engine does between steps, as plainly as it can be done, so that tests of operations, models and backends can
choose every detail: which rows share a batch, where the blocks lie, what is taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorsharp.protocols.backend import StateSizes, StateStore
from tensorsharp.protocols.batch import I32, Batch
from tensorsharp.protocols.layout import Layout, Paged, block_groups
from tensorsharp.state import HostStateStore

Wanted = Literal["all", "last", "none"]
Rows = Sequence[tuple[int, "Sequence[int] | int"]]
"""(stream, its next tokens) for each sequence of a batch, in batch order; a number n stands for n zeros."""

TILE = 32


def block_size(layout: Layout) -> int:
    """The smallest block that the layout allows: a multiple of 32 and of every stride."""
    return math.lcm(TILE, *(kind.stride for kind in layout.values() if isinstance(kind, Paged)))


def ints(values: Sequence[int]) -> I32:
    return np.array(values, np.int32)


@dataclass(frozen=True, slots=True)
class Spilled:
    """A stream outside the store: its blocks (None where unmapped), and its snapshot, with a recurrent slot or without."""

    blocks: Mapping[int | None, Sequence[bytes | None]]
    rest: bytes
    has_slot: bool
    tokens: Sequence[int]


class Streams:
    """`count` streams of up to `capacity` blocks each over one store, which starts poisoned: all bytes 0xFF, NaN in every
    format, so that whatever is read without having been written shows.

    make: builds the store. seed: order of the physical blocks. slack: rows that a verify step may take back. history:
    previous tokens that batches carry. done: rows computed, by stream.
    """

    def __init__(
        self,
        layout: Layout,
        make: Callable[[Layout, StateSizes], StateStore] = HostStateStore,
        *,
        count: int = 3,
        capacity: int = 3,
        seed: int = 0,
        slack: int = 0,
        history: int = 8,
    ) -> None:
        self.layout, self.count, self.capacity, self.history = layout, count, capacity, history
        self.block = block_size(layout)
        self.groups = block_groups(layout)
        self.slots_each = slack + 2
        blocks = dict.fromkeys(self.groups, count * capacity)
        self.store = make(layout, StateSizes(self.block, blocks, count, slots=count * self.slots_each, slack=slack))
        rng = np.random.default_rng(seed)
        self._owned = {group: rng.permutation(n).astype(np.int32).reshape(count, capacity) for group, n in blocks.items()}
        self.tables = {group: table.copy() for group, table in self._owned.items()}
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.done = [0] * count
        self._slot = [-1] * count
        self._pending: dict[int, tuple[list[int], list[int]]] = {}
        for stream in range(count):
            self.poison(stream)

    def poison(self, stream: int) -> None:
        """Overwrite all state of a stream with NaN."""
        for group in self.groups:
            for block in self.tables[group][stream]:
                self._poison_block(group, int(block))
        for slot in range(stream * self.slots_each, (stream + 1) * self.slots_each):
            self.store.restore(stream, slot, b"\xff" * self.store.slot_bytes())

    def _poison_block(self, group: int | None, block: int) -> None:
        if block >= 0:
            self.store.write(group, block, b"\xff" * self.store.block_bytes(group))

    def release(self, stream: int) -> None:
        """End a stream: its memory is poisoned and its place can be used again."""
        self.poison(stream)
        for group in self.groups:
            self.tables[group][stream] = self._owned[group][stream]
        self.tokens[stream] = []
        self.done[stream] = 0
        self._slot[stream] = -1

    def batch(self, rows: Rows, *, wanted: Wanted = "all", keep: bool = True) -> Batch:
        """The next rows of some streams. keep: they count as computed at once; otherwise say how many with `keep`."""
        parts = [(s, [0] * given if isinstance(given, int) else list(given)) for s, given in rows]
        lengths = [len(tokens) for _, tokens in parts]
        firsts = np.cumsum([0, *lengths])
        slots = [self._slots(s, n) for (s, _), n in zip(parts, lengths, strict=True)]
        self._pending = {s: (tokens, chosen) for (s, tokens), chosen in zip(parts, slots, strict=True)}
        batch = Batch(
            tokens=ints([token for _, tokens in parts for token in tokens]),
            pos=ints([self.done[s] + i for s, tokens in parts for i in range(len(tokens))]),
            seq=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
            first_row=firsts[:-1].astype(np.int32),
            start=ints([self.done[s] for s, _ in parts]),
            length=ints(lengths),
            tables={group: table[[s for s, _ in parts]] for group, table in self.tables.items()},
            tail_slot=ints([s for s, _ in parts]),
            slot_in=ints([self._slot[s] for s, _ in parts]),
            slot_out=ints([slot for chosen in slots for slot in chosen]),
            wanted=_wanted(wanted, firsts, lengths),
            previous=self._previous(parts),
        )
        if keep:
            for s, tokens in parts:
                self.keep(s, len(tokens))
        return batch

    def keep(self, stream: int, rows: int) -> None:
        """Of the rows of the last batch, the first `rows` count as computed; the others are taken back."""
        tokens, slots = self._pending.pop(stream)
        self.tokens[stream] += tokens[:rows]
        self.done[stream] += rows
        if rows:
            self._slot[stream] = slots[rows - 1]

    def _slots(self, stream: int, rows: int) -> list[int]:
        """The recurrent slot after each row: another one for every row that may be the last kept, never the current one."""
        first = stream * self.slots_each
        current = max(self._slot[stream] - first, -1)
        named = min(rows, self.slots_each - 1)
        return [-1] * (rows - named) + [first + (current + 1 + i) % self.slots_each for i in range(named)]

    def _previous(self, parts: Sequence[tuple[int, list[int]]]) -> I32:
        out = []
        for s, tokens in parts:
            line = [-1] * self.history + self.tokens[s] + tokens
            ends = range(len(line) - len(tokens), len(line))
            out += [line[end - self.history : end] for end in ends]
        return np.array(out, np.int32).reshape(-1, self.history)

    def fork(self, source: int, target: int) -> None:
        """Make `target` continue where `source` is, as a prefix hit does: blocks, ring and recurrent state are copied."""
        self.release(target)
        for group in self.groups:
            for block, copy in zip(self.tables[group][source], self.tables[group][target], strict=True):
                if block >= 0:
                    self.store.copy(group, int(block), int(copy))
        slot = target * self.slots_each
        if self._slot[source] >= 0:
            self.store.restore(target, slot, self.store.snapshot(source, self._slot[source]))
            self._slot[target] = slot
        self.tokens[target] = list(self.tokens[source])
        self.done[target] = self.done[source]

    def spill(self, stream: int) -> Spilled:
        """The stream's state as bytes; the stream is over and its memory poisoned."""
        tables = {g: [int(b) for b in self.tables[g][stream]] for g in self.groups}
        blocks = {g: [self.store.read(g, b) if b >= 0 else None for b in table] for g, table in tables.items()}
        found = Spilled(blocks, self.store.snapshot(stream, self._slot[stream]), self._slot[stream] >= 0, self.tokens[stream])
        self.release(stream)
        return found

    def fill(self, stream: int, state: Spilled) -> None:
        """Continue what was spilled as another stream: other blocks, another ring, other slots."""
        self.release(stream)
        for group, blocks in state.blocks.items():
            for i, content in enumerate(blocks):
                if content is None:
                    self.tables[group][stream, i] = -1
                else:
                    self.store.write(group, int(self.tables[group][stream, i]), content)
        self._slot[stream] = stream * self.slots_each if state.has_slot else -1
        self.store.restore(stream, self._slot[stream], state.rest)
        self.tokens[stream] = list(state.tokens)
        self.done[stream] = len(state.tokens)

    def evict(self) -> None:
        """Unmap and poison the blocks that a windowed group will never read again."""
        slack = self.store.sizes.slack
        for window in self.groups:
            if window is None:
                continue
            for stream in range(self.count):
                dead = max(0, self.done[stream] - window + 1 - slack) // self.block
                for i in range(dead):
                    self._poison_block(window, int(self.tables[window][stream, i]))
                    self.tables[window][stream, i] = -1


def _wanted(which: Wanted, firsts: I32, lengths: Sequence[int]) -> I32:
    if which == "none":
        return ints([])
    if which == "all":
        return np.arange(sum(lengths), dtype=np.int32)
    return ints([int(first) + n - 1 for first, n in zip(firsts, lengths, strict=False) if n])
