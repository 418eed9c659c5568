"""The beginning that prompts share outlives the process, and the reply after it is that of a cold engine."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cache_rig import EVERY, PLENTY, asked, cached, ids_of, lossy, said
from engine_bench import BLOCK, FULL, Bench, alone, found, prompt, request
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.codecs.zstd import ZstdCodec
from tensorsharp.engine.checkpoints import parse
from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.protocols.codec import BlockLayout
from tensorsharp.storage.checkpoints import FileCheckpointStore
from tensorsharp.storage.entry import Entry, Head, pack
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest


def checkpoints(path: Path, kept: int = 4, **more: Any) -> CacheConfig:
    return CacheConfig(checkpoints=FileCheckpointStore(CheckpointOptions(path, kept)), **more)


def shared(salt: int = 0, own: int = 1, system: int = 70, identity: int = 0) -> GenerationRequest:
    """A prompt of a system message of 70 tokens, which others share, and 40 of its own."""
    one = request(prompt(system, salt) + prompt(40, 100 + own), max_tokens=6, temperature=1.0, logprobs=0)
    return replace(one, boundaries=(system, 90))


def stats(bench: Bench) -> tuple[int, int]:
    """Saved and restored."""
    assert bench.lower.checkpoints is not None
    bench.lower.checkpoints._background.flush()
    found = bench.lower.checkpoints.stats()
    assert found.dropped == 0
    return found.saved, found.restored


@EVERY
@pytest.mark.parametrize("codec", [None, ZstdCodec(), CoarseCodec()], ids=["raw", "zstd", "coarse"])
def test_a_new_process_begins_after_a_checkpoint(model: FakeModel, codec: Any, tmp_path: Path) -> None:
    def cold(one: GenerationRequest) -> list[tuple[int, float | None]]:
        return said(alone(one, model=model)) if codec is None or codec.lossless else lossy(model, one)

    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path, codec=codec))
    first = bench.give(shared())
    assert (cached(first), said(first)) == (0, cold(shared()))
    assert stats(bench) == (1, 0)
    bench.give(shared(own=2))
    assert stats(bench) == (1, 0), "found in the pool, so it is there already"
    for _ in range(2):
        new = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path, codec=codec))
        for own in (1, 2, 3):
            sink = new.give(shared(own=own))
            assert (cached(sink) >= 64, said(sink)) == (True, cold(shared(own=own)))
        assert stats(new) == (0, 1)
        # what is lossy is shared by whole blocks
        assert cached(new.give(shared(own=9))) == (found(70, model) if codec is None or codec.lossless else 64)


@EVERY
def test_no_reply_waits_while_a_checkpoint_is_encoded(model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = ZstdCodec.encode, set()

    def noted(self: ZstdCodec, data: bytes, layout: BlockLayout) -> bytes:
        threads.add(threading.current_thread().name)
        return encode(self, data, layout)

    monkeypatch.setattr(ZstdCodec, "encode", noted)
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path, codec=ZstdCodec()))
    bench.give(shared())
    assert (stats(bench), threads) == ((1, 0), {"tensorsharp-background"})


def test_a_codec_that_fails_costs_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> bytes:
        raise ValueError("told to fail")

    monkeypatch.setattr(ZstdCodec, "encode", broken)
    bench = Bench(model=FULL, cache=checkpoints(tmp_path, codec=ZstdCodec()))
    assert said(bench.give(shared())) == said(alone(shared(), model=FULL))
    assert (stats(bench), list(tmp_path.iterdir())) == ((0, 0), [])


@EVERY
def test_every_part_of_a_checkpoint_s_key_counts(model: FakeModel, tmp_path: Path) -> None:
    def bench(identity: str = "fingerprint arithmetic f16", codec: Any = None) -> Bench:
        return Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path, codec=codec), identity=identity)

    bench().give(shared())
    stats(one := bench())
    one.lower.close()
    same = bench()
    assert (cached(same.give(shared(own=5))), stats(same)) == (64, (0, 1))
    others = [bench(name) for name in ("other arithmetic f16", "fingerprint other f16", "fingerprint arithmetic f32")]
    for other in (*others, bench(codec=ZstdCodec()), bench(codec=CoarseCodec())):
        assert (cached(other.give(shared(own=5))), stats(other)[1]) == (0, 0)
    tokens = bench()
    assert (cached(tokens.give(shared(salt=7))), stats(tokens)[1]) == (0, 0)
    scope = bench()
    assert (cached(scope.give(replace(shared(), cache_scope="mine"))), stats(scope)[1]) == (0, 0)


@EVERY
def test_four_checkpoints_are_kept(model: FakeModel, tmp_path: Path) -> None:
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    for salt in range(6):
        bench.give(shared(salt))
    assert stats(bench) == (6, 0)
    assert len(list(tmp_path.iterdir())) == 4
    new = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    found = [cached(new.give(shared(salt))) for salt in (5, 4, 3, 2)]
    assert found == [64] * 4


@EVERY
def test_what_others_began_with_outlives_prompts_of_which_each_is_asked_once(model: FakeModel, tmp_path: Path) -> None:
    """The long system prompt of an agent is kept, though its requests find it in the pool and never read its file."""
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    for turn in range(3):
        bench.give(shared(own=turn))
    for salt in range(1, 9):
        bench.give(shared(salt))
    assert stats(bench) == (9, 0)
    new = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    assert [cached(new.give(shared(salt))) for salt in (0, 8, 7, 6)] == [64] * 4
    assert cached(new.give(shared(1))) == 0


@EVERY
def test_a_prompt_that_shares_nothing_makes_no_checkpoint(model: FakeModel, tmp_path: Path) -> None:
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    one = replace(shared(), boundaries=(0, 70))
    assert said(bench.give(one)) == said(alone(one, model=model))
    assert stats(bench) == (0, 0)


@EVERY
@pytest.mark.parametrize("place", [-1, -30, 20, 500])
def test_a_damaged_checkpoint_is_a_miss(model: FakeModel, place: int, tmp_path: Path) -> None:
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    first = bench.give(shared())
    stats(bench)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    new = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    again = new.give(shared())
    assert (cached(again), said(again)) == (0, said(first))
    assert stats(new)[1] == 0


@EVERY
def test_a_store_that_lies_is_not_believed(model: FakeModel, tmp_path: Path) -> None:
    """A payload that is whole, but of other contents, is refused entry by entry."""
    bench = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
    bench.give(shared())
    stats(bench)
    store = checkpoints(tmp_path).checkpoints
    assert store is not None
    chain = bench.core.scheduler.prefixes.chain()
    key = bench.core.scheduler._checkpoint_key(chain)
    found = store.open(key, ids_of(shared()))
    assert found is not None
    payload = found.read()
    assert payload is not None
    for wrong in (b"", payload[:-1], payload[8:], payload[: len(payload) // 2 - 1], payload + payload[:40], b"\xff" * 64):
        store.save(key, ids_of(shared())[:64], lambda file, wrong=wrong: file.write(wrong))  # type: ignore[misc]
        new = Bench(model=model, saved=PLENTY, cache=checkpoints(tmp_path))
        again = new.give(shared())
        assert (cached(again), said(again)) == (0, said(alone(shared(), model=model)))


def test_a_boundary_in_the_first_block_is_worth_no_checkpoint(tmp_path: Path) -> None:
    bench = Bench(model=FULL, cache=checkpoints(tmp_path))
    bench.give(shared(system=BLOCK - 1))
    bench.give(asked())
    assert stats(bench) == (0, 0)


@given(st.lists(st.builds(Entry, st.builds(Head, st.text("ab-"), st.binary(), st.binary()), st.binary()), max_size=4), st.data())
def test_a_payload_is_the_entries_or_nothing(entries: list[Entry], data: st.DataObject) -> None:
    payload = payload_of(entries)
    assert parse(payload) == entries
    if payload:
        flipped = bytearray(payload)
        flipped[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
        with pytest.raises(ValueError):
            parse(bytes(flipped))
        torn = payload[: data.draw(st.integers(0, len(payload) - 1))]
        whole = [payload_of(entries[:n]) for n in range(len(entries))]
        if torn in whole:
            assert parse(torn) == entries[: whole.index(torn)]
        else:
            with pytest.raises(ValueError):
                parse(torn)


def payload_of(entries: list[Entry]) -> bytes:
    return b"".join(len(data).to_bytes(8, "little") + data for data in map(pack, entries))
