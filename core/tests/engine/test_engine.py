from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from engine_bench import VOCAB, alone, expected_logits, prompt, request
from engine_rig import Gate, Rig

from tensorsharp.engine.config import EngineConfig, SchedulerConfig
from tensorsharp.engine.sequence import Sequence
from tensorsharp.errors import BackendError, CapacityError, ConfigError, RequestError, TensorSharpError
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.types import FinishReason, GenerationRequest, SamplingParams


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    with made.engine:
        yield made


def test_requests_of_several_threads_run_together_and_change_nothing(rig: Rig) -> None:
    asked = [request(prompt(20 + i, i), max_tokens=12, temperature=1.0, seed=i) for i in range(8)]
    gate = Gate(rig.runner)
    handles = [rig.engine.submit(r) for r in asked]
    gate.open()
    got: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda i=i: got.update({i: [e.token for e in handles[i]]})) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert got == {i: alone(r).tokens for i, r in enumerate(asked)}
    assert max(b.sequences for b in rig.runner.batches) > 1


def test_a_finished_request_tells_how_it_ended(rig: Rig) -> None:
    handle = rig.engine.submit(request(prompt(30), max_tokens=5, temperature=0.0, seed=9))
    finished = handle.result(20)
    assert len(list(handle)) == 5
    assert (finished.reason, finished.seed, finished.error, finished.stop) == ("length", 9, None, None)
    assert (finished.usage.prompt, finished.usage.cached, finished.usage.completion) == (30, 0, 5)
    assert (finished.timings.prefill_tokens, finished.timings.decode_tokens) == (30, 4)
    assert min(finished.timings.queue_s, finished.timings.prefill_s, finished.timings.decode_s) >= 0.0
    stats = rig.engine.stats()
    assert (stats.tokens_computed, stats.tokens_generated, stats.running, stats.waiting) == (34, 5, 0, 0)
    assert stats.blocks == {None: (0, 64), 40: (0, 64)}
    assert stats.fallbacks == {"pool": stats.steps}


def test_end_tokens_stop_and_are_left_out(rig: Rig) -> None:
    ids = prompt(12)
    tokens = alone(request(ids, max_tokens=20, temperature=0.0)).tokens
    end = next(t for i, t in enumerate(tokens) if i > 3 and t not in tokens[:i])
    at = tokens.index(end)
    plain = SamplingParams(max_tokens=20, temperature=0.0)
    ignoring = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    own = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop_token_ids=(end,))
    for params, ends, want, reason in (
        (plain, {end}, tokens[:at], "stop"),
        (ignoring, {end}, tokens, "length"),
        (own, set(), tokens[:at], "stop"),
    ):
        handle = rig.engine.submit(GenerationRequest(tuple(ids), params, frozenset(ends)))
        assert [e.token for e in handle] == want
        assert handle.result().reason == reason


@pytest.mark.parametrize("at", [1, 3, 6], ids=["the first", "one between", "the last that may be"])
def test_what_sees_the_tokens_ends_the_request_with_one_of_them(rig: Rig, at: int) -> None:
    asked, seen = request(prompt(10), max_tokens=6, temperature=0.0), []

    def watch(token: int) -> tuple[FinishReason, str] | None:
        seen.append(token)
        return ("stop", "word") if len(seen) == at else None

    handle = rig.engine.submit(asked, watch)
    finished = handle.result(20)
    assert (finished.reason, finished.stop, finished.usage.completion) == ("stop", "word", at)
    assert seen == [e.token for e in handle] == alone(asked).tokens[:at]
    stats = rig.engine.stats()
    assert (stats.requests, stats.tokens_generated) == ({"stop": 1}, at)


def test_what_sees_the_tokens_and_fails_ends_nothing(rig: Rig) -> None:
    asked = request(prompt(10), max_tokens=6, temperature=0.0)
    handle = rig.engine.submit(asked, lambda token: 1 // 0)
    assert [e.token for e in handle] == alone(asked).tokens
    assert handle.result().reason == "length"


def test_a_full_context_ends_a_reply() -> None:
    with Rig(context=40).engine as engine:
        handle = engine.submit(request(prompt(30), temperature=0.0))
        assert len(list(handle)) == 10
        assert handle.result().reason == "length"


def test_a_pool_smaller_than_the_context_is_the_limit() -> None:
    with Rig(context=512, blocks=3).engine as engine:
        assert engine.limit == 96
        assert len(list(engine.submit(request(prompt(90), temperature=0.0)))) == 6
        with pytest.raises(RequestError, match="96 tokens; at most 95 fit in the context of 96") as caught:
            engine.submit(request(prompt(96)))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt_ids")


@pytest.mark.parametrize(
    ("ids", "params", "param", "words"),
    [
        ([], {}, "prompt_ids", "no tokens"),
        ([1, VOCAB], {}, "prompt_ids", rf"prompt_ids\[1\] is {VOCAB}; expected a token id between 0 and {VOCAB - 1}"),
        ([-1], {}, "prompt_ids", r"\[0\] is -1"),
        ([1.5], {}, "prompt_ids", r"\[0\] is 1.5"),
        ([1], {"logit_bias": {99: 1.0}}, "logit_bias", r"is 99"),
        ([1], {"logit_bias": {2: float("nan")}}, "logit_bias", r"logit_bias\[2\] is nan"),
        ([1], {"logit_bias": {2: 10**400}}, "logit_bias", r"logit_bias\[2\] is 1000"),
        ([1], {"logit_bias": {2: 1e300}}, "logit_bias", r"between -1e\+09 and 1e\+09"),
        ([1], {"stop_token_ids": (-3,)}, "stop_token_ids", r"is -3"),
    ],
)
def test_bad_requests_are_refused_at_once(rig: Rig, ids: list[int], params: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        rig.engine.submit(request(ids, **params))
    assert caught.value.param == param
    assert rig.runner.batches == []


def test_boundaries_outside_the_prompt_are_refused(rig: Rig) -> None:
    with pytest.raises(RequestError, match="between 0 and 3"):
        rig.engine.submit(GenerationRequest((1, 2, 3), boundaries=(2, 4)))


def test_a_request_without_a_seed_reports_one_that_repeats_it(rig: Rig) -> None:
    asked = request(prompt(8), max_tokens=8, temperature=1.0, seed=None)
    first, second = rig.engine.submit(asked), rig.engine.submit(asked)
    assert first.seed != second.seed
    again = rig.engine.submit(request(prompt(8), max_tokens=8, temperature=1.0, seed=first.seed))
    assert [e.token for e in again] == [e.token for e in first]
    assert first.result().seed == first.seed


def test_log_probabilities_travel_with_the_token(rig: Rig) -> None:
    ids = prompt(8)
    events = list(rig.engine.submit(request(ids, max_tokens=3, temperature=0.0, logprobs=2)))
    row = expected_logits(ids)[-1].astype(float)
    exact = row - np.log(np.exp(row).sum())
    assert events[0].logprob == pytest.approx(exact.max(), abs=1e-6)
    assert [t.token for t in events[0].top] == np.argsort(-row, kind="stable")[:2].tolist()
    assert alone(request(ids, max_tokens=1)).events[0].logprob is None


def test_cancelling_between_chunks_of_a_prompt_frees_everything() -> None:
    rig = Rig(chunk=8)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        handle = engine.submit(request(prompt(100), max_tokens=5))
        gate.open(3)
        for _ in range(3):
            gate.wait()
        gate.wait()
        handle.cancel()
        gate.open()
        assert handle.result(20).reason == "cancelled"
        assert len(rig.runner.batches) == 4
        assert list(handle) == []
        assert engine.stats().blocks == {None: (0, 64), 40: (0, 64)}


def test_cancelling_while_waiting() -> None:
    rig = Rig(sequences=1)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        first = engine.submit(request(prompt(10), max_tokens=5))
        second = engine.submit(request(prompt(10), max_tokens=5))
        gate.wait()
        second.cancel("timeout")
        gate.open()
        assert second.result(20).reason == "timeout"
        assert second.result().usage.completion == 0
        assert len(list(first)) == 5


def test_who_waits_is_told_once_while_the_worker_takes_it_in(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, taken, go = rig.engine._core.scheduler, threading.Event(), threading.Event()
    add = scheduler.add

    def slow(sequence: Sequence) -> None:
        add(sequence)
        taken.set()
        assert go.wait(20)

    monkeypatch.setattr(scheduler, "add", slow)
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(10), max_tokens=1))
    assert taken.wait(20)
    told: list[tuple[list[str], list[str]]] = []
    asking = threading.Thread(target=lambda: told.append(rig.engine.requests()))
    asking.start()
    asking.join(0.1)  # what need not wait for the worker is told by then
    go.set()
    asking.join(20)
    assert [running + waiting for running, waiting in told] == [["request-1"]]
    gate.open()
    handle.result(20)


def test_the_first_reason_to_end_counts(rig: Rig) -> None:
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(10), max_tokens=5))
    handle.cancel("stop", "###")
    handle.cancel()
    gate.open()
    assert (handle.result(20).reason, handle.result().stop) == ("stop", "###")
    handle.cancel()
    assert handle.result().reason == "stop"


def test_a_step_that_fails_ends_its_own_requests_and_no_other(rig: Rig) -> None:
    def explode(batch: Batch) -> None:
        raise BackendError("The device is on fire.")

    rig.runner.before = explode
    failed = rig.engine.submit(request(prompt(40), max_tokens=5))
    assert failed.result(20).error == "The device is on fire."
    assert failed.result().reason == "error"
    assert list(failed) == []

    def divide(batch: Batch) -> None:
        raise ZeroDivisionError("by nothing")

    rig.runner.before = divide
    assert rig.engine.submit(request(prompt(40))).result(20).error == "The step failed: ZeroDivisionError: by nothing"
    rig.runner.before = lambda batch: None
    asked = request(prompt(40), max_tokens=5, temperature=0.0)
    assert [e.token for e in rig.engine.submit(asked)] == alone(asked).tokens
    assert rig.engine.stats().blocks == {None: (0, 64), 40: (0, 64)}


def test_logits_that_are_not_numbers_end_that_request_alone(rig: Rig) -> None:
    def poison(batch: Batch, logits: F32) -> None:
        for w, row in enumerate(batch.wanted.tolist()):
            if batch.pos[row] == 32:
                logits[w] = np.nan

    rig.runner.poison = poison
    gate = Gate(rig.runner)
    good, bad = request(prompt(20), max_tokens=5, temperature=0.0), request(prompt(33), max_tokens=5)
    rig.engine.submit(request(prompt(3), max_tokens=1))
    gate.wait()
    handles = [rig.engine.submit(good), rig.engine.submit(bad)]
    gate.open()
    assert [e.token for e in handles[0]] == alone(good).tokens
    finished = handles[1].result(20)
    assert finished.reason == "error"
    assert "position 33" in (finished.error or "")


@pytest.mark.parametrize("elements", [VOCAB, 5 * VOCAB, 10_000 * VOCAB])
def test_logits_for_evaluation(rig: Rig, monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr("tensorsharp.engine.engine._COLLECTED_ELEMENTS", elements)
    ids = prompt(70)
    others = [rig.engine.submit(request(prompt(20, i), max_tokens=10)) for i in range(3)]
    got = rig.engine.logits(ids)
    assert got.dtype == np.float32
    assert np.array_equal(got, expected_logits(ids))
    assert max(len(b.wanted) for b in rig.runner.batches) <= elements // VOCAB + 3
    assert all(h.result(20).reason == "length" for h in others)


def test_evaluation_survives_preemption() -> None:
    with Rig(blocks=4, window_blocks=8, sequences=2, step=32, chunk=32).engine as engine:
        handle = engine.submit(request(prompt(20), max_tokens=100, temperature=0.0))
        assert np.array_equal(engine.logits(prompt(60, 1)), expected_logits(prompt(60, 1)))
        assert len(list(handle)) == 100


def test_evaluation_refuses_what_does_not_fit_and_reports_failure(rig: Rig) -> None:
    with pytest.raises(RequestError, match="513 tokens; at most 512 fit"):
        rig.engine.logits(prompt(513))
    with pytest.raises(RequestError, match=r"ids\[0\] is 99"):
        rig.engine.logits([99])

    def explode(batch: Batch) -> None:
        raise BackendError("Broken.")

    rig.runner.before = explode
    with pytest.raises(BackendError, match="Broken"):
        rig.engine.logits([1, 2])


def test_asyncio(rig: Rig) -> None:
    asked = [request(prompt(10 + i, i), max_tokens=10, temperature=1.0) for i in range(4)]

    async def tokens(one: GenerationRequest) -> list[int]:
        handle = rig.engine.submit(one)
        got = [e.token async for e in handle]
        assert (await handle.wait()).reason == "length"
        return got

    async def everything() -> list[list[int]]:
        return await asyncio.gather(*(tokens(r) for r in asked))

    assert asyncio.run(everything()) == [alone(r).tokens for r in asked]


def test_an_event_loop_that_went_away_harms_nobody(rig: Rig) -> None:
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(10), max_tokens=5, temperature=0.0))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(handle), 0.01)

    asyncio.run(give_up())
    gate.open()
    assert len(list(handle)) == 5


def test_waiting_has_a_limit(rig: Rig) -> None:
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(10), max_tokens=1))
    with pytest.raises(TimeoutError, match="has not ended after"):
        handle.result(0.01)
    gate.open()
    handle.result(20)


def test_two_engines_in_one_process() -> None:
    asked = request(prompt(50), max_tokens=20, temperature=1.0)
    with Rig().engine as one, Rig(sequences=2).engine as two:
        a, b = one.submit(asked), two.submit(asked)
        assert [e.token for e in a] == [e.token for e in b] == alone(asked).tokens


def test_closing_ends_what_runs_and_waits_and_frees_the_state() -> None:
    rig = Rig(sequences=1)
    gate = Gate(rig.runner)
    handles = [rig.engine.submit(request(prompt(10), max_tokens=500)) for _ in range(3)]
    gate.wait()
    closer = threading.Thread(target=rig.engine.close)
    closer.start()
    while not rig.engine._closed:
        time.sleep(0.001)
    gate.open()
    closer.join(20)
    assert [h.result(1).reason for h in handles] == ["cancelled"] * 3
    assert (len(rig.store.arrays), rig.runner.closed) == (0, True)
    with pytest.raises(TensorSharpError, match="closed"):
        rig.engine.submit(request(prompt(10)))
    rig.engine.close()


def test_a_fault_in_the_engine_leaves_nobody_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(10), max_tokens=50))
    gate.wait()

    def fault() -> None:
        raise KeyError("lost")

    monkeypatch.setattr(rig.engine._core.scheduler, "plan", fault)
    gate.open()
    assert "KeyError" in (handle.result(20).error or "")
    monkeypatch.undo()
    assert len(list(rig.engine.submit(request(prompt(10), max_tokens=3)))) == 3


def test_configurations_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="queue is -1; expected at least 0"):
        SchedulerConfig(queue=-1)
    with pytest.raises(ConfigError, match="context is 1; expected at least 2"):
        EngineConfig(context=1)
    with pytest.raises(ConfigError, match="step_tokens is 4; expected at least one row for each of 8 parallel requests"):
        Rig(step=4)
    with pytest.raises(CapacityError, match="window 40 has 2 blocks"):
        Rig(window_blocks=2)


def test_nothing_is_held_once_nothing_runs(rig: Rig) -> None:
    handles = [rig.engine.submit(request(prompt(40, i), max_tokens=6)) for i in range(5)]
    handles[2].cancel()
    rig.engine.check_idle()
    assert all(handle.done for handle in handles)
    rig.engine._core.seats.take([])
    with pytest.raises(RuntimeError, match="nothing runs, but 1 seats and"):
        rig.engine.check_idle()
