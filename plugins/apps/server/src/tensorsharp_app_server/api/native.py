"""Endpoints of no foreign protocol, under the names that llama.cpp's server and vLLM gave them."""

from __future__ import annotations

from starlette.routing import Route

from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.errors import LOADING_RETRY_S, RefusedError
from tensorsharp_app_server.service import Service


def routes(service: Service) -> list[Route]:
    return [route(service, path, health, openai.DIALECT, methods=("GET",), open=True) for path in ("/health", "/v1/health")]


async def health(call: Call) -> Body:
    """200 once requests are taken, 503 before."""
    if call.service.host.starting:
        raise RefusedError(503, "The model is being loaded.", code="loading", retry_after=LOADING_RETRY_S)
    return json_body({"status": "ok"})
