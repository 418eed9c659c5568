"""Replies of a conversation: content, reasoning and tool calls, as they come and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING, Any, Literal

from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.stream import StopStrings, TextStream
from tensorsharp.errors import RequestError
from tensorsharp.generation import Reply, Running
from tensorsharp.replygrammar import reply_grammar
from tensorsharp.text.channels import ReplyParser
from tensorsharp.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCall, ToolCallDelta
from tensorsharp.text.toolcalls import Tools, read_tools
from tensorsharp.types import Constraint, Effort, Finished, FinishReason

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
    """A running reply as deltas. `result()` or `await wait()` reads the rest and gives the :class:`ChatReply`.

    Stop strings are looked for in the content alone: not in reasoning, not in calls, and not across them.
    """

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
        self._parser = parser
        self._stops = StopStrings(stop)
        self._one_call = one_call
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._silent = 0  # tokens since the last delta
        self._reasoned = 0

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
        piece = self._stream.finish() if token is None else self._stream.push(token)
        self._text.append(piece)
        deltas = self._parser.feed(piece) if piece else []
        if token is None:
            deltas += self._parser.finish()
        self._count(token, deltas)
        made: list[Delta] = []
        for delta in deltas:
            if not self._cut:
                made += self._deliver(delta)
        if token is None and not self._cut:
            made += self._said(self._stops.release())
        return made

    def _count(self, token: int | None, deltas: Sequence[Delta]) -> None:
        """Tokens belong to the delta that they made certain."""
        self._silent += token is not None
        if deltas:
            self._reasoned += self._silent if any(isinstance(delta, ReasoningDelta) for delta in deltas) else 0
            self._silent = 0

    def _deliver(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ContentDelta):
            made = self._said(self._stops.push(delta.text))
            if self._stops.found:
                self._end(self._stops.found)
            return made
        if isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
        elif delta.id is not None:
            self._calls.append(ToolCall(delta.id, delta.name or "", ""))
        else:
            last = self._calls[-1]
            self._calls[-1] = ToolCall(last.id, last.name, last.arguments + delta.arguments)
            if self._one_call:
                self._end()
        return [*self._said(self._stops.release()), delta]

    def _said(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._content.append(text)
        return [ContentDelta(text)]

    def _chat_reply(self, finished: Finished) -> ChatReply:
        reply = self._reply(finished)
        return ChatReply(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
            finish_reason="tool_calls" if self._calls and reply.finish_reason == "stop" else reply.finish_reason,
            reply=reply,
            reasoning_tokens=self._reasoned,
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
    handle, sampling = llm.submit(made, params, grammar)
    return ChatGeneration(
        handle,
        TextStream(llm.tokenizer, shown=llm.dialect.shown(prompt.format)),
        ReplyParser(prompt.format, tools, opened=prompt.opened, formed=formed, salt=_salt(made.ids)),
        sampling.stop,
        one_call=not asked.parallel_tool_calls,
        logprobs=sampling.logprobs is not None,
        prompt=made,
    )


def _tools(options: ChatOptions) -> Tools:
    """The tools that may be called. RequestError if a choice cannot be kept."""
    tools = read_tools(options.tools)
    choice = options.tool_choice
    if isinstance(choice, NamedTool) and choice.name not in tools.by_name:
        raise RequestError(
            f"tool_choice names {choice.name!r:.150}, which is no tool; expected one of {', '.join(tools.by_name) or 'none'}.",
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
