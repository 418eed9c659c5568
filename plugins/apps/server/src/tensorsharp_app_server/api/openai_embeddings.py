"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Final

import numpy as np
from starlette.routing import Route

from tensorsharp.protocols.batch import F32
from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.api.shared_fields import MODEL, PROMPTS
from tensorsharp_app_server.describe import Field, Operation, one_of, whole
from tensorsharp_app_server.embeddings import check_width, embedded
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import texts_or_ids
from tensorsharp_app_server.service import Service

MOST_TEXTS = 2048


OPERATION: Final = Operation(
    "Turn texts or token ids into vectors, with a model that is made for it.",
    (
        MODEL,
        Field("input", PROMPTS, ["x", "y"], needed=True),
        Field("encoding_format", one_of("float", "base64"), "base64"),
        Field("dimensions", whole(1), 576),
    ),
)


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/v1/embeddings", embed, openai.WIRE, operation=OPERATION),
        route(service, "/embeddings", embed, openai.WIRE),
    ]


async def embed(call: Call) -> Body:
    body = call.body
    texts = texts_or_ids(body, "input", MOST_TEXTS)
    format = body.choice("encoding_format", "float", "base64") or "float"
    async with call.service.host.use(body.text("model")) as served:
        check_width(body, served.llm)
        vectors, count = await embedded(served.llm, texts, "input")
    data = [{"object": "embedding", "index": index, "embedding": _written(one, format)} for index, one in enumerate(vectors)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return json_body({"object": "list", "model": served.name, "data": data, "usage": usage})


def _written(vector: F32, format: str) -> list[float] | str:
    """base64: of float32 numbers, the lowest byte first."""
    return vector.tolist() if format == "float" else base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
