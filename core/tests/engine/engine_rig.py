"""An engine with its worker thread over the fake model, and a gate that holds its steps back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from engine_bench import MODEL, NO_CACHE, Runner, runner_and_store, sizes

from tensorsharp.engine.composition import Composition
from tensorsharp.engine.config import SAVED_BYTES, CacheConfig, EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.engine.observer import Observer
from tensorsharp.protocols.batch import Batch
from tensorsharp.testing.fakes import FakeModel


class Gate:
    """Lets a runner's steps through one by one."""

    def __init__(self, runner: Runner) -> None:
        self._permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        runner.before = self._pass

    def _pass(self, batch: Batch) -> None:
        self.entered.release()
        assert self._permits.acquire(timeout=20)

    def open(self, steps: int = 10_000) -> None:
        self._permits.release(steps)

    def wait(self) -> None:
        """Until the next step has begun."""
        assert self.entered.acquire(timeout=20)


class Rig:
    def __init__(
        self,
        *,
        context: int = 512,
        step: int = 64,
        chunk: int = 64,
        queue: int | None = None,
        model: FakeModel = MODEL,
        observers: Sequence[Observer] = (),
        saved: int = SAVED_BYTES,
        composition: Composition | None = None,
        cache: CacheConfig = NO_CACHE,
        **counts: int,
    ) -> None:
        self.runner, self.store = runner_and_store(sizes(**counts), model)
        scheduler = SchedulerConfig(self.store.sizes.sequences, queue, step, chunk, saved_bytes=saved)
        config = EngineConfig(context, scheduler, cache=cache)
        self.engine = Engine(model, self.runner, self.store, config, observers, composition)  # type: ignore[arg-type]
