"""Log-probabilities by bounds of the rest against the arithmetic that defines them."""

from __future__ import annotations

import numpy as np
import pytest
from engine_rows import KINDS, awkward
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine import logprobs
from tensorsharp.engine.exactmath import exp_rest, log
from tensorsharp.engine.logprobs import log_probabilities
from tensorsharp.protocols.batch import F32


def plain(row: F32, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    best = float(row.max())
    lowered = log(1.0 + exp_rest(row, int(row.argmax())))
    values = [float(np.float32(value - best - lowered)) for value in row.tolist()]
    likeliest = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:top]
    return values[token], [(i, values[i]) for i in likeliest]


def as_numbers(row: F32, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    logprob, likeliest = log_probabilities(row, int(row.argmax()), token, top)
    return logprob, [(one.token, one.logprob) for one in likeliest]


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "huge"]),  # a difference of those is no float32 number
    size=st.sampled_from([1, 511, 512, 1000, 9000]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.01, 1.0, 7.0]),
    lead=st.sampled_from([0.0, 3.0, 9.0, 20.0, 200.0]),
    top=st.sampled_from([0, 1, 20]),
)
def test_values_are_those_of_the_definition(kind: str, size: int, seed: int, scale: float, lead: float, top: int) -> None:
    row = awkward(kind, size, seed) * np.float32(scale)
    row[seed % size] = row.max() + np.float32(lead)
    assert as_numbers(row, seed * 7 % size, top) == plain(row, seed * 7 % size, top)


@pytest.mark.parametrize("size", [100, 50_000, 262_144])
@pytest.mark.parametrize("lead", [0.0, 5.0, 10.0, 15.0, 25.0, 1000.0])
def test_bounds_hold_what_is_defined(size: int, lead: float) -> None:
    row = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    row[size // 3] = row.max() + np.float32(lead)
    best = int(row.argmax())
    least, most = logprobs._bounds(row, best)
    assert least <= log(1.0 + exp_rest(row, best)) <= most
    # up and down at most 2^10 additions of 2^-52; what is added to 1 is rounded to 2^-52
    assert most - least <= 2.0**-40 * most + 2.0**-52


def test_the_definition_is_computed_only_where_bounds_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.random.default_rng(5).normal(0, 3, 50_000).astype(np.float32)
    wanted, computed = plain(row, 9, 5), []

    def counted(x: F32, best: int) -> float:
        computed.append(best)
        return exp_rest(x, best)

    monkeypatch.setattr(logprobs, "exp_rest", counted)
    assert as_numbers(row, 9, 5) == wanted
    assert not computed
    monkeypatch.setattr(logprobs, "_LOG", 0.01)  # bounds that are too wide
    assert as_numbers(row, 9, 5) == wanted
    assert computed == [row.argmax()]
