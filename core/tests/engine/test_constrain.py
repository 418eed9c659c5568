"""Constraints in the engine: masked rows, ends where the grammar accepts, the same reply whatever else runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from engine_bench import FULL, MODEL, VOCAB, Bench, request, sizes
from engine_rig import Gate, Rig

from tensorsharp.engine.constrain import Guide, Masks, choose_rows
from tensorsharp.engine.sampler import Sampler
from tensorsharp.errors import BackendError, RequestError
from tensorsharp.protocols.constraint import Mask
from tensorsharp.types import GenerationRequest, SamplingParams

END = 60


@dataclass
class Digits:
    """A matcher and its grammar: each token differs from the one before by at most `reach`; `least` to `most` of them."""

    reach: int = 5
    least: int = 3
    most: int = 40
    taken: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def start(self) -> Digits:
        return replace(self, taken=[])

    def mask(self) -> Mask:
        self.threads.add(threading.get_ident())
        mask = np.zeros(END, np.bool_)
        at = self.taken[-1] if self.taken else 20
        mask[max(0, at - self.reach) : at + self.reach + 1] = len(self.taken) < self.most
        return mask

    @property
    def accepting(self) -> bool:
        return len(self.taken) >= self.least

    @property
    def complete(self) -> bool:
        return len(self.taken) == self.most

    def accept(self, token: int) -> None:
        assert self.mask()[token]
        self.taken.append(token)

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]


def constrained(prompt: Sequence[int], grammar: Digits, **params: object) -> GenerationRequest:
    return replace(request(prompt, **params), constraint=grammar, end_tokens=frozenset({END}))


def expected(prompt: Sequence[int], grammar: Digits, seed: int = 1, tokens: int = 40) -> list[int]:
    """The reply from the definition alone: the whole sequence's logits, the grammar's mask, the keyed draw."""
    matcher, sampler, known = grammar.start(), Sampler(SamplingParams(seed=seed, temperature=1.0, top_k=0), seed), list(prompt)
    for _ in range(tokens):
        mask = np.zeros(VOCAB, np.bool_)
        mask[:END] = matcher.mask()
        mask[END] = matcher.accepting
        row = MODEL.expected_logits(known)[-1]
        token = sampler.choose(row, np.array(known, np.int32), len(known), mask).token
        if token == END:
            break
        known.append(token)
        matcher.accept(token)
        if matcher.complete:
            break
    return known[len(prompt) :]


PARAMS = {"temperature": 1.0, "top_k": 0, "top_p": 0.95, "min_p": 0.05, "max_tokens": 40}
PROMPTS = [[(7 * i + j) % END for j in range(20 + 13 * i)] for i in range(5)]


def test_every_token_is_one_that_the_mask_allows() -> None:
    bench = Bench()
    sinks = [bench.add(constrained(p, Digits(), seed=1, **PARAMS)) for p in PROMPTS]
    bench.drain()
    for prompt, sink in zip(PROMPTS, sinks, strict=True):
        assert sink.tokens == expected(prompt, Digits())
        assert sink.finished is not None
        assert sink.finished.reason == "stop"
        assert len(sink.tokens) >= 3


def test_neighbours_without_a_constraint_are_not_touched() -> None:
    alone = [Bench().give(request(p, seed=3, **PARAMS)).tokens for p in PROMPTS]
    bench = Bench()
    free = [bench.add(request(p, seed=3, **PARAMS)) for p in PROMPTS]
    for p in PROMPTS[:3]:
        bench.add(constrained(p, Digits(), **PARAMS))
    bench.drain()
    assert [sink.tokens for sink in free] == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preempted_and_resumed_is_the_same(temperature: float) -> None:
    params = {**PARAMS, "temperature": temperature}
    requests = [constrained(p, Digits(least=30), seed=5 + i, **params) for i, p in enumerate(PROMPTS)]
    alone = [Bench().give(r).tokens for r in requests]
    bench = Bench(sizes(blocks=6))
    sinks = [bench.add(r) for r in requests]
    bench.drain()
    assert bench.core.scheduler.preemptions > 0
    assert [sink.tokens for sink in sinks] == alone


def test_an_end_token_waits_for_the_grammar() -> None:
    bias = {END: 100.0}
    sink = Bench().give(constrained([1], Digits(least=7), logit_bias=bias, **PARAMS))
    assert sink.finished is not None
    assert (len(sink.tokens), sink.finished.reason) == (7, "stop")


def test_stop_tokens_of_the_request_wait_too() -> None:
    made = replace(constrained([1], Digits(least=7), logit_bias={59: 100.0}, stop_token_ids=(59,), ignore_eos=True, **PARAMS))
    sink = Bench().give(made)
    assert sink.finished is not None
    assert (len(sink.tokens), sink.finished.reason) == (7, "stop")


def test_a_reply_ends_where_nothing_can_follow() -> None:
    sink = Bench().give(constrained([1], Digits(least=9, most=9), ignore_eos=True, **{**PARAMS, "max_tokens": 9}))
    assert sink.finished is not None
    assert (len(sink.tokens), sink.finished.reason) == (9, "stop")


def test_a_grammar_without_a_way_on_ends_its_own_request() -> None:
    bench = Bench()
    stuck = bench.add(constrained([2], Digits(reach=-1), **PARAMS))
    other = bench.add(constrained(PROMPTS[0], Digits(), **PARAMS))
    bench.drain()
    assert stuck.finished is not None
    assert stuck.finished.error == "No token of the vocabulary continues the reply as its constraint demands."
    assert other.tokens == expected(PROMPTS[0], Digits())


def test_a_matcher_that_fails_ends_its_own_request() -> None:
    class Broken(Digits):
        def start(self) -> Digits:
            return Broken()

        def mask(self) -> Mask:
            raise BackendError("The grammar is too complex.")

    sink = Bench().give(constrained([1], Broken(), **PARAMS))
    assert sink.finished is not None
    assert sink.finished.error == "The grammar is too complex."


def test_log_probabilities_are_those_of_the_raw_row() -> None:
    sink = Bench().give(constrained([1, 2], Digits(), logprobs=2, **PARAMS))
    row = MODEL.expected_logits([1, 2])[-1]
    top = int(row.argmax())
    assert sink.events[0].top[0].token == top
    assert sum(np.exp(float(row[t]) - float(row[top])) for t in range(VOCAB)) == pytest.approx(
        1 / np.exp(sink.events[0].top[0].logprob), rel=1e-5
    )


def test_masks_are_computed_beside_the_step_and_counted() -> None:
    rig = Rig(model=MODEL)
    gate, grammar = Gate(rig.runner), Digits()
    with rig.engine:
        handle = rig.engine.submit(constrained([1], grammar, **PARAMS))
        gate.wait()
        while not grammar.threads:  # the step has begun and cannot end, yet the mask is computed
            pass
        gate.open()
        finished = handle.result(20)
        assert threading.get_ident() not in grammar.threads
        stats = rig.engine.stats()
    assert finished.reason == "stop"
    assert stats.masks == finished.usage.completion + 1  # that of the end token
    assert (stats.mask_s, stats.mask_wait_s) == (finished.timings.mask_s, finished.timings.mask_wait_s)
    assert stats.mask_s > 0


def test_what_is_no_compiled_constraint_is_refused() -> None:
    with Rig().engine as engine, pytest.raises(RequestError, match="constraint is 'json'; expected a compiled constraint"):
        engine.submit(replace(request([1]), constraint="json"))  # type: ignore[arg-type]


# windows of rows ------------------------------------------------------------------------------------------------------


@pytest.fixture
def masks() -> Masks:
    return Masks(VOCAB)


def one_by_one(sampler: Sampler, known: list[int], rows: int, guide: Guide | None) -> list[int]:
    """The tokens of as many single steps, up to the end of the reply."""
    out: list[int] = []
    for _ in range(rows):
        logits = FULL.expected_logits(known + out)[-1:]
        (choice,) = choose_rows(sampler, logits, np.array(known + out, np.int32), guide=guide, ends=frozenset({END}))
        out.append(choice.token)
        if choice.token == END or (guide is not None and guide.complete):
            break
    return out


@pytest.mark.parametrize("constrain", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_window_chooses_what_single_steps_choose(masks: Masks, constrain: bool, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=0, repeat_penalty=1.3, seed=1)
    ends, lengths = frozenset({END}), set()
    rng = np.random.default_rng(4)
    for seed in range(60):
        sampler, known = Sampler(params, seed), rng.integers(0, END, 12).tolist()
        grammar = Digits(least=2, most=int(rng.integers(3, 7)))
        step = masks.guide(grammar, ends) if constrain else None
        truth = one_by_one(sampler, known, 6, step)
        drafts = truth[:5] if truth[-1] != END else truth[:-1][:5]
        if seed % 3 and drafts:  # a draft that is wrong, sometimes one that no mask allows
            drafts[int(rng.integers(len(drafts)))] = int(rng.integers(0, VOCAB))
        guide = masks.guide(grammar, ends) if constrain else None
        if guide is not None and seed % 2:
            guide.prepare(tuple(drafts))
        logits = FULL.expected_logits(known + drafts)[len(known) - 1 :]
        chosen = [c.token for c in choose_rows(sampler, logits, np.array(known, np.int32), drafts, guide, ends)]
        assert chosen == truth[: len(chosen)]
        assert len(chosen) == len(truth) or chosen[-1] != [*drafts, -1][len(chosen) - 1]
        if guide is not None:
            assert guide.complete == (len(chosen) == grammar.most and chosen[-1] != END)
        lengths.add(len(chosen))
    masks.close()
    assert len(lengths) > 3  # windows that were cut early, and ones that were kept whole


def test_preparing_leaves_the_grammar_where_it_was(masks: Masks) -> None:
    grammar = Digits()
    guide = masks.guide(grammar, frozenset({END}))
    guide.prepare((20, 22, 19))
    several = guide.masks((20, 22, 19))
    (first,) = guide.masks()
    assert len(several) == 4
    assert np.array_equal(several[0], first)
    guide.accept(20)
    guide.accept(22)
    (third,) = guide.masks()
    assert np.array_equal(several[2], third)
    assert masks.cost.masks == 6
    masks.close()


def test_drafts_behind_one_that_is_not_allowed_have_no_masks(masks: Masks) -> None:
    guide = masks.guide(Digits(), frozenset({END}))
    assert len(guide.masks((20, 50, 50))) == 2
    assert len(guide.masks((END, 20))) == 1
    masks.close()


def test_a_cancelled_reply_leaves_the_engine_as_it_was() -> None:
    rig = Rig(model=MODEL)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        handle = engine.submit(constrained([1], Digits(least=100, most=200), **{**PARAMS, "max_tokens": 200}))
        gate.wait()
        gate.open(3)
        next(handle)
        handle.cancel()
        gate.open()
        assert handle.result(20).reason == "cancelled"
        after = engine.submit(constrained(PROMPTS[0], Digits(), **PARAMS))
        assert [event.token for event in after] == expected(PROMPTS[0], Digits())
        assert all(used == 0 for used, _ in engine.stats().blocks.values())
