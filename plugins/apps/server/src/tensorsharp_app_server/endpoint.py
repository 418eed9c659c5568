"""One HTTP call: who asks, what for, the answer, and what happens when the client leaves, the time is up or something fails."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, QueryParams
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tensorsharp_app_server.answers import Body, Out, Stream
from tensorsharp_app_server.describe import Operation
from tensorsharp_app_server.errors import RefusedError, failure
from tensorsharp_app_server.fields import Fields, parse
from tensorsharp_app_server.security import DisconnectedError, read_body
from tensorsharp_app_server.wire import Wire

if TYPE_CHECKING:
    from tensorsharp_app_server.service import Service

BODY_S = 60.0
"""How long a client may take to send its body."""
CLIENT_LEFT = 499
"""What the log says for a client that left (nginx's number; nobody receives it)."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class Call:
    """What a handler works on. body: the fields of a POST, else of the query. told: what the log line says of it."""

    service: Service
    wire: Wire
    id: str
    headers: Headers
    body: Fields
    path: Mapping[str, str]
    told: dict[str, Any] = field(default_factory=dict)


Handler = Callable[[Call], Awaitable[Body | Stream]]


class Endpoint:
    """An ASGI application around one handler.

    methods: empty for any. open: no API key is asked for. reads: whether the body, or the query, matters. operation: what it
    takes and gives; None for a second address of what is described already.
    """

    def __init__(
        self,
        service: Service,
        wire: Wire,
        handler: Handler,
        *,
        methods: tuple[str, ...] = (),
        open: bool = False,
        reads: bool = True,
        operation: Operation | None = None,
    ) -> None:
        self.wire = wire
        self.methods = methods
        self.open = open
        self.operation = operation
        self._service = service
        self._handler = handler
        self._reads = reads
        self._allowed = (*methods, "HEAD") if "GET" in methods else methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        call = Call(self._service, self.wire, request_id(headers), headers, Fields({}), scope.get("path_params", {}))
        out = Out(send, self.wire, call.id, ping_s=self._service.settings.ping_s)
        began = time.perf_counter()
        try:
            await self._watched(call, scope, receive, out)
        except DisconnectedError:
            out.status = CLIENT_LEFT
        except asyncio.CancelledError:  # the server ends, and its patience is over
            stopping = RefusedError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
            await out.fail(failure(stopping))
        except Exception as error:
            told = failure(error)
            call.told |= {"error": told.code} | ({} if told.param is None else {"param": told.param})
            await out.fail(told)
        self._service.log(call, scope, out.status, time.perf_counter() - began)

    async def _watched(self, call: Call, scope: Scope, receive: Receive, out: Out) -> None:
        """Answer, unless the client leaves or the time is up before: then the work is cancelled and has ended on return."""
        service = self._service
        service.visitors.check(call.headers)
        if not self.open:
            service.keys.check(call.headers)
        if self._allowed and scope["method"] not in self._allowed:
            message = f"{scope['method']} is not for this address; expected {' or '.join(self._allowed)}."
            raise RefusedError(405, message, code="wrong_method", final=True, allowed=self._allowed)
        if self._reads:
            call.body = await self._read(call, scope, receive)
        work = asyncio.create_task(self._answer(call, out))
        gone = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({work, gone}, timeout=service.settings.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif gone.done():
                raise DisconnectedError
            else:
                limit = service.settings.timeout_s
                raise RefusedError(503, f"The request took longer than {limit:g} seconds.", code="timeout", final=True)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _read(self, call: Call, scope: Scope, receive: Receive) -> Fields:
        try:
            async with asyncio.timeout(BODY_S):
                body = await read_body(call.headers, receive, self._service.settings.max_body)
        except TimeoutError:
            raise RefusedError(408, "The body did not arrive in time.", code="body_timeout", final=True) from None
        if scope["method"] == "POST" or body:
            return parse(body)
        return Fields(dict(QueryParams(scope["query_string"])))

    async def _answer(self, call: Call, out: Out) -> None:
        answer = await self._handler(call)
        if isinstance(answer, Body):
            await out.send(answer)
            return
        async with aclosing(answer.frames):
            await out.stream(answer)


def request_id(headers: Headers) -> str:
    """The caller's own id of the request if it is plain text, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def route(
    service: Service,
    path: str,
    handler: Handler,
    wire: Wire,
    *,
    methods: tuple[str, ...] = ("POST",),
    open: bool = False,
    reads: bool = True,
    operation: Operation | None = None,
) -> Route:
    """A handler under a path; a GET answers HEAD as well."""
    return Route(path, Endpoint(service, wire, handler, methods=methods, open=open, reads=reads, operation=operation))


async def _left(receive: Receive) -> None:
    """Ends when the client is gone, also when it only closed its side."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            continue
