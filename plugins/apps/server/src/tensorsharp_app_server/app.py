"""The HTTP application: every adapter's routes, and those that hook plugins add."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from tensorsharp.errors import did_you_mean
from tensorsharp_app_server.api import anthropic, ollama, openai
from tensorsharp_app_server.endpoint import Endpoint
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.host import ModelHost
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.settings import ServerSettings

if TYPE_CHECKING:
    from tensorsharp.hooks import Hooks
    from tensorsharp_app_server.answers import Body
    from tensorsharp_app_server.endpoint import Call

ADAPTERS = (
    "pages",
    "observing",
    "native",
    "models",
    "openai_chat",
    "openai_completions",
    "openai_embeddings",
    "openai_responses",
    "ollama_chat",
    "ollama_models",
    "ollama_embed",
    "ollama_store",
    "anthropic_messages",
    "openapi",
)
"""Modules of `api`; each has `routes(service)`."""
WIRES = {"/api/": ollama.WIRE, "/v1/messages": anthropic.WIRE}
"""Beginning of a path -> the protocol that it belongs to; all else is OpenAI's."""


def create_app(host: ModelHost, settings: ServerSettings | None = None, hooks: Hooks | None = None) -> Starlette:
    """An ASGI application over the models of `host`, which the caller starts and closes."""
    service = Service(host, settings or ServerSettings())
    for name in ADAPTERS:
        service.routes += import_module(f"tensorsharp_app_server.api.{name}").routes(service)
    app = Starlette(routes=list(service.routes), middleware=_middleware(service.settings))
    app.router.redirect_slashes = False
    app.router.default = _Nowhere(service)
    if hooks is not None:
        hooks.call("add_routes", app=app)
    return app


class _Nowhere:
    """Answers for paths that nobody serves, in the words of those whose clients use such ones."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = next((wire for start, wire in WIRES.items() if scope["path"].startswith(start)), openai.WIRE)
        hint = did_you_mean(scope["path"][:100], (one.path for one in self._service.routes))

        async def no_such_path(call: Call) -> Body:
            raise RefusedError(404, "There is nothing at this address.", code="unknown_path", hint=hint, final=True)

        await Endpoint(self._service, wire, no_such_path, reads=False)(scope, receive, send)


def _middleware(settings: ServerSettings) -> list[Middleware]:
    if not settings.origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    ]
