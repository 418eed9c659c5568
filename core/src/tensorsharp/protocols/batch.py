"""The ragged batch: what one step computes, as host arrays.

Rows of one sequence are contiguous and ascending in position; a sequence appears at most once. Every field changes
from step to step, so every field is an *input* of a compiled graph, never a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """R rows of S sequences, W of them wanted. All integer arrays are int32; -1 means "none" everywhere.

    tokens [R]: token id, or -1 for a row that comes as an embedding.
    pos [R]: stream index of the row (0,1,2.. without gaps): addresses state, decides visibility and windows.
    seq [R]: index of the row's sequence in this batch; -1 is a padding row.
    first_row, start, length [S]: first batch row, its `pos`, number of rows.
    tables: block group (its window, or None) -> [S, capacity] physical block of each logical block, -1 unmapped.
    tail_slot [S]: slot of the sequence's Tail rings. slot_in [S]: recurrent slot to start from, -1 = zero state.
    slot_out [R]: slot that takes the recurrent state after this row, -1 = do not write.
    wanted [W]: batch rows whose logits are wanted.
    rope_pos [R, A]: rotary coordinates; None means they equal `pos`.
    rows_in [R, m] float32: rows that come with the batch instead of a token; None if there are none.
    previous [R, k]: the k tokens before each row, newest last, -1 before the start; k may be 0.
    """

    tokens: I32
    pos: I32
    seq: I32
    first_row: I32
    start: I32
    length: I32
    tables: Mapping[int | None, I32]
    tail_slot: I32
    slot_in: I32
    slot_out: I32
    wanted: I32
    rope_pos: I32 | None = None
    rows_in: F32 | None = None
    previous: I32 = field(default_factory=lambda: np.zeros((0, 0), np.int32))

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> int:
        return len(self.first_row)

    def padded(self, rows: int, sequences: int, wanted: int) -> Batch:
        """The same batch with padding rows, sequences and wanted rows at the end; changes no result.

        Padding rows have `seq` = -1; padding entries of `wanted` repeat row 0.
        """
        r, s, w = rows - self.rows, sequences - self.sequences, wanted - len(self.wanted)
        if r == 0 and s == 0 and w == 0:
            return self

        def grow(a: I32, n: int, value: int) -> I32:
            if n == 0:
                return a
            return np.concatenate([a, np.full((n, *a.shape[1:]), value, a.dtype)])

        return Batch(
            tokens=grow(self.tokens, r, 0),
            pos=grow(self.pos, r, 0),
            seq=grow(self.seq, r, -1),
            first_row=grow(self.first_row, s, 0),
            start=grow(self.start, s, 0),
            length=grow(self.length, s, 0),
            tables={g: grow(t, s, -1) for g, t in self.tables.items()},
            tail_slot=grow(self.tail_slot, s, -1),
            slot_in=grow(self.slot_in, s, -1),
            slot_out=grow(self.slot_out, r, -1),
            wanted=grow(self.wanted, w, 0),
            rope_pos=None if self.rope_pos is None else grow(self.rope_pos, r, 0),
            rows_in=None
            if self.rows_in is None
            else np.concatenate([self.rows_in, np.zeros((r, self.rows_in.shape[1]), np.float32)]),
            previous=grow(self.previous, r, -1),
        )
