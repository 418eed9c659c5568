from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.engine.blocks import BlockPool
from tensorsharp.engine.prefix import Link, Prefixes
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.tables import BlockTable, window_blocks
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


def links(count: int) -> list[Link]:
    chain = Prefixes(32).chain()
    chain.cover(np.arange(32 * count, dtype=np.int32), 32 * count)
    return chain.links


def test_labelled_blocks_are_kept_until_they_are_needed_and_the_longest_unused_goes_first() -> None:
    pool = BlockPool(4)
    names = links(4)
    blocks = pool.take(3)
    for block, link in zip(blocks, names, strict=False):
        pool.label(block, link)
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release(block)
    assert (pool.used, pool.free, pool.cached, pool.available) == (0, 1, 3, 4)
    pool.share(blocks[1])
    pool.release(blocks[1])  # used again, so it is the newest now
    free, oldest = pool.take(2)
    assert (free, oldest) == (3, blocks[0])
    assert [pool.find(link) for link in names] == [None, blocks[1], blocks[2], None]
    assert pool.evictions == 1
    pool.check()
    with pytest.raises(CapacityError, match="3 blocks are wanted and 2 of 4 are free"):
        pool.take(3)


def test_what_two_blocks_hold_is_found_in_the_first() -> None:
    pool = BlockPool(3)
    [link] = links(1)
    first, second = pool.take(2)
    pool.label(first, link)
    pool.label(second, link)
    pool.release(second)
    assert (pool.find(link), pool.free, pool.cached) == (first, 2, 0)
    pool.forget(link)
    pool.release(first)
    assert (pool.find(link), pool.free, pool.cached) == (None, 3, 0)
    with pytest.raises(ValueError, match="cannot be labelled"):
        pool.label(first, link)
    pool.check()


def test_forgetting_a_cached_block_frees_it() -> None:
    pool = BlockPool(2)
    [link] = links(1)
    [block] = pool.take(1)
    pool.label(block, link)
    pool.release(block)
    pool.forget(link)
    pool.forget(link)
    assert (pool.free, pool.cached) == (2, 0)
    pool.check()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release", "label", "forget"]), st.integers(0, 5)), max_size=60))
def test_the_books_balance_after_anything(moves: list[tuple[str, int]]) -> None:
    pool = BlockPool(6)
    names = links(6)
    held: list[int] = []
    for move, n in moves:
        if move == "take" and n <= pool.available:
            held += pool.take(n)
        elif move == "share" and pool.find(names[n]) is not None:
            held.append(pool.find(names[n]))  # type: ignore[arg-type]
            pool.share(held[-1])
        elif move == "forget":
            pool.forget(names[n])
        elif held and move == "release":
            pool.release(held.pop(n % len(held)))
        elif held and move == "label":
            pool.label(held[n % len(held)], names[n])
        pool.check()
        assert pool.free + pool.used + pool.cached == pool.total == 6
        assert [pool.references(b) for b in range(6)] == [held.count(b) for b in range(6)]


@pytest.mark.parametrize("break_it", ["label", "index", "cached"])
def test_the_books_notice_wrong_labels(break_it: str) -> None:
    pool = BlockPool(2)
    [link] = links(1)
    [block] = pool.take(1)
    pool.label(block, link)
    pool.release(block)
    if break_it == "label":
        pool._labels[block] = None
    elif break_it == "index":
        del pool._index[link]
    else:
        pool._free.append(pool._cached.popitem()[0])
    with pytest.raises(RuntimeError, match="label"):
        pool.check()


def test_a_sequence_can_begin_where_every_block_is_there_that_it_will_see() -> None:
    names = links(5)
    whole, sliding = table(BlockPool(8)), table(BlockPool(8), window=40)
    for t, there in ((whole, [0, 1, 2, 4]), (sliding, [1, 2, 4])):
        for number, block in zip(there, t.pool.take(len(there)), strict=True):
            t.pool.label(block, names[number])
    assert whole.reusable(names) == [True, True, True, True, False, False]
    # after one block all 32 positions are seen, after more the last 39 before the next: two blocks
    assert sliding.reusable(names) == [True, False, False, True, False, False]
    sliding.adopt(names[:3], 96)
    assert (sliding.begin, sliding.end, sliding.held) == (1, 3, 2)
    third = table(whole.pool)
    third.adopt(names, 160)
    with pytest.raises(ValueError, match="a block of a prefix is not there"):
        third.bring(names)


def test_what_a_window_shares_does_not_come_back_to_the_pool_when_it_moves_on() -> None:
    pool = BlockPool(8)
    one, two = table(pool, window=40), table(pool, window=40)
    one.grow(64)
    peak = one.peak(300, 32)
    assert (peak, one.owed(300, 32)) == (4, 2)
    two.grow(32)
    assert two.owed(300, 32) == 3
    pool.share(int(one.row[0]))
    assert one.owed(300, 32) == 3


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
