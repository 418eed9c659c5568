"""Evaluations beside replies: what they give, and what they may take of a step."""

from __future__ import annotations

import numpy as np
import pytest
from engine_bench import BLOCK, FULL, VOCAB, Bench, Collector, alone, prompt, request

from tensorsharp.engine.evaluation import AllLogits, Embedding, Evaluation, PromptLogprobs
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.sequence import Sequence
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.types import GenerationRequest, SamplingParams


def evaluate(bench: Bench, ids: list[int], evaluation: Evaluation, rows: int) -> Collector:
    """rows: most rows of all evaluations in a step."""
    sink, sampler = Collector(), Sampler(SamplingParams(), 0)
    bench.core.add(Sequence(GenerationRequest(tuple(ids)), sampler, sink, limit=len(ids), rows=rows, evaluation=evaluation))
    return sink


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_has_the_log_probabilities_with_which_it_was_written(rows: int, temperature: float) -> None:
    asked = request(prompt(40), max_tokens=30, temperature=temperature, logprobs=3)
    written = alone(asked)
    scores = PromptLogprobs([*asked.prompt_ids, *written.tokens], 3)
    bench = Bench()
    bench.add(request(prompt(20, 1), max_tokens=50))
    evaluate(bench, [*asked.prompt_ids, *written.tokens], scores, rows)
    bench.drain()
    assert [(e.token, e.logprob, e.top) for e in scores.events[39:]] == [(e.token, e.logprob, e.top) for e in written.events]
    assert [e.index for e in scores.events] == list(range(1, 70))


def test_evaluations_have_the_rows_of_one_together() -> None:
    bench = Bench()
    bench.add(request(prompt(5), max_tokens=5))
    bench.step()
    texts = [prompt(25, salt) for salt in (1, 2, 3)]
    logits = [np.empty((25, VOCAB), np.float32) for _ in texts]
    sinks = [evaluate(bench, ids, AllLogits(out), 10) for ids, out in zip(texts, logits, strict=True)]
    later = bench.add(request(prompt(60, 4), max_tokens=2))
    bench.drain()
    # one takes what there is, then the next; the prompt behind them has the other rows at once
    assert bench.rows[1:4] == [[1, 10, 53], [1, 10, 7], [1, 5, 5, 1]]
    for batch in bench.runner.batches:
        assert len(batch.wanted) <= 10 + 2
    assert [sink.finished and sink.finished.reason for sink in sinks] == ["length"] * 3
    for ids, out in zip(texts, logits, strict=True):
        assert np.array_equal(out, bench.runner.model.expected_logits(ids))
    assert later.tokens == alone(request(prompt(60, 4), max_tokens=2)).tokens


def test_rows_that_nobody_takes_do_not_count() -> None:
    bench = Bench()
    for salt in range(4):
        evaluate(bench, prompt(10, salt), Embedding("last", 10), 13)
    bench.step()
    assert bench.rows == [[10, 10, 10, 10]]


def test_logits_that_are_not_numbers_end_an_evaluation() -> None:
    def poison(batch: Batch, logits: F32) -> None:
        logits[batch.pos[batch.wanted] == BLOCK] = np.nan

    bench = Bench(model=FULL)
    bench.runner.poison = poison
    sink = evaluate(bench, prompt(50), PromptLogprobs(prompt(50), 0), 64)
    bench.drain()
    assert sink.finished is not None
    assert sink.finished.error == f"The model gave no usable logits for position {BLOCK + 1}: that of token 0 is nan."
