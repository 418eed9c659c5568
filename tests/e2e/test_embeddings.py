"""Vectors of a served file that is made for them, through the clients of two protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from tests.e2e.served import serving

import tensorsharp
from tensorsharp.testing.tinygguf import tiny, write_tiny

TEXTS = ["the rain in the town", "and the sun", "x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", tiny("qwen3", tokenizer="bytes", pooling=3))


@pytest.fixture(scope="module")
def vectors(model: Path) -> Any:
    """[texts, width] float32, as the library gives them."""
    with tensorsharp.load(model) as llm:
        return llm.embed(TEXTS)


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with serving(model) as server:
        yield server.url


def test_openai_s_client(url: str, vectors: Any) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="tiny", input=TEXTS)
        plain = client.embeddings.create(model="tiny", input=TEXTS[1], encoding_format="float", dimensions=vectors.shape[1])
        with pytest.raises(openai.BadRequestError) as wide:
            client.embeddings.create(model="tiny", input="x", dimensions=7)
        with pytest.raises(openai.BadRequestError, match="The prompt has at least ") as long:
            client.embeddings.create(model="tiny", input=["x", "x" * 100_000])
    assert [one.index for one in found.data] == [0, 1, 2]
    assert np.array_equal(np.array([one.embedding for one in found.data], np.float32), vectors)
    assert np.array_equal(np.array(plain.data[0].embedding, np.float32), vectors[1])
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (found.usage.total_tokens, found.usage.prompt_tokens)
    assert wide.value.param == "dimensions"
    assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")


def test_ollama_s_client(url: str, model: Path, vectors: Any) -> None:
    client = ollama.Client(url)
    found = client.embed("tiny", TEXTS)
    assert np.array_equal(np.array(found.embeddings, np.float32), vectors)
    assert np.array_equal(np.array(client.embeddings("tiny", TEXTS[0]).embedding, np.float32), vectors[0])
    assert client.show("tiny").capabilities == ["embedding"]
    long = "the rain " * 400
    with tensorsharp.load(model) as llm:
        limit, ids = llm.engine.limit, llm.tokenize(long)
        assert len(ids) > limit
        assert np.array_equal(np.array(client.embed("tiny", long).embeddings, np.float32), llm.embed([ids[:limit]]))
    with pytest.raises(ollama.ResponseError, match=str(limit)) as refused:
        client.embed("tiny", long, truncate=False)
    assert refused.value.status_code == 400
    client.close()
