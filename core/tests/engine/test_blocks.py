from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine.blocks import BlockPool, BlockTable, window_blocks
from tensorsharp.engine.seats import Seats
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.layout import Layout, Paged, Slot


def table(pool: BlockPool, window: int | None = None, slack: int = 0) -> BlockTable:
    return BlockTable(pool, np.full(64, -1, np.int32), 32, window, slack)


def test_a_pool_counts_references() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.share(a)
    pool.release(a)
    assert (pool.used, pool.free) == (2, 1)
    pool.release(a)
    pool.release(b)
    assert (pool.used, pool.free) == (0, 3)
    for misuse in (pool.release, pool.share):
        with pytest.raises(ValueError, match="is free"):
            misuse(a)
    pool.check()


def test_too_few_blocks_change_nothing() -> None:
    pool = BlockPool(2)
    t = table(pool)
    t.grow(32)
    with pytest.raises(CapacityError, match="2 blocks are wanted and 1 of 2 are free"):
        t.grow(96)
    assert (t.held, pool.used, (t.row >= 0).sum()) == (1, 1, 1)


def test_the_books_notice_a_lost_block() -> None:
    pool = BlockPool(4)
    pool.take(1)
    pool._free.pop()
    with pytest.raises(RuntimeError, match="of 4"):
        pool.check()


@settings(max_examples=200, deadline=None)
@given(window=st.integers(1, 200), slack=st.integers(0, 8), steps=st.lists(st.integers(1, 100), max_size=12))
def test_a_window_keeps_what_can_be_seen_and_no_more(window: int, slack: int, steps: list[int]) -> None:
    pool = BlockPool(64)
    t = table(pool, window, slack)
    computed = 0
    for rows in steps:
        t.grow(computed + rows)
        visible = range(max(0, computed + 1 - window - slack), computed + rows)
        assert all(t.row[p // 32] >= 0 for p in visible)
        assert t.held <= window_blocks(window, slack + max(steps), 32)
        computed += rows
        t.trim(computed)
        assert t.row[: max(0, computed + 1 - window - slack) // 32].tolist() == [-1] * t.begin
        assert pool.used == t.held == (t.row >= 0).sum()
    t.clear()
    assert pool.used == 0
    assert (t.row == -1).all()


LAYOUT: Layout = {"k": Paged(4), "w": Paged(4, window=64)}


def test_seats_know_what_one_sequence_can_hold() -> None:
    seats = Seats(LAYOUT, StateSizes(32, {None: 5, 64: 9}, 2), 1000, 32)
    assert seats.limit == 160
    with pytest.raises(CapacityError, match="window 64 has 3 blocks"):
        Seats(LAYOUT, StateSizes(32, {None: 50, 64: 3}, 2), 1000, 32)


def test_recurrent_slots_only_where_the_layout_has_them() -> None:
    assert Seats(LAYOUT, StateSizes(32, {None: 5, 64: 9}, 2), 100, 32).take().slot == -1
    both: Layout = {**LAYOUT, "s": Slot((2,))}
    assert Seats(both, StateSizes(32, {None: 5, 64: 9}, 2, 2), 100, 32).take().slot >= 0


def test_the_books_notice_a_block_with_two_owners() -> None:
    seats = Seats(LAYOUT, StateSizes(32, {None: 5, 64: 9}, 2), 100, 32)
    one, two = seats.take(), seats.take()
    one.grow(32)
    two.grow(32)
    seats.check()
    two.tables[0].row[0] = one.tables[0].row[0]
    with pytest.raises(RuntimeError, match="mapped"):
        seats.check()
