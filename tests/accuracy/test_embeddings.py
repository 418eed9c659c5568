"""Vectors of texts: tiny random checkpoints against those that llama.cpp pooled in float32, and against themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.types import GenerationRequest, SamplingParams
from tests.goldens.records import TinyRun
from tests.goldens.tinies import EMBEDDINGS, digest, write

ROUNDING = 5e-6
"""Of a vector of length 1: the bound that the logits of tiny checkpoints keep, too."""


@pytest.mark.parametrize("backend", ["reference", "ggml"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_the_vector_is_the_peers(tmp_path: Path, name: str, backend: str) -> None:
    recorded = TinyRun.of(name)
    path = write(name, tmp_path)
    assert digest(path) == recorded.digest, f"the checkpoint has changed; run: python -m tests.goldens.make {name}"
    with load(path, backend=backend, kv_type="f32") as llm:
        ours = llm.embed([recorded.ids.tolist()])
    expected = recorded.logits / np.linalg.norm(recorded.logits)
    assert np.abs(ours - expected).max() <= ROUNDING


@pytest.fixture(params=[1, 2, 3])
def llm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    file = write_tiny(tmp_path / "e.gguf", tiny("qwen3", pooling=request.param))
    with load(file, parallel=4, chunk_tokens=32) as made:
        yield made


def texts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 64, n).tolist() for n in rng.integers(1, 120, count)]


def test_a_vector_does_not_depend_on_its_neighbours(llm: LLM) -> None:
    asked = texts(9)
    together = llm.embed(asked)
    assert together.shape == (9, llm.model.width)
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)  # float32 rounding of 64 elements
    for vector, ids in zip(together, asked, strict=True):
        assert np.array_equal(llm.embed([ids])[0], vector)


@pytest.mark.parametrize("backend", ["reference", "ggml"])
def test_a_vector_does_not_depend_on_how_its_prompt_is_cut(tmp_path: Path, backend: str) -> None:
    for pooling in (1, 3):
        file = write_tiny(tmp_path / f"{pooling}.gguf", tiny("qwen3", pooling=pooling))
        vectors = []
        for chunk in (7, 96):
            with load(file, backend=backend, chunk_tokens=chunk) as made:
                vectors.append(made.embed(texts(5)))
        assert np.array_equal(vectors[0], vectors[1])


def test_replies_go_on_beside_embeddings(llm: LLM) -> None:
    alone = llm.engine.submit(prompt_request()).result().usage
    handle = llm.engine.submit(prompt_request())
    llm.embed(texts(3))
    assert handle.result().usage.completion == alone.completion == 30


def prompt_request() -> GenerationRequest:
    return GenerationRequest((1, 2, 3), SamplingParams(max_tokens=30, temperature=0.0))


def test_wrong_texts_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        llm.embed([[1], []])
    with pytest.raises(RequestError, match=r"text 1\[0\] is 64"):
        llm.embed([[1], [64]])
    assert llm.embed([]).shape == (0, llm.model.width)


@pytest.mark.parametrize(("pooling", "reason"), [(None, "no llama.pooling_type"), (4, "pooling_type 4")])
def test_other_models_say_so(tmp_path: Path, pooling: int | None, reason: str) -> None:
    file = write_tiny(tmp_path / "m.gguf", tiny("llama", pooling=pooling))
    with load(file) as llm, pytest.raises(UnsupportedError, match=reason):
        llm.embed([[1]])
