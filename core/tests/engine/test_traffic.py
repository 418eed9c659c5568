"""Any mixture of arrivals, cancellations, failures and small pools: every reply is the one the request gives alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from typing import BinaryIO

import pytest
from engine_bench import FULL, MODEL, NO_CACHE, SLIDING, Bench, Collector, prompt, request, sizes
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.protocols.checkpoint import Checkpoint
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest

CONTEXT = 128
PARTING = 45
SAVED_BYTES = 32
"""Of one savepoint: a ring of four rows and a hash in four numbers, float32."""
SHAPE = {
    "blocks": st.integers(2, 7),
    "window": st.integers(4, 9),
    "seats": st.integers(1, 5),
    "step": st.integers(5, 48),
    "chunk": st.integers(1, 48),
    "busy": st.integers(1, 48),
    "priorities": st.booleans(),
}
"""Of pools and steps."""


@lru_cache(None)
def reply(length: int, salt: int, tokens: int, model: FakeModel, lossy: bool) -> tuple[int, ...]:
    one = asked(length, salt, tokens)
    cache = CacheConfig(CoarseCodec()) if lossy else NO_CACHE
    return tuple(Bench(context=CONTEXT, model=model, cache=cache).give(one).tokens)


class Kept:
    """Checkpoints in a dictionary; implements :class:`tensorsharp.protocols.checkpoint.IPrefixCheckpointStore`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], bytes] = {}

    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        for length in range(len(tokens) - 1, 0, -1):
            payload = self._kept.get((key, tokens[:length].tobytes()))
            if payload is not None:
                return Checkpoint(length, partial(bytes, payload))
        return None

    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        file = BytesIO()
        write(file)
        self._kept[key, tokens.tobytes()] = file.getvalue()
        return True


def asked(length: int, salt: int, tokens: int, priority: int = 0) -> GenerationRequest:
    """Prompts of the same salt are beginnings of each other; those of an odd one part from the ones before inside a block."""
    ids = [*prompt(min(length, PARTING), salt - salt % 2), *prompt(length - PARTING, salt)]
    one = request(ids, max_tokens=tokens, temperature=1.0, seed=salt, priority=priority)
    return replace(one, boundaries=(min(length, PARTING),))


class Traffic(RuleBasedStateMachine):
    """The engine under arbitrary traffic. Prompts and replies come from a few shapes, so that their replies are known."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: list[tuple[tuple[int, int, int], Collector]] = []

    @initialize(
        model=st.sampled_from([MODEL, FULL, SLIDING]),
        **SHAPE,
        saved=st.sampled_from([0, SAVED_BYTES, 3 * SAVED_BYTES, 100 * SAVED_BYTES]),
        ram=st.sampled_from([0, 0, 700, 1 << 20]),
        codec=st.sampled_from([None, None, CoarseCodec()]),
        checkpoints=st.booleans(),
    )
    def start(
        self,
        model: FakeModel,
        blocks: int,
        window: int,
        seats: int,
        step: int,
        chunk: int,
        busy: int,
        priorities: bool,
        saved: int,
        ram: int,
        codec: CoarseCodec | None,
        checkpoints: bool,
    ) -> None:
        self.model = model
        self.lossy = codec is not None
        cache = CacheConfig(codec, ram, checkpoints=Kept() if checkpoints else None)
        self.priorities = priorities
        state = sizes(blocks, window, seats)
        self.bench = Bench(state, context=CONTEXT, step=step, chunk=chunk, busy=busy, model=model, saved=saved, cache=cache)

    def alone(self, key: tuple[int, int, int]) -> tuple[int, ...]:
        """The reply to a request of this shape, with a whole engine to itself."""
        return reply(*key, self.model, self.lossy)

    @rule(
        keys=st.lists(
            st.tuples(st.sampled_from([1, 30, 32, 33, 64, 70]), st.integers(0, 3), st.sampled_from([1, 10, 40])), max_size=5
        ),
        priority=st.sampled_from([0, 0, 1]),
    )
    def arrive(self, keys: list[tuple[int, int, int]], priority: int) -> None:
        for key in keys:
            if key[0] < self.bench.seats.limit:
                self.sinks.append((key, self.bench.add(asked(*key, priority * self.priorities))))

    @rule(steps=st.integers(1, 30))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @precondition(lambda self: self.sinks)
    @rule(which=st.randoms(use_true_random=False))
    def cancel(self, which: object) -> None:
        _, sink = which.choice(self.sinks)  # type: ignore[attr-defined]
        sink.ending = ("cancelled", None)

    @rule()
    def fail_one_step(self) -> None:
        self.bench.runner.fail = len(self.bench.runner.batches) + 1
        self.bench.step()
        self.bench.runner.fail = None

    @rule(what=st.sampled_from(["copy", "write", "restore", "read", "snapshot"]))
    def fail_to_move_state_once(self, what: str) -> None:
        self.bench.fail_once(what)
        self.bench.step()
        vars(self.bench.store).pop(what, None)

    @rule()
    def give_no_usable_logits_once(self) -> None:
        def poison(batch: Batch, logits: F32) -> None:
            logits[:1] = float("nan")

        self.bench.runner.poison = poison
        self.bench.step()
        self.bench.runner.poison = lambda batch, logits: None

    @invariant()
    def the_highest_rank_runs_first(self) -> None:
        if hasattr(self, "bench"):
            scheduler = self.bench.core.scheduler
            running, waiting = ([s.rank for s in line] for line in (scheduler.running, scheduler.waiting))
            assert running == sorted(running)
            assert waiting == sorted(waiting)
            if not self.bench.seats.reuses and not self.priorities:
                assert [*running, *waiting] == sorted([*running, *waiting]), "nobody passes where nothing is shared"

    @invariant()
    def the_books_balance(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()
            assert all(p.free + p.used + p.cached == p.total for p in self.bench.seats.pools.values())
            assert max((sum(rows) for rows in self.bench.rows), default=0) <= self.bench.core.scheduler.step_tokens

    @invariant()
    def nothing_wrong_was_said(self) -> None:
        for key, sink in self.sinks:
            assert tuple(sink.tokens) == self.alone(key)[: len(sink.tokens)]

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            self.bench.lower.close()
            for key, sink in self.sinks:
                assert sink.finished is not None
                if sink.finished.reason == "length":
                    room = self.bench.seats.limit - key[0]
                    assert tuple(sink.tokens) == self.alone(key)[:room]
                else:
                    assert sink.finished.reason in ("cancelled", "error")


LIMITS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(LIMITS, max_examples=40, stateful_step_count=20)


@pytest.mark.heavy
class TestMuchTraffic(Traffic.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(LIMITS, max_examples=1000, stateful_step_count=25, derandomize=False)
