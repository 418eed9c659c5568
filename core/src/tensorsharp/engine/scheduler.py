"""What the next step computes: running sequences first, then admission in order of arrival.

Arrival order holds throughout: every running sequence is older than every waiting one, and only the youngest running
sequence is ever preempted. The oldest therefore always gets its blocks in the end, and a full pool drains.
"""

from __future__ import annotations

from collections import deque

from tensorsharp.engine.batch import Work
from tensorsharp.engine.seats import Seat, Seats
from tensorsharp.engine.sequence import Sequence


class Scheduler:
    """First come, first served, within `step_tokens` rows a step and the seats that there are."""

    def __init__(self, seats: Seats, step_tokens: int) -> None:
        self.seats = seats
        self.step_tokens = step_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free what it holds."""
        if sequence.seat is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._unseat(sequence)

    def plan(self) -> list[Work]:
        """The work of one step; blocks for it are allocated. Empty if there is nothing to do."""
        work = self._continue()
        self._admit(work)
        return work

    def _continue(self) -> list[Work]:
        work: list[Work] = []
        budget = self.step_tokens
        number = 0
        while number < len(self.running) and budget:
            sequence = self.running[number]
            rows = min(sequence.pending, sequence.rows, budget)
            seat = self._room(sequence, sequence.computed + rows)
            if seat is None:
                break
            work.append(Work(sequence, seat, rows))
            budget -= rows
            number += 1
        return work

    def _room(self, sequence: Sequence, length: int) -> Seat | None:
        """The seat, grown to `length` positions, at the cost of the youngest; None if that is the sequence itself."""
        seat = sequence.seat
        while seat is not None and not seat.fits(length):
            self._preempt(self.running[-1])
            seat = sequence.seat
        if seat is not None:
            seat.grow(length)
        return seat

    def _preempt(self, sequence: Sequence) -> None:
        self.running.pop()
        self._unseat(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)  # it needs more than it held, so this same step does not admit it again

    def _unseat(self, sequence: Sequence) -> None:
        if sequence.seat is not None:
            self.seats.give(sequence.seat)
            sequence.seat = None

    def _admit(self, work: list[Work]) -> None:
        budget = self.step_tokens - sum(w.rows for w in work)
        while self.waiting and budget and self.seats.free and self._fits(self.waiting[0]):
            sequence = self.waiting.popleft()
            seat = sequence.seat = self.seats.take()
            self.running.append(sequence)
            rows = min(sequence.pending, sequence.rows, budget)
            seat.grow(rows)
            work.append(Work(sequence, seat, rows))
            budget -= rows

    def _fits(self, sequence: Sequence) -> bool:
        """Whether all known tokens fit besides what running sequences still need for theirs."""
        room = [pool.free for pool in self.seats.pools.values()]
        for other in self.running:
            if other.seat is not None:
                for g, table in enumerate(other.seat.tables):
                    room[g] -= max(0, table.peak(other.length, self.seats.rows) - table.held)
        need = self.seats.need(sequence.length)
        return all(n <= free for n, free in zip(need, room, strict=True))
