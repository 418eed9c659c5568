"""What every wire protocol translates to and from: a prompt or a conversation in, deltas of one or more answers out."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tensorsharp.chat import ChatGeneration, ChatOptions, ChatReply, ContentDelta, Delta, ReasoningDelta
from tensorsharp.choices import choices
from tensorsharp.engine.evaluation import Evaluation
from tensorsharp.engine.handle import RequestHandle
from tensorsharp.errors import BackendError, RequestError
from tensorsharp.generation import Generation, Reply
from tensorsharp.llm import LLM
from tensorsharp.text.toolcalls import read_tools
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.endpoint import Call
from tensorsharp_app_server.errors import RefusedError
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.sampling import renamed


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of any protocol. params: arguments of SamplingParams. count: choices for each prompt.

    messages: a conversation, with its options; or prompts: texts or token ids, for which only the options' constraint counts; or
    both: then the prompts are for a model without a chat template. suffix: the text behind the reply, if there is one prompt.
    names: what the client calls the fields of the engine and of ChatOptions, where that differs. keep_alive_s: how long the
    model stays afterwards.
    """

    model: str | None
    params: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] | None = None
    options: ChatOptions = field(default_factory=ChatOptions)
    prompts: Sequence[str | Sequence[int]] = ()
    suffix: str | None = None
    count: int = 1
    names: Mapping[str, str] = field(default_factory=dict)
    keep_alive_s: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one answer has become by some more tokens.

    tokens: if log-probabilities were asked for, those that came with it. done: in an answer's last chunk, all of it; of a
    prompt without messages, its text is the content.
    """

    index: int
    delta: Delta | None
    tokens: tuple[TokenEvent, ...]
    done: ChatReply | None = None


@dataclass
class Answers:
    """The answers to one request while they are made: `count` to the first prompt, then those to the next one.

    prompt_ids: the prompts as token ids, where they were no conversation. load_s: how long it took to have the model.
    """

    served: Served
    logprobs: bool
    load_s: float = 0.0
    running: list[Generation | ChatGeneration] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The chunks of all answers as they come; those of one answer in order."""
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

    async def finished(self) -> list[tuple[ChatReply, list[TokenEvent]]]:
        """Each answer as a whole, with its tokens if log-probabilities were asked for."""
        tokens: list[list[TokenEvent]] = [[] for _ in self.running]
        done: dict[int, ChatReply] = {}
        async for chunk in self.chunks():
            tokens[chunk.index] += chunk.tokens
            if chunk.done is not None:
                done[chunk.index] = chunk.done
        return [(done[index], tokens[index]) for index in range(len(self.running))]

    def cancel(self) -> None:
        """End what still runs."""
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
        running = self.running[index]
        given = _TokensGiven(self.served, running) if self.logprobs else None
        if given is None:
            while pieces := await running.ready():
                for delta in _joined(pieces):
                    yield Chunk(index, delta, ())
        else:
            async for piece in running:
                delta = _delta(piece)
                yield Chunk(index, delta, given.after(delta))
        done = await _whole(running)
        yield Chunk(index, None, given.rest(done.reply) if given else (), done)


def _delta(piece: str | Delta) -> Delta:
    return ContentDelta(piece) if isinstance(piece, str) else piece


def _joined(pieces: Sequence[str | Delta]) -> list[Delta]:
    """The deltas of pieces that came at once; texts of one kind in a row are one."""
    found: list[Delta] = []
    for delta in map(_delta, pieces):
        last = found[-1] if found else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            found[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + delta.text)
        else:
            found.append(delta)
    return found


class _TokensGiven:
    """Which tokens come with which delta.

    Text is held back while it may become a stop string, and cut where it did; a token comes with its first character. What
    a conversation's markup is made of comes with the delta after it.
    """

    def __init__(self, served: Served, running: Generation | ChatGeneration) -> None:
        self._bytes_of = served.llm.tokenizer.bytes_of
        self._running = running
        self._plain = True  # until there is markup: so far the deltas are the text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = 0
        self._count = 0
        self._shown = 0

    def after(self, delta: Delta) -> tuple[TokenEvent, ...]:
        """The tokens that belong to what was given up to `delta`, and were not told before."""
        first, tokens = self._count, self._running.tokens
        self._plain = self._plain and isinstance(delta, ContentDelta)
        if not self._plain or not isinstance(delta, ContentDelta):
            self._count = len(tokens)
            return tokens[first:]
        self._shown += len(delta.text)
        while self._count < len(tokens) and self._begun < self._shown:
            self._begun += len(self._decoder.decode(self._bytes_of(tokens[self._count].token)))
            self._count += 1
        return tokens[first : self._count]

    def rest(self, reply: Reply) -> tuple[TokenEvent, ...]:
        """Tokens at the end that give no text of their own; none behind a stop string."""
        return () if reply.stop is not None else self._running.tokens[self._count :]


async def _whole(running: Generation | ChatGeneration) -> ChatReply:
    """A finished answer. RefusedError if something else than the model ended it."""
    if isinstance(running, ChatGeneration):
        done = await running.wait()
    else:
        reply = await running.wait()
        done = ChatReply(reply.text, "", (), reply.finish_reason, reply)
    if done.finish_reason == "cancelled":
        raise RefusedError(503, "The request was cancelled: the model is being closed.", code="cancelled", retry_after=5)
    return done


@asynccontextmanager
async def answering(call: Call, ask: Ask) -> AsyncIterator[Answers]:
    """The answers to a request, running; the model is held meanwhile, and what still runs in the end is cancelled."""
    async with AsyncExitStack() as stack:
        began = time.perf_counter()
        served = await stack.enter_async_context(call.service.host.use(ask.model, ask.keep_alive_s))
        answers = Answers(served, ask.params.get("logprobs") is not None, time.perf_counter() - began)
        stack.callback(answers.cancel)
        beginning = asyncio.ensure_future(asyncio.to_thread(_begin, answers, ask, call.id))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            with suppress(Exception):
                await beginning  # so that what it has begun is cancelled, too
            raise
        yield answers


async def evaluated(llm: LLM, jobs: Sequence[tuple[Sequence[int], Evaluation]], param: str) -> None:
    """Compute what several evaluations take of their token ids, together. Cancelled with the task that waits for it."""
    handles: list[RequestHandle] = []
    try:
        for number, (ids, evaluation) in enumerate(jobs):
            try:
                handles.append(llm.engine.evaluate(ids, evaluation, param if len(jobs) == 1 else f"{param}[{number}]"))
            except RequestError as error:
                raise renamed(error, {"prompt_ids": param}) from error
        for handle in handles:
            finished = await handle.wait()
            if finished.reason != "length":
                raise BackendError(finished.error or f"It was ended: {finished.reason}.")
    finally:
        for handle in handles:
            handle.cancel()


def rendered(llm: LLM, messages: Sequence[Mapping[str, Any]], options: ChatOptions, names: Mapping[str, str]) -> str:
    """The text that a conversation becomes, ready for the reply. RequestError names the field by `names`, as in :class:`Ask`."""
    try:
        tools = read_tools(() if options.tool_choice == "none" else options.tools)
        return llm.dialect.prompt(messages, tools, options.reasoning, options.template_kwargs).text
    except RequestError as error:
        raise renamed(error, names) from error


def prompt_ids(llm: LLM, prompt: str | Sequence[int], suffix: str | None = None, *, reply: int | None = None) -> list[int]:
    """A prompt of a request as token ids. suffix: what stands behind the reply, if something does.

    reply: tokens that have to fit behind it; RequestError, before anything is tokenized, if it shows that they do not.
    """
    if not isinstance(prompt, str):
        return list(prompt)
    if reply is not None:
        llm.prompts.check(prompt, reply=reply)
    return llm.tokenize(prompt) if suffix is None else llm.fill_ids(prompt, suffix)


def _begin(answers: Answers, ask: Ask, id: str) -> None:
    """Hand everything to the engine. In a thread: templates and tokenizers may take their time.

    RequestError names the field as the client does.
    """
    llm = answers.served.llm
    messages = None if ask.prompts and not llm.has_template else ask.messages
    try:
        if messages is None:
            answers.prompt_ids = [prompt_ids(llm, p, ask.suffix, reply=1) for p in ask.prompts]
        for number in range(len(ask.prompts) if messages is None else 1):
            params = {**ask.params, "id": f"{id}-{number}-0" if number else id}
            if messages is None:
                start = partial(llm.stream_ids, answers.prompt_ids[number], constraint=ask.options.constraint)
                answers.running += choices(start, ask.count, **params)
            else:
                answers.running += choices(partial(llm.start_chat, messages, ask.options), ask.count, **params)
    except RequestError as error:
        raise renamed(error, ask.names) from error
