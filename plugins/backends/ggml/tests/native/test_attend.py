"""attend: its definition, its accuracy, and that nothing but the row itself changes a bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorsharp_backend_ggml import native

from .attention import Problem, Source, exp_of

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ("f16", "bf16", "f32")
DIMS = (16, 63, 64, 80, 128, 256, 512)
GROUPS = ((1, 1), (3, 1), (4, 2), (9, 3), (8, 1))


@st.composite
def sources(draw: st.DrawFn, heads: int, kv: int) -> Source:
    kv_heads = draw(st.sampled_from([kv, heads]))
    kind = draw(st.sampled_from(KINDS))
    if draw(st.booleans()):
        return Source(kind, kv_heads, window=draw(st.sampled_from([None, 1, 5, 32, 33, 100, 1100])))
    return Source(kind, kv_heads, select=draw(st.integers(1, 80)), group=draw(st.sampled_from([1, 4])))


@st.composite
def problems(draw: st.DrawFn, lengths: st.SearchStrategy[list[int]]) -> Problem:
    heads, kv = draw(st.sampled_from(GROUPS))
    dim = draw(st.sampled_from(DIMS))
    chosen = draw(st.lists(sources(heads, kv), min_size=1, max_size=2))
    value_dim = draw(st.sampled_from([dim, dim - 3, 24]))
    if value_dim <= dim and draw(st.booleans()):
        chosen[0] = Source(chosen[0].kind, chosen[0].kv_heads, chosen[0].window, True, chosen[0].select, chosen[0].group)
    return Problem(
        draw(lengths),
        heads,
        dim,
        value_dim,
        chosen,
        softcap=draw(st.sampled_from([0.0, 0.0, 20.0])),
        sinks=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


short = st.lists(st.integers(1, 70), min_size=1, max_size=3)
long = st.lists(st.sampled_from([1023, 1024, 1025, 1060, 2048, 2050]), min_size=1, max_size=1)


def whole(problem: Problem, kernels: native.Kernels, tail: int | None = None) -> list[np.ndarray]:
    """All rows (or the last `tail`) of all sequences in one batch, by one worker."""
    spans = [(s, max(0, n - (tail or n)), min(n, tail or n)) for s, n in enumerate(problem.lengths)]
    return problem.run(kernels, spans)


@SETTINGS
@given(problem=problems(short))
def test_is_close_to_float64(kernels: native.Kernels, problem: Problem) -> None:
    for s, rows in enumerate(whole(problem, kernels)):
        for r in range(0, len(rows), 5):
            expected, bound = problem.exact(s, r, (0, len(rows)))
            assert np.abs(rows[r] - expected).max() <= bound


@pytest.mark.parametrize("tail", [3])
@SETTINGS
@given(problem=problems(long))
def test_is_close_to_float64_over_segments(kernels: native.Kernels, problem: Problem, tail: int) -> None:
    rows = whole(problem, kernels, tail)[0]
    for i in range(tail):
        expected, bound = problem.exact(0, problem.lengths[0] - tail + i, (0, 0))
        assert np.abs(rows[i] - expected).max() <= bound


@pytest.mark.parametrize(
    "problem",
    [
        Problem([70], 2, 20, 12, [Source("f16", 1)]),
        Problem([70], 4, 16, 16, [Source("bf16", 2, window=40)], sinks=True),
        Problem([1060], 1, 8, 8, [Source("f32", 1)], sinks=True),
        Problem([1060], 1, 8, 8, [Source("f16", 1, window=100)]),
        Problem([2100], 1, 8, 4, [Source("bf16", 1, window=1200)]),
        Problem([90], 2, 24, 10, [Source("f16", 1, window=8), Source("f16", 2, select=9, group=4)]),
        Problem([300], 1, 8, 4, [Source("f32", 1, cut=True, select=90, group=3), Source("f32", 1, cut=True, window=3)]),
    ],
)
def test_is_the_definition_bit_for_bit(kernels: native.Kernels, problem: Problem) -> None:
    exp = exp_of(kernels)
    rows = whole(problem, kernels, 2)[0]
    for i in range(2):
        row = problem.lengths[0] - 2 + i
        assert np.array_equal(rows[i], problem.defined(0, row, (0, 0), exp))


@SETTINGS
@given(problem=problems(short), chunk=st.sampled_from([1, 3, 7, 32, 64]), workers=st.sampled_from([1, 2, 3, 5]), data=st.data())
def test_chunks_batches_blocks_and_workers_change_no_bit(
    kernels: native.Kernels, problem: Problem, chunk: int, workers: int, data: st.DataObject
) -> None:
    """Chunks of several sequences, in an order drawn by hypothesis, some together in one batch."""
    expected = whole(problem, kernels)
    pending = [0] * len(problem.lengths)
    while any(a < n for a, n in zip(pending, problem.lengths, strict=True)):
        open_ = [s for s, n in enumerate(problem.lengths) if pending[s] < n]
        chosen = data.draw(st.lists(st.sampled_from(open_), min_size=1, unique=True))
        spans = [(s, pending[s], min(chunk, problem.lengths[s] - pending[s])) for s in chosen]
        found = problem.run(
            kernels,
            spans,
            workers=workers,
            block_rows=data.draw(st.sampled_from([8, 32, 96])),
            seed=data.draw(st.integers(0, 99)),
            padding=data.draw(st.integers(0, 3)),
        )
        for (s, a, n), rows in zip(spans, found, strict=True):
            assert np.array_equal(rows, expected[s][a : a + n])
            pending[s] = a + n


@SETTINGS
@given(problem=problems(long), tail=st.integers(2, 40), workers=st.sampled_from([2, 3, 5]))
def test_a_row_far_into_a_sequence_is_the_same_alone(kernels: native.Kernels, problem: Problem, tail: int, workers: int) -> None:
    n = problem.lengths[0]
    rows = problem.run(kernels, [(0, n - tail, tail)], workers=workers, block_rows=64)[0]
    for i in {0, tail // 2, tail - 1}:
        assert np.array_equal(rows[i], problem.run(kernels, [(0, n - tail + i, 1)])[0][0])


def test_threads_at_once_give_the_same_bits(kernels: native.Kernels) -> None:
    problem = Problem([200, 31, 64], 9, 64, 64, [Source("f16", 3)], sinks=True)
    spans = [(s, 0, n) for s, n in enumerate(problem.lengths)]
    expected = problem.run(kernels, spans)
    for workers in (2, 3, 5):
        found = problem.run(kernels, spans, workers=workers, threads=True)
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


@SETTINGS
@given(problem=problems(st.one_of(short, long)))
def test_every_instruction_set_gives_the_same_bits(each: native.Kernels, portable: native.Kernels, problem: Problem) -> None:
    for a, b in zip(whole(problem, each, 6), whole(problem, portable, 6), strict=True):
        assert np.array_equal(a, b)


def test_batch_local_rows_do_not_depend_on_their_place_in_the_batch(kernels: native.Kernels) -> None:
    problem = Problem([40, 33], 4, 48, 40, [Source("f16", 2, window=7), Source("local", 2)], softcap=5.0)
    alone = [problem.run(kernels, [(s, 0, n)])[0] for s, n in enumerate(problem.lengths)]
    together = problem.run(kernels, [(1, 0, 33), (0, 0, 40)], workers=3)
    assert np.array_equal(together[0], alone[1])
    assert np.array_equal(together[1], alone[0])
    expected, bound = problem.exact(0, 20, (0, 40))
    assert np.abs(alone[0][20] - expected).max() <= bound


def test_many_heads_on_a_wide_latent_row(kernels: native.Kernels) -> None:
    """Multi-head latent attention: 40 heads share one key row of 576, its first 512 elements are the value."""
    problem = Problem([70], 40, 576, 512, [Source("bf16", 1, cut=True)])
    rows = problem.run(kernels, [(0, 60, 10)], workers=3)[0]
    for r in (0, 9):
        expected, bound = problem.exact(0, 60 + r, (0, 0))
        assert np.abs(rows[r] - expected).max() <= bound
    assert np.array_equal(rows[4], problem.run(kernels, [(0, 64, 1)])[0][0])


def test_the_widest_head_fits(kernels: native.Kernels) -> None:
    problem = Problem([40], 2, native.MAX_HEAD_DIM, native.MAX_HEAD_DIM, [Source("f16", 1)])
    rows = problem.run(kernels, [(0, 0, 40)], workers=2)[0]
    expected, bound = problem.exact(0, 39, (0, 0))
    assert np.abs(rows[39] - expected).max() <= bound


def test_nothing_visible_is_zero(each: native.Kernels) -> None:
    problem = Problem([3], 2, 16, 16, [Source("f16", 1, select=4, group=8)], sinks=True)
    assert not problem.run(each, [(0, 0, 3)])[0].any()


def test_rows_after_the_visible_ones_are_never_read(kernels: native.Kernels) -> None:
    """A later row of the same tile that is not a number does no harm: drafts are written before they are refused."""
    problem = Problem([40], 3, 64, 64, [Source("f32", 1)])
    expected = problem.run(kernels, [(0, 0, 20)])[0]
    problem.keys[0][0][20:] = np.nan
    problem.values[0][0][20:] = np.inf
    assert np.array_equal(problem.run(kernels, [(0, 0, 40)])[0][:20], expected)


def test_a_key_that_is_not_a_number_shows(kernels: native.Kernels) -> None:
    problem = Problem([40], 3, 64, 64, [Source("f32", 1)])
    problem.keys[0][0][7, 3] = np.nan
    rows = problem.run(kernels, [(0, 0, 40)])[0]
    assert np.isfinite(rows[:7]).all()
    assert np.isnan(rows[7:]).all()
