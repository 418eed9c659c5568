"""The template for files without one writes the turns that Gemma 3 knows, wherever a system message stands."""

from __future__ import annotations

from typing import cast

import pytest

from tensorsharp.dialect import Dialect
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.template import ChatTemplate
from tensorsharp.text.toolcalls import Tools
from tensorsharp_model_gemma.conversations import STYLE

S, U, A, V = (
    {"role": role, "content": text} for role, text in (("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"))
)


def user(text: str) -> str:
    return f"<start_of_turn>user\n{text}<end_of_turn>\n"


def model(text: str) -> str:
    return f"<start_of_turn>model\n{text}<end_of_turn>\n"


def dialect() -> Dialect:
    assert STYLE.template is not None
    return Dialect(ChatTemplate(STYLE.template, "<bos>", "<eos>"), cast("Tokenizer", None), STYLE)


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([U], user("u")),
        ([U, A, V], user("u") + model("a") + user("v")),
        ([S, U], user("s\n\nu")),
        ([S, U, A, V], user("s\n\nu") + model("a") + user("v")),
        ([S, S, U], user("s\n\ns\n\nu")),
        ([S], user("s")),
        ([S, A, V], user("s") + model("a") + user("v")),
        ([U, A, S, V], user("u") + model("a") + user("s\n\nv")),
        ([{"role": "user", "content": " u\n"}, {"role": "assistant", "content": "\na "}, V], user("u") + model("a") + user("v")),
    ],
)
def test_turns(messages: list[dict[str, str]], turns: str) -> None:
    text = dialect().prompt(messages, Tools(())).text
    assert text == f"<bos>{turns}<start_of_turn>model\n"
    assert all(token in text for token in STYLE.tokens)


def test_tools_and_their_results_are_told_in_turns_of_the_user() -> None:
    call = {"type": "function", "id": "c", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        U,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]
    text = dialect().prompt(messages, Tools(())).text
    turns = text.removeprefix("<bos>").split("<start_of_turn>")[1:]
    assert [turn.partition("\n")[0] for turn in turns] == ["user", "model", "user", "model"]
    assert "add" in turns[1]
    assert "7" in turns[2]
