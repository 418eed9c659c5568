"""From planned work to the arrays of one step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from tensorsharp.engine.seats import Seat
from tensorsharp.engine.sequence import Sequence
from tensorsharp.protocols.batch import I32, Batch


@dataclass(frozen=True, slots=True)
class Work:
    """The next `rows` known tokens of a sequence that has a seat with blocks for them."""

    sequence: Sequence
    seat: Seat
    rows: int


def build_batch(work: SequenceOf[Work], tables: Mapping[int | None, I32], history: int = 0) -> Batch:
    """The ragged batch of `work`, in that order.

    tables: block group -> [seats, capacity]. history: how many previous tokens each row carries.
    """
    if all(w.rows == 1 and w.sequence.pending == 1 for w in work):
        return _replies(work, tables, history)
    count = len(work)
    length = np.array([w.rows for w in work], np.int32)
    start = np.array([w.sequence.computed for w in work], np.int32)
    seats = np.array([w.seat.index for w in work], np.int32)
    slots = np.array([w.seat.slot for w in work], np.int32)
    ends = np.cumsum(length, dtype=np.int32)
    first = ends - length
    rows = int(ends[-1])
    tokens = np.concatenate([w.sequence.ids[w.sequence.computed : w.sequence.computed + w.rows] for w in work])
    if rows == count:
        seq, pos = np.arange(count, dtype=np.int32), start
    else:
        seq = np.repeat(np.arange(count, dtype=np.int32), length)
        pos = np.arange(rows, dtype=np.int32) + np.repeat(start - first, length)
    slot_out = np.full(rows, -1, np.int32)
    slot_out[ends - 1] = slots
    return Batch(
        tokens=tokens,
        pos=pos,
        seq=seq,
        first_row=first,
        start=start,
        length=length,
        tables={group: table[seats] for group, table in tables.items()},
        tail_slot=seats,
        slot_in=np.where(start > 0, slots, np.int32(-1)),
        slot_out=slot_out,
        wanted=_wanted(work, ends),
        previous=_previous(work, rows, history),
    )


def _replies(work: SequenceOf[Work], tables: Mapping[int | None, I32], history: int) -> Batch:
    """The same for one wanted row of each, by few operations: after a step none of them is in the processor's caches."""
    rows = [
        (number, 1, w.sequence.ids[w.sequence.computed], w.sequence.computed, w.seat.index, w.seat.slot)
        for number, w in enumerate(work)
    ]
    order, length, tokens, pos, seats, slots = fields = np.array(list(zip(*rows, strict=True)), np.int32)
    return Batch(
        tokens=tokens,
        pos=pos,
        seq=order,
        first_row=order,
        start=pos,
        length=length,
        tables={group: table[seats] for group, table in tables.items()},
        tail_slot=seats,
        slot_in=slots if all(row[3] for row in rows) else np.where(pos > 0, slots, np.int32(-1)),
        slot_out=slots,
        wanted=order,
        previous=_previous(work, len(work), history) if history else fields.T[:, :0],
    )


def _wanted(work: SequenceOf[Work], ends: I32) -> I32:
    wanted = [w.sequence.wanted(w.rows) for w in work]
    pieces = [np.arange(end - n, end, dtype=np.int32) for n, end in zip(wanted, ends.tolist(), strict=True) if n]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)


def _previous(work: SequenceOf[Work], rows: int, history: int) -> I32:
    out = np.full((rows, history), -1, np.int32)
    if history:
        row = 0
        for w in work:
            known = np.full(history + w.sequence.length, -1, np.int32)
            known[history:] = w.sequence.ids[: w.sequence.length]
            windows = np.lib.stride_tricks.sliding_window_view(known, history)
            out[row : row + w.rows] = windows[w.sequence.computed : w.sequence.computed + w.rows]
            row += w.rows
    return out
