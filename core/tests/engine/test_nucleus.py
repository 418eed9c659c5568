"""Top-p without sorting against the plain definition over the whole sorted row."""

from __future__ import annotations

import numpy as np
import pytest
from engine_rows import KINDS, awkward
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine.exactmath import F64, exp, running_sum
from tensorsharp.engine.nucleus import nucleus
from tensorsharp.engine.ranking import Ids

NO_IDS, NO_VALUES = np.zeros(0, np.int64), np.zeros(0)


def plain(values: F64, top_p: float) -> tuple[list[int], list[float]]:
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    sums = running_sum(exp(values[order] - values[order[0]])).tolist()
    kept = order[: sum(s < top_p * sums[-1] for s in sums) + 1]
    return kept, values[kept].tolist()


def as_lists(found: tuple[Ids, F64]) -> tuple[list[int], list[float]]:
    return found[0].tolist(), found[1].tolist()


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([257, 1000, 9000]),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 5.0]),
    top_p=st.sampled_from([1e-9, 0.25, 0.5, 0.95, 0.999999, 1.0 - 2.0**-53]),
    changed=st.dictionaries(st.integers(0, 256), st.one_of(st.floats(-30, 30), st.just(7.25)), max_size=5),
)
def test_what_is_kept_is_what_the_definition_keeps(
    kind: str, size: int, seed: int, temperature: float, top_p: float, changed: dict[int, float]
) -> None:
    row = awkward(kind, size, seed)
    values, ids = row.astype(np.float64), np.array(sorted(changed), np.int64)
    row[ids], values[ids] = -np.inf, [changed[i] for i in ids.tolist()]
    values /= temperature
    found = nucleus(row, ids, values[ids], temperature, top_p)
    assert found is None or as_lists(found) == plain(values, top_p)


@pytest.mark.parametrize(("kind", "size", "top_p"), [("peaked", 300, 0.9), ("ragged", 30_000, 0.3), ("ragged", 30_000, 0.9)])
@pytest.mark.parametrize("seed", range(5))
def test_usual_rows_need_no_sorting(kind: str, size: int, top_p: float, seed: int) -> None:
    row = awkward(kind, size, seed)
    found = nucleus(row, NO_IDS, NO_VALUES, 1.0, top_p)
    assert found is not None
    assert as_lists(found) == plain(row.astype(np.float64), top_p)


def test_a_sum_on_the_line_is_left_to_the_definition() -> None:
    row = np.zeros(512, np.float32)
    assert nucleus(row, NO_IDS, NO_VALUES, 1.0, 0.25) is None  # the 128th sum is exactly a quarter of the total
    found = nucleus(row, NO_IDS, NO_VALUES, 1.0, 0.251)
    assert found is not None
    assert found[0].tolist() == list(range(129))


def test_a_sum_close_to_the_line_takes_the_finer_total() -> None:
    row = np.zeros(512, np.float32)
    found = nucleus(row, NO_IDS, NO_VALUES, 1.0, 0.25 + 2.0**-24)  # closer than single precision can tell
    assert found is not None
    assert found[0].tolist() == list(range(129))
