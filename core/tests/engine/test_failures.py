"""Wherever something can fail for one request, that request ends with a sentence, and the others say what they say alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_rig import EVERY, PLENTY, asked, cached, said
from engine_bench import BLOCK, FULL, Bench, Collector, alone, prompt, request, sizes
from engine_rig import Rig

from tensorsharp.engine.config import CacheConfig
from tensorsharp.engine.evaluation import AllLogits
from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.sequence import Sequence
from tensorsharp.engine.tiers import Tiers
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import Finished, GenerationRequest, SamplingParams


def failed(sink: Collector) -> str:
    """The sentence with which a request failed."""
    assert sink.finished is not None
    assert sink.finished.reason == "error"
    return str(sink.finished.error)


def small(model: FakeModel, **cache: Any) -> Bench:
    """Room for one prompt, so that the next ones take its blocks."""
    return Bench(sizes(5, 5, 2), context=150, model=model, saved=PLENTY, cache=CacheConfig(**cache))


def several(bench: Bench) -> list[tuple[GenerationRequest, Collector]]:
    """Requests that are in one step from the start."""
    return [(one, bench.add(one)) for one in (asked(50, 3, 12), asked(40, 4, 12), asked(70, 5, 20))]


@EVERY
def test_a_step_of_several_that_fails_once_costs_them_time_alone(model: FakeModel) -> None:
    bench = Bench(model=model, saved=PLENTY)
    sinks = several(bench)
    steps = iter((0, 1, 0, 0, 1, 0, 0, 0, 0, 1))

    def fail_late(batch: Batch, logits: F32) -> None:
        """When state is written already."""
        if batch.sequences > 1 and next(steps, 0):
            raise BackendError("The step fails.")

    bench.runner.poison = fail_late
    bench.drain()
    for one, sink in sinks:
        assert said(sink) == said(alone(one, model=model))
    assert next(steps, None) is None, "all failures came"


@EVERY
def test_who_makes_every_step_fail_ends_alone(model: FakeModel) -> None:
    bench = Bench(model=model, saved=PLENTY)
    bench.give(asked(salt=3))
    sinks = several(bench)

    def fail(batch: Batch, logits: F32) -> None:
        """Of the third one alone, in the middle of its reply."""
        if 78 in batch.pos:
            raise BackendError("Position 78 cannot be computed.")

    bench.runner.poison = fail
    bench.drain()
    (one, first), (other, second), (_, third) = sinks
    assert failed(third) == "Position 78 cannot be computed."
    assert len(third.tokens) == 9
    assert (said(first), said(second)) == (said(alone(one, model=model)), said(alone(other, model=model)))


@EVERY
def test_a_device_that_is_gone_ends_everyone(model: FakeModel) -> None:
    bench = Bench(model=model, saved=PLENTY)

    def fail(batch: Batch, logits: F32) -> None:
        raise BackendError("The device is gone.")

    bench.runner.poison = fail
    sinks = several(bench)
    bench.drain()
    assert [failed(sink) for _, sink in sinks] == ["The device is gone."] * 3


def test_who_arrives_while_others_are_tried_alone_waits_its_turn() -> None:
    bench = Bench(saved=PLENTY)
    sinks = several(bench)
    bench.runner.fail = 2
    bench.step()
    bench.step()
    sinks.append((asked(33, salt=8), bench.add(asked(33, salt=8))))
    bench.step()
    assert len(bench.rows[-1]) == 1
    bench.drain()
    for one, sink in sinks:
        assert said(sink) == said(alone(one))


@EVERY
def test_state_that_cannot_be_written_ends_the_request_that_wants_it(model: FakeModel) -> None:
    bench = small(model, ram=PLENTY)
    for salt in range(4):
        bench.give(asked(salt=salt))
    bench.fail_once("write")
    sinks = [bench.add(asked(salt=salt)) for salt in (0, 9)]
    bench.drain()
    assert failed(sinks[0]) == "write was told to fail"
    assert said(sinks[1]) == said(alone(asked(salt=9), model=model))
    again = bench.give(asked())
    assert (cached(again), said(again)) == (96, said(alone(asked(), model=model))), "nothing that was found is lost"


def test_state_that_cannot_be_copied_ends_the_request_that_wants_it() -> None:
    bench = Bench(model=FULL)
    bench.give(asked(50))
    bench.fail_once("copy")
    sinks = [bench.add(one) for one in (asked(50, tokens=9), asked(salt=3))]
    bench.drain()
    assert failed(sinks[0]) == "copy was told to fail"
    assert said(sinks[1]) == said(alone(asked(salt=3), model=FULL))
    assert said(bench.give(asked(50, tokens=9))) == said(alone(asked(50, tokens=9), model=FULL))


@pytest.mark.parametrize("what", ["restore", "snapshot"])
def test_recurrent_state_that_cannot_be_moved_ends_its_own_request(what: str) -> None:
    bench = Bench(saved=PLENTY)
    if what == "restore":
        bench.give(asked())
    bench.fail_once(what)
    sinks = [bench.add(asked()), bench.add(asked(salt=3))]
    bench.drain()
    ended = sorted(str(s.finished and s.finished.error) for s in sinks)
    assert ended == ["None", f"{what} was told to fail"]
    for salt in (0, 3):
        assert said(bench.give(asked(salt=salt))) == said(alone(asked(salt=salt)))


@EVERY
def test_a_tier_that_cannot_be_read_is_a_miss(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = small(model, ram=PLENTY)
    for salt in range(4):
        bench.give(asked(salt=salt))

    def broken(*_: object) -> bytes:
        raise MemoryError("no room for what was read")

    monkeypatch.setattr(Tiers, "get", broken)
    again = bench.give(asked())
    assert (cached(again), said(again)) == (0, said(alone(asked(), model=model)))


@EVERY
def test_a_tier_that_cannot_be_written_costs_what_it_would_have_kept(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("no room for what is to be kept")

    monkeypatch.setattr(Tiers, "put", broken)
    bench = small(model, ram=PLENTY)
    for salt in (0, 1, 2, 3, 0):
        assert said(bench.give(asked(salt=salt))) == said(alone(asked(salt=salt), model=model))


def test_a_block_that_cannot_be_read_is_not_kept() -> None:
    bench = small(FULL, ram=PLENTY)
    bench.give(asked())
    bench.fail_once("read")
    assert said(bench.give(asked(salt=1))) == said(alone(asked(salt=1), model=FULL))
    assert said(bench.give(asked())) == said(alone(asked(), model=FULL))


def test_an_evaluation_that_fails_ends_alone() -> None:
    class Broken(AllLogits):
        def take(self, first: int, logits: F32, output: F32) -> None:
            raise KeyError("lost")

    bench = Bench()
    ids = tuple(prompt(BLOCK))
    other = bench.add(asked())
    handle = RequestHandle("broken", 0)
    broken, sampler = Broken(np.empty((0, 0), np.float32)), Sampler(SamplingParams(), 0)
    sequence = Sequence(GenerationRequest(ids), sampler, handle, limit=len(ids), rows=8, evaluation=broken)
    bench.core.add(sequence)
    bench.drain()
    assert handle.result(0).error == "Taking its results failed: KeyError: 'lost'"
    assert said(other) == said(alone(asked()))


class Deaf:
    """An observer that fails at one of its events."""

    def __init__(self, event: str) -> None:
        self.event = event
        self.told: list[str] = []

    def _hear(self, event: str) -> None:
        self.told.append(event)
        if event == self.event:
            raise RuntimeError("it fell over")

    def on_request_start(self, request: GenerationRequest) -> None:
        self._hear("on_request_start")

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        self._hear("on_request_end")

    def on_step(self, step: object) -> None:
        self._hear("on_step")


@pytest.mark.parametrize("event", ["on_request_start", "on_request_end", "on_step"])
def test_an_observer_that_fails_is_told_nothing_more(event: str, caplog: pytest.LogCaptureFixture) -> None:
    deaf, other = Deaf(event), Deaf("nothing")
    rig = Rig(observers=[deaf, other])
    with rig.engine as engine:
        replies = [engine.submit(request(prompt(20), max_tokens=3)).result(20) for _ in range(2)]
    assert [r.reason for r in replies] == ["length", "length"]
    assert deaf.told.count(event) == 1
    assert deaf.told[-1] == event
    assert other.told.count("on_request_end") == 2
    assert [r.getMessage() for r in caplog.records] == [f"An observer is told nothing more, as its {event} failed."]


def test_masks_that_cannot_be_begun_are_told_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grammar:
        def start(self) -> object:
            return object()

    bench = Bench()
    sinks = [
        bench.add(GenerationRequest(tuple(prompt(10)), SamplingParams(max_tokens=3), constraint=Grammar())),  # type: ignore[arg-type]
        bench.add(asked()),
    ]

    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bench.masks.workers, "submit", full)
    bench.drain()
    assert failed(sinks[0]) == "Choosing a token failed: RuntimeError: can't start new thread"
    assert said(sinks[1]) == said(alone(asked()))
