"""One sequence on a runner, step by step, without the engine: what is timed is the model and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from tensorsharp.engine.config import STEP_TOKENS
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sizing import plan_state
from tensorsharp.opening import Opened, running
from tensorsharp.protocols.backend import Runner, StateStore
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.protocols.layout import Format, Layout, Paged, Tail


@contextmanager
def stepper(this: Opened, kv_type: Format, context: int, written: int) -> Iterator[Stepper]:
    """Weights and state of one sequence of up to `context` positions, of which the last `written` can be taken back.

    CapacityError if they do not fit.
    """
    layout = this.model.layout(kv_type)
    # Blocks are freed after reading only, so a window has to hold all that is written besides.
    rows = max(STEP_TOKENS, written)
    sizes = plan_state(layout, context=context, sequences=1, rows=rows, available=this.available())
    with running(this, layout, sizes) as (runner, store):
        yield Stepper(runner, store, Seats(layout, sizes, context, rows))


class Stepper:
    """A sequence whose first `computed` positions have state. Not for threads."""

    def __init__(self, runner: Runner, store: StateStore, seats: Seats) -> None:
        self.computed = 0
        self._runner = runner
        self._store = store
        self._seats = seats
        self._seat = seats.take()

    @property
    def block_tokens(self) -> int:
        return self._seats.block_tokens

    def read(self, ids: I32) -> F32:
        """Compute these tokens, at most 512 a step, as the engine does. Returns [vocab], the logits after the last one."""
        chunks = [ids[first : first + STEP_TOKENS] for first in range(0, len(ids), STEP_TOKENS)]
        for chunk in chunks[:-1]:
            self._step(chunk, wanted=False)
            self._seat.trim(self.computed)
        logits = self._step(chunks[-1], wanted=True)
        self._seat.trim(self.computed)
        return logits

    def write(self, logits: F32, count: int, excluded: Iterable[int]) -> F32:
        """`count` steps of the likeliest token that is not `excluded`, from `logits` on. Returns the last logits."""
        barred = np.array(sorted(excluded), np.int64)
        for _ in range(count):
            logits[barred] = -np.inf
            logits = self._step(np.array([logits.argmax()], np.int32), wanted=True)
        return logits

    def save(self) -> tuple[int, bytes]:
        """What `restore` needs: paged rows stay where they are, rings and recurrent state are copied."""
        return self.computed, self._store.snapshot(self._seat.index, self._seat.slot)

    def restore(self, saved: tuple[int, bytes]) -> None:
        """Take back everything that was written since."""
        self.computed, rings = saved
        self._store.restore(self._seat.index, self._seat.slot, rings)

    def reset(self) -> None:
        """An empty sequence again."""
        self._seats.give(self._seat)
        self._seat = self._seats.take()
        self.computed = 0

    def _step(self, ids: I32, *, wanted: bool) -> F32:
        """One step; [vocab] logits of its last row if wanted, else none."""
        self._seat.grow(self.computed + len(ids))
        result = self._runner.step(self._batch(ids, wanted=wanted))
        self.computed += len(ids)
        logits: F32 = result.logits.reshape(-1)
        return logits

    def _batch(self, ids: I32, *, wanted: bool) -> Batch:
        rows, seat = len(ids), self._seat
        slot_out = np.full(rows, -1, np.int32)
        slot_out[-1] = seat.slot
        return Batch(
            tokens=ids,
            pos=np.arange(self.computed, self.computed + rows, dtype=np.int32),
            seq=np.zeros(rows, np.int32),
            first_row=np.zeros(1, np.int32),
            start=np.array([self.computed], np.int32),
            length=np.array([rows], np.int32),
            tables={group: table[[seat.index]] for group, table in self._seats.tables.items()},
            tail_slot=np.array([seat.index], np.int32),
            slot_in=np.array([seat.slot if self.computed else -1], np.int32),
            slot_out=slot_out,
            wanted=np.array([rows - 1] if wanted else [], np.int32),
            previous=np.zeros((rows, 0), np.int32),
        )


def held_bytes(layout: Layout, length: int, block_tokens: int) -> int:
    """State that a sequence of `length` positions holds: whole blocks within each window, rings, recurrent state."""
    total = 0
    for kind in layout.values():
        if isinstance(kind, Paged):
            first = 0 if kind.window is None else max(0, length - kind.window + 1) // block_tokens
            total += (-(-length // block_tokens) - first) * (block_tokens // kind.stride) * kind.row_bytes
        elif isinstance(kind, Tail):
            total += kind.need * kind.width * 4
        else:
            total += math.prod(kind.shape) * 4
    return total
