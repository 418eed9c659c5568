"""Replies of a conversation, from tokens to deltas and to the whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import pytest
from core.tests.text.replies import TOOLS, Read, joined

from tensorsharp.chat import ChatGeneration, ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import BackendError
from tensorsharp.text.channels import Reasoning, ReplyParser, tagged_reply
from tensorsharp.text.formats.tagged_json import TAGGED_JSON
from tensorsharp.types import Finished, FinishReason, Timings, TokenEvent, Usage

FORMAT = tagged_reply(TAGGED_JSON, Reasoning("<think>", "</think>"))
CALL = '<tool_call>{"name": "now"}</tool_call>'


class Letters:
    """A tokenizer whose tokens are characters; `<think>` and `</think>` are control tokens 1 and 2."""

    bos = None
    eos = None
    end_tokens: frozenset[int] = frozenset()
    vocab_size = 0x110000
    control = ("", "<think>", "</think>")

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        for token in (1, 2):
            text = text.replace(self.control[token], chr(token))
        return [ord(char) for char in text]

    def at_least(self, text: str, most: int) -> int:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        raise NotImplementedError

    def bytes_of(self, token: int) -> bytes:
        return b"" if token < len(self.control) else chr(token).encode()

    def piece(self, token: int) -> str:
        return self.control[token] if token < len(self.control) else chr(token)


def running(
    text: str, *, reason: FinishReason = "stop", stop: Sequence[str] = (), one_call: bool = False, error: str | None = None
) -> ChatGeneration:
    """A generation whose tokens were all made."""
    handle, tokens = RequestHandle("r", 7), Letters()
    ids = tokens.encode(text)
    for i, token in enumerate(ids):
        handle.token(TokenEvent(token, i))
    handle.finish(Finished(reason, 7, Usage(3, 0, len(ids)), Timings(), error))
    shown = {token: tokens.control[token] for token in (1, 2)}
    parser = ReplyParser(FORMAT, TOOLS, salt=b"prompt")
    return ChatGeneration(handle, TextStream(tokens, shown=shown), parser, stop, one_call=one_call, logprobs=False)


def test_deltas_join_to_the_reply() -> None:
    text = f"<think>Hm.</think>Let me see.{CALL}"
    deltas = list(running(text))
    reply = running(text).result()
    assert "".join(d.text for d in deltas if isinstance(d, ContentDelta)) == reply.content == "Let me see."
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == reply.reasoning == "Hm."
    [call] = reply.tool_calls
    assert [d for d in deltas if isinstance(d, ToolCallDelta)] == [
        ToolCallDelta(0, call.id, "now"),
        ToolCallDelta(0, arguments="{}"),
    ]
    assert (call.name, call.arguments, reply.finish_reason, reply.reply.finish_reason) == ("now", "{}", "tool_calls", "stop")
    assert (reply.reply.text, reply.reply.usage.completion) == (text, len(Letters().encode(text)))


def test_asyncio_gives_the_same() -> None:
    async def run() -> tuple[list[Delta], object]:
        generation = running(f"a{CALL}b")
        return [delta async for delta in generation], await generation.wait()

    deltas, reply = asyncio.run(run())
    assert (deltas, reply) == (list(running(f"a{CALL}b")), running(f"a{CALL}b").result())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("<think>Hm.</think>Yes.", 4),
        ("<think>Hm. </think>Yes.", 4),
        (f"<think>Hm.</think>{CALL}<think>So.</think>Yes.", 8),
        ("<think>Hm", 3),
        ("Yes.", 0),
        (CALL, 0),
    ],
    ids=["before an answer", "without the space behind it", "twice", "cut", "none", "a call"],
)
def test_reasoning_tokens_do_not_depend_on_how_they_come(text: str, count: int) -> None:
    async def at_once(generation: ChatGeneration) -> int:
        while await generation.ready():
            continue
        return (await generation.wait()).reasoning_tokens

    assert running(text).result().reasoning_tokens == count
    assert asyncio.run(at_once(running(text))) == count


def test_identifiers_depend_on_prompt_index_and_call() -> None:
    def ids(salt: bytes, text: str) -> list[str]:
        parser = ReplyParser(FORMAT, TOOLS, salt=salt)
        return [d.id for d in [*parser.feed(text), *parser.finish()] if isinstance(d, ToolCallDelta) and d.id]

    other = CALL.replace('"now"', '"weather"')
    made = [*ids(b"a", CALL * 2), *ids(b"b", CALL), *ids(b"a", other)]
    assert len(set(made)) == 4
    assert ids(b"a", CALL * 2) == made[:2]


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "stop"),
    [
        ("one two three", "one ", "", "two"),
        ("<think>two</think>one two", "one ", "two", "two"),
        ("one tw", "one tw", "", None),
        (f"one tw{CALL}o", "one tw\n\no", "", None),
        ('<tool_call>{"name": "now", "arguments": {"a": "two"}}</tool_call>', "", "", None),
        ("<tool_call>two", "<tool_call>", "", "two"),
    ],
)
def test_stop_strings_end_the_content_alone(text: str, content: str, reasoning: str, stop: str | None) -> None:
    reply = running(text, reason="length", stop=["two"]).result()
    assert (reply.content, reply.reasoning, reply.reply.stop) == (content, reasoning, stop)
    assert reply.finish_reason == ("stop" if stop else "length")


def test_a_stop_string_ends_with_the_token_that_makes_it_certain() -> None:
    assert running("one two three", stop=["two"]).result().reply.usage.completion == len("one two")


def test_the_first_call_may_be_the_only_one() -> None:
    reply = running(f"a{CALL}{CALL}b", reason="length", one_call=True).result()
    assert (reply.content, [c.name for c in reply.tool_calls], reply.finish_reason) == ("a", ["now"], "tool_calls")
    assert reply.reply.usage.completion == len(f"a{CALL}")


@pytest.mark.parametrize("reason", ["length", "cancelled", "timeout"])
def test_a_reply_that_is_cut_says_so(reason: FinishReason) -> None:
    reply = running(f"{CALL}<tool_call>{{", reason=reason).result()
    assert (reply.content, len(reply.tool_calls), reply.finish_reason) == ("<tool_call>{", 1, reason)


def test_a_failure_comes_after_what_was_given() -> None:
    given: list[Delta] = []
    with pytest.raises(BackendError, match="It broke"):
        deque(map(given.append, running("ab <thin", reason="error", error="It broke.")), maxlen=0)
    assert joined(given) == Read("ab <thin")


def test_a_failure_behind_the_end_of_a_reply_is_none() -> None:
    reply = running("one two three", stop=["two"], reason="error", error="It broke.").result()
    assert (reply.content, reply.finish_reason, reply.reply.usage.completion) == ("one ", "stop", len("one two"))
    with pytest.raises(BackendError, match="It broke"):  # what was held back may have gone on to be a call
        running("<tool_call>two", stop=["two"], reason="error", error="It broke.").result()
