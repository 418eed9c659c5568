"""A request while it runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from tensorsharp.engine.constrain import Guide
from tensorsharp.engine.evaluation import Evaluation
from tensorsharp.engine.prefix import Chain, Link
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.seats import Seat
from tensorsharp.protocols.batch import I32
from tensorsharp.types import Finished, FinishReason, GenerationRequest, Timings, TokenEvent, Usage


class Sink(Protocol):
    """Who is told what becomes of a sequence, on the thread that steps the engine, and may ask for its end from any.

    ending: None, or the reason and the stop string with which the sequence shall end before its next token. One that is there
    when `token` returns is its end, whatever else would end it there.
    """

    @property
    def ending(self) -> tuple[FinishReason, str | None] | None: ...

    def token(self, event: TokenEvent) -> None: ...

    def finish(self, finished: Finished) -> None: ...


class Clock:
    """When a sequence was submitted, first computed, and gave its first and its latest token; seconds."""

    __slots__ = ("first", "latest", "started", "submitted")

    def __init__(self) -> None:
        self.submitted = time.perf_counter()
        self.started: float | None = None
        self.first: float | None = None
        self.latest: float | None = None

    def token(self) -> float:
        """A token was made: the seconds since the one before, or since it was submitted."""
        now = time.perf_counter()
        waited = now - (self.submitted if self.latest is None else self.latest)
        self.latest = now
        if self.first is None:
            self.first = now
        return waited

    def timings(self, prefilled: int, generated: int) -> Timings:
        now = time.perf_counter()
        if self.started is None:
            return Timings(queue_s=now - self.submitted)
        first = now if self.first is None else self.first
        return Timings(
            queue_s=self.started - self.submitted,
            prefill_s=first - self.started,
            prefill_tokens=prefilled,
            decode_s=0.0 if self.latest is None else self.latest - first,
            decode_tokens=max(0, generated - 1),
        )


class Sequence:
    """Token ids, how many of them are computed, and where their state lies.

    ids [limit] int32: prompt and reply; the first `length` are known, state exists for the first `computed`.
    room: tokens that the reply may have at most. rows: most rows of it in one step. evaluation: what takes the results of
    the prompt's rows, of which all evaluations of a step have `rows` together; None for a request that generates. rank: who is
    served first, lowest first. guide: the constraint of the reply, or None.

    chain: names of its full blocks, None where nothing can be reused. begun: the position at which it took its seat,
    having found state for all before. labelled: full blocks that others can find. edges: positions, ascending, that a
    chunk does not go across; aligned: of which number its end is a multiple, if there is one within it; within: of which
    number it does not go across a multiple (None: across any). saved: the prefix for which it saved state while replying.
    checkpoint: at which position its state is worth a checkpoint, 0 for none. suspect: the position up to which it computes
    alone, as a step with others failed there; 0 for none.
    """

    def __init__(
        self,
        request: GenerationRequest,
        sampler: Sampler,
        sink: Sink,
        *,
        limit: int,
        rows: int,
        evaluation: Evaluation | None = None,
        guide: Guide | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.sampler = sampler
        self.sink = sink
        self.rows = rows
        self.evaluation = evaluation
        self.guide = guide
        self.prompt = len(request.prompt_ids)
        self.room = limit - self.prompt if params.max_tokens is None else min(params.max_tokens, limit - self.prompt)
        self.ids: I32 = np.empty(self.prompt + self.room, np.int32)
        self.ids[: self.prompt] = request.prompt_ids
        self.length = self.prompt
        self.computed = 0
        self.prefilled = 0
        self.preemptions = 0
        self.seat: Seat | None = None
        self.chain: Chain | None = None
        self.rank = (0, 0)
        self.begun = 0
        self.labelled = 0
        self.cached: int | None = None
        self.edges: tuple[int, ...] = ()
        self.aligned = 1
        self.within: int | None = None
        self.checkpoint = 0
        self.suspect = 0
        self.saved: Link | None = None
        self.ends = reply_ends(request)
        self.clock = Clock()

    @property
    def pending(self) -> int:
        """Known tokens without state."""
        return self.length - self.computed

    def chunk(self, most: int) -> int:
        """How many of the pending rows the next step computes, if it has `most` for them."""
        end = self.computed + min(self.pending, self.rows, most)
        end = min(end, next((edge for edge in self.edges if edge > self.computed), end))
        if self.within is not None:
            end = min(end, (self.computed // self.within + 1) * self.within)
        if end < self.length and end // self.aligned * self.aligned > self.computed:
            end = end // self.aligned * self.aligned
        return end - self.computed

    @property
    def replying(self) -> bool:
        """Whether the next row is one for the next token of a reply that has begun."""
        return self.generated > 0 and self.pending == 1

    @property
    def links(self) -> list[Link]:
        """The full blocks of what is known."""
        return [] if self.chain is None else self.chain.links

    @property
    def reusable(self) -> int:
        """Tokens that need not be computed if their state is found: at least one always is, and all for an evaluation."""
        return 0 if self.chain is None or self.evaluation is not None else self.length - 1

    @property
    def reusable_links(self) -> list[Link]:
        """The full blocks of those."""
        return [] if self.chain is None else self.chain.links[: self.chain.whole(self.reusable)]

    @property
    def deadline(self) -> float | None:
        timeout = self.request.timeout_s
        return None if timeout is None else self.clock.submitted + timeout

    def begin(self, position: int, blocks: int) -> None:
        """Take up the work at `position`, after `blocks` full blocks that were found."""
        self.computed = self.begun = position
        self.labelled = blocks
        if self.cached is None:
            self.cached = min(position, self.prompt)

    @property
    def generated(self) -> int:
        return self.length - self.prompt

    def wanted(self, rows: int) -> int:
        """How many of the next `rows` rows, counted from the last, need logits."""
        if self.evaluation is not None:
            return self.evaluation.wanted(rows, self.pending)
        return 1 if rows == self.pending else 0

    def append(self, token: int) -> float:
        """The reply goes on with `token`: the seconds since the one before, or since the request was submitted."""
        self.ids[self.length] = token
        self.length += 1
        return self.clock.token()

    def finished(self, reason: FinishReason, *, error: str | None = None, stop: str | None = None) -> Finished:
        return Finished(
            reason=reason,
            seed=self.sampler.seed,
            usage=Usage(prompt=self.prompt, cached=self.cached or 0, completion=self.generated),
            timings=self._timings(),
            error=error,
            stop=stop,
        )

    def _timings(self) -> Timings:
        timings = self.clock.timings(self.prefilled, self.generated)
        if self.guide is None:
            return timings
        return replace(timings, mask_s=self.guide.cost.seconds, mask_wait_s=self.guide.cost.waited)


def reply_ends(request: GenerationRequest) -> frozenset[int]:
    """The tokens that end a reply with reason "stop"."""
    stops = frozenset(request.params.stop_token_ids)
    return stops if request.params.ignore_eos else stops | request.end_tokens
