"""GET /api/tags, /api/ps and /api/version, POST /api/show: which models there are, and what each of them is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from starlette.routing import Route

from tensorsharp import __version__
from tensorsharp.errors import ModelError
from tensorsharp.weights.entry import Entry
from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import ollama
from tensorsharp_app_server.card import Card, Cards, arrays
from tensorsharp_app_server.catalog import without_folders
from tensorsharp_app_server.describe import FLAG, Field, Operation
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.host import Loaded
from tensorsharp_app_server.service import Service

SPOKEN = "0.12.11"
"""The version of Ollama whose interface this is: clients refuse servers that are older than what they need."""
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


TAGS: Final = Operation("The models that may be asked.")
RUNNING: Final = Operation("The models in memory.")
SHOW: Final = Operation("What a model's file holds.", (*ollama.NAMED, Field("verbose", FLAG, True)))
VERSION: Final = Operation("The version of Ollama whose interface this is.")


def routes(service: Service) -> list[Route]:
    models = Models(Cards())
    return [
        route(service, "/api/tags", models.tags, ollama.WIRE, methods=("GET",), operation=TAGS),
        route(service, "/api/ps", models.running, ollama.WIRE, methods=("GET",), operation=RUNNING),
        route(service, "/api/show", models.show, ollama.WIRE, operation=SHOW),
        route(service, "/api/version", version, ollama.WIRE, methods=("GET",), operation=VERSION),
    ]


async def version(call: Call) -> Body:
    return json_body({"version": SPOKEN, "tensorsharp": __version__})


class Models:
    """The handlers that tell what files hold."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards

    async def tags(self, call: Call) -> Body:
        """The models that may be asked."""

        def listed() -> list[dict[str, Any]]:
            return [_tag(entry, self._cards.of(entry)) for entry in call.service.host.catalog.entries()]

        return json_body({"models": await asyncio.to_thread(listed)})

    async def running(self, call: Call) -> Body:
        """The models in memory."""
        loaded = call.service.host.loaded
        cards = await asyncio.to_thread(lambda: [self._cards.of(one.served.entry) for one in loaded])
        return json_body({"models": [_running(one, card) for one, card in zip(loaded, cards, strict=True)]})

    async def show(self, call: Call) -> Body:
        """What a model's file holds; with `verbose` the arrays of its metadata, too."""
        verbose = call.body.flag("verbose")
        entry = await call.service.host.find(ollama.read_name(call.body))
        try:
            card = await asyncio.to_thread(self._cards.read, entry)
            more = await asyncio.to_thread(arrays, entry) if verbose else {}
        except ModelError as error:
            message = without_folders(str(error), entry)
            raise RefusedError(503, message, code="load_failed", hint=error.hint, final=True) from error
        return json_body(_shown(entry, card, more))


def _details(card: Card | None) -> dict[str, Any]:
    family = card.architecture if card else ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if card else [],
        "parameter_size": _count(card.parameters) if card else "",
        "quantization_level": card.quantization if card else "",
    }


def _tag(entry: Entry, card: Card | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": ollama.timestamp(entry.modified),
        "size": entry.size,
        "digest": card.digest if card else "",
        "details": _details(card),
    }


def _running(one: Loaded, card: Card | None) -> dict[str, Any]:
    """size: of the files; how much of it lies in a device's own memory is only known where that is none."""
    llm, entry = one.served.llm, one.served.entry
    expires = NEVER if one.expires is None else datetime.fromtimestamp(min(one.expires, NEVER.timestamp()), UTC)
    tag = _tag(entry, card)
    del tag["modified_at"]
    return {
        **tag,
        "expires_at": ollama.timestamp(expires),
        "size_vram": 0 if llm.backend.device == "cpu" else entry.size,
        "context_length": llm.engine.limit,
    }


def _shown(entry: Entry, card: Card, more: dict[str, list[Any]]) -> dict[str, Any]:
    licence = card.metadata.get("general.license")
    return {
        "modelfile": "",
        "parameters": "",
        "license": licence if isinstance(licence, str) else "",
        "template": card.template,
        "details": _details(card),
        "model_info": {**card.metadata, "general.parameter_count": card.parameters, **more},
        "capabilities": list(card.capabilities),
        "modified_at": ollama.timestamp(entry.modified),
    }


def _count(parameters: int) -> str:
    """In the form that Ollama writes it: 134.52M, 8B."""
    for unit, letter in UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.2f}".rstrip("0").rstrip(".") + letter
    return str(parameters)
