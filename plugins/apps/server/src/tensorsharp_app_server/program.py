"""Runs an application under uvicorn, from the address it listens on to the last request it finishes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tensorsharp.errors import ConfigError
from tensorsharp_app_server.connection import Connection

GRACE_S = 10.0
LAST_WORDS_S = 1.0
"""How long requests that are ended may take until their clients have been told."""
TICK_S = 0.1
KEEP_OPEN_S = 75
"""How long an idle connection stays open: longer than the clients' pools keep theirs, so that they close it first."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; ConfigError if the address cannot be had. port 0: any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sends small pieces at once only where it is told that this is TCP; else each waits for the client's system to
        # acknowledge the one before, which it puts off for 40 ms
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        raise ConfigError(
            f"Nothing can listen on {host}, port {port}: {error.strerror or error}.", hint="Choose another --port or --host."
        ) from error
    return found


def url(listening: socket.socket) -> str:
    """What a client of this machine opens."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


class Program(uvicorn.Server):
    """A server that ends well on SIGINT and SIGTERM: running requests are finished within `grace_s`, then cancelled.

    A second signal does not wait. Any thread may ask for the end by setting `should_exit`.
    """

    def __init__(self, app: ASGIApp, *, grace_s: float = GRACE_S) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=Connection,
            server_header=False,
            timeout_keep_alive=KEEP_OPEN_S,
        )
        super().__init__(config)
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but nobody is waited for without end, as for clients that read nothing."""
        hurrying = asyncio.create_task(self._hurry())
        try:
            await super().shutdown(sockets)
        finally:
            hurrying.cancel()

    async def _hurry(self) -> None:
        """End what is left when the time is up, or when it is asked for; what waits for clients to read cannot end itself."""
        await self._passed(self._grace_s)
        if not self.force_exit:
            for task in self.server_state.tasks:
                task.cancel()
            self._abort(lambda one: one.flow.write_paused)
            await self._passed(LAST_WORDS_S)
        self.force_exit = True
        self._abort(lambda one: True)

    async def _passed(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while clock() < until and not self.force_exit:
            await asyncio.sleep(TICK_S)

    def _abort(self, which: Callable[[Connection], bool]) -> None:
        for one in list(self.server_state.connections):
            if isinstance(one, Connection) and which(one):
                one.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but a signal that was obeyed is not raised again."""
        try:
            previous = {number: signal.signal(number, self._asked) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread, which alone gets signals
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def run_program(
    program: Program, listening: socket.socket, start: Callable[[], Awaitable[Any]], close: Callable[[], Awaitable[Any]]
) -> None:
    """Serve until the program is asked to end. start: runs beside it; if it fails, the program ends and its error is raised."""
    starting = asyncio.ensure_future(start())

    def end(task: asyncio.Future[Any]) -> None:
        program.should_exit = program.should_exit or _failed(task)

    starting.add_done_callback(end)
    try:
        await program.serve(sockets=[listening])
        if _failed(starting):
            starting.result()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await close()


def _failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
