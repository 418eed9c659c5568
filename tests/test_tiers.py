"""The bitwise contract below the pools: what left the device, or the process, comes back to the bit, on a real model, on one
with sliding windows, and with a codec that loses something."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.engine.sizing import plan_state
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.types import GenerationRequest, SamplingParams, TokenEvent
from tests.goldens.records import Float32
from tests.realmodels import SMOLLM2, needs

BLOCK = 32
TOKENS = 6
CONTEXT = 256
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
SLIDING: dict[str, Any] = {"window": 40, "vocab_size": 320, "tokenizer": "bytes"}
Ids = tuple[int, ...]
Said = list[TokenEvent]


class Case:
    """A model's file, and the replies of an engine that keeps nothing."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = model
        self.path = needs(SMOLLM2) if model == "smollm2" else write_tiny(folder / "tiny.gguf", tiny("gemma3", **SLIDING))
        self._cold: dict[tuple[Ids, str, bool], Said] = {}
        self._alone: dict[bool, LLM] = {}

    def open(self, **options: Any) -> LLM:
        return load(self.path, backend="ggml", ctx_size=CONTEXT, **options)

    def text(self, length: int, begin: int = 0) -> Ids:
        ids = Float32.of("smollm2").ids[begin : begin + length].tolist()
        return tuple(ids if self._model == "smollm2" else [i % SLIDING["vocab_size"] for i in ids])

    def cold(self, ids: Ids, way: str, **options: Any) -> Said:
        """Alone, in small chunks, in a scope where nothing can be found."""
        kind = bool(options)
        if kind not in self._alone:
            self._alone[kind] = self.open(chunk_tokens=17, **options)
        if (ids, way, kind) not in self._cold:
            self._cold[ids, way, kind], cached = run(self._alone[kind], ids, way, scope=str(len(self._cold)))
            assert cached == 0
        return self._cold[ids, way, kind]

    def close(self) -> None:
        for llm in self._alone.values():
            llm.close()


def run(llm: LLM, ids: Ids, way: str, boundaries: tuple[int, ...] = (), scope: str | None = None) -> tuple[Said, int]:
    """What the reply says, and how many tokens of the prompt were found."""
    params = SamplingParams(max_tokens=TOKENS, seed=5, logprobs=2, ignore_eos=True, **WAYS[way])
    handle = llm.engine.submit(GenerationRequest(ids, params, boundaries=boundaries, cache_scope=scope))
    return list(handle), handle.result().usage.cached


@pytest.fixture(scope="module", params=["smollm2", "sliding"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(request.param, tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for one sequence and no more."""

    def plan(*args: Any, **options: Any) -> StateSizes:
        sizes = plan_state(*args, **options)
        return replace(sizes, blocks={g: CONTEXT // BLOCK if g is None else n for g, n in sizes.blocks.items()})

    monkeypatch.setattr("tensorsharp.starting.plan_state", plan)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tier", ["ram", "ssd", "zstd"])
def test_found_below_the_device(case: Case, tier: str, way: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"kv_ram": 1 << 30} if tier != "ssd" else {"kv_ssd": f"{tmp_path}:1G"}
    prompts = [case.text(100, 30 * i) for i in range(4)]
    with case.open(**options, **({"kv_codec": "zstd"} if tier == "zstd" else {})) as llm:
        assert [run(llm, ids, way) for ids in prompts] == [(case.cold(ids, way), 0) for ids in prompts]
        evicted = sum(pool.evictions for pool in llm.engine._core.seats.pools.values())
        assert evicted > 0
        assert run(llm, prompts[0], way) == (case.cold(prompts[0], way), 96)
        assert sum(t.hits for t in llm.stats().tiers.values()) > 0


@pytest.mark.parametrize("way", WAYS)
def test_a_later_run_finds_what_an_earlier_one_had(case: Case, way: str, tmp_path: Path) -> None:
    ids = case.text(100)
    with case.open(kv_ssd=tmp_path, kv_ram=1 << 20) as llm:
        said, _ = run(llm, ids, way)
    longer = (*ids, *(e.token for e in said), *case.text(40, 200))
    with case.open(kv_ssd=tmp_path, kv_ram=1 << 20, parallel=2) as llm:
        assert run(llm, ids, way) == (case.cold(ids, way), 96)
        assert run(llm, longer, way) == (case.cold(longer, way), len(ids) + TOKENS - 1), "of a reply the last is not computed"
        assert llm.stats().tiers["ssd"].deleted == 0
    with case.open(kv_ssd=tmp_path, kv_type="f32") as llm:
        assert run(llm, ids, way)[1] == 0, "rows of another format are other state"


@pytest.mark.parametrize("way", WAYS)
def test_a_later_run_begins_after_a_checkpoint(case: Case, way: str, tmp_path: Path) -> None:
    system = case.text(70)
    prompts = [(*system, *case.text(30, 100 + 20 * i)) for i in range(3)]
    with case.open(checkpoints=tmp_path) as llm:
        assert run(llm, prompts[0], way, (70, 90)) == (case.cold(prompts[0], way), 0)
    for ids in prompts:
        with case.open(checkpoints=tmp_path) as llm:
            assert run(llm, ids, way, (70, 90)) == (case.cold(ids, way), 64)
            counted = llm.stats().checkpoints
            assert counted is not None
            assert (counted.saved, counted.restored) == (0, 1)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("way", WAYS)
def test_a_codec_that_loses_something_does_so_everywhere(
    case: Case, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorsharp.caching._codec", lambda plugins, name: CoarseCodec())
    prompts = [case.text(100, 30 * i) for i in range(4)]
    want = [(case.cold(ids, way, kv_codec="coarse"), 0) for ids in prompts]
    assert want[0][0] != case.cold(prompts[0], way)
    with case.open(kv_codec="coarse", kv_ssd=tmp_path) as llm:
        assert [run(llm, ids, way) for ids in prompts] == want
        assert run(llm, prompts[0], way) == (want[0][0], 96)
    with case.open(kv_codec="coarse", kv_ssd=tmp_path) as llm:
        assert run(llm, prompts[1], way) == (want[1][0], 96)


def test_the_command_line_keeps_what_it_read(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", tiny("gemma3", **SLIDING))
    prompt = "What is kept is found by the next one. " * 3
    found = []
    for _ in range(2):
        arguments = [
            "run",
            str(path),
            prompt,
            "--raw",
            "--json",
            "-n",
            "4",
            "--seed",
            "1",
            "--kv-ssd",
            f"{tmp_path / 'kept'}:64M",
        ]
        done = subprocess.run([sys.executable, "-m", "tensorsharp", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["token_ids"] == found[1]["token_ids"]
    assert [one["usage"]["cached"] for one in found] == [0, (found[0]["usage"]["prompt"] - 1) // BLOCK * BLOCK]
    assert found[1]["usage"]["cached"] > 0
