"""One client's connection as bytes: what comes before there is a request that the application could refuse itself."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tensorsharp_app_server.answers import JSON
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.errors import RefusedError, failure
from tensorsharp_app_server.wire import encoded

HEAD_S = 60.0
"""How long a client may take to send the head of a request, once it is connected or has begun."""
HEAD_BYTES = 1 << 18
"""Heads that come in several pieces may have so many bytes; browsers and proxies stay far below."""
STALL_S = 600.0
"""How long a client may read nothing while more waits for it than the buffers between them hold."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits of time and size for the heads of requests, and without changing to other protocols.

    Java's client offers HTTP/2 (RFC 7540, 3.2) with its requests: such an offer is to be passed over, while httptools takes the
    body for the other protocol.
    """

    _head = 0
    _in_body = False
    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waited()
        self._reads_on()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stalled = self.loop.call_later(STALL_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._reads_on()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._head += 0 if self._in_body else len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "This is no request that can be read as HTTP/1.1.", "invalid_http")
        else:
            if self._head > HEAD_BYTES:
                self._refuse(431, f"The head of the request is larger than {HEAD_BYTES:,} bytes.", "head_too_large")
            elif not self._answering:
                self._wait()

    def on_headers_complete(self) -> None:
        self._head = 0
        if self.parser.should_upgrade():
            return
        self._in_body = True
        self._waited()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._in_body:
            self._in_body = False
            super().on_message_complete()

    @property
    def _answering(self) -> bool:
        """Whether a request is with the application. uvicorn has no `cycle` before the first one."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _pass_over(self, rest: bytes) -> None:
        """Read the request again without the offer of another protocol. rest: what came behind its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(405, "CONNECT is for proxies, and this is none.", "wrong_method", allowed=())
            return
        head = [b"%s %s HTTP/1.1" % (method, self.url), *(b"%s: %s" % one for one in self.headers if one[0] != b"upgrade")]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.data_received(b"\r\n".join([*head, b"", rest]))

    def _wait(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(HEAD_S, self._refuse, 408, "The request did not arrive in time.", "head_timeout")

    def _waited(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _reads_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _refuse(self, status: int, message: str, code: str, allowed: tuple[str, ...] | None = None) -> None:
        self._waited()
        told = failure(RefusedError(status, message, code=code, allowed=allowed))
        content = encoded(openai.WIRE.error(told))
        self.transport.write(
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {JSON}\r\ncontent-length: {len(content)}\r\n"
            "connection: close\r\n".encode()
            + b"".join(b"%s: %s\r\n" % one for one in told.headers())
            + b"\r\n"
            + content
        )
        self.transport.close()
