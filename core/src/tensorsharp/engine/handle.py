"""What a caller holds of a running request: tokens as they come, from a thread or from asyncio."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeAlias

from tensorsharp.types import Finished, FinishReason, TokenEvent

if TYPE_CHECKING:
    import asyncio

Ending: TypeAlias = tuple[FinishReason, str | None]
"""The reason with which a request ends, and the stop string if one ended it."""
Watch: TypeAlias = Callable[[int], Ending | None]
"""Sees every token of a reply, in order; if it gives an ending, the request ends with that token."""


class RequestHandle:
    """One request. Iterate it (`for` or `async for`) for its tokens; iteration ends with the request.

    A request that fails ends its iteration too: `result()` says how it ended. Each token is given out once.
    watch: called where the token is made, so that what ends the request does not depend on when it is read.
    ended: called with its end. changed: called when there is something new, so that `wake` is called soon. prompt_tokens: how
    many it has to read.
    """

    def __init__(
        self,
        id: str,
        seed: int,
        ended: Callable[[Finished], None] | None = None,
        changed: Callable[[RequestHandle], None] | None = None,
        *,
        prompt_tokens: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self.id = id
        self.seed = seed
        self.prompt_tokens = prompt_tokens
        self._ended = ended
        self._tell = changed
        self._watch = watch
        self.ending: Ending | None = None
        self._events: deque[TokenEvent] = deque()
        self._finished: Finished | None = None
        self._changed = threading.Condition()
        self._waiting: list[asyncio.Future[None]] = []

    def cancel(self, reason: FinishReason = "cancelled", stop: str | None = None) -> None:
        """End the request before its next token, with `reason`; nothing happens if it has ended. From any thread."""
        if self.ending is None:
            self.ending = (reason, stop)

    @property
    def done(self) -> bool:
        return self._finished is not None

    def result(self, timeout: float | None = None) -> Finished:
        """Wait for the end, whether or not the tokens were read. TimeoutError after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.done, timeout)
            if self._finished is None:
                raise TimeoutError(f"request {self.id} has not ended after {timeout} s")
            return self._finished

    async def wait(self) -> Finished:
        """`result()` for asyncio."""
        while True:
            with self._changed:
                if self._finished is not None:
                    return self._finished
                woken = self._woken()
            await woken

    async def ready(self) -> list[TokenEvent]:
        """Wait for the next token: it, and those behind it that are there already. Empty at the end."""
        while True:
            with self._changed:
                if self._events or self.done:
                    events = list(self._events)
                    self._events.clear()
                    return events
                woken = self._woken()
            await woken

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TokenEvent:
        with self._changed:
            self._changed.wait_for(lambda: self._events or self.done)
            if not self._events:
                raise StopIteration
            return self._events.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        while True:
            with self._changed:
                if self._events:
                    return self._events.popleft()
                if self.done:
                    raise StopAsyncIteration
                woken = self._woken()
            await woken

    def token(self, event: TokenEvent) -> None:
        """For the engine: a token was made."""
        if self._watch is not None:
            with suppress(Exception):  # who reads the tokens meets the same, and it is no affair of other requests
                found = self._watch(event.token)
                if found is not None:
                    self.cancel(*found)
        with self._changed:
            self._events.append(event)
        if self._tell is not None:
            self._tell(self)

    def finish(self, finished: Finished) -> None:
        """For the engine: the request ended."""
        if self._ended is not None:
            self._ended(finished)
        with self._changed:
            self._finished = finished
        if self._tell is not None:
            self._tell(self)

    def wake(self) -> list[asyncio.Future[None]]:
        """For the engine: wake the threads that wait; the futures that tasks wait for."""
        with self._changed:
            self._changed.notify_all()
            waiting, self._waiting = self._waiting, []
        return waiting

    def _woken(self) -> asyncio.Future[None]:
        import asyncio  # costs as much as all the rest of the engine; only those who use it pay

        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [*(one for one in self._waiting if not one.done()), woken]  # tasks may have been cancelled meanwhile
        return woken
