"""Replies of a conversation: content, reasoning and tool calls, as they come and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING, Any, Literal

from tensorsharp.deltastream import DeltaStream, watch_deltas
from tensorsharp.engine.handle import RequestHandle, Watch
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import RequestError
from tensorsharp.generation import Reply, Running
from tensorsharp.replygrammar import reply_grammar
from tensorsharp.text.channels import ReplyParser
from tensorsharp.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCall, ToolCallDelta
from tensorsharp.text.toolcalls import Tools, read_tools
from tensorsharp.types import Constraint, Effort, Finished, FinishReason, SamplingParams

if TYPE_CHECKING:
    from tensorsharp.llm import LLM
    from tensorsharp.prompts import Prompt

__all__ = [
    "ChatGeneration",
    "ChatOptions",
    "ChatReply",
    "ContentDelta",
    "Delta",
    "NamedTool",
    "ReasoningDelta",
    "ToolCall",
    "ToolCallDelta",
]


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The choice of one tool, which has to be called."""

    name: str


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a conversation asks for beside its messages and the parameters of sampling.

    tools: definitions as OpenAI's clients send them, or the functions alone. tool_choice: `none` leaves the tools out of the
    prompt and delivers no calls; `required` and a tool's name bind the reply to calls. parallel_tool_calls False: the reply ends
    with its first call.

    reasoning: None leaves it to the template, True and False switch it, a level says how much; where a template has no switch,
    False closes the reasoning at the end of the prompt, and a level where it knows none is True. reasoning_budget: tokens after
    which reasoning at the beginning of the reply is ended. template_kwargs: further variables of the template. constraint: the
    form of the content; reasoning before it is free. With tools the reply is calls alone, or content that keeps the form; where a
    call is required there is no content.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    reasoning: bool | Effort | None = None
    reasoning_budget: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A finished reply. finish_reason: `tool_calls` for a reply that ended with calls. reply: its tokens and their text.

    reasoning_tokens: those of the reply that gave its reasoning, with the markup before it.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason | Literal["tool_calls"]
    reply: Reply
    reasoning_tokens: int = 0


class ChatGeneration(Running[Delta]):
    """A running reply as deltas. `result()` or `await wait()` reads the rest and gives the :class:`ChatReply`."""

    def __init__(
        self,
        handle: RequestHandle,
        text: TextStream,
        parser: ReplyParser,
        stop: Sequence[str],
        *,
        one_call: bool,
        logprobs: bool,
        prompt: Prompt | None = None,
    ) -> None:
        super().__init__(handle, logprobs=logprobs, prompt=prompt)
        self._stream = text
        self._deltas = DeltaStream(parser, stop, one_call=one_call)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def result(self) -> ChatReply:
        """Read the rest and wait for the end."""
        for _ in self:
            pass
        return self._chat_reply(self._handle.result())

    async def wait(self) -> ChatReply:
        """`result()` for asyncio."""
        async for _ in self:
            pass
        return self._chat_reply(await self._handle.wait())

    def _take(self, token: int | None) -> Iterable[Delta]:
        if token is None:
            piece = self._stream.finish()
            deltas = self._deltas.finish(piece)
        else:
            piece = self._stream.push(token)
            deltas = self._deltas.push(piece)
        self._text.append(piece)
        for delta in deltas:
            self._keep(delta)
        if self._deltas.ending is not None:
            self._end(self._deltas.ending[1])
        return deltas

    def _keep(self, delta: Delta) -> None:
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
        elif delta.id is not None:
            self._calls.append(ToolCall(delta.id, delta.name or "", ""))
        else:
            last = self._calls[-1]
            self._calls[-1] = ToolCall(last.id, last.name, last.arguments + delta.arguments)

    def _chat_reply(self, finished: Finished) -> ChatReply:
        reply = self._reply(finished)
        return ChatReply(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
            finish_reason="tool_calls" if self._calls and reply.finish_reason == "stop" else reply.finish_reason,
            reply=reply,
            reasoning_tokens=self._deltas.reasoning_tokens,
        )


def start_chat(
    llm: LLM, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None, params: Mapping[str, Any]
) -> ChatGeneration:
    """See :meth:`tensorsharp.llm.LLM.start_chat`."""
    asked = options or ChatOptions()
    tools = _tools(asked)
    prompt = llm.dialect.prompt(messages, tools, asked.reasoning, asked.template_kwargs)
    made = llm.prompts.make(prompt.rendered, scope=params.get("cache_scope"), history_ids=params.get("history_ids"))
    required = asked.tool_choice not in ("auto", "none")
    grammar = reply_grammar(
        llm,
        prompt,
        _callable(tools, asked.tool_choice),
        required=required,
        several=asked.parallel_tool_calls,
        constraint=asked.constraint,
        budget=asked.reasoning_budget,
    )
    formed = asked.constraint is not None and not asked.constraint.after and not required
    shown, salt, one_call = llm.dialect.shown(prompt.format), _salt(made.ids), not asked.parallel_tool_calls

    def text() -> TextStream:
        return TextStream(llm.tokenizer, shown=shown)

    def parser() -> ReplyParser:
        return ReplyParser(prompt.format, tools, opened=prompt.opened, formed=formed, salt=salt)

    def watch(sampling: SamplingParams) -> Watch | None:
        ends = bool(sampling.stop) or one_call
        return watch_deltas(text(), DeltaStream(parser(), sampling.stop, one_call=one_call)) if ends else None

    handle, sampling = llm.submit(made, params, grammar, watch)
    logprobs = sampling.logprobs is not None
    return ChatGeneration(handle, text(), parser(), sampling.stop, one_call=one_call, logprobs=logprobs, prompt=made)


def _tools(options: ChatOptions) -> Tools:
    """The tools that may be called. RequestError if a choice cannot be kept."""
    tools = read_tools(options.tools)
    choice = options.tool_choice
    if isinstance(choice, NamedTool) and choice.name not in tools.by_name:
        expected = f"expected one of {', '.join(tools.by_name)}" if tools.by_name else "there are none"
        raise RequestError(
            f"tool_choice names {choice.name!r:.150}, which is no tool; {expected}.",
            param="tool_choice",
            code="invalid_value",
        )
    if not isinstance(choice, NamedTool) and choice not in ("auto", "none", "required"):
        raise RequestError(
            f"tool_choice is {choice!r:.100}; expected auto, none, required or a tool.", param="tool_choice", code="invalid_value"
        )
    if choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools.", param="tool_choice", code="invalid_value")
    return Tools(()) if choice == "none" else tools


def _callable(tools: Tools, choice: str | NamedTool) -> Tools:
    return Tools([tools.by_name[choice.name]]) if isinstance(choice, NamedTool) else tools


def _salt(ids: Sequence[int]) -> bytes:
    """What tells calls of different prompts apart."""
    return blake2b(pack(f"<{len(ids)}q", *ids), digest_size=16).digest()
