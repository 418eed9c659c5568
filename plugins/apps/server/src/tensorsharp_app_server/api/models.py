"""GET /v1/models: what may be asked."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.weights.entry import Entry
from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.describe import Operation
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.service import Service

EVERY: Final = Operation("The models that may be asked.")
ONE: Final = Operation("One of them.")


def routes(service: Service) -> list[Route]:
    found = []
    for prefix, told in (("/v1", (EVERY, ONE)), ("", (None, None))):
        found.append(route(service, f"{prefix}/models", every, openai.WIRE, methods=("GET",), operation=told[0]))
        found.append(route(service, f"{prefix}/models/{{name:path}}", one, openai.WIRE, methods=("GET",), operation=told[1]))
    return found


async def every(call: Call) -> Body:
    entries = await asyncio.to_thread(call.service.host.catalog.entries)
    models = [_model(entry) for entry in entries]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    return json_body({"object": "list", "data": models, "has_more": False, **ends})


async def one(call: Call) -> Body:
    return json_body(_model(await call.service.host.find(call.path["name"])))


def _model(entry: Entry) -> dict[str, Any]:
    """With the fields that OpenAI's clients read, and those that Anthropic's do."""
    return {
        "id": entry.name,
        "object": "model",
        "created": int(entry.modified.timestamp()),
        "owned_by": "local",
        "type": "model",
        "display_name": entry.name,
        "created_at": entry.modified.isoformat().replace("+00:00", "Z"),
    }
