"""What an engine tells of itself: counted once, measured by its own clock, and never what was asked or answered."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace

import pytest
from engine_bench import FULL, MODEL, Bench, prompt, request, sizes
from engine_rig import Gate, Rig

from tensorsharp.engine.eventlog import EventLog
from tensorsharp.engine.metrics import SECONDS, Distribution, Histogram
from tensorsharp.engine.observer import Observers, StepEvent
from tensorsharp.engine.stats import EngineStats, families
from tensorsharp.errors import CapacityError
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import Finished, GenerationRequest

STEMS = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "num_preemptions",
}


class Listener:
    def __init__(self) -> None:
        self.started: list[GenerationRequest] = []
        self.ended: list[tuple[GenerationRequest, Finished]] = []
        self.steps: list[StepEvent] = []

    def on_request_start(self, request: GenerationRequest) -> None:
        self.started.append(request)

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        self.ended.append((request, finished))

    def on_step(self, step: StepEvent) -> None:
        self.steps.append(step)


def test_a_histogram_counts_a_bound_in_its_own_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5, 99.0):
        histogram.observe(value)
    assert histogram.read() == Distribution((1.0, 2.0), (2, 2, 2), 106.0)
    assert histogram.read().count == 6
    assert (SECONDS[0], SECONDS[-1]) == (0.001, 500.0)


def ended(rig: Rig) -> tuple[EngineStats, list[Finished]]:
    """Three requests of one prompt, after one another, then a cancelled one and an evaluation."""
    asked = request(prompt(70), max_tokens=5)
    finished = [rig.engine.submit(asked).result(20) for _ in range(3)]
    gate = Gate(rig.runner)
    handle = rig.engine.submit(request(prompt(40, 7), max_tokens=300))
    gate.wait()
    handle.cancel()
    gate.open()
    finished.append(handle.result(20))
    rig.engine.logits(prompt(9))
    rig.engine.close()  # so that the last step is over
    return rig.engine.stats(), finished


def test_what_is_counted_is_what_was_done() -> None:
    stats, finished = ended(Rig(model=FULL))
    assert stats.requests == {"length": 3, "cancelled": 1}
    assert (stats.prefix_queried, stats.prefix_hits) == (3 * 70 + 40, 2 * 69)
    assert stats.prompt_tokens == 3 * 70, "the cancelled one did not come to its first token"
    assert stats.tokens_generated == 15
    assert stats.tokens_computed == 70 + 1 + 1 + 3 * 4 + 40 + 9
    assert (stats.running, stats.waiting, stats.refused, stats.cache_usage) == (0, 0, 0, 0.0)
    assert (stats.first_token_s.count, stats.next_token_s.count) == (3, 12)
    assert (stats.queue_s.count, stats.request_s.count, stats.prefill_s.count, stats.decode_s.count) == (4, 4, 3, 3)
    assert (stats.request_prompt.total, stats.request_reply.total) == (3 * 70 + 40, 15)
    assert stats.step_rows.total == stats.tokens_computed
    assert stats.step_s.count == stats.step_rows.count == stats.steps
    assert stats.queue_s.total == sum(f.timings.queue_s for f in finished)
    assert stats.prefill_s.total == sum(f.timings.prefill_s for f in finished if f.usage.completion)
    assert stats.decode_s.total == pytest.approx(stats.next_token_s.total), "a reply takes as long as its gaps"
    assert stats.first_token_s.total == pytest.approx(sum(f.timings.queue_s + f.timings.prefill_s for f in finished[:3]))
    assert stats.request_s.total >= stats.first_token_s.total + stats.decode_s.total


def test_a_refused_request_is_counted_and_nothing_else_of_it() -> None:
    listener = Listener()
    rig = Rig(sequences=1, queue=0, observers=[listener])
    gate = Gate(rig.runner)
    with rig.engine as engine:
        first = engine.submit(request(prompt(10), max_tokens=3))
        with pytest.raises(CapacityError):
            engine.submit(request(prompt(10)))
        gate.open()
        first.result(20)
        assert (engine.stats().refused, engine.stats().requests) == (1, {"length": 1})
    assert len(listener.started) == len(listener.ended) == 1


@pytest.mark.parametrize(("model", "absent"), [(FULL, set()), (MODEL, {"prefix_cache_queries", "prefix_cache_hits"})])
def test_families_carry_the_names_that_dashboards_know(model: FakeModel, absent: set[str]) -> None:
    stats, _ = ended(Rig(model=model, saved=0))
    found = {family.name: family for family in families(stats)}
    assert STEMS - set(found) == absent, "what cannot be counted is left out"
    assert found["generation_tokens"].samples == {(): 15}
    assert found["request_success"].samples == {("length",): 3, ("cancelled",): 1}
    assert found["request_success"].labels == ("finished_reason",)
    assert found["op_fallbacks"].samples == {("pool",): stats.steps}
    for family in found.values():
        assert all(len(values) == len(family.labels) for values in family.samples)
        assert all(isinstance(v, Distribution) == (family.kind == "histogram") for v in family.samples.values())
        assert family.help.endswith(".")


def test_every_request_and_every_step_is_told() -> None:
    listener = Listener()
    rig = Rig(observers=[listener], step=32, chunk=32, saved=0)
    with rig.engine as engine:
        named = replace(request(prompt(50), max_tokens=3), id="mine")
        engine.submit(named).result(20)
        engine.submit(request(prompt(10), max_tokens=2)).result(20)
        engine.logits(prompt(9))
    stats = engine.stats()
    assert [r.id for r in listener.started] == ["mine", "request-1"]
    assert [(r.id, f.reason, f.usage.completion) for r, f in listener.ended] == [
        ("mine", "length", 3),
        ("request-1", "length", 2),
    ]
    seen = [(s.number, s.rows, s.prompt_rows, s.tokens, s.running, s.waiting) for s in listener.steps]
    assert seen[:4] == [(1, 32, 32, 0, 1, 0), (2, 18, 18, 1, 1, 0), (3, 1, 0, 1, 1, 0), (4, 1, 0, 1, 0, 0)]
    assert [s.number for s in listener.steps] == list(range(1, stats.steps + 1))
    assert all(0 < s.model_s < s.seconds for s in listener.steps)
    assert stats.step_s.total == sum(s.seconds for s in listener.steps)


def test_a_step_that_fails_says_why() -> None:
    listener = Listener()
    rig = Rig(observers=[listener])
    rig.runner.fail = 1
    with rig.engine as engine:
        assert engine.submit(request(prompt(5), max_tokens=3)).result(20).reason == "error"
    assert (engine.stats().steps, engine.stats().requests) == (0, {"error": 1})
    assert [(s.number, s.rows, s.tokens, s.error) for s in listener.steps] == [(1, 5, 0, "step 1 was told to fail")]


def test_the_log_has_a_line_a_request_and_at_the_lowest_level_one_a_step(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(observers=[EventLog("tiny.gguf")], saved=0)
    with caplog.at_level(logging.DEBUG, "tensorsharp"), rig.engine as engine:
        engine.submit(replace(request(prompt(50), max_tokens=3), id="mine")).result(20)
    lines = {name: [r for r in caplog.records if r.name == name] for name in ("tensorsharp.requests", "tensorsharp.steps")}
    end = lines["tensorsharp.requests"][-1]
    facts = {name: getattr(end, name) for name in ("id", "model", "finish", "tokens_in", "cached", "tokens_out")}
    assert (end.getMessage(), end.levelno) == ("request ended", logging.INFO)
    assert facts == {"id": "mine", "model": "tiny.gguf", "finish": "length", "tokens_in": 50, "cached": 0, "tokens_out": 3}
    assert min(end.ttft_s, end.tok_s) > 0  # type: ignore[attr-defined]
    assert [r.rows for r in lines["tensorsharp.steps"]] == [50, 1, 1]  # type: ignore[attr-defined]


def test_at_the_usual_level_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(observers=[EventLog("tiny.gguf")], saved=0)
    with caplog.at_level(logging.WARNING, "tensorsharp"), rig.engine as engine:
        engine.submit(request(prompt(50), max_tokens=3)).result(20)
    assert caplog.records == []


def test_counting_costs_next_to_nothing_a_step() -> None:
    """A decode step of a 135M model takes some 8 ms on two cores; a hundredth of it is 80 us. Process time, best of five."""
    bench = Bench(sizes(sequences=1))
    bench.add(request(prompt(3), max_tokens=2))
    bench.step()
    sequence = bench.core.scheduler.running[0]
    work = bench.core.scheduler.plan()
    log = EventLog("tiny.gguf")
    bench.core._observers = Observers([log])

    def cost() -> float:
        began = time.process_time()
        for _ in range(200):
            bench.core._tell(work, 0, 1, 0.01, 0.009, None)
            bench.core.metrics.next_token(sequence.clock.token())
        return (time.process_time() - began) / 200

    assert min(cost() for _ in range(5)) < 80e-6
    bench.drain()


def test_statistics_are_plain_data() -> None:
    with Rig().engine as engine:
        assert asdict(engine.stats())["step_s"]["bounds"] == SECONDS
