"""What every dialect translates to and from: a prompt or a conversation in, deltas of one or more answers out."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tensorsharp.errors import RequestError
from tensorsharp.generation import Generation, Reply
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.endpoint import Call
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.sampling import renamed, seeds


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


Delta = ContentDelta


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of any dialect. params: arguments of SamplingParams. count: choices for each prompt.

    messages: a conversation, for the model's chat template; or prompts: texts or token ids. prompt_field: what the client
    calls them. keep_alive_s: how long the model stays afterwards.
    """

    model: str | None
    params: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] | None = None
    prompts: Sequence[str | Sequence[int]] = ()
    count: int = 1
    prompt_field: str = "messages"
    keep_alive_s: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one answer has become by some more tokens. tokens: if log-probabilities were asked for, those whose text it begins."""

    index: int
    deltas: tuple[Delta, ...]
    tokens: tuple[TokenEvent, ...]
    reply: Reply | None = None
    """Set in an answer's last chunk."""


@dataclass
class Answers:
    """The answers to one request while they are made: `count` for the first prompt, then those of the next one."""

    served: Served
    logprobs: bool
    running: list[Generation] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The chunks of all answers as they come; those of one answer in order. Cancels what runs when it is closed."""
        if len(self.running) == 1:
            async for chunk in self._chunks(0):
                yield chunk
            return
        queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(maxsize=2 * len(self.running))
        tasks = [asyncio.create_task(self._feed(index, queue)) for index in range(len(self.running))]
        try:
            for _ in tasks:
                while (item := await queue.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def replies(self) -> list[tuple[list[Chunk], Reply]]:
        """Everything: for each answer its chunks and the reply."""
        found: list[list[Chunk]] = [[] for _ in self.running]
        async for chunk in self.chunks():
            found[chunk.index].append(chunk)
        return [(chunks, reply) for chunks in found if (reply := chunks[-1].reply) is not None]

    def cancel(self) -> None:
        for generation in self.running:
            generation.cancel()

    async def _feed(self, index: int, queue: asyncio.Queue[Chunk | Exception | None]) -> None:
        try:
            async for chunk in self._chunks(index):
                await queue.put(chunk)
        except Exception as error:
            await queue.put(error)
        await queue.put(None)

    async def _chunks(self, index: int) -> AsyncIterator[Chunk]:
        generation = self.running[index]
        given = TokensGiven(self.served, generation) if self.logprobs else None
        async for piece in generation:
            yield Chunk(index, (ContentDelta(piece),), given.after(piece) if given else ())
        reply = await generation.wait()
        if reply.finish_reason == "timeout":
            raise RefusedError(503, "The request took too long.", code="timeout", final=True)
        if reply.finish_reason == "cancelled":
            raise RefusedError(503, "The request was cancelled: the model is being closed.", code="cancelled", retry_after=5)
        yield Chunk(index, (), given.rest(reply) if given else (), reply)


class TokensGiven:
    """Which tokens belong to the text that was given so far.

    Text is held back while it may become a stop string, and cut where it did; a token goes with its first character.
    """

    def __init__(self, served: Served, generation: Generation) -> None:
        self._bytes_of = served.llm.tokenizer.bytes_of
        self._generation = generation
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = 0
        self._count = 0
        self._shown = 0

    def after(self, piece: str) -> tuple[TokenEvent, ...]:
        """The tokens that begin in `piece`, which follows the text so far."""
        self._shown += len(piece)
        first = self._count
        tokens = self._generation.tokens
        while self._count < len(tokens) and self._begun < self._shown:
            self._begun += len(self._decoder.decode(self._bytes_of(tokens[self._count].token)))
            self._count += 1
        return tokens[first : self._count]

    def rest(self, reply: Reply) -> tuple[TokenEvent, ...]:
        """Tokens at the end that give no text of their own; none behind a stop string."""
        return () if reply.stop is not None else self._generation.tokens[self._count :]


@asynccontextmanager
async def answering(call: Call, ask: Ask) -> AsyncIterator[Answers]:
    """The answers to a request, running; the model is held meanwhile, and what still runs in the end is cancelled."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(call.service.host.use(ask.model, ask.keep_alive_s))
        call.told["model"] = served.name
        answers = Answers(served, ask.params.get("logprobs") is not None)
        stack.callback(answers.cancel)
        preparing = asyncio.ensure_future(asyncio.to_thread(_begin, answers, ask))
        try:
            await asyncio.shield(preparing)
        except asyncio.CancelledError:
            with suppress(Exception):
                await preparing  # so that what it has begun is cancelled, too
            raise
        yield answers


def _begin(answers: Answers, ask: Ask) -> None:
    """In a thread, as templates and tokenizers may take their time: submit everything, or nothing."""
    llm = answers.served.llm
    try:
        if ask.messages is not None:
            answers.prompt_ids = [llm.tokenize_chat(ask.messages)]
        else:
            answers.prompt_ids = [llm.tokenize(p) if isinstance(p, str) else list(p) for p in ask.prompts]
        for ids in answers.prompt_ids:
            for seed in seeds(ask.params, ask.count):
                answers.running.append(llm.stream_ids(ids, **{**ask.params, "seed": seed}))
    except RequestError as error:
        answers.cancel()
        raise renamed(error, {"prompt_ids": ask.prompt_field}) from error
    except BaseException:
        answers.cancel()
        raise
