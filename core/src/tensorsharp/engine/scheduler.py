"""What the next step computes: running sequences first, then admission by rank.

A rank is priority, then order of arrival. Only the running sequence of the lowest rank is ever preempted, so the one of
the highest always gets its blocks, and a full pool drains. A sequence that waits for a prefix that another one is computing is
passed by those behind it, as long as they leave it its seat and its blocks.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from tensorsharp.engine.batch import Work
from tensorsharp.engine.checkpoints import Checkpoints
from tensorsharp.engine.config import SAVED_BLOCKS
from tensorsharp.engine.forking import find_fork
from tensorsharp.engine.prefix import Chain, Link, Prefixes
from tensorsharp.engine.seats import Fork, Seat, Seats
from tensorsharp.engine.sequence import Sequence
from tensorsharp.engine.sharing import STEP_COST, Shared, worth_waiting

logger = logging.getLogger(__name__)

START_ROWS = 8 * STEP_COST
"""Rows from a saved state to that of the next message's start: closer together, where messages are short, their steps would cost
more than an eighth of the prompt, and save less than these rows where a message is changed."""

_RANK = attrgetter("rank")


class Step:
    """The rows of one step while they are handed out: one to each reply, the rest to prompts.

    Rows whose results an evaluation takes cost more than others: of all evaluations together there are not more of them than one
    may have rows.
    """

    def __init__(self, prompt_rows: int) -> None:
        self.work: list[Work] = []
        self.budget = prompt_rows
        self.left = prompt_rows
        self._taken = 0

    def rows(self, sequence: Sequence) -> int:
        """How many rows the sequence may have."""
        return 1 if sequence.replying else self._chunk(sequence)

    def give(self, sequence: Sequence, seat: Seat, rows: int) -> None:
        self.work.append(Work(sequence, seat, rows))
        if not sequence.replying:
            self._count(sequence, rows)

    def begin(self, sequence: Sequence, seat: Seat) -> None:
        """The first rows of a sequence that has just got its seat; none for an evaluation where others have what there is."""
        rows = self._chunk(sequence)
        seat.grow(sequence.computed + rows)
        if rows:
            self.work.append(Work(sequence, seat, rows))
            self._count(sequence, rows)

    def _chunk(self, sequence: Sequence) -> int:
        return sequence.chunk(self.left if sequence.evaluation is None else max(0, min(self.left, sequence.rows - self._taken)))

    def _count(self, sequence: Sequence, rows: int) -> None:
        self.left -= rows
        if sequence.evaluation is not None:
            self._taken += sequence.wanted(rows)

    def cut(self, shared: Shared, spare: int) -> None:
        """End the owner's chunk where the prompts part: there the other one takes over what windows would soon let go.

        spare: so few rows more are computed all the same.
        """
        for number, work in enumerate(self.work):
            over = work.sequence.computed + work.rows - shared.parting
            if work.sequence is shared.owner and over > spare:
                self.work[number] = replace(work, rows=work.rows - over)
                self.left += over


class Scheduler:
    """step_tokens: rows of a step. busy_tokens: prompt rows of a step that makes replies too. saved_blocks: blocks of a prompt
    from one saved state to the next. checkpoints: where the state after a prompt's first message is kept beyond the process;
    only for seats with a backing."""

    def __init__(
        self,
        seats: Seats,
        prefixes: Prefixes,
        *,
        step_tokens: int,
        busy_tokens: int,
        saved_blocks: int = SAVED_BLOCKS,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.seats = seats
        self.prefixes = prefixes
        self.step_tokens = step_tokens
        self.busy_tokens = busy_tokens
        self.saved_blocks = saved_blocks
        self.checkpoints = checkpoints
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.tokens_reused = 0
        self._arrivals = 0
        self._failed: list[tuple[Sequence, Exception]] = []

    def add(self, sequence: Sequence) -> None:
        sequence.rank = (-sequence.request.priority, self._arrivals)
        self._arrivals += 1
        if self.seats.reuses:
            sequence.chain = self.prefixes.chain(sequence.request.cache_scope)
            sequence.chain.cover(sequence.ids, sequence.length)
        if self.seats.savepoints is not None:
            # half of the room, so that the state of another conversation is still there
            most = self.seats.savepoints.fits // 2
            sequence.edges = edges(sequence, self.seats.block_tokens, self.saved_blocks, most)
            sequence.aligned = self.seats.block_tokens
        if self.seats.backing is not None and not self.seats.backing.codec.lossless:
            sequence.within = self.seats.block_tokens
        if self.checkpoints is not None and sequence.chain is not None and sequence.request.boundaries:
            sequence.checkpoint = min(sequence.request.boundaries) // self.seats.block_tokens * self.seats.block_tokens
            sequence.edges = tuple(sorted({sequence.checkpoint, *sequence.edges} - {0}))
        insort(self.waiting, sequence, key=_RANK)

    def remove(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """Forget a sequence, wherever it is, and free what it holds. spoiled: nobody may use what it computed."""
        if sequence.seat is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        if spoiled:
            self.seats.forget(sequence.links[sequence.begun // self.seats.block_tokens : sequence.labelled])
        else:
            self._label_rest(sequence)
        self._unseat(sequence)

    def plan(self) -> list[Work]:
        """The work of one step; blocks for it are allocated. Empty if there is nothing to do."""
        suspect = min((s for s in (*self.running, *self.waiting) if s.suspect), key=_RANK, default=None)
        if suspect is not None:
            step = Step(self.step_tokens)
            self._advance_alone(suspect, step)
            if step.work:
                return step.work
        replies = sum(sequence.replying for sequence in self.running)
        prompt_rows = self.step_tokens - replies
        step = Step(min(prompt_rows, self.busy_tokens) if replies else prompt_rows)
        self._continue(step, self.running)
        if suspect is None:  # else those that run make room
            self._admit(step, [*self.waiting])
        return step.work

    def part(self, work: list[Work]) -> None:
        """A step of several sequences failed, and it is not known whose fault that is: each computes its rows again, alone.
        What the step may have left in recurrent state is not used."""
        for one in work:
            one.sequence.suspect = one.sequence.computed + one.rows
            self._set_back(one.sequence)

    def _advance_alone(self, sequence: Sequence, step: Step) -> None:
        """Nothing, if there is no room for it yet, or another one computes what it begins with."""
        if sequence.seat is None:
            self._admit(step, [sequence])
        else:
            self._continue(step, [sequence])

    def failed(self) -> list[tuple[Sequence, Exception]]:
        """The sequences for which the last plan could not move state, and why: whoever asks ends them."""
        failed, self._failed = self._failed, []
        return failed

    def advance(self, work: Work) -> None:
        """The rows of `work` are computed: full blocks can be found from now on, and windows move."""
        sequence, seat, size = work.sequence, work.seat, self.seats.block_tokens
        before = sequence.computed // size
        sequence.computed += work.rows
        if sequence.computed >= sequence.suspect:
            sequence.suspect = 0
        seat.settle(before, sequence.computed // size)
        if sequence.chain is not None:
            sequence.chain.cover(sequence.ids, sequence.computed)
            full = min(len(sequence.links), sequence.computed // size)
            seat.label(sequence.links[sequence.labelled : full], sequence.labelled)
            if full > sequence.labelled and full * size == sequence.computed:
                self._save(sequence, seat, sequence.links[full - 1])
            sequence.labelled = full
            if 0 < sequence.computed == sequence.checkpoint == full * size:
                self._checkpoint(sequence, seat, sequence.chain)
        seat.trim(sequence.computed)

    def _label_rest(self, sequence: Sequence) -> None:
        """A sequence ends: the block that it filled in part can be found too. That of a preempted one is taken at once."""
        if self.seats.forks and sequence.seat is not None and sequence.chain is not None:
            link = sequence.chain.rest(sequence.ids, sequence.computed)
            if link is not None:
                sequence.seat.label([link], sequence.chain.whole(sequence.computed))

    def _save(self, sequence: Sequence, seat: Seat, link: Link) -> None:
        """Save what is not in blocks, at the end of one. Of a reply, and of where a chunk just happens to end, only the latest is
        worth its bytes; the beginning that others share is given up last."""
        savepoints = self.seats.savepoints
        if savepoints is None:
            return
        replaced = sequence.saved
        sequence.saved = None if sequence.computed in sequence.edges or link in savepoints else link
        starts = min(sequence.request.boundaries, default=0) // self.seats.block_tokens
        if 0 < starts <= len(sequence.links):
            savepoints.touch(sequence.links[starts - 1])
        savepoints.save(link, seat.index, seat.slot)
        if replaced is not None:
            savepoints.drop(replaced)

    def _checkpoint(self, sequence: Sequence, seat: Seat, chain: Chain) -> None:
        if self.checkpoints is None:
            return
        try:
            contents = self.seats.contents(seat, chain.links[: sequence.computed // self.seats.block_tokens])
        except Exception:  # whatever a store raises must not end the request
            logger.exception("A checkpoint could not be made.")
        else:
            self.checkpoints.save(self._checkpoint_key(chain), sequence.ids[: sequence.computed], contents)

    def _checkpoint_key(self, chain: Chain) -> str:
        """What besides tokens decides the state: the chain's root, and the codec that it is kept by."""
        root = b"" if chain.root is None else chain.root.key
        return f"{root.hex()}-{'' if self.seats.backing is None else self.seats.backing.codec.name}"

    def _continue(self, step: Step, among: list[Sequence]) -> None:
        """among: running ones, of which some may be preempted meanwhile."""
        number = 0
        while number < len(among):
            sequence = among[number]
            number += 1
            rows = step.rows(sequence)
            if rows == 0:
                continue
            seat = self._room(sequence, sequence.computed + rows)
            if seat is not None:
                step.give(sequence, seat, rows)

    def _room(self, sequence: Sequence, length: int) -> Seat | None:
        """The seat, grown to `length` positions, at the cost of the lowest rank; None if that is the sequence itself."""
        seat = sequence.seat
        while seat is not None and not seat.fits(length):
            self._preempt(self.running[-1])
            seat = sequence.seat
        if seat is not None:
            seat.grow(length)
        return seat

    def _preempt(self, sequence: Sequence) -> None:
        self._set_back(sequence)  # it needs more than it gave up, so this same step does not admit it again
        sequence.preemptions += 1
        self.preemptions += 1

    def _set_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._unseat(sequence)
        insort(self.waiting, sequence, key=_RANK)

    def _unseat(self, sequence: Sequence) -> None:
        if sequence.seat is not None:
            self.seats.give(sequence.seat)
            sequence.seat = None
            sequence.computed = 0

    def _admit(self, step: Step, among: list[Sequence]) -> None:
        """among: waiting ones."""
        passed = 0
        room = self._room_left() if among else []
        for sequence in among:
            if self.seats.free <= passed:
                return
            links = sequence.reusable_links
            hit = self.seats.reusable(links) if links else 0
            size, inside = self.seats.block_tokens, self.seats.forks
            fork = find_fork(sequence, hit, self.running, self.seats)
            begin = hit * size if fork is None else fork.position
            shared = worth_waiting(sequence, begin, self.running, size, step.budget, inside=inside) if step.budget else None
            if shared is not None:
                step.cut(shared, spare=STEP_COST if inside else 0)
                if not inside:
                    shared.owner.edges = tuple(sorted({*shared.owner.edges, shared.parting}))
                passed += 1
                room = _minus(room, self.seats.need(sequence.length, shared.parting // size))
                continue
            if not step.left or not _fits(self.seats.need(sequence.length, self.seats.in_use(links[:hit])), room):
                return
            try:
                taken = self._begin(sequence, hit, fork, room, step)
            except Exception as error:  # state that cannot be moved ends its own request
                self._failed.append((sequence, error))
                continue
            if taken is None:
                return  # with room for what is there, it comes here again
            room = _minus(room, taken)

    def _begin(self, sequence: Sequence, hit: int, fork: Fork | None, room: list[int], step: Step) -> list[int] | None:
        """Give a sequence its seat, after `hit` blocks if they prove to be there: the blocks that it needs. None if there are
        not as many, as others hold less of its prefix than was counted on."""
        try:
            links = sequence.reusable_links
            begun = self._fetch(sequence, links, hit)
            need = self.seats.need(sequence.length, self.seats.in_use(links[:begun]))
            if not _fits(need, room):
                return None
            self._seat(sequence, begun, fork if begun == hit else find_fork(sequence, begun, self.running, self.seats), step)
            return need
        finally:
            if self.seats.backing is not None:
                self.seats.backing.clear()

    def _fetch(self, sequence: Sequence, links: list[Link], hit: int) -> int:
        """After how many blocks a sequence begins that takes its seat now: what lies below the pools is got and verified."""
        backing, size = self.seats.backing, self.seats.block_tokens
        if backing is None or sequence.chain is None or not links:
            return hit
        if self.checkpoints is not None:
            key, tokens = self._checkpoint_key(sequence.chain), sequence.ids[: len(links) * size + 1]
            backing.offer(self.checkpoints.restore(key, tokens, hit * size))
            hit = self.seats.reusable(links)
        return self.seats.fetch(links, hit)

    def _seat(self, sequence: Sequence, hit: int, fork: Fork | None, step: Step) -> None:
        seat = sequence.seat = self.seats.take(sequence.links[:hit], fork)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_RANK)
        sequence.begin(hit * self.seats.block_tokens if fork is None else fork.position, hit)
        self.tokens_reused += sequence.computed
        step.begin(sequence, seat)

    def _room_left(self) -> list[int]:
        """For each group the blocks that no running sequence still needs for what is known of it."""
        room = self.seats.room()
        for sequence in self.running:
            if sequence.seat is not None:
                room = _minus(room, self.seats.owed(sequence.seat, sequence.length))
        return room

    def check(self) -> None:
        """RuntimeError if the lines are out of order, or somebody has what it should not have between two steps."""
        self.prefixes.check()
        for line in (self.running, self.waiting):
            if line != sorted(line, key=_RANK):
                raise RuntimeError(f"the ranks {[s.rank for s in line]} are not in order")
        seats = {id(s.seat) for s in self.running if s.seat is not None}
        if len(seats) != len(self.running) or len(seats) + self.seats.free != self.seats.total:
            raise RuntimeError(f"{len(self.running)} sequences run in {len(seats)} seats; {self.seats.free} are free")
        if any(s.seat is not None or s.computed for s in self.waiting) or self._failed:
            raise RuntimeError("a sequence that waits holds something")
        size = self.seats.block_tokens
        if any(not 0 <= s.computed < s.length or s.labelled * size > s.computed for s in self.running):
            raise RuntimeError("a running sequence has nothing to compute, or is found where it is not computed")


def edges(sequence: Sequence, block_tokens: int, saved_blocks: int, most: int) -> tuple[int, ...]:
    """Where a chunk of the prompt ends so that its state can be saved: after the shared beginning, before the last message and
    the reply, every so many blocks, after the last block that another request with this prompt can find, and where the other
    messages start; each at the end of a block. Of those others only what lies `START_ROWS` behind an edge, and the last ones, as
    conversations are changed near their ends: `most` with all but the regular ones."""
    starts, last = sorted(sequence.request.boundaries), sequence.prompt - 1

    def ends(marks: Iterable[int]) -> set[int]:
        return {mark // block_tokens * block_tokens for mark in marks} - {0}

    always = ends((*starts[:1], *starts[-2:], last))
    fixed = always | ends(range(0, last, saved_blocks * block_tokens))
    before, others = 0, []
    for end in sorted(fixed | ends(starts)):
        if end in fixed:
            before = end
        elif end - before >= START_ROWS:
            others.append(end)
            before = end
    return tuple(sorted({*fixed, *others[max(0, len(others) - max(0, most - len(always))) :]}))


def _fits(need: list[int], room: list[int]) -> bool:
    return all(n <= free for n, free in zip(need, room, strict=True))


def _minus(room: list[int], taken: list[int]) -> list[int]:
    return [free - n for free, n in zip(room, taken, strict=True)]
