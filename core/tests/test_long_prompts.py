"""Prompts as long as the context, and longer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core.tests.llmfakes import installed, write_file

from tensorsharp.errors import RequestError
from tensorsharp.llm import LLM
from tensorsharp.loading import load


@pytest.fixture(autouse=True)
def plugins(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from installed(site, monkeypatch)


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[LLM]:
    with load(write_file(tmp_path / "model.gguf"), backend="fake", ctx_size=600) as made:
        yield made


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(llm: LLM) -> None:
    with pytest.raises(RequestError, match="at most 599 fit in the context of 600"):
        llm.stream("x" * 700, raw=True)


def test_a_prompt_that_is_far_too_long_is_refused_without_being_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = {f"tokenizer.ggml.fim_{role}_token_id": 290 + i for i, role in enumerate(("pre", "suf", "mid"))}
    text = "x" * 100_000
    messages = [{"role": "user", "content": text}]
    with load(write_file(tmp_path / "long.gguf", fills), backend="fake", ctx_size=600) as llm:
        encode, read = llm.tokenizer.encode, []
        monkeypatch.setattr(llm.tokenizer, "encode", lambda text, **how: read.append(len(text)) or encode(text, **how))
        starts: list[Callable[[], object]] = [
            lambda: llm.stream(text),
            lambda: llm.stream(text, raw=True),
            lambda: llm.stream_chat(messages),
            lambda: llm.start_chat(messages),
            lambda: llm.fill_ids(text, ""),
            lambda: llm.fill_ids("", text),
        ]
        for start in starts:
            with pytest.raises(RequestError, match="The prompt has at least 600 tokens; at most 599 fit in") as caught:
                start()
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt_ids")
        assert max(read, default=0) < 100, "control tokens of the template at most"
        assert len(llm.tokenize(text)) == 100_000, "to count is another matter"
        assert len(llm.tokenize_chat(messages)) == 100_000 + len(llm.tokenize("<|endoftext|>[user]>"))


def test_the_longest_prompt_fits_however_long_its_tokens_are(llm: LLM) -> None:
    mark = "<|im_start|>"
    assert llm.generate(mark * 599, raw=True, max_tokens=1).usage.prompt == 599
    with pytest.raises(RequestError, match="The prompt has at least 600 tokens; at most 599 fit in the context of 600"):
        llm.stream(mark * 600, raw=True)
