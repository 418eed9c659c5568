"""What a caller holds of a running request: tokens as they come, from a thread or from asyncio."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from tensorsharp.types import Finished, FinishReason, TokenEvent

if TYPE_CHECKING:
    import asyncio


class RequestHandle:
    """One request. Iterate it (`for` or `async for`) for its tokens; iteration ends with the request.

    A request that fails ends its iteration too: `result()` says how it ended. Each token is given out once.
    prompt_tokens: how many it has to read.
    """

    def __init__(self, id: str, seed: int, ended: Callable[[Finished], None] | None = None, *, prompt_tokens: int = 0) -> None:
        self.id = id
        self.seed = seed
        self.prompt_tokens = prompt_tokens
        self._ended = ended
        self.ending: tuple[FinishReason, str | None] | None = None
        self._events: deque[TokenEvent] = deque()
        self._finished: Finished | None = None
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], object]] = []

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
                woken = self._waker()
            await woken.wait()

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
                woken = self._waker()
            await woken.wait()

    def token(self, event: TokenEvent) -> None:
        """For the engine: a token was made."""
        with self._changed:
            self._events.append(event)
            self._wake()

    def finish(self, finished: Finished) -> None:
        """For the engine: the request ended."""
        if self._ended is not None:
            self._ended(finished)
        with self._changed:
            self._finished = finished
            self._wake()

    def _waker(self) -> asyncio.Event:
        import asyncio  # costs as much as all the rest of the engine; only those who use it pay

        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wakers.append(partial(loop.call_soon_threadsafe, woken.set))
        return woken

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            try:
                wake()
            except RuntimeError:  # that loop was closed while its task waited: nobody is left to tell
                continue
