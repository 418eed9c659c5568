"""Replies between tags: the same however they arrive, no markup in the text, no text lost."""

from __future__ import annotations

import pytest
from core.tests.text.replies import Read, read_every_way

from tensorsharp.text.channels import PLAIN, Reasoning, tagged_reply
from tensorsharp.text.formats.tagged_json import TAGGED_JSON

THINK = Reasoning("<think>", "</think>")
TAGGED = tagged_reply(TAGGED_JSON, THINK)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
BERN = ("weather", {"city": "Bern"})


@pytest.mark.parametrize("text", ["", "Hello", "  Hello\n\n", "<think>a</think>", CALL, "é\n\u2028 <b>"])
def test_a_plain_reply_is_its_text(text: str) -> None:
    assert read_every_way(PLAIN, text) == Read(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", Read("Hello")),
        (" Hello \n", Read(" Hello \n")),
        ("<think>\nWell.\n</think>\n\nYes. ", Read("Yes. ", "Well.")),
        ("\n<think>\nWell. So\n\n</think>Yes", Read("Yes", "Well. So")),
        ("<think>\n\n</think>\n\nYes", Read("Yes")),
        ("<think>Well ", Read("", "Well ")),
        ("Say <think> or </think> <thin", Read("Say <think> or </think> <thin")),
        (CALL, Read(calls=(BERN,))),
        (f"I look.\n\n{CALL}\n", Read("I look.", calls=(BERN,))),
        (f"{CALL}\n{CALL}", Read(calls=(BERN, BERN))),
        (f"One.\n{CALL}\nTwo.\n", Read("One.\n\nTwo.\n", calls=(BERN,))),
        (f"<think>Which?</think>{CALL}", Read("", "Which?", (BERN,))),
        (f"<think>Which?\n{CALL}\nDone.</think>Yes", Read("Yes", "Which?\n\nDone.", (BERN,))),
        (f"<think>a</think>{CALL}<think>b</think>c", Read("c", "a\n\nb", (BERN,))),
    ],
)
def test_reasoning_content_and_calls(text: str, expected: Read) -> None:
    assert read_every_way(TAGGED, text) == expected
