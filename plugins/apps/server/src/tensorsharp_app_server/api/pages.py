"""The pages for browsers: the chat at /, the dashboard, and what they are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.routing import Route

from tensorsharp_app_server.answers import Body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.endpoint import Call, Handler, route
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.service import Service

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only what this server itself brings may run, be shown or be talked to."""
PROBED: Final = b"Ollama is running"
"""What Ollama's clients look for at / before they use a server."""


def routes(service: Service) -> list[Route]:
    pages = dict(_pages())
    asked: dict[str, Handler] = {
        "/": _root(pages["index.html"]),
        "/dashboard": _always(pages["dashboard.html"]),
        "/web/{name}": _named({name: page for name, page in pages.items() if not name.endswith(".html")}),
    }
    return [route(service, path, handler, openai.WIRE, methods=("GET",), open=True) for path, handler in asked.items()]


def _pages() -> Iterator[tuple[str, Body]]:
    """Every file of the pages by its name, read once."""
    for file in files("tensorsharp_app_server").joinpath("web").iterdir():
        kind = TYPES.get(_suffix(file))
        if kind is not None:
            yield file.name, _body(file.read_bytes(), kind)


def _suffix(file: Traversable) -> str:
    return file.name[file.name.rfind(".") :]


def _body(content: bytes, kind: str) -> Body:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'.encode()
    headers = (
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
    )
    return Body(content, kind, headers=headers)


def _fresh(call: Call, page: Body) -> Body:
    """The page, or word that the browser's copy is the same."""
    tag = dict(page.headers)[b"etag"].decode()
    if tag in call.headers.get("if-none-match", ""):
        return Body(b"", page.media_type, 304, page.headers)
    return page


def _root(page: Body) -> Handler:
    async def root(call: Call) -> Body:
        if "text/html" in call.headers.get("accept", ""):
            return _fresh(call, page)
        return Body(PROBED, "text/plain; charset=utf-8")

    return root


def _always(page: Body) -> Handler:
    async def always(call: Call) -> Body:
        return _fresh(call, page)

    return always


def _named(pages: dict[str, Body]) -> Handler:
    async def named(call: Call) -> Body:
        page = pages.get(call.path["name"])
        if page is None:
            raise RefusedError(404, "There is nothing at this address.", code="unknown_path", final=True)
        return _fresh(call, page)

    return named
