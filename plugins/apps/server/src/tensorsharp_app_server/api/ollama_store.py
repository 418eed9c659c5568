"""POST /api/pull and DELETE /api/delete: models that come and go; and what only Ollama itself can do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, NoReturn

from starlette.routing import Route

from tensorsharp.errors import CapacityError, UnsupportedError
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import ollama
from tensorsharp_app_server.api.shared_fields import STREAM
from tensorsharp_app_server.catalog import Puller, Remover, plain
from tensorsharp_app_server.describe import Operation
from tensorsharp_app_server.endpoint import Call, Handler, route
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import line

BEGUN = {"status": "pulling manifest"}
DONE = {"status": "success"}
MISSING = {
    "/api/create": "Models are not made here: give the server a .gguf file.",
    "/api/push": "Models are not sent to a registry.",
    "/api/copy": "Models are not copied: 'tensorsharp alias' gives one of the hub a second name.",
    "/api/blobs/{digest}": "Parts of models are not kept one by one.",
}


PULL: Final = Operation("Get a model of the hub.", (*ollama.NAMED, STREAM), streams=True)
DELETE: Final = Operation("Delete a model's files.", ollama.NAMED)


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/api/pull", pull, ollama.WIRE, operation=PULL),
        route(service, "/api/delete", delete, ollama.WIRE, methods=("DELETE",), operation=DELETE),
        *(
            route(
                service,
                path,
                _missing(why),
                ollama.WIRE,
                methods=("HEAD", "POST"),
                reads=False,
                operation=Operation(why, statuses=(501,)),
            )
            for path, why in MISSING.items()
        ),
    ]


async def delete(call: Call) -> Body:
    """Delete a model's files; it is closed as soon as nobody uses it."""
    catalog = call.service.host.catalog
    if not isinstance(catalog, Remover):
        raise UnsupportedError("The server was given one file, which is not for clients to delete.", param="model")
    name = ollama.read_name(call.body)
    if not name:
        raise call.body.refuse("model", "the name of a model")
    await call.service.host.unload(name)
    await asyncio.to_thread(catalog.remove, plain(name))
    return Body(b"")


async def pull(call: Call) -> Body | Stream:
    """Download a model of the hub, telling how far it is. It goes on where an interrupted download ended."""
    catalog, name, streams = call.service.host.catalog, ollama.read_name(call.body), call.body.flag("stream", True)
    if not isinstance(catalog, Puller):
        raise UnsupportedError(
            "The server was given its models and gets no others.", hint="'tensorsharp serve' without MODEL serves the hub's."
        )
    if not name:
        raise call.body.refuse("model", "user/repo[:QUANT]")
    download = _Download(catalog, name)
    if streams:
        return Stream(_frames(download))
    async with aclosing(download.told()) as told:
        async for _ in told:
            continue
    return json_body(DONE)


async def _frames(download: _Download) -> AsyncGenerator[bytes, None]:
    yield line(BEGUN)
    async with aclosing(download.told()) as told:
        async for status in told:
            yield line(status)
    yield line(DONE)


class _LeftError(Exception):
    """Nobody waits for the download any more."""


class _Download:
    """A download in a thread, which ends soon after nobody listens to it any more."""

    def __init__(self, catalog: Puller, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._left = threading.Event()
        self._latest: dict[str, tuple[int, int]] = {}
        self._news = asyncio.Event()

    async def told(self) -> AsyncGenerator[dict[str, Any], None]:
        """How far each file is, as often as anybody listens. `digest` is what tells the bars of clients apart."""
        loop = asyncio.get_running_loop()

        def tell(file: str, done: int, total: int) -> None:
            if self._left.is_set():
                raise _LeftError
            loop.call_soon_threadsafe(self._note, file, done, total)

        work = asyncio.ensure_future(asyncio.to_thread(self._catalog.pull, self._name, tell))
        work.add_done_callback(self._ended)
        try:
            while not work.done() or self._latest:
                await self._news.wait()
                self._news.clear()
                latest, self._latest = self._latest, {}
                for file, (done, total) in latest.items():
                    yield {"status": f"pulling {file}", "digest": file, "total": total, "completed": done}
            _raise(work)
        finally:
            self._left.set()

    def _note(self, file: str, done: int, total: int) -> None:
        self._latest[file] = (done, total)
        self._news.set()

    def _ended(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            work.exception()  # so that nobody misses it if the client has left
        self._news.set()


def _raise(work: asyncio.Future[Any]) -> None:
    """What made a download fail, in words for a client."""
    try:
        work.result()
    except CapacityError as error:
        raise RefusedError(503, str(error), code="disk_full", hint=error.hint, final=True) from error


def _missing(why: str) -> Handler:
    async def missing(call: Call) -> NoReturn:
        raise RefusedError(501, why, code="not_implemented", final=True)

    return missing
