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


def test_the_shared_beginning_what_every_message_says_and_the_reply() -> None:
    assert parts(CHATML, [SYSTEM, *TALK]) == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
        "a question<|im_end|>\n<|im_start|>assistant\n",
        "An answer.<|im_end|>\n<|im_start|>user\n",
        "Another one?<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first, rest = messages[0].content + '\n\n', messages[1:] %}"
    "{% else %}{% set first, rest = '', messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{{ bos_token if loop.first }}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "llama 3": LLAMA3, "mistral": MISTRAL, "thinking": THINKING}
"""As those of models are: with headers, roles that alternate, a system message that moves, and thoughts that are left out."""


@pytest.mark.parametrize("system", [[SYSTEM], []], ids=["system", "none"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_message_is_found_where_what_it_says_begins(name: str, system: list[dict[str, Any]]) -> None:
    turns = [{"role": "user", "content": f" Question {i}?\n"} if i % 2 == 0 else answer(i) for i in range(9)]
    rendered = Rendered(ChatTemplate(TEMPLATES[name], "<s>", "</s>"), [*system, *turns], {})
    text, marks = rendered.text, rendered.marks()
    assert {text.index(turn["content"].strip()) for turn in turns[1:]} < {*marks}
    for number, mark in enumerate(text.index(turn["content"].strip()) for turn in turns):
        changed = [*turns[:number], {**turns[number], "content": "Something else."}, *turns[number + 1 :]]
        other = Rendered(ChatTemplate(TEMPLATES[name], "<s>", "</s>"), [*system, *changed], {})
        assert common_length(text, other.text) <= mark, "no mark is better"
    assert len(marks) <= len(turns) + 3, "besides: what is shared, and the reply"


def answer(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Answer {number}.", "reasoning_content": f"Thought {number}."}


def test_what_a_template_changes_or_leaves_out_has_no_mark_and_the_next_one_has() -> None:
    source = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}")
    said = ["First?", "Hm.</think>Yes.", "Second?", "", "Third?"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    found = parts(source, messages)
    assert [part.partition("<")[0] for part in found] == ["", "First?", "Second?", "Third?", ""]


@pytest.mark.parametrize("tiny", ["a", "s", "im", "user", "assistant", "<", "\n a", "."])
def test_a_tiny_message_hides_no_later_one(tiny: str) -> None:
    said = ["First question?", tiny, "Second question?", tiny, "Third question?"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    rendered = Rendered(ChatTemplate(CHATML), messages, {})
    text, marks = rendered.text, rendered.marks()
    starts = [text.index(question) for question in said[::2]]
    assert {*starts} < {*marks}
    header = len("<|im_end|>\n<|im_start|>assistant\n")
    for question, start in zip(said[0::2], starts, strict=True):
        end = start + len(question)
        assert question == said[-1] or sum(end <= mark <= end + header + len(tiny) for mark in marks) == 1, "next to its place"


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
    assert Rendered(ChatTemplate(source), TALK, {}).marks() == [0, text.index("An answer"), text.index("Another"), len(text) - 1]


def test_what_a_template_refuses_has_no_mark() -> None:
    refusing = "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + CHATML
    assert parts(refusing, TALK) == [
        "",
        "<|im_start|>user\n",
        "a question<|im_end|>\n<|im_start|>assistant\n",
        "An answer.<|im_end|>\n<|im_start|>user\n",
        "Another one?<|im_end|>\n<|im_start|>assistant\n",
    ]


def test_content_in_parts_and_a_conversation_that_is_only_a_system_message() -> None:
    parted = [
        {"role": role, "content": [{"type": "text", "text": text}]} for role, text in (("user", "bird"), ("assistant", "egg"))
    ]
    source = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}>"
    assert parts(source, parted) == ["[user]", "bird[assistant]", "egg>"]
    assert parts(CHATML, [SYSTEM]) == ["<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_start|>assistant\n"]


@given(st.text("ab", max_size=9), st.text("ab", max_size=9))
def test_what_two_texts_begin_with(a: str, b: str) -> None:
    length = common_length(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == len(a) == len(b)


@pytest.mark.parametrize("count", [1, 10, 400])
def test_the_marks_take_two_renderings_of_a_conversation_of_any_length(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    template, made = ChatTemplate(CHATML), []
    render = template.render
    monkeypatch.setattr(template, "render", lambda messages, **v: made.append(messages) or render(messages, **v))
    rendered = Rendered(template, TALK * count, {})
    assert len(rendered.marks()) == 3 * count + 1
    assert [len(messages) for messages in made] == [3 * count, 1, 3 * count]
