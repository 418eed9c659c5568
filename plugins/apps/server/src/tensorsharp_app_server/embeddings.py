"""Texts as vectors, for any protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tensorsharp.embedding import pooling
from tensorsharp.engine.evaluation import Embedding
from tensorsharp.errors import RequestError
from tensorsharp.llm import LLM
from tensorsharp.protocols.batch import F32
from tensorsharp_app_server.fields import Fields
from tensorsharp_app_server.internal import evaluated, prompt_ids
from tensorsharp_app_server.sampling import renamed


async def embedded(llm: LLM, texts: Sequence[str | Sequence[int]], field: str, *, cut: bool = False) -> tuple[list[F32], int]:
    """([width] of length 1 for each text or its token ids, tokens of all of them).

    field: what the client calls them. cut: a text that is too long loses its end, but for the token that ends it.
    UnsupportedError if the model is not made for it, RequestError for a text that cannot be used.
    """
    kind = pooling(llm.file, llm.capabilities)
    try:
        ids = await asyncio.to_thread(lambda: [prompt_ids(llm, text, reply=None if cut else 0) for text in texts])
    except RequestError as error:
        raise renamed(error, {"prompt_ids": field}) from error
    if cut:
        ids = [_cut(one, llm.engine.limit, llm.tokenizer.end_tokens) for one in ids]
    made = [Embedding(kind, len(one)) for one in ids]
    await evaluated(llm, list(zip(ids, made, strict=True)), field)
    return [one.vector() for one in made], sum(map(len, ids))


def check_width(body: Fields, llm: LLM) -> None:
    """RequestError if `dimensions` asks for vectors of another width than the model's."""
    dimensions = body.whole("dimensions", 1)
    if dimensions is not None and dimensions != llm.model.width:
        raise body.refuse("dimensions", f"{llm.model.width}, which is what the model gives")


def _cut(ids: list[int], most: int, ends: frozenset[int]) -> list[int]:
    if len(ids) <= most:
        return ids
    return [*ids[: most - 1], ids[-1]] if ids[-1] in ends else ids[:most]
