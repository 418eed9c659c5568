"""A prompt whose beginning was computed before is not computed again, and its reply is the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from engine_bench import BLOCK, FULL, MODEL, SLIDING, WINDOW, Bench, Collector, alone, found, prompt, request, sizes

from tensorsharp.engine.prefix import Prefixes
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.savepoints import Savepoints
from tensorsharp.engine.scheduler import START_ROWS, edges
from tensorsharp.engine.sequence import Sequence
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest

REUSING = pytest.mark.parametrize("model", [FULL, SLIDING], ids=["full", "sliding"])
EVERY = pytest.mark.parametrize("model", [FULL, SLIDING, MODEL], ids=["full", "sliding", "recurrent"])
SAVED = 1 << 20


def cached(sink: Collector) -> int:
    assert sink.finished is not None
    return sink.finished.usage.cached


def said(sink: Collector) -> list[tuple[int, float | None]]:
    return [(e.token, e.logprob) for e in sink.events]


def asked(length: int, salt: int = 0, tokens: int = 8, temperature: float = 1.0, **more: object) -> GenerationRequest:
    return request(prompt(length, salt), max_tokens=tokens, temperature=temperature, logprobs=0, **more)  # type: ignore[arg-type]


@EVERY
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK])
def test_the_second_time_only_the_end_is_computed(length: int, temperature: float, model: FakeModel) -> None:
    bench = Bench(model=model, saved=SAVED)
    one = asked(length, temperature=temperature)
    first, second = bench.give(one), bench.give(one)
    assert said(first) == said(second) == said(alone(one, model=model))
    known = found(length - 1, model)
    assert (cached(first), cached(second)) == (0, known)
    assert second.finished is not None
    assert second.finished.timings.prefill_tokens == length - known
    assert bench.core.scheduler.tokens_reused == known


@EVERY
def test_a_conversation_goes_on_from_its_own_last_turn(model: FakeModel) -> None:
    bench = Bench(model=model, saved=SAVED)
    line = prompt(50)
    seen = 0
    for turn in range(4):
        one = request(line, max_tokens=30, temperature=1.0, seed=turn)
        sink = bench.give(one)
        assert sink.tokens == alone(one, model=model).tokens
        assert cached(sink) == seen
        line = line + sink.tokens
        seen = found(len(line) - 1, model)  # the last token of a reply is never computed
        line += prompt(20, turn)


@EVERY
def test_a_prompt_that_parts_inside_a_block_begins_there(model: FakeModel) -> None:
    bench = Bench(model=model, saved=SAVED, saved_blocks=2)
    bench.give(asked(100))
    other = request(prompt(80) + prompt(40, 9), max_tokens=8)
    sink = bench.give(other)
    assert cached(sink) == found(80, model)
    assert sink.tokens == alone(other, model=model).tokens


def test_state_that_is_not_in_blocks_is_not_reused() -> None:
    bench = Bench(model=MODEL)
    sinks = [bench.give(asked(100)) for _ in range(2)]
    assert [cached(s) for s in sinks] == [0, 0]
    assert all(pool.cached == 0 for pool in bench.seats.pools.values())
    assert said(sinks[0]) == said(sinks[1])


@EVERY
def test_scopes_keep_their_blocks_to_themselves(model: FakeModel) -> None:
    bench = Bench(model=model, saved=SAVED)
    sinks = [bench.give(asked(100, scope=scope)) for scope in ("mine", None, "yours", "mine", None)]
    assert [cached(s) for s in sinks] == [0, 0, 0, found(99, model), found(99, model)]
    assert len({tuple(s.tokens) for s in sinks}) == 1


@EVERY
def test_blocks_that_are_needed_are_taken_from_the_longest_unused_prefix(model: FakeModel) -> None:
    bench = Bench(sizes(blocks=9, window_blocks=9, sequences=1), model=model, saved=SAVED)
    for salt in (0, 1, 0, 2):  # 4 blocks each, 3 of them full; the last takes one of prompt 1's
        bench.give(asked(100, salt, tokens=2))
    assert bench.seats.pools[None].evictions > 0
    assert [cached(bench.give(asked(100, salt, tokens=2))) for salt in (0, 2)] == [found(99, model)] * 2
    last = bench.give(asked(100, 1, tokens=2))
    assert cached(last) < 96
    assert last.tokens == alone(asked(100, 1, tokens=2), model=model).tokens


def test_a_window_keeps_only_its_own_blocks_in_use() -> None:
    bench = Bench(sizes(sequences=1), context=512, step=32, chunk=32, model=SLIDING)
    bench.add(asked(300, tokens=100))
    most = 0
    while bench.step():
        most = max(most, bench.seats.pools[WINDOW].used)
    assert most <= 4, "40 + 32 rows from anywhere touch at most 4 blocks of 32"
    assert bench.seats.pools[WINDOW].cached == 13, "12 full ones and the last"


def test_a_prefix_without_its_window_is_computed_again() -> None:
    bench = Bench(model=SLIDING)
    bench.give(asked(200))
    pool = bench.seats.pools[WINDOW]
    pool.take(pool.available - 4)  # all but the newest four blocks are taken for something else
    for block in range(pool.total):
        if pool.references(block):
            pool.release(block)
    parted = request(prompt(100) + prompt(30, 5), max_tokens=8)
    sink = bench.give(parted)
    assert cached(sink) == 0, "blocks 1 and 2 of the window, which position 96 sees, are gone"
    assert cached(bench.give(asked(200))) == 199
    assert sink.tokens == alone(parted, model=SLIDING).tokens


@REUSING
def test_a_preempted_sequence_finds_its_own_blocks_again(model: FakeModel) -> None:
    bench = Bench(sizes(blocks=6, window_blocks=9, sequences=2), context=192, step=64, model=model, saved=SAVED)
    both = [asked(70, salt, tokens=90) for salt in (0, 1)]
    sinks = [bench.add(one) for one in both]
    bench.drain()
    assert bench.core.scheduler.preemptions > 0
    assert bench.core.scheduler.tokens_reused > 0
    assert [said(s) for s in sinks] == [said(alone(one, context=192, model=model)) for one in both]
    assert [cached(s) for s in sinks] == [0, 0], "what a request found of its own is not counted as cached"


@EVERY
def test_a_cancelled_prompt_leaves_what_it_computed(model: FakeModel) -> None:
    bench = Bench(step=32, chunk=32, model=model, saved=SAVED)
    first = bench.add(asked(200))
    for _ in range(4):
        bench.step()
    first.ending = ("cancelled", None)
    bench.drain()
    second = bench.give(asked(200))
    assert cached(second) == 4 * BLOCK
    assert said(second) == said(alone(asked(200), model=model))


@EVERY
def test_blocks_behind_unusable_logits_are_never_shared(model: FakeModel) -> None:
    bench = Bench(model=model, saved=SAVED)
    good = bench.give(asked(40))

    def poison(batch: Batch, logits: F32) -> None:
        logits[...] = np.nan

    bench.runner.poison = poison
    longer = request(prompt(150), max_tokens=8, temperature=1.0, logprobs=0)
    assert bench.give(longer).finished.reason == "error"  # type: ignore[union-attr]
    bench.runner.poison = lambda batch, logits: None
    assert model is not MODEL or len(savepoints(bench)) == 1, "of the first one"
    again = bench.give(longer)
    assert cached(again) == found(40, model), "only what the first one left"
    assert said(again) == said(alone(longer, model=model))
    assert cached(bench.give(asked(40))) == found(39, model)
    assert good.finished is not None


@EVERY
def test_a_failed_step_leaves_nothing_half_done(model: FakeModel) -> None:
    bench = Bench(step=40, chunk=40, model=model, saved=SAVED)
    bench.runner.fail = 2
    failed = bench.give(asked(120))
    assert failed.finished is not None
    assert failed.finished.reason == "error"
    again = bench.give(asked(120))
    assert cached(again) == found(40, model), "the step that failed wrote only what comes after"
    assert said(again) == said(alone(asked(120), model=model))


def savepoints(bench: Bench) -> Savepoints:
    assert bench.seats.savepoints is not None
    return bench.seats.savepoints


def test_a_recurrent_prefix_is_found_up_to_where_its_state_was_saved() -> None:
    bench = Bench(step=200, chunk=200, model=MODEL, saved=SAVED)
    first = replace(asked(180), boundaries=(40, 70, 110))
    bench.give(first)
    # after what is shared, before the last message and the reply, and after the last block that the same prompt could find
    assert bench.rows[:5] == [[32], [32], [32], [64], [20]]
    for shared, known in ((180, 160), (150, 96), (90, 64), (63, 32), (32, 32), (31, 0)):
        other = request(prompt(shared) + prompt(30, 3), max_tokens=4)
        sink = bench.give(other)
        assert (shared, cached(sink)) == (shared, known)
        assert sink.tokens == alone(other).tokens


def ends(length: int, boundaries: tuple[int, ...], most: int = 100, saved_blocks: int = 16) -> list[int]:
    """Where chunks of a prompt end, in blocks."""
    one = replace(asked(length), boundaries=boundaries)
    sequence = Sequence(one, Sampler(one.params, 1), Collector(), limit=10_000, rows=512)
    found = edges(sequence, BLOCK, saved_blocks, most)
    assert all(end % BLOCK == 0 for end in found)
    return [end // BLOCK for end in found]


def test_state_is_saved_where_every_message_starts() -> None:
    assert ends(1000, (40, 300, 500, 800, 990)) == [1, 9, 15, 16, 25, 30, 31], "with every 16th block, and the last one"
    assert ends(1000, (0, 300, 500)) == [9, 15, 16, 31], "no beginning is shared"
    assert ends(1000, ()) == [16, 31]


def test_many_short_messages_make_no_short_chunks() -> None:
    found = ends(9000, (40, *range(60, 8990, 20), 8995))
    assert found[0] == 1
    assert found[-2:] == [8980 // BLOCK, 8999 // BLOCK]
    regular = {*range(16, 9000 // BLOCK, 16)}
    short = [b for a, b in pairwise(found[:-2]) if (b - a) * BLOCK < START_ROWS]
    assert set(short) <= regular, "only where a regular one comes soon behind"
    assert max(b - a for a, b in pairwise(found)) * BLOCK == START_ROWS, "and none is far from a message's start"


def test_of_many_messages_the_last_ones_are_worth_their_bytes() -> None:
    starts = (40, *range(200, 5000, 200), 4990)
    assert ends(5000, starts, most=7, saved_blocks=1000) == [1, *(s // BLOCK for s in (4200, 4400, 4600, 4800)), 155, 156]
    assert ends(5000, starts, most=2, saved_blocks=1000) == [1, 150, 155, 156], "these always"


def test_a_long_conversation_leaves_the_state_of_another_one() -> None:
    bench = Bench(context=800, model=MODEL, saved=8 * 32, saved_blocks=100)
    one = replace(asked(200, 1, tokens=2), boundaries=(40, 180))
    bench.give(one)
    bench.give(replace(asked(700, 2, tokens=2), boundaries=(40, *range(60, 680, 10), 690)))
    assert cached(bench.give(one)) == 192


def test_a_long_prompt_is_found_every_so_many_blocks() -> None:
    bench = Bench(step=400, chunk=400, model=MODEL, saved=SAVED, saved_blocks=3)
    bench.give(asked(310))
    assert bench.rows[:4] == [[96], [96], [96], [22]]
    for shared, known in ((309, 288), (287, 192), (100, 96), (95, 0)):
        other = request(prompt(shared) + prompt(30, 3), max_tokens=2)
        assert (shared, cached(bench.give(other))) == (shared, known)


def test_where_a_chunk_just_happens_to_end_only_the_latest_state_is_kept() -> None:
    bench = Bench(step=64, chunk=64, model=MODEL, saved=SAVED)
    bench.give(replace(asked(300, tokens=2), boundaries=(40, 110)))
    assert len(savepoints(bench)) == 3, "at 32, 96 and 288; those at 160 and 224 served until the next"


def test_the_beginning_that_others_share_is_given_up_last() -> None:
    bench = Bench(model=MODEL, saved=3 * 32)
    bench.give(replace(asked(300, tokens=60), boundaries=(40, 110, 150, 200)))
    other = request(prompt(40) + prompt(30, 3), max_tokens=4)
    assert cached(bench.give(other)) == 32


def test_of_a_reply_only_the_latest_state_is_kept() -> None:
    bench = Bench(model=MODEL, saved=SAVED)
    sink = bench.give(asked(40, tokens=150))
    # at 32 of the prompt, and at 160 of the 189 that were computed
    assert len(savepoints(bench)) == 2
    again = request(prompt(40) + sink.tokens, max_tokens=2)
    assert cached(bench.give(again)) == 160


def test_saved_state_keeps_to_its_bytes() -> None:
    bench = Bench(model=MODEL, saved=3 * 32)
    for salt in range(5):
        bench.give(asked(100, salt))
        assert savepoints(bench).nbytes <= 3 * 32
    assert cached(bench.give(asked(100, 4))) == 96
    assert cached(bench.give(asked(100, 0))) == 0


class Slots:
    """State of three slots, as bytes."""

    def __init__(self) -> None:
        self.data = [b"", b"", b""]

    def slot_bytes(self) -> int:
        return 5

    def snapshot(self, tail: int, slot: int) -> bytes:
        return self.data[slot]

    def restore(self, tail: int, slot: int, data: bytes) -> None:
        self.data[slot] = data


def test_savepoints() -> None:
    chain = Prefixes(1).chain()
    chain.cover(np.arange(4, dtype=np.int32), 4)
    a, b, c, d = chain.links
    slots = Slots()
    kept = Savepoints(slots, 11)
    assert kept.fits == 2
    kept.limit = 10
    slots.data = [b"12345", b"67890", b"too much of it"]
    kept.save(a, 0, 0)
    kept.save(b, 1, 1)
    kept.load(a, 2, 2)
    assert slots.data[2] == b"12345"
    kept.save(c, 1, 1)
    assert [link in kept for link in (a, b, c)] == [True, False, True], "b was the longest unused"
    kept.save(a, 1, 1)
    kept.load(a, 2, 2)
    assert slots.data[2] == b"12345", "what a prefix leads to does not change"
    kept.check()
    kept.drop(a)
    kept.drop(a)
    assert (len(kept), kept.nbytes) == (1, 5)
    with pytest.raises(KeyError):
        kept.load(a, 0, 0)
    slots.data[2] = b"0123456789!"
    kept.save(d, 2, 2)
    assert (d in kept, kept.nbytes) == (False, 0)
    kept.check()
    kept.nbytes = 3
    with pytest.raises(RuntimeError, match="0 bytes are kept, 3 are counted"):
        kept.check()
