"""POST /api/embed, and its predecessor /api/embeddings."""

from __future__ import annotations

import time
from typing import Final

from starlette.routing import Route

from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import ollama
from tensorsharp_app_server.api.shared_fields import KEEP_ALIVE
from tensorsharp_app_server.describe import FLAG, TEXT, TEXTS, Field, Operation, whole
from tensorsharp_app_server.embeddings import check_width, embedded
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.service import Service

EMBED: Final = Operation(
    "Turn texts into vectors, with a model that is made for it.",
    (
        *ollama.NAMED,
        Field("input", TEXTS, ["x", "y"], needed=True),
        Field("truncate", FLAG, True),
        Field("dimensions", whole(1), 576),
        KEEP_ALIVE,
    ),
)
EMBED_ONE: Final = Operation("Turn a text into a vector.", (*ollama.NAMED, Field("prompt", TEXT, "x", needed=True), KEEP_ALIVE))


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/api/embed", embed, ollama.WIRE, operation=EMBED),
        route(service, "/api/embeddings", embed_one, ollama.WIRE, operation=EMBED_ONE),
    ]


async def embed(call: Call) -> Body:
    """The vectors of one text or several; one that is too long is cut, unless `truncate` is false."""
    body, began = call.body, time.perf_counter()
    texts = body.strings("input")
    if texts is None:
        raise body.refuse("input", "a string or a list of strings")
    cut, keep = body.flag("truncate", True), ollama.read_keep_alive(body)
    async with call.service.host.use(ollama.read_name(body), keep) as served:
        loaded = time.perf_counter()
        check_width(body, served.llm)
        vectors, count = await embedded(served.llm, texts, "input", cut=cut)
    return json_body(
        {
            "model": served.name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": ollama.nanoseconds(time.perf_counter() - began),
            "load_duration": ollama.nanoseconds(loaded - began),
            "prompt_eval_count": count,
        }
    )


async def embed_one(call: Call) -> Body:
    body, keep = call.body, ollama.read_keep_alive(call.body)
    text = body.needed_text("prompt")
    async with call.service.host.use(ollama.read_name(body), keep) as served:
        vectors, _ = await embedded(served.llm, [text], "prompt", cut=True)
    return json_body({"embedding": vectors[0].tolist()})
