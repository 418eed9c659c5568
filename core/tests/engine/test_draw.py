"""The draw over whole rows against the plain definition: the exact score of every token, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from engine_rows import KINDS, LARGEST, awkward, ragged
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine.draw import draw, draw_row
from tensorsharp.engine.exactmath import F64
from tensorsharp.engine.keyed import BLOCK, HIGHEST_GUMBEL, RowHashes, gumbel, hashes, least_hashes, uniforms

NO_IDS, NO_VALUES = np.zeros(0, np.int64), np.zeros(0)


def plain(values: F64, seed: int, position: int) -> int:
    u = uniforms(seed, position, np.arange(len(values))).tolist()
    return max(range(len(values)), key=lambda i: (float(values[i]) + gumbel(u[i]), float(values[i]), -i))


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([1, 2, 700, 1023, 1024, 1025, 3000]),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**31),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 5.0, 100.0]),
)
def test_a_row_is_drawn_from_by_the_rule(kind: str, size: int, seed: int, position: int, temperature: float) -> None:
    row = awkward(kind, size, seed)
    want = plain(row / np.float64(temperature), seed, position)
    assert draw_row(row, temperature, NO_IDS, NO_VALUES, seed, position) == want


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_many_blocks_is_drawn_from_by_the_rule(kind: str) -> None:
    row = awkward(kind, 2 * BLOCK + 1500, 5)
    assert draw_row(row, 1.0, NO_IDS, NO_VALUES, 11, 400) == plain(row.astype(np.float64), 11, 400)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), changed=st.dictionaries(st.integers(0, 2999), st.floats(-30, 30), max_size=5))
def test_further_candidates_have_their_own_values(seed: int, changed: dict[int, float]) -> None:
    row = ragged(3000, seed % 1000)
    values = row.astype(np.float64)
    ids = np.array(sorted(changed), np.int64)
    row[ids], values[ids] = -np.inf, [changed[i] for i in ids.tolist()]
    assert draw_row(row, 1.0, ids, values[ids], seed, 3) == plain(values, seed, 3)


def test_one_candidate_that_is_possible_is_drawn() -> None:
    row = np.full(5000, -np.inf, np.float32)
    assert draw_row(row, 1.0, np.array([7]), np.array([-1e300]), 1, 2) == 7
    row[4321] = -LARGEST
    assert draw_row(row, 1e-6, NO_IDS, NO_VALUES, 1, 2) == 4321


def test_equal_scores_go_to_the_larger_value_then_the_lower_id() -> None:
    values = np.full(50, 1e300)  # so large that no Gumbel number changes them
    assert draw(np.arange(50)[::-1].copy(), values, 1, 2) == 0
    values[20] = np.nextafter(1e300, np.inf)
    assert draw(np.arange(50), values, 1, 2) == 20


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**63 - 1, 100_000), (1234, 17)])
@pytest.mark.parametrize("number", [0, 1, 15, 60_000])
def test_blocks_have_the_leading_bits_of_the_hashes(seed: int, position: int, number: int) -> None:
    rows, first = RowHashes(seed, position), number * BLOCK
    want = hashes(seed, position, np.arange(first, first + BLOCK)) >> np.uint64(33)
    assert (rows.block(first, BLOCK) >> np.uint64(33) == want).all()
    assert (rows.block(first, 5) >> np.uint64(33) == want[:5]).all()


def as_uniform(hashed: int) -> float:
    return min((hashed >> 11) * 2.0**-53 + 2.0**-54, 1.0 - 2.0**-53)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2**34), st.integers(1, 2**34).map(lambda n: 2**64 - n)))
def test_no_hash_that_reaches_a_gap_is_below_its_threshold(hashed: int) -> None:
    leading = hashed >> 33 << 33  # what a block is sure of
    assert leading >= int(least_hashes(np.array([gumbel(as_uniform(hashed))]))[0])


def test_thresholds_leave_out_nearly_all_that_can_be_left_out() -> None:
    gaps = np.array([-np.inf, -5.0, 0.0, 10.0, 20.0, HIGHEST_GUMBEL, np.inf])
    passing = 1.0 - least_hashes(gaps) / 2.0**64
    needed = -np.expm1(-np.exp(-gaps))
    # two units of the 31st bit, one for its whole number, and the millionth
    assert (passing >= needed).all()
    assert (passing <= needed * (1 + 2.0**-19) + 3 * 2.0**-31).all()


def test_no_gumbel_number_reaches_the_highest() -> None:
    assert gumbel(as_uniform(2**64 - 1)) < HIGHEST_GUMBEL
