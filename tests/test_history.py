"""Conversations with SmolLM2: the next turn finds what was said, by text where it is cut alike, by remembered ids always."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.text.template import ChatTemplate
from tests.realmodels import SMOLLM2, needs

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Leaves what the model thought out of what it said before."""
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.5, "seed": 4, "top_k": 0, "min_p": 0.0},
}
TOKENS = 24


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load(needs(SMOLLM2), backend="ggml", ctx_size=1024, parallel=2) as made:
        yield made


def ask(llm: LLM, messages: list[dict[str, Any]], way: str, scope: str, **params: Any) -> Any:
    return llm.chat(messages, max_tokens=TOKENS, ignore_eos=True, logprobs=1, cache_scope=scope, **WAYS[way], **params)


@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_is_read_once_and_the_same_ids_give_the_same_reply(llm: LLM, way: str) -> None:
    messages: list[dict[str, Any]] = []
    known = 0
    for number, question in enumerate(("Why is the sky blue?", "And the sea?", "And grass, then?")):
        messages.append({"role": "user", "content": question})
        prompt = llm.chat_prompt(messages, history_ids=True, cache_scope=way)
        reply = ask(llm, messages, way, way, history_ids=True)
        assert reply.usage.cached == known
        assert (reply.history is None) == (number == 0)
        params = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1, **WAYS[way]}
        again = llm.stream_ids(prompt.ids, cache_scope=f"{way} cold {number}", **params).result()
        assert again.usage.cached == 0
        assert (again.token_ids, again.logprobs) == (reply.token_ids, reply.logprobs)
        known = len(prompt.ids) + TOKENS - 1
        messages.append({"role": "assistant", "content": reply.text})


def test_by_text_all_is_found_up_to_a_seam_and_what_lies_behind_it_is_counted(llm: LLM) -> None:
    messages: list[dict[str, Any]] = []
    known: list[int] = []
    for number in range(4):
        messages.append({"role": "user", "content": f"Tell me something, {number}."})
        ids, lost = llm.tokenize_chat(messages), llm.stats().seam_tokens
        reply = ask(llm, messages, "seeded", "by text")
        same = next((i for i, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), len(known))
        # the last token of a reply was not computed
        assert (reply.history, reply.usage.cached) == (None, min(same, max(0, len(known) - 1)))
        assert llm.stats().seam_tokens - lost == len(known) - same
        known = [*ids, *reply.token_ids]
        messages.append({"role": "assistant", "content": reply.text})
    assert llm.stats().seam_tokens > 0, "some of it was cut otherwise"


def test_thoughts_that_the_template_leaves_out_cost_no_more_than_their_turn(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llm.__dict__, "template", ChatTemplate(THINKING))
    messages: list[dict[str, Any]] = []
    known = 0
    for number in range(3):
        messages.append({"role": "user", "content": f"Question {number}: why is it so, and not otherwise?"})
        prompt = llm.chat_prompt(messages, history_ids=True, cache_scope="thoughts")
        reply = ask(llm, messages, "greedy", "thoughts", history_ids=True)
        assert reply.usage.cached >= known, "all that was the prompt of the last turn"
        known = len(prompt.ids)
        messages.append({"role": "assistant", "content": f"Hm. {reply.text}</think>Yes, {number}."})
