"""Every derived input against a loop over rows that says the same in words, and padding."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.inputs import (
    Angles,
    Before,
    Field,
    HostInput,
    Local,
    ModelBatch,
    OpenGroup,
    Phase,
    Request,
    Rope,
    Strided,
    Visible,
    Windows,
)
from tensorsharp.protocols.batch import I32, Batch
from tensorsharp.protocols.layout import Paged
from tensorsharp.testing.streams import Streams


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to four sequences of up to nine rows, some without rows, with up to three padding rows and sequences."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(sum))
    starts = draw(st.lists(st.integers(0, 40), min_size=len(lengths), max_size=len(lengths)))
    pad_rows, pad_sequences, pad_wanted = (draw(st.integers(0, 3)) for _ in range(3))
    count, rows = len(lengths), sum(lengths)
    batch = Batch(
        tokens=np.arange(100, 100 + rows, dtype=np.int32),
        pos=np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]).astype(np.int32),
        seq=np.repeat(np.arange(count), lengths).astype(np.int32),
        first_row=(np.cumsum(lengths) - lengths).astype(np.int32),
        start=np.array(starts, np.int32),
        length=np.array(lengths, np.int32),
        tables={None: np.arange(3 * count, dtype=np.int32).reshape(count, 3), 8: np.full((count, 2), -1, np.int32)},
        tail_slot=np.arange(count, dtype=np.int32),
        slot_in=np.full(count, -1, np.int32),
        slot_out=np.arange(rows, dtype=np.int32),
        wanted=np.arange(rows, dtype=np.int32)[::2],
        rows_in=np.ones((rows, 2), np.float32),
        previous=np.arange(4 * rows, dtype=np.int32).reshape(rows, 4),
    )
    return batch.padded(rows + pad_rows, count + pad_sequences, len(batch.wanted) + pad_wanted)


def live(batch: Batch) -> list[tuple[int, int, int]]:
    """(row, position, sequence) of every row that is not padding."""
    return [(r, int(batch.pos[r]), int(batch.seq[r])) for r in range(batch.rows) if batch.seq[r] >= 0]


def ranges(batch: Batch, request: Request) -> dict[int, tuple[int, int]]:
    """Row -> (lo, hi) of the rows that are not padding; padding rows must see nothing."""
    found = request.compute(batch)
    assert found.dtype == np.int32
    assert found.shape == (batch.rows, 2)
    rows = {r for r, _, _ in live(batch)}
    for r in set(range(batch.rows)) - rows:
        assert found[r, 0] >= found[r, 1]
    return {r: (int(found[r, 0]), int(found[r, 1])) for r in rows}


@settings(max_examples=60, deadline=None)
@given(batches(), st.one_of(st.none(), st.integers(1, 12)))
def test_visible(batch: Batch, window: int | None) -> None:
    expected = {r: (0 if window is None else max(0, p + 1 - window), p + 1) for r, p, _ in live(batch)}
    assert ranges(batch, Visible(window)) == expected
    ends = {s: max(p for _, p, other in live(batch) if other == s) + 1 for _, _, s in live(batch)}
    assert ranges(batch, Visible(window, "block")) == {r: (expected[r][0], ends[s]) for r, _, s in live(batch)}


@settings(max_examples=60, deadline=None)
@given(batches(), st.one_of(st.none(), st.integers(1, 12)))
def test_before(batch: Batch, window: int | None) -> None:
    """A canvas sees window-1 rows of the prefix: its own row counts as one."""
    expected = {}
    for r, _, s in live(batch):
        start = min(p for _, p, other in live(batch) if other == s)
        expected[r] = (0 if window is None else max(0, start - window + 1), start)
    assert ranges(batch, Before(window)) == expected


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 9))
def test_ranges_of_groups(batch: Batch, ratio: int) -> None:
    own = {s: [r for r, _, other in live(batch) if other == s] for _, _, s in live(batch)}
    assert ranges(batch, Local()) == {r: (own[s][0], own[s][-1] + 1) for r, _, s in live(batch)}
    complete = {r: len([i for i in range(p + 1) if (i + 1) % ratio == 0]) for r, p, _ in live(batch)}
    assert ranges(batch, Strided(ratio)) == {r: (0, complete[r]) for r in complete}
    assert ranges(batch, OpenGroup(ratio)) == {r: (complete[r] * ratio, p + 1) for r, p, _ in live(batch)}
    phase = Phase(ratio).compute(batch)
    assert phase.dtype == np.int32
    assert [int(phase[r]) for r, _, _ in live(batch)] == [p % ratio for _, p, _ in live(batch)]


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 9))
def test_windows(batch: Batch, ratio: int) -> None:
    """Every completed window once, ascending by batch row; there is room for all, whatever the positions."""
    expected = [[r, (p + 1) // ratio - 1] for r, p, _ in live(batch) if (p + 1) % ratio == 0]
    found = Windows(ratio).compute(batch)
    assert found.dtype == np.int32
    assert found.shape == (batch.rows // ratio + batch.sequences, 2)
    assert found[: len(expected)].tolist() == expected
    assert (found[len(expected) :] == -1).all()


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(0, 4))
def test_host_inputs_see_tokens_history_and_positions(batch: Batch, history: int) -> None:
    def fn(tokens: I32, previous: I32, pos: I32) -> I32:
        return np.concatenate([tokens[:, None], previous, pos[:, None]], axis=1)

    found = HostInput("all", fn, history, width=(history + 2,)).compute(batch)
    assert found.dtype == np.int32
    for r, p, _ in live(batch):
        newest = batch.previous[r].tolist()[4 - history :]
        assert found[r].tolist() == [100 + r, *newest, p]
    assert HostInput("half", lambda t, _, p: p / 2, dtype="f32").compute(batch).dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(batches())
def test_padding_keeps_every_row_and_says_nothing_else(batch: Batch) -> None:
    padded = batch.padded(batch.rows + 2, batch.sequences + 1, len(batch.wanted) + 3)
    assert (padded.rows, padded.sequences, len(padded.wanted)) == (batch.rows + 2, batch.sequences + 1, len(batch.wanted) + 3)
    for f in fields(Batch):
        before, after = getattr(batch, f.name), getattr(padded, f.name)
        if f.name == "tables":
            assert all(np.array_equal(after[g][: batch.sequences], before[g]) for g in before)
            assert all((after[g][batch.sequences :] == -1).all() for g in before)
        elif f.name == "rope_pos":
            assert after is None
        else:
            assert after.dtype == before.dtype
            assert np.array_equal(after[: len(before)], before)
    assert (padded.seq[batch.rows :] == -1).all()
    assert (padded.slot_out[batch.rows :] == -1).all()
    assert (padded.wanted[len(batch.wanted) :] == 0).all()
    assert (padded.length[batch.sequences :] == 0).all()
    assert (padded.tail_slot[batch.sequences :] == -1).all()
    assert (padded.slot_in[batch.sequences :] == -1).all()
    assert padded.rows_in is not None
    assert not padded.rows_in[batch.rows :].any()
    assert batch.padded(batch.rows, batch.sequences, len(batch.wanted)) is batch


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_rope_tables_are_rounded_once(style: Literal["norm", "neox"]) -> None:
    rope = Rope([1.0, 0.1, 1e-30], style=style, magnitude=1.5)
    found = rope.table(np.array([[0], [1], [100_000]]))
    assert found.dtype == np.float32
    for i, coordinate in enumerate((0, 1, 100_000)):
        for j, frequency in enumerate((1.0, 0.1, 1e-30)):
            assert found[i, j, 0] == np.float32(math.cos(coordinate * frequency) * 1.5)
            assert found[i, j, 1] == np.float32(math.sin(coordinate * frequency) * 1.5)
    assert rope.dims == 6


def test_rope_axes_take_their_own_coordinate() -> None:
    rope = Rope([1.0, 0.5, 0.25], style="neox", axes=[0, 2, 1])
    found = rope.table(np.array([[10, 20, 30]]))
    assert np.array_equal(found[0, :, 1], np.sin(np.array([10.0, 15.0, 5.0])).astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(batches(), st.integers(1, 5))
def test_angles(batch: Batch, ratio: int) -> None:
    rope = Rope([1.0, 0.3], style="neox")
    found = Angles(rope).compute(batch)
    assert all(np.array_equal(found[r], rope.table(np.array([[p]]))[0]) for r, p, _ in live(batch))
    at_windows = Angles(rope, Windows(ratio)).compute(batch)
    windows = Windows(ratio).compute(batch)
    assert len(at_windows) == len(windows)
    for c, (row, index) in enumerate(windows.tolist()):
        if row >= 0:
            assert np.array_equal(at_windows[c], rope.table(np.array([[index * ratio]]))[0])


def test_angles_follow_rotary_coordinates() -> None:
    batch = Batch(
        tokens=np.zeros(4, np.int32),
        pos=np.arange(4, 8, dtype=np.int32),
        seq=np.zeros(4, np.int32),
        first_row=np.zeros(1, np.int32),
        start=np.array([4], np.int32),
        length=np.array([4], np.int32),
        tables={},
        tail_slot=np.zeros(1, np.int32),
        slot_in=np.zeros(1, np.int32),
        slot_out=np.full(4, -1, np.int32),
        wanted=np.zeros(0, np.int32),
        rope_pos=np.array([[7], [7], [7], [8]], np.int32),
    )
    rope = Rope([1.0], style="norm")
    assert np.array_equal(Angles(rope).compute(batch), rope.table(np.array([[7], [7], [7], [8]])))
    assert np.array_equal(Angles(rope, Windows(2)).compute(batch)[:2], rope.table(np.array([[7], [7]])))
    with pytest.raises(ValueError, match="earlier step"):
        Angles(rope, Windows(3)).compute(batch)


def test_equal_requests_share_one_input() -> None:
    def declare(request: Request) -> Any:
        return request

    batch = ModelBatch(declare)
    one, two = Rope([1.0, 0.5], style="norm"), Rope([1.0, 0.5], style="norm")
    assert batch.angles(one) == batch.angles(two)
    assert hash(batch.angles(one)) == hash(batch.angles(two))
    assert batch.angles(one) != batch.angles(one, windows=4)
    assert batch.angles(Rope([1.0, 0.5], style="neox")) != batch.angles(one)
    assert batch.visible(8) == batch.visible(8) != batch.visible(9)
    assert batch.visible() != batch.visible(until="block")
    assert batch.tokens == declare(Field("tokens"))
    assert batch.tokens != batch.wanted


def test_a_field_that_the_batch_does_not_carry_is_an_error() -> None:
    batch = Streams({"k": Paged(1)}).batch([(0, 1)])
    with pytest.raises(ValueError, match="rows_in"):
        Field("rows_in").compute(batch)
