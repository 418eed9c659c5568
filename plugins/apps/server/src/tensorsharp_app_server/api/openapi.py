"""GET /openapi.json: what the other adapters say of their endpoints, as OpenAPI 3.1 has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from starlette.routing import Route

from tensorsharp import __version__
from tensorsharp_app_server.answers import JSON, Body, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.describe import Operation, Schema, an_object
from tensorsharp_app_server.endpoint import Call, Endpoint, route
from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import Wire

STATUSES: Final = {
    400: "The request cannot be answered; the error names the field.",
    401: "An API key is missing, or not known.",
    403: "A web page that may not use the server, or a name that is not this machine's.",
    404: "There is no such model.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    431: "The head of the request is too large.",
    500: "The server failed.",
    501: "Not done here.",
    503: "Not now: the model is being loaded, cannot be loaded, or the server ends.",
}
BUSY: Final = "As many requests wait as may."
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")


def routes(service: Service) -> list[Route]:
    return [route(service, "/openapi.json", document, openai.WIRE, methods=("GET",), operation=Operation("This document."))]


async def document(call: Call) -> Body:
    return json_body(described(call.service.routes))


def described(routes: list[Route]) -> dict[str, Any]:
    """The document of every route that has a description."""
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        if isinstance(one.endpoint, Endpoint) and one.endpoint.operation is not None:
            found = paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})
            for method in one.endpoint.methods:
                found[method.lower()] = _operation(one.path, method, one.endpoint, one.endpoint.operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tensorsharp serve", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
    }


def _operation(path: str, method: str, endpoint: Endpoint, about: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', path).rstrip('_')}",
        "summary": about.summary,
        "security": [] if endpoint.open else [{}, {"bearer": []}, {"key": []}],
        "responses": {str(status): answer for status, answer in _responses(endpoint.wire, about)},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PARAMETER.findall(path)
    ]
    if method == "GET":
        parameters += [{"name": one.name, "in": "query", "schema": one.schema} for one in about.fields]
    elif about.fields:
        content = {JSON: {"schema": an_object(*about.fields), "example": _example(about)}}
        found["requestBody"] = {"required": True, "content": content}
    return found | ({"parameters": parameters} if parameters else {})


def _example(about: Operation) -> dict[str, Any]:
    return {one.name: one.example for one in about.fields if one.needed or one.name == "model"}


def _responses(wire: Wire, about: Operation) -> Iterator[tuple[int, dict[str, Any]]]:
    if 501 not in about.statuses:
        streamed: dict[str, Any] = {wire.stream_type.partition(";")[0]: {}} if about.streams else {}
        yield 200, {"description": "The answer.", "content": {about.media: {}, **streamed}}
    error = {JSON: {"schema": _shape(wire.error(Failure(400, "", "", "", "")))}}
    for status, description in sorted({**STATUSES, wire.busy: STATUSES.get(wire.busy, BUSY)}.items()):
        if status != 501 or status in about.statuses:
            yield status, {"description": description, "content": error}


def _shape(sample: Any) -> Schema:
    """The schema of an error's body, from one of them."""
    if isinstance(sample, dict):
        properties = {name: _shape(value) for name, value in sample.items()}
        return {"type": "object", "properties": properties, "required": list(sample)}
    return {"type": ["string", "null"]}
