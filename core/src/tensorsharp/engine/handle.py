"""What a caller holds of a running request: tokens as they come, from a thread or from asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import cast

from tensorsharp.types import Finished, FinishReason, TokenEvent


class RequestHandle:
    """One request. Iterate it (`for` or `async for`) for its tokens; iteration ends with the request.

    A request that fails ends its iteration too: `result()` says how it ended. One consumer at a time.
    """

    def __init__(self, id: str, seed: int) -> None:
        self.id = id
        self.seed = seed
        self.ending: tuple[FinishReason, str | None] | None = None
        self._events: deque[TokenEvent] = deque()
        self._finished: Finished | None = None
        self._changed = threading.Condition()
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def cancel(self, reason: FinishReason = "cancelled", stop: str | None = None) -> None:
        """End the request before its next token, with `reason`; nothing happens if it has ended. From any thread."""
        self.ending = (reason, stop)

    @property
    def done(self) -> bool:
        return self._finished is not None

    def result(self, timeout: float | None = None) -> Finished:
        """Wait for the end, whether or not the tokens were read. TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._finished is not None, timeout):
                raise TimeoutError(f"request {self.id} has not ended after {timeout} s")
            return cast("Finished", self._finished)

    async def wait(self) -> Finished:
        """`result()` for asyncio."""
        while True:
            with self._changed:
                if self._finished is not None:
                    return self._finished
                woken = self._waker()
            await woken.wait()

    def __iter__(self) -> Iterator[TokenEvent]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._finished is not None)
                if not self._events:
                    return
                event = self._events.popleft()
            yield event

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while True:
            event, woken = None, None
            with self._changed:
                if self._events:
                    event = self._events.popleft()
                elif self._finished is not None:
                    return
                else:
                    woken = self._waker()
            if event is not None:
                yield event
            elif woken is not None:
                await woken.wait()

    def token(self, event: TokenEvent) -> None:
        """For the engine: a token was made."""
        with self._changed:
            self._events.append(event)
            self._wake()

    def finish(self, finished: Finished) -> None:
        """For the engine: the request ended."""
        with self._changed:
            self._finished = finished
            self._wake()

    def _waker(self) -> asyncio.Event:
        woken = asyncio.Event()
        self._wakers.append((asyncio.get_running_loop(), woken))
        return woken

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for loop, woken in wakers:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:  # that loop was closed while its task waited; nobody is left to tell
                continue
