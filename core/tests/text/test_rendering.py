"""Where the parts of a conversation lie in its text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.text.rendering import Rendered, common_length
from tensorsharp.text.template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [
    {"role": "user", "content": "a question"},
    {"role": "assistant", "content": "An answer."},
    {"role": "user", "content": "Another one?"},
]


def parts(source: str, messages: list[dict[str, Any]], **variables: Any) -> list[str]:
    """The text, cut at its marks."""
    rendered = Rendered(ChatTemplate(source), messages, variables)
    edges = [0, *rendered.marks(), len(rendered.text)]
    return [rendered.text[a:b] for a, b in pairwise(edges)]


def test_the_shared_beginning_the_last_message_and_the_reply() -> None:
    assert parts(CHATML, [SYSTEM, *TALK]) == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
        "a question<|im_end|>\n<|im_start|>assistant\nAn answer.<|im_end|>\n",
        "<|im_start|>user\nAnother one?<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


def test_a_template_that_puts_the_system_message_into_the_first_one_of_the_user() -> None:
    source = (
        "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]"
        "{% if messages[0].role == 'system' and loop.index0 == 1 %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert parts(source, [SYSTEM, *TALK[:1]]) == ["[user]Be brief.\n\n", "a question", "[assistant]"]


def test_tools_belong_to_what_is_shared() -> None:
    source = "{% for t in tools %}{{ t.name }};{% endfor %}" + CHATML
    assert parts(source, TALK[:1], tools=[{"name": "now"}])[0] == "now;<|im_start|>user\n"


def test_nothing_is_shared_where_a_template_begins_with_the_message() -> None:
    source = "{% for m in messages %}{{ m.content }}[{{ m.role }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    text = Rendered(ChatTemplate(source), TALK, {}).text
    assert Rendered(ChatTemplate(source), TALK, {}).marks() == [0, text.index("Another"), len(text) - 1]


def test_what_a_template_refuses_has_no_mark() -> None:
    refusing = "{% if messages|length % 2 == 0 %}{{ raise_exception('no') }}{% endif %}" + CHATML
    found = parts(refusing, TALK)
    assert found[0] == "<|im_start|>user\n"
    assert found[-1] == "<|im_start|>assistant\n"
    assert len(found) == 3, "the one before the last message is refused"


def test_content_in_parts_and_a_conversation_that_is_only_a_system_message() -> None:
    parted = [{"role": "user", "content": [{"type": "text", "text": "bird"}]}]
    source = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}>"
    assert parts(source, parted) == ["[user]", "bird>"]
    assert parts(CHATML, [SYSTEM]) == ["<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_start|>assistant\n"]


@given(st.text("ab", max_size=9), st.text("ab", max_size=9))
def test_what_two_texts_begin_with(a: str, b: str) -> None:
    length = common_length(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == len(a) == len(b)


@pytest.mark.parametrize("count", [1, 10, 400])
def test_the_marks_take_three_renderings_of_a_conversation_of_any_length(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    template, made = ChatTemplate(CHATML), []
    render = template.render
    monkeypatch.setattr(template, "render", lambda messages, **v: made.append(messages) or render(messages, **v))
    rendered = Rendered(template, TALK * count, {})
    assert len(rendered.marks()) == 3
    assert [len(messages) for messages in made] == [3 * count, 1, 3 * count - 1, 3 * count]
