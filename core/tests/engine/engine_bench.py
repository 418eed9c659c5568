"""An engine core stepped by hand over a model whose logits are a hash of everything that a row may see.

The model keeps token ids in a paged store, a windowed store, a ring and a recurrent slot, and reads them only through
the tables and slots of the batch: a wrong block, slot, position or chunk changes the logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorsharp.engine.config import SAVED_BLOCKS, CacheConfig, EngineConfig, SchedulerConfig
from tensorsharp.engine.constrain import Masks
from tensorsharp.engine.core import EngineCore
from tensorsharp.engine.lower import Lower
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.savepoints import Savepoints
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sequence import Sequence as EngineSequence
from tensorsharp.engine.sequence import reply_ends
from tensorsharp.errors import BackendError
from tensorsharp.protocols.backend import StateSizes, StateStore, StepResult
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.state import HostStateStore
from tensorsharp.testing.fakes import FakeModel, FakeRunner, fake_engine_parts, mixed
from tensorsharp.types import Finished, FinishReason, GenerationRequest, SamplingParams, TokenEvent

VOCAB = 61
WINDOW = 40
BLOCK = 32
NO_CACHE = CacheConfig()
MODEL = FakeModel(VOCAB, window=WINDOW, ring=4, recurrent=True)
FULL = FakeModel(VOCAB)
"""All of its state is in blocks, so prefixes are reused."""
SLIDING = FakeModel(VOCAB, window=WINDOW)
"""The same with a window too."""
expected_logits = MODEL.expected_logits


class Runner(FakeRunner):
    """Calls `before` with every batch, which may raise, and lets `poison` change the logits of a step."""

    def __init__(self, store: HostStateStore, model: FakeModel = MODEL) -> None:
        super().__init__(model, store)
        self.before: Callable[[Batch], None] = lambda batch: None
        self.poison: Callable[[Batch, F32], None] = lambda batch, logits: None

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        self.before(batch)
        result = super().step(batch, taps)
        self.poison(batch, result.logits)
        return replace(result, fallbacks={"pool": 1})


def runner_and_store(sizes: StateSizes, model: FakeModel = MODEL) -> tuple[Runner, HostStateStore]:
    _, store = fake_engine_parts(model, sizes)
    assert isinstance(store, HostStateStore)
    return Runner(store, model), store


class Collector:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.ending: tuple[FinishReason, str | None] | None = None
        self.events: list[TokenEvent] = []
        self.finished: Finished | None = None

    @property
    def tokens(self) -> list[int]:
        return [e.token for e in self.events]

    def token(self, event: TokenEvent) -> None:
        assert self.finished is None
        assert event.index == len(self.events)
        self.events.append(event)

    def finish(self, finished: Finished) -> None:
        assert self.finished is None
        self.finished = finished


def sizes(blocks: int = 64, window_blocks: int = 64, sequences: int = 8) -> StateSizes:
    return StateSizes(BLOCK, {None: blocks, WINDOW: window_blocks}, sequences, sequences)


class Bench:
    """An engine core over the fake model, stepped by hand. parts: another model's runner and store instead."""

    def __init__(
        self,
        state: StateSizes | None = None,
        *,
        context: int = 512,
        step: int = 64,
        chunk: int = 64,
        busy: int | None = None,
        history: int = 0,
        model: FakeModel = MODEL,
        saved: int = 0,
        cache: CacheConfig = NO_CACHE,
        identity: str = "",
        parts: tuple[Runner, StateStore] | None = None,
        saved_blocks: int = SAVED_BLOCKS,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner, self.store = parts or runner_and_store(state or sizes(), model)
        self.chunk = min(chunk, step)
        self.masks = Masks(model.vocab_size)
        savepoints = Savepoints(self.store, saved) if saved else None
        self.lower = Lower(self.store, cache)
        self.seats = Seats(self.store.layout, self.store.sizes, context, self.chunk, savepoints, self.lower.backing, self._copy)
        limits = {"step_tokens": step, "chunk_tokens": chunk, "busy_tokens": busy or step, "saved_blocks": saved_blocks}
        scheduler = SchedulerConfig(self.seats.total, **limits)
        config = EngineConfig(context, scheduler, history=history, identity=identity, cache=cache)
        self.core = EngineCore(self.runner, self.seats, config, checkpoints=self.lower.checkpoints, now=now)

    def _copy(self, group: int | None, source: int, target: int) -> None:
        self.store.copy(group, source, target)

    def add(self, request: GenerationRequest) -> Collector:
        sink = Collector()
        sampler = Sampler(request.params, request.params.seed or 0)
        guide = None if request.constraint is None else self.masks.guide(request.constraint, reply_ends(request))
        self.core.add(EngineSequence(request, sampler, sink, limit=self.seats.limit, rows=self.chunk, guide=guide))
        return sink

    def give(self, request: GenerationRequest) -> Collector:
        """Run a request to its end, with all else that is there."""
        sink = self.add(request)
        self.drain()
        return sink

    @property
    def rows(self) -> list[list[int]]:
        """How many rows each sequence had in every step so far, in batch order."""
        return [b.length.tolist() for b in self.runner.batches]

    def step(self) -> bool:
        did = self.core.step()
        self.check()
        return did

    def check(self) -> None:
        """Every book that is kept."""
        self.core.scheduler.check()
        self.seats.check()
        self.lower.check()

    def fail_once(self, what: str) -> None:
        """Let the state store raise the next time that it is asked to `what`: copy, write, restore, read or snapshot."""

        def fail(*_: object) -> None:
            delattr(self.store, what)
            raise BackendError(f"{what} was told to fail")

        setattr(self.store, what, fail)

    def drain(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.step():
                assert not self.core.busy
                assert all(pool.used == 0 for pool in self.seats.pools.values())
                return
        raise AssertionError("the engine does not come to an end")


def request(prompt: Sequence[int], *, scope: str | None = None, priority: int = 0, **params: object) -> GenerationRequest:
    sampling = SamplingParams(**{"seed": 1, **params})  # type: ignore[arg-type]
    return GenerationRequest(tuple(prompt), sampling, priority=priority, cache_scope=scope)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [mixed(salt, i) % VOCAB for i in range(length)]


def found(tokens: int, model: FakeModel) -> int:
    """How many of a beginning of so many tokens that was computed before are found: all if all of its state is in blocks."""
    return tokens // BLOCK * BLOCK if model.ring or model.recurrent else tokens


def alone(asked: GenerationRequest, context: int = 512, model: FakeModel = MODEL) -> Collector:
    """What a request gives with a whole new engine to itself."""
    return Bench(context=context, model=model).give(asked)
