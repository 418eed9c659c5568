"""A reply while it is made: text from tokens, stop strings, and what is known at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import BackendError
from tensorsharp.types import Finished, FinishReason, Timings, TokenEvent, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply.

    token_ids: every generated token, also those whose text was cut off with a stop string; end tokens are left out.
    logprobs: one event a token if log-probabilities were asked for, else None. stop: the stop string that ended it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenEvent, ...] | None = None
    stop: str | None = None


class Generation:
    """A running request as text. Iterate it (`for` or `async for`) for pieces; the first piece that is read later
    waits for nothing but the model, which works meanwhile.

    `result()` or `await wait()` reads the rest and gives the :class:`Reply`. BackendError if the request failed; the
    pieces before that were given. A generation that is dropped is cancelled.
    """

    def __init__(self, handle: RequestHandle, text: TextStream, *, logprobs: bool) -> None:
        self._handle = handle
        self._text = text
        self._logprobs = logprobs
        self._events: list[TokenEvent] = []
        self._pieces: list[str] = []
        self._ended = False

    @property
    def seed(self) -> int:
        return self._handle.seed

    def cancel(self) -> None:
        """End it before the next token."""
        self._handle.cancel()

    def __del__(self) -> None:
        self._handle.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while not self._ended:
            piece = self._take(next(self._handle, None))
            if piece:
                return piece
        _raise_failure(self._handle.result())
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._ended:
            piece = self._take(await anext(self._handle, None))
            if piece:
                return piece
        _raise_failure(await self._handle.wait())
        raise StopAsyncIteration

    def result(self) -> Reply:
        """Read the rest and wait for the end."""
        for _ in self:
            pass
        return self._reply(self._handle.result())

    async def wait(self) -> Reply:
        """`result()` for asyncio."""
        async for _ in self:
            pass
        return self._reply(await self._handle.wait())

    def _take(self, event: TokenEvent | None) -> str:
        """The text that a token makes certain; None is the end of the tokens."""
        if event is None:
            self._ended = True
            piece = self._text.finish()
        else:
            self._events.append(event)
            piece = self._text.push(event.token)
            if self._text.stopped:
                self._ended = True
                self._handle.cancel("stop", self._text.stopped)
        if piece:
            self._pieces.append(piece)
        return piece

    def _reply(self, finished: Finished) -> Reply:
        return Reply(
            text="".join(self._pieces),
            token_ids=tuple(e.token for e in self._events),
            finish_reason="stop" if self._text.stopped else finished.reason,
            seed=finished.seed,
            usage=replace(finished.usage, completion=len(self._events)),
            timings=finished.timings,
            logprobs=tuple(self._events) if self._logprobs else None,
            stop=self._text.stopped,
        )


def _raise_failure(finished: Finished) -> None:
    if finished.reason == "error":
        raise BackendError(finished.error or "The request failed.")
