"""The engine without threads: one deterministic step after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from tensorsharp.engine.batch import Work, build_batch
from tensorsharp.engine.config import EngineConfig
from tensorsharp.engine.prefix import Prefixes
from tensorsharp.engine.scheduler import Scheduler
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sequence import Sequence
from tensorsharp.errors import TensorSharpError
from tensorsharp.protocols.backend import Runner, StepResult
from tensorsharp.protocols.batch import F32
from tensorsharp.types import FinishReason, TokenEvent


class EngineCore:
    """Sequences in, tokens to their sinks. Belongs to one thread. now: a clock in seconds, that of the requests' deadlines."""

    def __init__(
        self, runner: Runner, seats: Seats, config: EngineConfig, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seats = seats
        prefixes = Prefixes(seats.block_tokens, config.identity)
        asked = config.scheduler
        self.scheduler = Scheduler(seats, prefixes, step_tokens=asked.step_tokens, busy_tokens=asked.busy_tokens)
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_generated = 0
        self.fallbacks: Counter[str] = Counter()
        self._runner = runner
        self._history = config.history
        self._now = now

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)

    def step(self) -> bool:
        """Compute one batch and hand out its tokens. False if there was nothing to do.

        RuntimeError, after everybody was told, if the last sequence ended and something is still held.
        """
        did = self._step()
        if not self.busy:
            self.seats.check_idle()
        return did

    def _step(self) -> bool:
        self._end_asked()
        work = self.scheduler.plan()
        if not work:
            return False
        now = self._now()
        for w in work:
            if w.sequence.clock.started is None:
                w.sequence.clock.started = now
        try:
            result = self._runner.step(build_batch(work, self.seats.tables, self._history))
        except Exception as error:  # whatever a backend raises ends these sequences, never the engine
            self._fail(work, error)
            return True
        self.steps += 1
        self.fallbacks.update(result.fallbacks)
        self._hand_out(work, result)
        return True

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every sequence now."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self._finish(sequence, reason, error=error)

    def _end_asked(self) -> None:
        now = self._now()
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if not self._finish_asked(sequence) and sequence.deadline is not None and now >= sequence.deadline:
                self._finish(sequence, "timeout")

    def _finish_asked(self, sequence: Sequence) -> bool:
        if sequence.sink.ending is None:
            return False
        reason, stop = sequence.sink.ending
        self._finish(sequence, reason, stop=stop)
        return True

    def _fail(self, work: SequenceOf[Work], error: Exception) -> None:
        for w in work:
            self._finish(w.sequence, "error", error=_sentence("The step", error))

    def _hand_out(self, work: SequenceOf[Work], result: StepResult) -> None:
        row = 0
        for w in work:
            sequence = w.sequence
            wanted = sequence.wanted(w.rows)
            logits = result.logits[row : row + wanted]
            row += wanted
            first = sequence.computed
            self.scheduler.advance(w)
            self.tokens_computed += w.rows
            if sequence.generated == 0:
                sequence.prefilled += w.rows
            if self._finish_asked(sequence) or not wanted:
                continue
            if sequence.collect is None:
                self._generate(sequence, logits[0])
            else:
                self._collect(sequence, sequence.collect, first, logits)

    def _collect(self, sequence: Sequence, target: F32, first: int, logits: F32) -> None:
        target[first : first + len(logits)] = logits
        if sequence.pending == 0:
            self._finish(sequence, "length")

    def _generate(self, sequence: Sequence, logits: F32) -> None:
        try:
            choice = sequence.sampler.choose(logits, sequence.ids[: sequence.length], sequence.length)
        except Exception as error:  # one row that cannot be sampled ends its own request
            self._finish(sequence, "error", error=_sentence("Choosing a token", error), spoiled=True)
            return
        if choice.token in sequence.ends:
            self._finish(sequence, "stop")
            return
        sequence.append(choice.token)
        self.tokens_generated += 1
        sequence.sink.token(TokenEvent(choice.token, sequence.generated - 1, choice.logprob, choice.top))
        if sequence.generated >= sequence.room:
            self._finish(sequence, "length")

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        error: str | None = None,
        stop: str | None = None,
        spoiled: bool = False,
    ) -> None:
        self.scheduler.remove(sequence, spoiled=spoiled)
        sequence.sink.finish(sequence.finished(reason, error=error, stop=stop))


def _sentence(what: str, error: Exception) -> str:
    """What callers are told: our own errors are sentences already."""
    return str(error) if isinstance(error, TensorSharpError) else f"{what} failed: {type(error).__name__}: {error}"
