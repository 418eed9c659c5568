"""What a request may ask of the engine besides its tokens: a place in the queue, a deadline, a priority, a scope."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine_bench import FULL, VOCAB, prompt, request
from engine_rig import Gate, Rig

from tensorsharp.errors import CapacityError, RequestError


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    with made.engine:
        yield made


def test_a_full_queue_refuses_and_takes_requests_again_once_one_has_ended() -> None:
    rig = Rig(sequences=1, queue=1)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        first, second = (engine.submit(request(prompt(10, i), max_tokens=3)) for i in range(2))
        with pytest.raises(CapacityError, match="1 requests run and 1 wait, which is all that the queue holds"):
            engine.submit(request(prompt(10)))
        with pytest.raises(CapacityError):
            engine.logits([1])
        gate.open()
        first.result(20)
        third = engine.submit(request(prompt(10), max_tokens=3))
        assert [len(list(h)) for h in (second, third)] == [3, 3]
        assert engine.logits([1]).shape == (1, VOCAB)


def test_a_request_that_takes_too_long_ends(rig: Rig) -> None:
    rig.runner.before = lambda batch: time.sleep(0.01)
    handle = rig.engine.submit(replace(request(prompt(10), max_tokens=400), timeout_s=0.1))
    assert handle.result(20).reason == "timeout"
    assert handle.result().usage.completion < 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_s": 0}, "timeout_s is 0; expected seconds above 0, or None"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": "1"}, "timeout_s is '1'"),
        ({"priority": 1.5}, "priority is 1.5; expected a whole number"),
        ({"cache_scope": 3}, "cache_scope is 3; expected a string or None"),
    ],
)
def test_bad_options_are_refused(rig: Rig, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        rig.engine.submit(replace(request([1]), **options))
    assert caught.value.param in options


def test_what_is_reused_is_counted() -> None:
    with Rig(model=FULL).engine as engine:
        asked = request(prompt(100), max_tokens=5)
        handles = [engine.submit(asked) for _ in range(3)]
        assert sorted(h.result(20).usage.cached for h in handles) == [0, 99, 99]
        stats = engine.stats()
        assert (stats.tokens_reused, stats.blocks, stats.cached) == (198, {None: (0, 64)}, {None: 4})


def test_draining_finishes_what_is_there_and_takes_nothing_new() -> None:
    rig = Rig(sequences=1)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        handles = [engine.submit(request(prompt(10, i), max_tokens=4)) for i in range(3)]
        assert not engine.drain(0.01)
        with pytest.raises(CapacityError, match="takes no new requests"):
            engine.submit(request(prompt(10)))
        gate.open()
        assert engine.drain(20)
        assert [h.result(1).reason for h in handles] == ["length"] * 3


def test_what_does_not_end_in_time_is_ended_when_the_engine_closes() -> None:
    rig = Rig(sequences=1)
    gate = Gate(rig.runner)

    def open_once_closed() -> None:
        while not rig.engine._closed:
            time.sleep(0.001)
        gate.open()

    with rig.engine as engine:
        handles = [engine.submit(request(prompt(10, i), max_tokens=4)) for i in range(3)]
        gate.open(5)
        handles[0].result(20)
        assert not engine.drain(0.01)
        threading.Thread(target=open_once_closed).start()
    assert [h.result(1).reason for h in handles] == ["length", "cancelled", "cancelled"]
    assert [h.result().usage.completion for h in handles] == [4, 2, 0], "the step under way is the last one"
    assert engine.stats().blocks == {None: (0, 64), 40: (0, 64)}
