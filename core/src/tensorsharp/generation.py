"""A reply while it is made: text from tokens, stop strings, and what is known at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tensorsharp.engine.handle import Ending, RequestHandle, Watch
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import BackendError
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.types import Finished, FinishReason, SamplingParams, Timings, TokenEvent, Usage

if TYPE_CHECKING:
    from tensorsharp.prompts import History, Prompt

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply.

    token_ids: every generated token, also those whose text was cut off with a stop string; end tokens are left out.
    logprobs: one event a token if log-probabilities were asked for, else None. stop: the stop string that ended it.
    history: None where the prompt's ids follow from its text alone, else what is said of them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenEvent, ...] | None = None
    stop: str | None = None
    history: History | None = None


class Running(Generic[Piece]):
    """A running request as pieces of what it gives. Iterate it (`for` or `async for`); the first piece that is read later
    waits for nothing but the model, which works meanwhile. BackendError if the request failed; the pieces before that
    were given. One that is dropped is cancelled. prompt: what it replies to, as ids, where it came from a conversation.
    """

    def __init__(self, handle: RequestHandle, *, logprobs: bool, prompt: Prompt | None = None) -> None:
        self.prompt = prompt
        self._handle = handle
        self._logprobs = logprobs
        self._events: list[TokenEvent] = []
        self._text: list[str] = []
        self._ready: deque[Piece] = deque()
        self._ended = False
        self._over = False  # the tokens have ended by themselves
        self._cut = False
        self._stopped: str | None = None

    @property
    def seed(self) -> int:
        return self._handle.seed

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, known from the start."""
        return self._handle.prompt_tokens

    @property
    def tokens(self) -> tuple[TokenEvent, ...]:
        """The tokens that were read so far; those of the pieces given, and of what is held back."""
        return tuple(self._events)

    def cancel(self) -> None:
        """End it before the next token."""
        self._handle.cancel()

    def __del__(self) -> None:
        self._handle.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        while not self._ready and not self._ended:
            self._read(next(self._handle, None))
        if self._ready:
            return self._ready.popleft()
        self._raise_failure(self._handle.result())
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._ready and not self._ended:
            self._read(await anext(self._handle, None))
        if self._ready:
            return self._ready.popleft()
        self._raise_failure(await self._handle.wait())
        raise StopAsyncIteration

    async def ready(self) -> list[Piece]:
        """Wait for the next piece: it, and those behind it that are there already. Empty at the end."""
        while not self._ready and not self._ended:
            for event in await self._handle.ready() or (None,):
                if not self._ended:
                    self._read(event)
        pieces = list(self._ready)
        self._ready.clear()
        if not pieces:
            self._raise_failure(await self._handle.wait())
        return pieces

    def _read(self, event: TokenEvent | None) -> None:
        """Take a token; None is the end of the tokens."""
        if event is None:
            self._ended = self._over = True
        else:
            self._events.append(event)
        self._ready += self._take(None if event is None else event.token)
        if event is None:
            self._remember()

    def _remember(self) -> None:
        """Have the reply of a conversation remembered, if it is whole."""
        keep = None if self.prompt is None else self.prompt.keep
        if keep is not None and not self._cut and self._handle.result().reason in ("stop", "length"):
            keep("".join(self._text), [e.token for e in self._events])

    def _take(self, token: int | None) -> Iterable[Piece]:
        """The pieces that a token makes certain, or at the end (None) those held back."""
        raise NotImplementedError

    def _end(self, stop: str | None = None) -> None:
        """The reply is whole: no more tokens are wanted. stop: the stop string that ended it."""
        self._ended = self._cut = True
        self._stopped = stop
        self._handle.cancel("stop", stop)

    def _raise_failure(self, finished: Finished) -> None:
        """What failed behind the end of the reply is no failure of it."""
        if self._over and finished.reason == "error":
            raise BackendError(finished.error or "The request failed.")

    def _reply(self, finished: Finished) -> Reply:
        return Reply(
            text="".join(self._text),
            token_ids=tuple(e.token for e in self._events),
            finish_reason="stop" if self._cut else finished.reason,
            seed=finished.seed,
            usage=replace(finished.usage, completion=len(self._events)),
            timings=finished.timings,
            logprobs=tuple(self._events) if self._logprobs else None,
            stop=self._stopped,
            history=None if self.prompt is None else self.prompt.history,
        )


class Generation(Running[str]):
    """A running request as text: pieces that join to the reply's.

    `result()` or `await wait()` reads the rest and gives the :class:`Reply`.
    """

    def __init__(self, handle: RequestHandle, text: TextStream, *, logprobs: bool, prompt: Prompt | None = None) -> None:
        super().__init__(handle, logprobs=logprobs, prompt=prompt)
        self._stream = text

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

    def _take(self, token: int | None) -> Iterable[str]:
        piece = self._stream.finish() if token is None else self._stream.push(token)
        if piece:
            self._text.append(piece)
        if self._stream.stopped and not self._cut:
            self._end(self._stream.stopped)
        return (piece,) if piece else ()


def watch_stops(tokenizer: Tokenizer, params: SamplingParams) -> Watch | None:
    """Ends a :class:`Generation` with the token that makes a stop string whole; None if there is nothing to look for."""
    if not params.stop:
        return None
    text = TextStream(tokenizer, params.stop)

    def watch(token: int) -> Ending | None:
        text.push(token)
        return None if text.stopped is None else ("stop", text.stopped)

    return watch
