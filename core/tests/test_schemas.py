"""Replies under random schemas, checked by a validator that knows nothing of how they were made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core.tests.llmfakes import installed, write_file
from core.tests.text.random_schemas import Schemas, check_valid, completed

from tensorsharp.llm import LLM, Reply
from tensorsharp.loading import load
from tensorsharp.types import Constraint

PARALLEL, COUNT = 16, 48
FREE = {"raw": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LONG = 700
"""Tokens of a reply, at most."""


@pytest.fixture(autouse=True)
def plugins(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from installed(site, monkeypatch)


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[LLM]:
    """A model whose logits are a hash of all tokens before: random, and spread over 8."""
    path = write_file(tmp_path / "model.gguf")
    with load(path, backend="fake", parallel=PARALLEL, ctx_size=800) as made:
        yield made


def replies(llm: LLM, first: int, schemas: list[dict[str, Any]], tokens: int) -> list[Reply]:
    """One for each schema, all at once; the seeds count from `first`."""
    streams = [
        llm.stream("JSON", constraint=Constraint.json_schema(schema), seed=seed, max_tokens=tokens, **FREE)
        for seed, schema in enumerate(schemas, first)
    ]
    return [stream.result() for stream in streams]


def test_replies_under_random_schemas_are_valid(llm: LLM) -> None:
    made, cut = Schemas(7), 0
    for first in range(0, COUNT, PARALLEL):
        schemas = [made.schema() for _ in range(PARALLEL)]
        for schema, reply in zip(schemas, replies(llm, first, schemas, LONG), strict=True):
            assert reply.finish_reason in ("stop", "length"), schema
            cut += reply.finish_reason == "length"
            check_valid(schema, reply.text if reply.finish_reason == "stop" else completed(llm, schema, reply.token_ids))
    assert cut <= COUNT // 20


def test_a_reply_that_length_cuts_is_the_beginning_of_a_valid_one(llm: LLM) -> None:
    made = Schemas(8)
    schemas = [made.schema() for _ in range(PARALLEL)]
    parts, wholes = replies(llm, 0, schemas, 12), replies(llm, 0, schemas, LONG)
    assert sum(part.finish_reason == "length" for part in parts) > PARALLEL // 3
    for schema, part, whole in zip(schemas, parts, wholes, strict=True):
        assert whole.token_ids[: len(part.token_ids)] == part.token_ids
        check_valid(schema, completed(llm, schema, part.token_ids))


def test_a_constrained_reply_alone_is_the_one_in_a_batch(llm: LLM) -> None:
    made = Schemas(9)
    schemas = [made.schema() for _ in range(PARALLEL)]
    together = replies(llm, 0, schemas, 60)
    alone = [replies(llm, seed, [schema], 60)[0] for seed, schema in enumerate(schemas[:4])]
    assert [(r.token_ids, r.finish_reason) for r in alone] == [(r.token_ids, r.finish_reason) for r in together[:4]]
