"""What left the pools comes back from memory and from files, and the reply is that of a cold engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_rig import EVERY, PLENTY, asked, cached, ids_of, lossy, said
from engine_bench import BLOCK, FULL, MODEL, SLIDING, Bench, alone, found, prompt, request, sizes

from tensorsharp.codecs.raw import RawCodec
from tensorsharp.codecs.zstd import ZstdCodec
from tensorsharp.engine.config import CacheConfig
from tensorsharp.errors import ConfigError
from tensorsharp.protocols.codec import BlockLayout
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.fakes import FakeModel

STATE = 2 * (4 * 4 + 4 * 4)
"""Bytes that two snapshots of the recurrent model take: a ring of four and a hash of four numbers each."""
TIGHT = sizes(blocks=9, window_blocks=9, sequences=1)
"""Blocks for two prompts of 100 tokens; a third one takes those of the first."""


def tight(model: FakeModel, cache: CacheConfig, **more: Any) -> Bench:
    return Bench(TIGHT, model=model, saved=STATE, cache=cache, **more)


def crowd(bench: Bench, model: FakeModel, salts: range = range(1, 6)) -> None:
    """Run other prompts until nothing of the first is in the pools."""
    for salt in salts:
        assert said(bench.give(asked(salt=salt))) == said(alone(asked(salt=salt), model=model))
    flush(bench)


def flush(bench: Bench) -> None:
    if bench.lower._background is not None:
        bench.lower._background.flush()


def end(bench: Bench) -> None:
    """What a closing engine does."""
    bench.lower.persist(bench.seats)
    bench.lower.close()


def caches(path: Path) -> dict[str, CacheConfig]:
    return {
        "ram": CacheConfig(ram=PLENTY),
        "ssd": CacheConfig(ssd=path, ssd_bytes=PLENTY),
        "both": CacheConfig(ram=1500, ssd=path, ssd_bytes=PLENTY),
        "zstd": CacheConfig(ZstdCodec(), ram=1500, ssd=path, ssd_bytes=PLENTY),
    }


@EVERY
@pytest.mark.parametrize("tier", caches(Path()))
def test_what_was_taken_for_others_is_found_again(tier: str, model: FakeModel, tmp_path: Path) -> None:
    bench = tight(model, caches(tmp_path)[tier])
    first = bench.give(asked())
    crowd(bench, model)
    again = bench.give(asked())
    assert said(first) == said(again) == said(alone(asked(), model=model))
    assert (cached(first), cached(again)) == (0, 96)
    stats = bench.lower.tiers.stats()
    assert stats.keys() == {"both": {"ram", "ssd"}, "zstd": {"ram", "ssd"}}.get(tier, {tier})
    # three blocks; of the window the last two, of which position 96 sees the 39 before it; one snapshot
    assert sum(tier.hits for tier in stats.values()) == 3 + 2 * (model is not FULL) + (model is MODEL)
    bench.lower.close()


@EVERY
def test_without_tiers_it_is_computed_again(model: FakeModel) -> None:
    bench = tight(model, CacheConfig())
    bench.give(asked())
    crowd(bench, model)
    assert cached(bench.give(asked())) == 0


@EVERY
def test_a_new_process_finds_what_a_closed_one_had(model: FakeModel, tmp_path: Path) -> None:
    cache = CacheConfig(ram=PLENTY, ssd=tmp_path, ssd_bytes=PLENTY)
    bench = tight(model, cache, identity="model")
    sink = bench.give(asked(tokens=40))
    end(bench)
    new = tight(model, cache, identity="model")
    longer = request(prompt(100) + sink.tokens + prompt(9, 7), max_tokens=4, temperature=1.0, logprobs=0)
    assert said(new.give(asked(tokens=40))) == said(sink)
    assert cached(new.give(longer)) == found(139, model), "replies are found too"
    end(new)
    new = tight(model, cache, identity="model")
    both = [new.give(asked()), new.give(longer)]
    assert [cached(s) for s in both] == [96, 128]
    assert [said(s) for s in both] == [said(alone(r, model=model)) for r in (asked(), longer)]
    end(new)
    other = tight(model, cache, identity="another model")
    assert cached(other.give(asked())) == 0
    other.lower.close()
    other = tight(model, replace(cache, codec=ZstdCodec()), identity="model")
    assert cached(other.give(asked())) == 0
    other.lower.close()
    scoped = tight(model, cache, identity="model")
    assert cached(scoped.give(asked(scope="mine"))) == 0
    scoped.lower.close()


@EVERY
@pytest.mark.parametrize("harm", ["flipped", "torn", "gone", "swapped"])
def test_damaged_files_are_computed_again(model: FakeModel, harm: str, tmp_path: Path) -> None:
    cache = CacheConfig(ssd=tmp_path, ssd_bytes=PLENTY)
    bench = tight(model, cache)
    sink = bench.give(asked())
    end(bench)
    new = tight(model, cache)
    files = sorted(tmp_path.iterdir())
    contents = [file.read_bytes() for file in files]
    for number, file in enumerate(files):
        data = contents[number]
        if harm == "gone":
            file.unlink()
        elif harm == "swapped":
            file.write_bytes(contents[number - 1])
        else:
            file.write_bytes(data[:-9] if harm == "torn" else data[:-20] + bytes([data[-20] ^ 8]) + data[-19:])
    again = new.give(asked())
    assert said(again) == said(sink)
    assert cached(again) == 0
    new.lower.close()
    assert harm == "gone" or new.lower.tiers.stats()["ssd"].deleted > 0


def test_one_damaged_block_costs_what_comes_after_it(tmp_path: Path) -> None:
    cache = CacheConfig(ssd=tmp_path, ssd_bytes=PLENTY)
    bench = tight(FULL, cache)
    sink = bench.give(asked())
    end(bench)
    new = tight(FULL, cache)
    lengths = {len(file.read_bytes()) for file in tmp_path.iterdir()}
    assert len(lengths) == 1
    chain = new.core.scheduler.prefixes.chain()
    chain.cover(ids_of(asked()), 96)
    (damaged,) = tmp_path.glob(f"{chain.links[1].key.hex()}-*")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again = new.give(asked())
    assert (cached(again), said(again)) == (BLOCK, said(sink))
    new.lower.close()


@EVERY
def test_limits_hold_while_it_runs(model: FakeModel, tmp_path: Path) -> None:
    bench = tight(model, CacheConfig(ram=900, ssd=tmp_path, ssd_bytes=2500))
    for salt in (0, 1, 2, 3, 4, 5, 0, 5, 4, 4, 0, 1):
        assert said(bench.give(asked(salt=salt))) == said(alone(asked(salt=salt), model=model))
        flush(bench)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2500
    assert sum(tier.evicted for tier in bench.lower.tiers.stats().values()) > 0
    bench.lower.close()


def test_a_window_gets_only_the_blocks_that_it_needs(tmp_path: Path) -> None:
    cache = CacheConfig(ssd=tmp_path, ssd_bytes=PLENTY)
    bench = Bench(model=SLIDING, cache=cache)
    bench.give(asked(200))
    end(bench)
    new = Bench(model=SLIDING, cache=cache)
    assert cached(new.give(asked(200))) == 192
    assert new.lower.tiers.stats()["ssd"].hits == 6 + 2
    new.lower.close()


def test_what_can_be_wrong_is_dropped_below_too() -> None:
    bench = tight(FULL, CacheConfig(ram=PLENTY))
    links = []

    def spoil(batch: Any, logits: Any) -> None:
        links[:] = bench.core.scheduler.running[0].links
        logits[...] = float("nan")

    bench.runner.poison = spoil
    assert bench.give(asked()).finished.reason == "error"  # type: ignore[union-attr]
    backing = bench.seats.backing
    assert backing is not None
    for link in links:
        backing.keep_state(link, b"")
    assert len(links) == 3
    assert all(backing.has_state(link) for link in links)
    bench.seats.forget(links)
    assert not any(backing.has_state(link) for link in links)


LOSSY = CacheConfig(CoarseCodec(), ram=PLENTY)


@EVERY
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 4])
def test_a_lossy_codec_does_not_depend_on_chunks(model: FakeModel, length: int) -> None:
    one = asked(length, tokens=40)
    for step in (200, 33, 7):
        bench = Bench(sizes(sequences=1), model=model, cache=LOSSY, step=step, chunk=step)
        assert said(bench.give(one)) == lossy(model, one)
    assert said(alone(one, model=model)) != lossy(model, one), "the codec is coarse enough to be seen"


@EVERY
def test_a_lossy_codec_does_not_depend_on_spilling(model: FakeModel, tmp_path: Path) -> None:
    cache = replace(LOSSY, ram=1000, ssd=tmp_path, ssd_bytes=PLENTY)
    bench = tight(model, cache)
    one = asked(tokens=40)
    first = bench.give(one)
    for salt in range(1, 6):
        assert said(bench.give(asked(salt=salt))) == lossy(model, asked(salt=salt))
    flush(bench)
    again = bench.give(one)
    longer = request(prompt(100) + first.tokens + prompt(9, 7), max_tokens=40, temperature=1.0, logprobs=0)
    onward = bench.give(longer)
    assert said(first) == said(again) == lossy(model, one)
    assert said(onward) == lossy(model, longer)
    assert (cached(again), cached(onward)) == (96, 128)
    end(bench)
    new = tight(model, cache)
    assert [said(new.give(r)) for r in (one, longer)] == [lossy(model, one), lossy(model, longer)]
    assert new.lower.tiers.stats()["ssd"].hits > 0
    new.lower.close()
    exact = tight(model, replace(cache, codec=RawCodec()))
    assert said(exact.give(one)) == said(alone(one, model=model)), "nothing of the coarse codec is found without it"
    exact.lower.close()


@EVERY
def test_a_lossy_codec_does_not_depend_on_others(model: FakeModel) -> None:
    bench = Bench(sizes(blocks=9, window_blocks=20, sequences=4), context=256, model=model, saved=PLENTY, cache=LOSSY)
    each = [asked(50 + 9 * i, salt=i % 2, tokens=60) for i in range(4)]
    sinks = [bench.add(one) for one in each]
    bench.drain()
    assert bench.core.scheduler.preemptions > 0
    assert [said(s) for s in sinks] == [lossy(model, one) for one in each]


@EVERY
def test_a_lossy_codec_and_prompts_that_part_inside_a_block(model: FakeModel) -> None:
    """The rows of a block see each other as they were, so the beginning of a full block is of no use to others."""
    bench = Bench(model=model, saved=PLENTY, cache=LOSSY)
    bench.give(asked(100, tokens=40))
    for shared in (40, 70, 90):
        parted = request(prompt(shared) + prompt(30, 9), max_tokens=40, temperature=1.0, logprobs=0)
        assert said(bench.give(parted)) == lossy(model, parted)


def test_numbers_that_a_codec_cannot_encode_end_their_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = CoarseCodec.encode

    def picky(self: CoarseCodec, data: bytes, layout: BlockLayout) -> bytes:
        if data[:4] == poison:
            raise ValueError("a block holds numbers that are not finite")
        return encode(self, data, layout)

    poison = np.float32(prompt(1, 3)[0]).tobytes()
    assert all(prompt(1, salt) != prompt(1, 3) for salt in (0, 1))
    monkeypatch.setattr(CoarseCodec, "encode", picky)
    bench = Bench(model=FULL, cache=LOSSY)
    sinks = [bench.add(asked(salt=salt)) for salt in (0, 3, 1)]
    bench.drain()
    assert [s.finished and s.finished.reason for s in sinks] == ["length", "error", "length"]
    assert sinks[1].finished is not None
    assert "not finite" in str(sinks[1].finished.error)
    monkeypatch.undo()
    assert [said(sinks[i]) for i in (0, 2)] == [lossy(FULL, asked(salt=salt)) for salt in (0, 1)]


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file"):
        Bench(model=FULL, cache=CacheConfig(ssd=tmp_path / "file"))
    with pytest.raises(ConfigError, match="ram is -1"):
        CacheConfig(ram=-1)
