"""The engine without threads: one deterministic step after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import suppress

import numpy as np

from tensorsharp.engine.batch import Work, build_batch
from tensorsharp.engine.checkpoints import Checkpoints
from tensorsharp.engine.composition import Composition
from tensorsharp.engine.config import EngineConfig
from tensorsharp.engine.constrain import choose_rows
from tensorsharp.engine.metrics import Metrics
from tensorsharp.engine.observer import Observers, StepEvent
from tensorsharp.engine.prefix import Prefixes
from tensorsharp.engine.scheduler import Scheduler
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sequence import Sequence
from tensorsharp.errors import TensorSharpError
from tensorsharp.ops import OUTPUT
from tensorsharp.protocols.backend import Runner, StepResult
from tensorsharp.protocols.batch import F32
from tensorsharp.types import FinishReason, TokenEvent

_NOTHING: F32 = np.zeros((0, 0), np.float32)


class EngineCore:
    """Sequences in, tokens to their sinks. Belongs to one thread. now: a clock in seconds, that of the requests' deadlines."""

    def __init__(
        self,
        runner: Runner,
        seats: Seats,
        config: EngineConfig,
        *,
        observers: Observers | None = None,
        composition: Composition | None = None,
        checkpoints: Checkpoints | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seats = seats
        prefixes = Prefixes(seats.block_tokens, config.decides)
        steps = {name: getattr(config.scheduler, name) for name in ("step_tokens", "busy_tokens", "saved_blocks")}
        self.scheduler = Scheduler(seats, prefixes, **steps, checkpoints=checkpoints)
        self.metrics = Metrics()
        self._observers = observers or Observers()
        self._composition = composition
        self._tried = 0
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
        began = self._now()
        self._end_asked()
        work = self.scheduler.plan()
        failed = self.scheduler.failed()
        for sequence, error in failed:
            self._finish(sequence, "error", error=_sentence("Restoring its state", error))
        if not work:
            return bool(failed)
        self._begin(work, began)
        for w in work:
            if w.sequence.guide is not None and w.sequence.wanted(w.rows):
                with suppress(Exception):  # its own request is told when the mask is needed
                    w.sequence.guide.prepare()
        prompt_rows = sum(w.rows for w in work if not w.sequence.replying)
        generated = self.metrics.tokens_generated
        entered = self._now()
        why: str | None = None
        try:
            result = self._compute(work)
            model_s = self._now() - entered
        except Exception as error:  # whatever a backend raises ends a sequence at most, never the engine
            model_s, why = self._now() - entered, _sentence("The step", error)
            self._fail(work, why)
        else:
            self._hand_out(work, result)
            if self._composition is not None:
                self._composition.chosen()
        self._tell(work, prompt_rows, self.metrics.tokens_generated - generated, self._now() - began, model_s, why)
        return True

    def _compute(self, work: SequenceOf[Work]) -> StepResult:
        batch = build_batch(work, self.seats.tables, self._history)
        taps = _taps(work)
        if self._composition is None:
            return self._runner.step(batch, taps)
        return self._composition.step(self._runner, work, batch, taps)

    def _begin(self, work: SequenceOf[Work], now: float) -> None:
        for sequence in (w.sequence for w in work if w.sequence.clock.started is None):
            sequence.clock.started = now
            if sequence.evaluation is None:
                self.metrics.started(sequence.prompt, sequence.cached or 0)
            if self._composition is not None:
                self._composition.request(sequence)

    def _tell(
        self, work: SequenceOf[Work], prompt_rows: int, tokens: int, seconds: float, model_s: float, error: str | None
    ) -> None:
        self._tried += 1
        if error is None:
            self.metrics.step_s.observe(seconds)
        if not self._observers:
            return
        scheduler = self.scheduler
        event = StepEvent(
            number=self._tried,
            rows=sum(w.rows for w in work),
            prompt_rows=prompt_rows,
            sequences=len(work),
            tokens=tokens,
            seconds=seconds,
            model_s=model_s,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preemptions=scheduler.preemptions,
            error=error,
        )
        self._observers.on_step(event)

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

    def _fail(self, work: list[Work], sentence: str) -> None:
        if len(work) == 1:
            self._finish(work[0].sequence, "error", error=sentence)
        else:
            self.scheduler.part(work)

    def _hand_out(self, work: SequenceOf[Work], result: StepResult) -> None:
        self.metrics.step(sum(w.rows for w in work), result.fallbacks)
        row = 0
        output = result.taps.get(OUTPUT, _NOTHING)
        for w in work:
            sequence = w.sequence
            wanted = sequence.wanted(w.rows)
            rows = slice(row, row + wanted)
            row += wanted
            first = sequence.computed
            try:
                self.scheduler.advance(w)
            except Exception as error:  # state that cannot be kept as configured ends its own request
                self._finish(sequence, "error", error=_sentence("Keeping its state", error), spoiled=True)
                continue
            self.metrics.tokens_computed += w.rows
            if sequence.generated == 0:
                sequence.prefilled += w.rows
            if self._finish_asked(sequence) or not wanted:
                continue
            if sequence.evaluation is None:
                self._generate(sequence, result.logits[rows])
                continue
            try:
                sequence.evaluation.take(first, result.logits[rows], output[rows])
            except Exception as error:  # what the caller makes of the rows is its own affair
                self._finish(sequence, "error", error=_sentence("Taking its results", error))
                continue
            if sequence.pending == 0:
                self._finish(sequence, "length")

    def _generate(self, sequence: Sequence, logits: F32) -> None:
        guide, ids = sequence.guide, sequence.ids[: sequence.length]
        try:
            (choice,) = choose_rows(sequence.sampler, logits, ids, guide=guide, ends=sequence.ends)
        except Exception as error:  # one row that cannot be sampled ends its own request
            self._finish(sequence, "error", error=_sentence("Choosing a token", error), spoiled=True)
            return
        if choice.token in sequence.ends:
            self._finish(sequence, "stop")
            return
        waited = sequence.append(choice.token)
        if sequence.generated == 1:
            self.metrics.first_token(sequence.prompt, waited)
        else:
            self.metrics.next_token(waited)
        sequence.sink.token(TokenEvent(choice.token, sequence.generated - 1, choice.logprob, choice.top))
        if self._finish_asked(sequence):
            return
        if guide is not None and guide.complete:
            self._finish(sequence, "stop")
        elif sequence.generated >= sequence.room:
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
        finished = sequence.finished(reason, error=error, stop=stop)
        if sequence.evaluation is None:
            self.metrics.finished(finished, time.perf_counter() - sequence.clock.submitted)
        sequence.sink.finish(finished)


def _taps(work: SequenceOf[Work]) -> tuple[str, ...]:
    """What the step has to publish besides logits."""
    return tuple(sorted({tap for w in work if w.sequence.evaluation is not None for tap in w.sequence.evaluation.taps}))


def _sentence(what: str, error: Exception) -> str:
    """What callers are told: our own errors are sentences already."""
    return str(error) if isinstance(error, TensorSharpError) else f"{what} failed: {type(error).__name__}: {error}"
