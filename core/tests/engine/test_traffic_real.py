"""The same traffic over a small model with every kind of state, computed by every backend that is installed.

A failure prints the schedule that led to it, and the seed with which `pytest --hypothesis-seed` runs it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property

import pytest
from engine_bench import BLOCK, Bench, Runner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from test_traffic import CONTEXT, LIMITS, SHAPE, Traffic, asked

from tensorsharp.errors import BackendError
from tensorsharp.protocols.backend import Backend, StateSizes, StepResult, Weights
from tensorsharp.protocols.backend import Runner as BackendRunner
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.layout import block_groups
from tensorsharp.testing.minimodel import WINDOW, MiniModel
from tensorsharp.testing.running import available_backends, open_backend

Key = tuple[int, int, int]


class Staged(Runner):
    """A backend's runner that fails and poisons on demand, as the fake one does."""

    def __init__(self, runner: BackendRunner) -> None:
        self._runner = runner
        self.batches: list[Batch] = []
        self.fail: int | None = None
        self.poison = lambda batch, logits: None

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        self.batches.append(batch)
        if self.fail == len(self.batches):
            raise BackendError(f"step {self.fail} was told to fail")
        result = self._runner.step(batch, taps)
        logits = result.logits.copy()
        self.poison(batch, logits)
        return replace(result, logits=logits)

    def close(self) -> None:
        self._runner.close()


class Machine:
    """A backend with the model's weights, and what it says to requests that have it to themselves."""

    def __init__(self, backend: Backend, weights: Weights) -> None:
        self._backend = backend
        self._weights = weights
        self._known: dict[Key, tuple[int, ...]] = {}

    @cached_property
    def slot_bytes(self) -> int:
        with self.bench(blocks=1, window=3, seats=1, step=1, chunk=1, busy=1, saved=0) as bench:
            return bench.store.slot_bytes()

    @contextmanager
    def bench(self, *, blocks: int, window: int, seats: int, step: int, chunk: int, busy: int, saved: int) -> Iterator[Bench]:
        model = MiniModel()
        layout = model.layout("f16")
        assert set(block_groups(layout)) == {None, WINDOW}
        store = self._backend.state(layout, StateSizes(BLOCK, {None: blocks, WINDOW: window}, seats, seats))
        runner = Staged(self._backend.compile(model, self._weights, store))
        try:
            yield Bench(context=CONTEXT, step=step, chunk=chunk, busy=busy, saved=saved, parts=(runner, store))
        finally:
            runner.close()
            store.free()

    def alone(self, key: Key) -> tuple[int, ...]:
        if key not in self._known:
            with self.bench(blocks=4, window=4, seats=1, step=64, chunk=64, busy=64, saved=0) as bench:
                self._known[key] = tuple(bench.give(asked(*key)).tokens)
        return self._known[key]


class RealTraffic(Traffic):
    machine: Machine

    @initialize(
        **SHAPE,
        savepoints=st.sampled_from([0, 1, 3, 100]),
    )
    def start(  # type: ignore[override]
        self, blocks: int, window: int, seats: int, step: int, chunk: int, busy: int, priorities: bool, savepoints: int
    ) -> None:
        self.priorities = priorities
        saved = savepoints * self.machine.slot_bytes
        self.opened = self.machine.bench(
            blocks=blocks, window=window, seats=seats, step=step, chunk=chunk, busy=busy, saved=saved
        )
        self.bench = self.opened.__enter__()

    def alone(self, key: Key) -> tuple[int, ...]:
        return self.machine.alone(key)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "bench"):
                self.opened.__exit__(None, None, None)


@pytest.fixture(scope="module", params=available_backends())
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    backend = open_backend(request.param)
    with closing(backend), closing(backend.load(MiniModel.file(), MiniModel().weights())) as weights:
        yield Machine(backend, weights)


def run(machine: Machine, examples: int) -> None:
    """Without a database hypothesis prints the seed of a failure."""
    kind = type("TrafficOfMachine", (RealTraffic,), {"machine": machine})
    limits = settings(LIMITS, max_examples=examples, stateful_step_count=15, database=None, print_blob=True)
    run_state_machine_as_test(kind, settings=limits)


def test_every_reply_is_the_one_that_is_given_alone(machine: Machine) -> None:
    run(machine, 6)


@pytest.mark.heavy
def test_in_a_hundred_schedules_too(machine: Machine) -> None:
    run(machine, 100)
