"""A prompt that parts from another one inside a block begins there, in a copy of the block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from engine_bench import BLOCK, FULL, MODEL, SLIDING, WINDOW, Bench, Collector, alone, prompt, request, sizes
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.engine.backing import Backing
from tensorsharp.engine.blocks import BlockPool
from tensorsharp.engine.prefix import Prefixes
from tensorsharp.engine.seats import Fork, Seats
from tensorsharp.engine.tiers import Tiers
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.layout import Layout, Paged, Tail
from tensorsharp.state import HostStateStore
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest

FORKING = pytest.mark.parametrize("model", [FULL, SLIDING], ids=["full", "sliding"])
EDGES = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 17]


def cached(sink: Collector) -> int:
    assert sink.finished is not None
    return sink.finished.usage.cached


def seeded(ids: list[int], seed: int = 0, tokens: int = 6, **more: object) -> GenerationRequest:
    return request(ids, max_tokens=tokens, temperature=1.0, seed=seed, logprobs=1, **more)


@FORKING
@pytest.mark.parametrize("shared", EDGES)
def test_it_begins_where_it_parts_from_one_that_ended(shared: int, model: FakeModel) -> None:
    bench = Bench(model=model)
    bench.give(seeded(prompt(100)))
    other = seeded([*prompt(shared), 60 - prompt(shared + 1)[-1], *prompt(20, 3)])
    sink = bench.give(other)
    assert cached(sink) == shared
    assert sink.events == alone(other, model=model).events


@FORKING
@pytest.mark.parametrize("shared", EDGES)
def test_it_begins_where_it_parts_from_one_that_runs(shared: int, model: FakeModel) -> None:
    bench = Bench(model=model, step=128, chunk=128)
    first = seeded(prompt(90), tokens=60)
    running = bench.add(first)
    for _ in range(4):
        bench.step()
    other = seeded([*prompt(shared), 60 - prompt(shared + 1)[-1], *prompt(20, 3)])
    sink = bench.add(other)
    bench.drain()
    # the first block of the running one has left its window, and was not needed for anything else yet
    assert cached(sink) == shared
    assert [s.events for s in (running, sink)] == [alone(one, model=model).events for one in (first, other)]


@FORKING
@pytest.mark.parametrize("length", [17, *EDGES[2:]])
def test_choices_of_one_prompt_compute_it_once_and_one_row_each(length: int, model: FakeModel) -> None:
    bench = Bench(sizes(sequences=4), model=model)
    asked = [seeded(prompt(length), seed) for seed in range(4)]
    sinks = [bench.add(one) for one in asked]
    bench.drain()
    assert [s.events for s in sinks] == [alone(one, model=model).events for one in asked]
    assert [cached(s) for s in sinks] == [0] + [length - 1] * 3
    assert bench.core.metrics.tokens_computed == length + 3 + 4 * 5
    assert len({tuple(s.tokens) for s in sinks}) > 1


@FORKING
def test_more_choices_than_seats(model: FakeModel) -> None:
    bench = Bench(sizes(sequences=2), step=128, chunk=128, model=model)
    asked = [seeded(prompt(70), seed) for seed in range(6)]
    sinks = [bench.add(one) for one in asked]
    bench.drain()
    assert [s.events for s in sinks] == [alone(one, model=model).events for one in asked]
    assert [cached(s) for s in sinks] == [0] + [69] * 5


def test_a_short_prompt_is_computed_by_everybody_as_a_step_costs_more() -> None:
    bench = Bench(model=FULL)
    sinks = [bench.add(seeded(prompt(9), seed)) for seed in range(3)]
    bench.step()
    assert bench.rows == [[9, 9, 9]]
    bench.drain()
    assert [cached(s) for s in sinks] == [0, 0, 0]


def test_other_scopes_and_recurrent_models_share_no_part_of_a_block() -> None:
    bench = Bench(model=FULL)
    sinks = [bench.give(seeded(prompt(20), scope=scope)) for scope in (None, "a", "a")]
    assert [cached(s) for s in sinks] == [0, 0, 19]
    both = [bench.add(seeded(prompt(30, 5), scope=scope)) for scope in ("a", "b")]
    bench.drain()
    assert [cached(s) for s in both] == [0, 0]
    recurrent = Bench(model=MODEL, saved=1 << 20)
    assert [cached(recurrent.give(seeded(prompt(50)))) for _ in range(2)] == [0, 32]


def test_what_was_spoiled_leaves_no_part_of_a_block() -> None:
    bench = Bench(model=FULL)
    bench.runner.poison = lambda batch, logits: logits.fill(float("nan"))
    bench.give(seeded(prompt(50)))
    assert bench.seats.pools[None].cached == 0


def test_the_last_block_of_the_pool_becomes_its_own_copy() -> None:
    """Where every other block is in use, the one to be copied is taken, and holds what is wanted already."""
    bench = Bench(sizes(blocks=4, sequences=2), context=128, model=FULL)
    bench.give(seeded(prompt(20), tokens=2))
    other = seeded(prompt(40, 9), tokens=60)
    sink = bench.add(other)
    for _ in range(30):
        bench.step()
    assert (bench.seats.pools[None].used, bench.seats.pools[None].cached) == (3, 1)
    again = bench.add(seeded(prompt(20), tokens=2))
    bench.step()
    assert bench.seats.pools[None].used == 4
    bench.drain()
    assert cached(again) == 19
    assert again.events == alone(seeded(prompt(20), tokens=2), model=FULL).events
    assert sink.events == alone(other, context=128, model=FULL).events


@given(
    lines=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8),
    wanted=st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_the_closest_block_has_the_most_in_common(lines: list[list[int]], wanted: list[int]) -> None:
    prefixes, pool = Prefixes(4), BlockPool(8)
    root = prefixes.chain().root
    assert root is not None
    for line, block in zip(lines, pool.take(len(lines)), strict=True):
        link = prefixes.link(root, np.array(line, np.int32).tobytes())
        assert link is not None
        pool.label(block, link)
        pool.check()
    most = max(
        (next((i for i, (a, b) in enumerate(zip(x, wanted, strict=False)) if a != b), min(len(x), len(wanted))) for x in lines),
        default=0,
    )
    block, rows = pool.closest(root, np.array(wanted, np.int32))
    assert rows == most
    held = None if block < 0 else pool.holds(block)
    assert (held is None) == (most == 0)
    assert held is None or np.frombuffer(held.tokens, np.int32)[:most].tolist() == wanted[:most]


@dataclass
class Copies:
    made: list[tuple[int | None, int, int]]

    def __call__(self, group: int | None, source: int, target: int) -> None:
        self.made.append((group, source, target))


def test_one_block_a_group_is_copied_and_windows_begin_where_the_sequence_does() -> None:
    layout: Layout = {"k": Paged(4), "w": Paged(4, window=WINDOW)}
    copies = Copies([])
    seats = Seats(layout, StateSizes(32, {None: 9, WINDOW: 9}, 2), 256, 32, copy=copies)
    chain = Prefixes(32).chain()
    chain.cover(np.arange(96, dtype=np.int32), 96)
    first = seats.take()
    first.grow(128)
    first.label(chain.links, 0)
    sources = tuple(int(table.row[3]) for table in first.tables)
    second = seats.take(chain.links, Fork(110, sources))
    assert [(table.begin, table.end) for table in second.tables] == [(0, 4), ((110 - WINDOW + 1) // 32, 4)]
    assert copies.made == [(g, s, int(t.row[3])) for g, s, t in zip((None, WINDOW), sources, second.tables, strict=True)]
    seats.check()


def test_rows_that_stand_for_several_positions_are_copied_whole() -> None:
    sizes = StateSizes(32, {None: 4}, 1)
    copies = Copies([])
    assert Seats({"k": Paged(4), "c": Paged(2, stride=4), "d": Paged(2, stride=8)}, sizes, 64, 32, copy=copies).stride == 8
    assert Seats({"k": Paged(4)}, sizes, 64, 32, copy=copies).forks
    assert not Seats({"k": Paged(4)}, sizes, 64, 32).forks
    lossy = Backing(HostStateStore({"k": Paged(4)}, sizes), Tiers(), CoarseCodec())
    assert not Seats({"k": Paged(4)}, sizes, 64, 32, None, lossy, copies).forks, "a full block is not what its own rows read"
    pending: Layout = {"k": Paged(4), "c": Paged(2, stride=4), "open": Tail(4, 3)}
    assert not Seats(pending, sizes, 64, 32, copy=copies).forks, "rows of an open group lie in a ring, which no block holds"


def test_the_books_notice_a_block_filled_in_part_that_is_in_use() -> None:
    seats = Seats({"k": Paged(4)}, StateSizes(32, {None: 4}, 1), 64, 32)
    seat = seats.take()
    seat.grow(40)
    link = Prefixes(32).chain().rest(np.arange(8, dtype=np.int32), 8)
    assert link is not None
    seat.label([link], 0)
    with pytest.raises(RuntimeError, match="filled in part"):
        seats.check()


def test_the_books_notice_what_stands_in_the_wrong_place() -> None:
    pool = BlockPool(2)
    root = Prefixes(4).chain()
    link = root.rest(np.arange(3, dtype=np.int32), 3)
    assert link is not None
    pool.label(pool.take(1)[0], link)
    pool._after.clear()
    with pytest.raises(RuntimeError, match="stand after"):
        pool.check()
