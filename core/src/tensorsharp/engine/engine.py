"""The engine: many requests, one model, one worker thread that owns it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from tensorsharp.engine.checks import check_ids, check_prompt, check_request
from tensorsharp.engine.composition import Composition, RecordedStore
from tensorsharp.engine.config import EngineConfig
from tensorsharp.engine.constrain import Guide, Masks
from tensorsharp.engine.core import EngineCore
from tensorsharp.engine.evaluation import AllLogits, Embedding, Evaluation, Pooling
from tensorsharp.engine.handle import RequestHandle, Watch
from tensorsharp.engine.lower import Lower
from tensorsharp.engine.observer import Observer, Observers
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.savepoints import Savepoints
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sequence import Sequence, reply_ends
from tensorsharp.engine.stats import EngineStats
from tensorsharp.engine.waking import Waking
from tensorsharp.errors import BackendError, CapacityError, ConfigError, TensorSharpError
from tensorsharp.protocols.backend import Runner, StateStore
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.types import Finished, GenerationRequest, SamplingParams, random_seed

__all__ = ["Engine", "EngineConfig", "EngineStats"]

_COLLECTED_ELEMENTS = 1 << 24
"""Most logits (float32 elements) that evaluations ask for in one step: 64 MiB."""
_NOBODY = Observers()


class Engine:
    """Runs requests on a compiled model. Owns `runner` and `store` and closes them. composition: where steps are written down.

    Thread-safe. ConfigError or CapacityError if configuration and store do not fit together.
    """

    def __init__(
        self,
        model: IBatchedPagedModel,
        runner: Runner,
        store: StateStore,
        config: EngineConfig,
        observers: SequenceOf[Observer] = (),
        composition: Composition | None = None,
    ) -> None:
        scheduler = config.scheduler
        if store.sizes.sequences != scheduler.parallel:
            raise ConfigError(f"parallel is {scheduler.parallel}; the state store has {store.sizes.sequences} sequences.")
        self._rows = scheduler.rows
        self._queue = scheduler.queue
        self._vocab = model.vocab_size
        self._width = model.width
        self._runner = runner
        self._store = store if composition is None else RecordedStore(store, composition)
        self._observers = Observers(observers)
        savepoints = Savepoints(self._store, scheduler.saved_bytes) if store.slot_bytes() <= scheduler.saved_bytes else None
        self._lower = Lower(self._store, config.cache)
        seats = Seats(store.layout, store.sizes, config.context, self._rows, savepoints, self._lower.backing, self._store.copy)
        self._core = EngineCore(
            runner,
            seats,
            config,
            observers=self._observers,
            composition=composition,
            checkpoints=self._lower.checkpoints,
        )
        self._masks = Masks(self._vocab)
        self._waking = Waking()
        self._numbers = itertools.count(1)
        self._open = 0
        self._refused = 0
        self._draining = False
        self._inbox: list[Sequence] = []
        self._changed = threading.Condition()
        self._closed = False
        self._resting = False
        self._worker = threading.Thread(target=self._work, name="tensorsharp-engine", daemon=True)
        self._worker.start()

    @property
    def limit(self) -> int:
        """Positions that a sequence may have: the context, or what the blocks can hold if that is less."""
        return self._core.seats.limit

    @property
    def parallel(self) -> int:
        """Requests that may run at once."""
        return self._core.seats.total

    @property
    def uses_boundaries(self) -> bool:
        """Whether it matters where the messages of a prompt start."""
        return self._core.seats.savepoints is not None or self._core.scheduler.checkpoints is not None

    def check(self, request: GenerationRequest) -> None:
        """RequestError if `submit` would refuse the request."""
        check_request(request, self._vocab, self.limit)

    def submit(self, request: GenerationRequest, watch: Watch | None = None) -> RequestHandle:
        """Queue a request. watch: what may end it by its tokens; called on the engine's thread.

        RequestError if it is malformed or can never fit, CapacityError if the queue is full.
        """
        self.check(request)
        seed = random_seed() if request.params.seed is None else request.params.seed
        sampler = Sampler(request.params, seed)
        named = request if request.id is not None else replace(request, id=f"request-{next(self._numbers)}")
        guide = None if request.constraint is None else self._masks.guide(request.constraint, reply_ends(request))
        rows, observers = self._rows, self._observers
        return self._start(named, sampler, limit=self.limit, rows=rows, guide=guide, observers=observers, watch=watch)

    def logits(self, ids: list[int] | tuple[int, ...]) -> F32:
        """[n] token ids -> [n, vocab] float32: row i are the logits for the token after ids[i]. Waits for its turn."""
        self._check_evaluated(ids, "ids")
        out = np.empty((len(ids), self._vocab), np.float32)
        _wait(self._evaluate(ids, AllLogits(out)))
        return out

    def embed(self, texts: SequenceOf[SequenceOf[int]], pooling: Pooling) -> F32:
        """Token ids of several texts -> [texts, width] float32, rows of length 1. They are computed together.

        RequestError, before anything is computed, if a text is empty, too long or has ids outside the vocabulary;
        BackendError if the model publishes no rows to pool.
        """
        for number, ids in enumerate(texts):
            self._check_evaluated(ids, f"text {number}")
        pooled = [Embedding(pooling, len(ids)) for ids in texts]
        handles = [self._evaluate(ids, embedding) for ids, embedding in zip(texts, pooled, strict=True)]
        try:
            for handle in handles:
                _wait(handle)
        finally:
            for handle in handles:
                handle.cancel()
        return np.array([embedding.vector() for embedding in pooled], np.float32).reshape(len(texts), self._width)

    def evaluate(self, ids: SequenceOf[int], evaluation: Evaluation, param: str = "ids") -> RequestHandle:
        """Compute token ids for what `evaluation` takes of them; it has everything once the handle ends with "length".

        RequestError, which names `param`, if there are none, too many, or ids outside the vocabulary.
        """
        self._check_evaluated(ids, param)
        return self._evaluate(ids, evaluation)

    def _check_evaluated(self, ids: SequenceOf[int], param: str) -> None:
        check_prompt(len(ids), self.limit, reply=0)
        check_ids(ids, self._vocab, param)

    def _evaluate(self, ids: SequenceOf[int], evaluation: Evaluation) -> RequestHandle:
        rows = max(1, min(self._rows, _COLLECTED_ELEMENTS // self._vocab))
        request = GenerationRequest(tuple(ids), id="evaluation")
        return self._start(request, Sampler(SamplingParams(), 0), limit=len(ids), rows=rows, evaluation=evaluation)

    def stats(self) -> EngineStats:
        """What happened so far and what is in use now. From any thread, at any time."""
        core = self._core
        scheduler, seats, metrics = core.scheduler, core.seats, core.metrics
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(self._waiting()),
            steps=metrics.steps,
            tokens_computed=metrics.tokens_computed,
            tokens_generated=metrics.tokens_generated,
            tokens_reused=scheduler.tokens_reused,
            preemptions=scheduler.preemptions,
            refused=self._refused,
            blocks={group: (pool.used, pool.total) for group, pool in seats.pools.items()},
            cached={group: pool.cached for group, pool in seats.pools.items()},
            fallbacks=dict(metrics.fallbacks),
            prefix_queried=metrics.queried if seats.reuses else None,
            prefix_hits=metrics.hits if seats.reuses else None,
            prompt_tokens=metrics.prompt_tokens,
            requests=dict(metrics.requests),
            step_s=metrics.step_s.read(),
            step_rows=metrics.step_rows.read(),
            first_token_s=metrics.first_token_s.read(),
            next_token_s=metrics.next_token_s.read(),
            request_s=metrics.request_s.read(),
            queue_s=metrics.queue_s.read(),
            prefill_s=metrics.prefill_s.read(),
            decode_s=metrics.decode_s.read(),
            request_prompt=metrics.request_prompt.read(),
            request_reply=metrics.request_reply.read(),
            masks=self._masks.cost.masks,
            mask_s=self._masks.cost.seconds,
            mask_wait_s=self._masks.cost.waited,
            tiers=self._lower.tiers.stats(),
            checkpoints=None if self._lower.checkpoints is None else self._lower.checkpoints.stats(),
        )

    def requests(self) -> tuple[list[str], list[str]]:
        """Ids of the requests that run, and of those that wait, the next one first. From any thread."""
        waiting, running = self._waiting(), list(self._core.scheduler.running)
        begun = set(map(id, running))  # since the first look, too
        return [s.request.id or "" for s in running], [s.request.id or "" for s in waiting if id(s) not in begun]

    def _waiting(self) -> list[Sequence]:
        """Those that wait, the next one first; each once, also while the worker takes it in."""
        with self._changed:
            return [*self._core.scheduler.waiting, *self._inbox]

    def drain(self, timeout: float | None = None) -> bool:
        """Take no new requests and wait until all that are here have ended: True, or False after `timeout` seconds."""
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def check_idle(self) -> None:
        """Wait until nothing runs or waits. RuntimeError if something is held all the same, or books do not balance."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._resting and not self._inbox))
            self._check_open()
            self._core.seats.check_idle()
            for part in (self._core.seats, self._core.scheduler, self._lower):
                part.check()

    def close(self) -> None:
        """End every request as cancelled, keep below what later ones may find, stop the worker, free the state. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._worker.join()
        self._masks.close()
        self._lower.close()
        self._runner.close()
        self._store.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _enter(self) -> None:
        """Count a request in. CapacityError if as many as may run and wait are there, or no more are taken."""
        seats, queue = self._core.seats.total, self._queue
        with self._changed:
            self._check_open()
            if self._draining:
                raise CapacityError("The engine takes no new requests: it only finishes those that it has.")
            if queue is not None and self._open >= seats + queue:
                self._refused += 1
                raise CapacityError(
                    f"{seats} requests run and {queue} wait, which is all that the queue holds.",
                    hint="Try again later, or start the engine with a longer queue.",
                )
            self._open += 1

    def _check_open(self) -> None:
        if self._closed:
            raise TensorSharpError("The engine is closed.", hint="Load the model again.")

    def _leave(self, finished: Finished, request: GenerationRequest, observers: Observers) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
        observers.on_request_end(request, finished)

    def _start(
        self,
        request: GenerationRequest,
        sampler: Sampler,
        *,
        limit: int,
        rows: int,
        evaluation: Evaluation | None = None,
        guide: Guide | None = None,
        observers: Observers = _NOBODY,
        watch: Watch | None = None,
    ) -> RequestHandle:
        self._enter()
        observers.on_request_start(request)
        ended = partial(self._leave, request=request, observers=observers)
        tell, read = self._waking.add, len(request.prompt_ids)
        handle = RequestHandle(request.id or "", sampler.seed, ended, tell, prompt_tokens=read, watch=watch)
        sequence = Sequence(request, sampler, handle, limit=limit, rows=rows, evaluation=evaluation, guide=guide)
        with self._changed:
            self._check_open()
            self._inbox.append(sequence)
            self._changed.notify_all()
        return handle

    def _work(self) -> None:
        while self._receive():
            try:
                self._core.step()
            except Exception as error:  # a fault of the engine itself must not leave callers waiting
                logging.getLogger("tensorsharp.engine").exception("The engine failed; its requests are ended.")
                self._core.end_all("error", f"The engine failed: {type(error).__name__}: {error}")
            self._waking.wake()
        self._core.end_all("cancelled")
        self._waking.wake()
        self._lower.persist(self._core.seats)

    def _receive(self) -> bool:
        """Take new sequences in; waits while there is nothing to do. False once the engine is closed."""
        with self._changed:
            self._resting = not self._core.busy
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._inbox or self._core.busy)
            self._resting = False
            for sequence in self._inbox:
                self._core.add(sequence)
            self._inbox.clear()
            return not self._closed


def _wait(handle: RequestHandle) -> None:
    """Until an evaluation is done; BackendError if it was ended before."""
    try:
        finished = handle.result()
    finally:
        handle.cancel()
    if finished.reason != "length":
        raise BackendError(finished.error or f"The evaluation was ended: {finished.reason}.")
