"""The same model below the pools: blocks of two groups and recurrent state come back from memory, files and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hybrid_rig import BACKENDS, WAYS, Said, cold, opened, run, text

from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.storage.checkpoints import FileCheckpointStore
from tensorsharp.testing.coarse import CoarseCodec

PLENTY = 1 << 24
STATE = 2 * (3 * 32 + 3 * 16 + 4 * 8 * 8) * 4
"""Bytes of two snapshots."""
PROMPTS = [text(70, salt) for salt in range(4)]


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_found_below_the_device_and_in_a_later_engine(tier: str, way: str, backend: str, tmp_path: Path) -> None:
    want = cold(PROMPTS, way, backend)
    cache = CacheConfig(ram=PLENTY) if tier == "ram" else CacheConfig(ssd=tmp_path, ssd_bytes=PLENTY)
    with opened(backend, blocks=6, saved_bytes=STATE, cache=cache) as engine:
        assert [run(engine, [ids], way)[0] for ids in PROMPTS] == [(said, 0) for said in want]
        assert run(engine, PROMPTS[:1], way) == [(want[0], 64)]
        assert run(engine, PROMPTS, way) == [(said, 64) for said in want]
        assert engine.stats().tiers[tier].hits > 0
    with opened(backend, cache=cache) as engine:
        assert run(engine, PROMPTS, way) == [(said, 64 if tier == "ssd" else 0) for said in want]


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_a_later_engine_begins_after_a_checkpoint(way: str, backend: str, tmp_path: Path) -> None:
    prompts = [text(45) + text(25, salt) for salt in range(1, 4)]
    want = cold(prompts, way, backend)
    cache = CacheConfig(checkpoints=FileCheckpointStore(CheckpointOptions(tmp_path)))
    for number, ids in enumerate(prompts):
        with opened(backend, cache=cache) as engine:
            assert run(engine, [ids], way, (45, 60)) == [(want[number], 32 if number else 0)]


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_a_codec_that_loses_something_does_so_everywhere(way: str, backend: str) -> None:
    def alone(ids: tuple[int, ...]) -> Said:
        with opened(backend, cache=CacheConfig(CoarseCodec()), chunk=11) as engine:
            return run(engine, [ids], way)[0][0]

    want = [alone(ids) for ids in PROMPTS]
    assert want != cold(PROMPTS, way, backend), "the codec is coarse enough to be seen"
    with opened(backend, blocks=6, saved_bytes=STATE, cache=CacheConfig(CoarseCodec(), ram=PLENTY)) as engine:
        assert [said for said, _ in run(engine, PROMPTS, way)] == want
        assert run(engine, PROMPTS, way) == [(said, 64) for said in want]
