from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine import exactmath
from tensorsharp.engine.keyed import ROUGHNESS, gumbel, hashes, rough_gumbel, uniforms
from tensorsharp.engine.ranking import largest
from tensorsharp.engine.sampler import Sampler, draw
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32
from tensorsharp.types import SamplingParams

NONE = np.zeros(0, np.int32)
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# (seed, position, token, hash, u, g), evaluated from the published rule with ordinary Python integers and math.log
VECTORS = [
    (0, 0, 0, 0x33FE8BD4F9C57863, 0.20310281705476102, -0.4662735186548661),
    (0, 0, 1, 0x2AEA2EC8299DF491, 0.16763584505826384, -0.5799567807288937),
    (0, 1, 0, 0xF53673D646F5B4FB, 0.9578621290338194, 3.145359906226864),
    (1234, 17, 42, 0xBFE8B5FDEA142378, 0.7496446366222504, 1.2442532698886273),
    (1234, 18, 42, 0xC8B4D2D1E476FC8C, 0.7840091478760449, 1.413317867121589),
    (2**63 - 1, 100000, 151935, 0x28183BC298C20A5D, 0.1566197729196192, -0.6173099970116472),
]


def choose(row: F32, history: list[int] | None = None, position: int = 9, **params: object) -> int:
    sampler = Sampler(SamplingParams(**{"seed": 3, **params}), int(str(params.get("seed", 3))))  # type: ignore[arg-type]
    return sampler.choose(row, np.array(history or [], np.int32), position).token


def logits(n: int, seed: int = 0, *, levels: int | None = None) -> F32:
    """Random logits; with `levels`, from so few values that ties abound."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 3, n) if levels is None else rng.integers(0, levels, n)
    return values.astype(np.float32)


@pytest.mark.parametrize(("seed", "position", "token", "hashed", "u", "g"), VECTORS)
def test_known_vectors(seed: int, position: int, token: int, hashed: int, u: float, g: float) -> None:
    ids = np.array([token])
    assert hashes(seed, position, ids).tolist() == [hashed]
    assert uniforms(seed, position, ids).tolist() == [u]
    assert abs(gumbel(u) - g) <= 2 * math.ulp(g)  # an ulp in each of two logarithms


def test_the_uniform_never_rounds_to_one() -> None:
    top = np.array([2**64 - 1], np.uint64)
    literal = (top >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    assert literal[0] == 1.0, "the hazard that the clamp is for"
    assert gumbel(min(float(literal[0]), 1.0 - 2.0**-53)) < 36.74


def test_rough_draws_are_near_enough() -> None:
    u = np.concatenate([uniforms(1, p, np.arange(2000)) for p in range(5)] + [1.0 - 2.0 ** -np.arange(1.0, 54), [2.0**-54]])
    exact = np.array([gumbel(x) for x in u.tolist()])
    assert np.abs(rough_gumbel(u) - exact).max() < ROUGHNESS / 1000


def adjusted(row: F32, history: list[int], params: SamplingParams) -> list[float]:
    """The values after penalties and bias, one after the other."""
    values = row.astype(np.float64).tolist()
    recent = history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]
    for token in set(recent):
        values[token] = values[token] / params.repeat_penalty if values[token] > 0 else values[token] * params.repeat_penalty
        values[token] -= recent.count(token) * params.frequency_penalty
        values[token] -= params.presence_penalty
    for token, added in params.logit_bias.items():
        values[token] += added
    return values


def naive(values: list[float], seed: int, position: int, params: SamplingParams) -> int:
    """The rule as it is written, one candidate after the other."""
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if params.temperature == 0.0:
        return order[0]
    kept = [(values[i] / max(params.temperature, 1e-6), i) for i in order][: params.top_k or None]
    weights = exactmath.exp(np.array([v - kept[0][0] for v, _ in kept])).tolist()
    cumulative = list(itertools.accumulate(weights))
    kept = kept[: sum(c < params.top_p * cumulative[-1] for c in cumulative) + 1] if params.top_p < 1 else kept
    if params.min_p > 0:
        kept = [(v, i) for v, i in kept if v >= kept[0][0] + exactmath.log(params.min_p)]
    scores = [(v + gumbel(float(uniforms(seed, position, np.array([i]))[0])), v, -i) for v, i in kept]
    return -max(scores)[2]


def plain_logprobs(row: F32) -> list[float]:
    raised = row.astype(np.float64) - float(row.max())
    terms = exactmath.exp(raised)
    terms[row.argmax()] = 0.0
    pieces = [exactmath.total(terms[i : i + 512]) for i in range(0, len(terms), 512)]
    lowered = exactmath.log(1.0 + exactmath.total(np.array(pieces)))
    return (raised - lowered).astype(np.float32).tolist()


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 700),
    seed=st.integers(0, 2**63 - 1),
    levels=st.sampled_from([None, 1, 2, 7, 40]),
    temperature=st.sampled_from([1e-9, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_shortcuts_give_the_token_of_the_rule(
    size: int, seed: int, levels: int | None, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = logits(size, seed % 1000, levels=levels)
    params = SamplingParams(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert Sampler(params, seed).choose(row, NONE, 9).token == naive(row.tolist(), seed, 9, params)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from([(300, None), (300, 3), (1500, None), (1500, 30)]),
    seed=st.integers(0, 10**6),
    history=st.lists(st.integers(0, 299), max_size=90),
    bias=st.dictionaries(st.integers(0, 299), st.floats(-8, 8), max_size=8),
    penalties=st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.1, 0.0), (0.8, -0.5, 0.7)]),
    last=st.sampled_from([64, 5, -1]),
    filters=st.sampled_from([(0, 1.0, 0.0), (0, 1.0, 0.05), (0, 0.9, 0.0), (3, 1.0, 0.0), (40, 0.95, 0.05)]),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    allowed=st.sampled_from([None, 0.5, 0.01]),
)
def test_adjusted_and_masked_rows_follow_the_rule(
    shape: tuple[int, int | None],
    seed: int,
    history: list[int],
    bias: dict[int, float],
    penalties: tuple[float, float, float],
    last: int,
    filters: tuple[int, float, float],
    temperature: float,
    allowed: float | None,
) -> None:
    row = logits(shape[0], seed, levels=shape[1])
    mask = None if allowed is None else np.random.default_rng(seed).random(len(row)) < allowed
    (repeat, frequency, presence), (top_k, top_p, min_p) = penalties, filters
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat, frequency_penalty=frequency,
        presence_penalty=presence, repeat_last_n=last, logit_bias=bias, logprobs=3,
    )  # fmt: skip
    visible = row if mask is None else np.where(mask, row, np.float32(-np.inf))
    values, sampler = adjusted(visible, history, params), Sampler(params, seed)
    if max(values) == -math.inf:
        with pytest.raises(BackendError):
            sampler.choose(row, np.array(history, np.int32), 5, mask)
        return
    choice = sampler.choose(row, np.array(history, np.int32), 5, mask)
    assert choice.token == naive(values, seed, 5, params)
    logprobs = plain_logprobs(row)
    assert choice.logprob == logprobs[choice.token]
    likeliest = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:3]
    assert [(t.token, t.logprob) for t in choice.top] == [(i, logprobs[i]) for i in likeliest]


@pytest.mark.parametrize(("size", "k"), [(50_000, 40), (50_000, 1), (3_000, 40), (50_000, 3_000), (10, 10), (7, 20)])
@pytest.mark.parametrize("levels", [None, 3])
def test_largest_orders_by_value_then_index(size: int, k: int, levels: int | None) -> None:
    row = logits(size, 4, levels=levels)
    assert largest(row, k).tolist() == sorted(range(size), key=lambda i: (-float(row[i]), i))[:k]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    row = np.array([0.0, 1.0, 2.0, -1.0, 1.5, 0.5], np.float32)
    expected = np.exp(row.astype(float) / temperature)
    expected *= 10_000 / expected.sum()
    sampler = Sampler(SamplingParams(**{**OFF, "temperature": temperature}), 77)
    counts = np.bincount([sampler.choose(row, NONE, p).token for p in range(10_000)], minlength=6)
    # chi-square with 5 degrees of freedom exceeds 20.5 once in a thousand; the draws are fixed, so this never flickers
    assert ((counts - expected) ** 2 / expected).sum() < 20.5


def test_seeds_and_positions_give_independent_draws() -> None:
    ids, values = np.arange(4), np.zeros(4)
    pairs = [(draw(ids, values, s, p), draw(ids, values, s, p + 1)) for s in range(40) for p in range(0, 100, 2)]
    counts = np.bincount([4 * a + b for a, b in pairs], minlength=16)
    # 15 degrees of freedom, once in a thousand 37.7
    assert ((counts - 125.0) ** 2 / 125.0).sum() < 37.7


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert choose(np.array([1, 5, 5, 2], np.float32), temperature=0) == 1
    assert choose(np.array([1, 5, 5, 2], np.float32), temperature=0, logit_bias={3: 3.0, 0: 4.0}) == 0
    assert choose(np.array([1, 5, 5, 2], np.float32), temperature=0, logit_bias={1: -1.0}) == 2


def test_penalties_in_their_order() -> None:
    row = np.array([4.0, -4.0, 3.9, 0.0], np.float32)
    assert choose(row, [0], temperature=0, repeat_penalty=1.1) == 2
    assert choose(row, [0, 3], temperature=0, repeat_penalty=1.1, repeat_last_n=1) == 0
    assert choose(row, [0], temperature=0, repeat_penalty=1.1, repeat_last_n=0) == 0
    assert choose(row, [0], temperature=0, presence_penalty=0.2) == 2
    assert choose(row, [0, 0], temperature=0, frequency_penalty=0.06) == 2
    assert choose(row, [0], temperature=0, frequency_penalty=0.06) == 0
    assert choose(row, [0] + [3] * 80, temperature=0, presence_penalty=0.2, repeat_last_n=-1) == 2
    # a negative logit is multiplied, so it sinks: -4 * 2 = -8 loses to the bias of -7.5 on another
    assert choose(np.array([-4.0, 0.0], np.float32), [0], temperature=0, repeat_penalty=2.0, logit_bias={1: -7.5}) == 1


def test_a_mask_excludes_tokens_and_leaves_log_probabilities_alone() -> None:
    row = np.array([3.0, 2.0, 1.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=0.0, logprobs=0), 1)
    free = sampler.choose(row, NONE, 0)
    masked = sampler.choose(row, NONE, 0, np.array([False, True, True]))
    assert (free.token, masked.token) == (0, 1)
    assert masked.logprob == pytest.approx(2.0 - math.log(sum(math.exp(v) for v in (1, 2, 3))), abs=1e-7)
    with pytest.raises(BackendError):
        sampler.choose(row, NONE, 0, np.array([False, False, False]))


def test_log_probabilities_are_those_of_the_raw_row() -> None:
    row = logits(1000, 8)
    exact = row.astype(float) - math.log(math.fsum(math.exp(v) for v in row.tolist()))
    sampler = Sampler(SamplingParams(temperature=0.7, logprobs=5, logit_bias={4: 50.0}, seed=1), 1)
    choice = sampler.choose(row, NONE, 3)
    assert choice.token == 4
    # float32 of a value below 16 in magnitude: half a unit in the last place is 2^-21
    assert choice.logprob == pytest.approx(exact[4], abs=2**-20)
    assert choice.logprob == float(np.float32(choice.logprob))
    assert [t.token for t in choice.top] == np.argsort(-row, kind="stable")[:5].tolist()
    assert [t.logprob for t in choice.top] == [pytest.approx(exact[t.token], abs=2**-20) for t in choice.top]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bias", [{}, {0: 1.0}])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_that_are_not_numbers_are_an_error(bad: float, temperature: float, bias: dict[int, float], masked: bool) -> None:
    row = logits(100)
    row[57] = bad
    sampler = Sampler(SamplingParams(temperature=temperature, logit_bias=bias), 1)
    with pytest.raises(BackendError, match=f"position 9: that of token 57 is {bad}"):
        sampler.choose(row, NONE, 9, np.arange(100) != 57 if masked else None)


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(BackendError):
        choose(np.full(5, -np.inf, np.float32), temperature=1.0)


def test_impossible_tokens_are_never_drawn() -> None:
    row = np.full(100, -np.inf, np.float32)
    row[[7, 9]] = 0.0
    assert {choose(row, position=p, **OFF) for p in range(200)} == {7, 9}
