"""What goes back to a client: one body, or a stream of frames that says it is alive and ends with what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Send

from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.wire import Wire, encoded

JSON = "application/json"
HeaderList = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Body:
    """A whole answer."""

    content: bytes
    media_type: str = JSON
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_body(data: Any, status: int = 200) -> Body:
    return Body(encoded(data), status=status)


@dataclass(frozen=True, slots=True)
class Stream:
    """frames: whole frames of the wire's stream. Closed when it is over, however it ends: what runs must end then too."""

    frames: AsyncGenerator[bytes, None]


class Out:
    """Sends one answer. status: that of what was sent, 0 before."""

    def __init__(self, send: Send, wire: Wire, request_id: str, *, ping_s: float) -> None:
        self.status = 0
        self._send = send
        self._wire = wire
        self._request_id = request_id
        self._ping_s = ping_s
        self._streaming = False
        self._sent_at = 0.0

    async def send(self, body: Body) -> None:
        length = (b"content-length", str(len(body.content)).encode())
        await self._start(body.status, body.media_type, [length, *body.headers])
        await self._send({"type": "http.response.body", "body": body.content})

    async def stream(self, stream: Stream) -> None:
        first = await anext(stream.frames, b"")  # what is refused before it has a status of its own
        self._streaming = True
        await self._start(200, self._wire.stream_type, [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")])
        await self._frame(first)
        async with self._pinged():
            async for frame in stream.frames:
                await self._frame(frame)
        await self._end()

    async def fail(self, failure: Failure) -> None:
        """Tell an error: with its status, or in the stream if that has begun."""
        if self._streaming:
            await self._frame(self._wire.error_frames(failure))
            await self._end()
        elif not self.status:
            if failure.code == "queue_full":
                failure = replace(failure, status=self._wire.busy)
            await self.send(Body(encoded(self._wire.error(failure)), status=failure.status, headers=tuple(failure.headers())))

    async def _start(self, status: int, media_type: str, headers: HeaderList) -> None:
        self.status = status
        own = [(b"content-type", media_type.encode()), (b"x-request-id", self._request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})

    async def _frame(self, frame: bytes) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    @asynccontextmanager
    async def _pinged(self) -> AsyncGenerator[None, None]:
        """Meanwhile a task breaks long silences, as of a long prompt: proxies and clients give up on them."""
        if not self._wire.ping:
            yield
            return
        pings = asyncio.create_task(self._ping())
        try:
            yield
        finally:
            pings.cancel()

    async def _ping(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._ping_s)
            if clock() - self._sent_at >= self._ping_s:
                await self._frame(self._wire.ping)
