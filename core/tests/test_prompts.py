"""Prompts of conversations: where messages start in the ids, and past replies as the ids that they were."""

from __future__ import annotations

import hashlib
import struct
import sys
import types
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from core.tests.llmfakes import VOCAB, Backend, Model, opened, write_file

from tensorsharp.choices import choices
from tensorsharp.errors import RequestError
from tensorsharp.generation import Reply
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.protocols.file import ModelFile
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.text.template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Leaves what the model thought out of what it said before."""
SYSTEM = {
    "role": "system",
    "content": "You are as brief as you can be, whatever you are asked, and always friendly to the one who asks.",
}


class Recurrent(Model):
    """Some of its state is in no block."""

    @classmethod
    def from_file(cls, file: ModelFile) -> FakeModel:
        return cls(VOCAB, context_length=9000, ring=4, recurrent=True)


@pytest.fixture(autouse=True)
def plugins(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = types.ModuleType("prompt_fakes")
    here.__dict__.update(Model=Model, Recurrent=Recurrent, Backend=Backend)
    monkeypatch.setitem(sys.modules, "prompt_fakes", here)
    for kind, name, target in (("model", "plain", "Model"), ("model", "recurrent", "Recurrent"), ("backend", "fake", "Backend")):
        site.plugin(kind, name, f"prompt_fakes_{name}", f"target='prompt_fakes:{target}', api=(1, 0), summary='For tests.'")
    opened.clear()
    yield
    assert opened == []


@pytest.fixture
def llm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LLM]:
    path = write_file(tmp_path / "model.gguf", template=CHATML, architecture=getattr(request, "param", "plain"))
    with load(path, backend="fake", parallel=4, ctx_size=1200) as made:
        yield made


EVERY = pytest.mark.parametrize("llm", ["plain", "recurrent"], indirect=True)


def turn(llm: LLM, messages: list[dict[str, Any]], **params: Any) -> Reply:
    """A reply of letters and spaces, which are cut into tokens in more than one way."""
    letters = {llm.tokenize(c, bos=False)[0]: 100.0 for c in "thean d"}
    asked = {"max_tokens": 24, "temperature": 1.0, "seed": len(messages), "logit_bias": letters, "ignore_eos": True}
    return llm.chat(messages, **{**asked, **params})


def talk(llm: LLM, turns: int, **params: Any) -> tuple[list[dict[str, Any]], list[Reply]]:
    messages: list[dict[str, Any]] = [SYSTEM]
    replies = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}, please?"})
        replies.append(turn(llm, messages, **params))
        messages.append({"role": "assistant", "content": replies[-1].text})
    return messages, replies


@pytest.mark.parametrize("llm", ["recurrent"], indirect=True)
def test_boundaries_are_where_messages_start(llm: LLM) -> None:
    messages = [
        SYSTEM,
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "3?"},
    ]
    prompt = llm.chat_prompt(messages)
    edges = [0, *prompt.boundaries, len(prompt.ids)]
    assert [llm.detokenize(prompt.ids[a:b], special=True) for a, b in pairwise(edges)] == [
        f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\n",
        "One?<|im_end|>\n<|im_start|>assistant\n",
        "Two.<|im_end|>\n<|im_start|>user\n",
        "3?<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]
    assert list(prompt.ids) == llm.tokenize_chat(messages)


@pytest.mark.parametrize("llm", ["recurrent"], indirect=True)
def test_a_start_inside_a_token_is_where_the_token_begins(llm: LLM) -> None:
    llm.__dict__["template"] = ChatTemplate("{% for m in messages %}x t{{ m.content }}{% endfor %}<|im_end|>")
    assert len(llm.tokenize("x the end")) < len(llm.tokenize("x t") + llm.tokenize("he end")), "a token goes across the start"
    assert llm.chat_prompt([{"role": "user", "content": "he end"}]).boundaries == (len(llm.tokenize("x")),)
    assert llm.chat_prompt([{"role": "user", "content": "-end"}]).boundaries == (len(llm.tokenize("x t")),)


def test_nobody_needs_them_where_all_state_is_in_blocks(llm: LLM) -> None:
    assert llm.chat_prompt([SYSTEM, {"role": "user", "content": "One?"}]).boundaries == ()


@pytest.mark.parametrize("llm", ["recurrent"], indirect=True)
def test_conversations_with_one_beginning_find_it(llm: LLM) -> None:
    ask = partial(llm.chat, max_tokens=2, seed=1)
    first, second = (ask([SYSTEM, {"role": "user", "content": text * 40}]) for text in ("One? ", "Two? "))
    shared = len(llm.tokenize(f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\n"))
    assert (first.usage.cached, second.usage.cached) == (0, shared // 32 * 32)


@EVERY
def test_text_gives_the_same_ids_whatever_was_said_before(llm: LLM) -> None:
    messages, replies = talk(llm, 3)
    assert all(reply.history is None for reply in replies)
    with_end = [*messages, {"role": "user", "content": "End."}]
    assert (
        llm.chat_prompt(with_end).ids
        == tuple(llm.tokenize_chat(with_end))
        == tuple(llm.tokenize_prompt(llm.dialect.template.render(with_end)))
    )
    assert any(list(r.token_ids) != llm.tokenize(r.text, bos=False) for r in replies), "so that there is something to lose"


@EVERY
def test_remembered_ids_stand_in_the_history(llm: LLM) -> None:
    messages, replies = talk(llm, 3, history_ids=True)
    assert [r.history and r.history.replies for r in replies] == [None, 1, 2]
    prompt = llm.chat_prompt([*messages, {"role": "user", "content": "End."}], history_ids=True)
    assert prompt.history is not None
    assert prompt.history.sha256 == hashlib.sha256(struct.pack(f"<{len(prompt.ids)}I", *prompt.ids)).hexdigest()
    at = 0
    for reply in replies:
        at = next(i for i in range(at, len(prompt.ids)) if prompt.ids[i : i + len(reply.token_ids)] == reply.token_ids)
    text = llm.dialect.template.render([*messages, {"role": "user", "content": "End."}])
    assert llm.detokenize(prompt.ids, special=True) == text, "no character is another one"
    assert llm.stats().seam_tokens == 0


@EVERY
def test_the_same_ids_sent_as_ids_give_the_same_reply(llm: LLM) -> None:
    messages, _ = talk(llm, 2, history_ids=True)
    messages = [*messages, {"role": "user", "content": "End."}]
    params = {"max_tokens": 20, "temperature": 1.0, "seed": 3, "logprobs": 2, "ignore_eos": True}
    told = llm.stream_chat(messages, history_ids=True, **params)
    prompt, reply = told.prompt, told.result()
    assert prompt is not None
    assert reply.history is not None
    again = llm.stream_ids(prompt.ids, cache_scope="another", **params).result()
    assert (again.token_ids, again.logprobs, again.text) == (reply.token_ids, reply.logprobs, reply.text)
    assert again.history is None


@pytest.mark.parametrize("llm", ["recurrent"], indirect=True)
def test_a_conversation_that_is_edited_is_computed_from_that_message_on(llm: LLM) -> None:
    ask = partial(llm.chat, max_tokens=2, seed=1)
    said = [{"role": role, "content": f"{role} says. " * 12} for role in ("user", "assistant", "user", "assistant", "user")]
    ask([SYSTEM, *said])
    for number in (3, 1):
        messages = [SYSTEM, *said[:number], {"role": said[number]["role"], "content": "Something else."}]
        start = llm.chat_prompt(messages).boundaries[number]
        assert ask([*messages, {"role": "user", "content": "Go on."}]).usage.cached == start // 32 * 32 > 0


@EVERY
def test_a_conversation_finds_all_of_its_last_turn(llm: LLM) -> None:
    messages, _ = talk(llm, 1, history_ids=True)
    for _ in range(2):
        before = llm.chat_prompt(messages[:-1], history_ids=True)
        messages = [*messages, {"role": "user", "content": "More?"}]
        reply = turn(llm, messages, history_ids=True)
        known = len(before.ids) + 24 - 1
        recurrent = llm.engine.uses_boundaries
        assert reply.usage.cached == (known // 32 * 32 if recurrent else known)
        messages = [*messages, {"role": "assistant", "content": reply.text}]


def test_what_is_lost_at_a_seam_is_counted(llm: LLM) -> None:
    messages, replies = talk(llm, 1)
    before = llm.tokenize_chat(messages[:-1])
    asked = [*messages, {"role": "user", "content": "More?"}]
    reply = turn(llm, asked)
    known = [*before, *replies[0].token_ids]
    same = next(i for i, (a, b) in enumerate(zip(known, llm.tokenize_chat(asked), strict=False)) if a != b)
    assert reply.usage.cached == same
    assert llm.stats().seam_tokens == len(known) - same > 0


@EVERY
def test_thoughts_that_the_template_leaves_out_cost_no_more_than_their_turn(llm: LLM) -> None:
    messages: list[dict[str, Any]] = [SYSTEM]
    known = 0
    for number in range(4):
        messages.append({"role": "user", "content": f"Question {number}, which is as long as a question may well be?"})
        reply = turn(llm, messages, max_tokens=40, history_ids=True)
        prompt = llm.tokenize_chat(messages)
        recurrent = llm.engine.uses_boundaries
        assert reply.usage.cached >= (known // 32 * 32 if recurrent else known), "all that was the prompt of the last turn"
        known = len(prompt) - 1
        messages.append({"role": "assistant", "content": f"Hm. {reply.text}</think>Yes, {number}."})


@pytest.mark.parametrize("change", ["edited", "longer", "another question", "cut off", "another scope"])
def test_what_is_not_exactly_what_was_said_is_tokenized(llm: LLM, change: str) -> None:
    messages, replies = talk(llm, 1, history_ids=True)
    text, scope = replies[0].text, None
    if change == "edited":
        messages[-1] = {"role": "assistant", "content": "X" + text[1:]}
    elif change == "longer":
        messages[-1] = {"role": "assistant", "content": text + "!"}
    elif change == "another question":
        messages[1] = {"role": "user", "content": "Another question?"}
    elif change == "cut off":
        messages[-1] = {"role": "assistant", "content": text[:-1]}
    else:
        scope = "another"
    messages.append({"role": "user", "content": "End."})
    prompt = llm.chat_prompt(messages, history_ids=True, cache_scope=scope)
    assert prompt.history is None
    assert list(prompt.ids) == llm.tokenize_chat(messages)


def test_replies_whose_tokens_are_not_all_in_their_text_are_not_remembered(llm: LLM) -> None:
    messages = [SYSTEM, {"role": "user", "content": "One?"}]
    hidden = llm.tokenize("<|endoftext|>", bos=False)[0]
    reply = llm.chat(messages, max_tokens=3, temperature=0, logit_bias={hidden: 100.0}, ignore_eos=True, history_ids=True)
    assert reply.token_ids == (hidden,) * 3
    stopped = turn(llm, messages, stop="t", history_ids=True)
    assert stopped.stop == "t"
    for text in (reply.text, stopped.text):
        asked = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "Two?"}]
        assert llm.chat_prompt(asked, history_ids=True).history is None


def test_it_is_a_parameter_of_a_request_and_of_the_model(tmp_path: Path) -> None:
    path = write_file(tmp_path / "model.gguf", template=CHATML, architecture="plain")
    with load(path, backend="fake", ctx_size=900, history_ids=True) as llm:
        messages, replies = talk(llm, 2)
        assert replies[1].history is not None
        messages.append({"role": "user", "content": "End."})
        assert llm.chat_prompt(messages, history_ids=False).history is None
        assert llm.start_chat(messages, max_tokens=2, seed=1).result().reply.history is not None
        with pytest.raises(RequestError, match="history_ids is 'yes'; expected true or false"):
            llm.chat(messages, history_ids="yes")


@EVERY
def test_choices_of_a_conversation_compute_its_prompt_once(llm: LLM) -> None:
    messages = [SYSTEM, {"role": "user", "content": "One? " * 20}]
    before = llm.stats().tokens_computed
    params = {"max_tokens": 5, "temperature": 1.0, "ignore_eos": True}
    made = [one.result() for one in choices(partial(llm.start_chat, messages), 4, seed=5, **params)]
    computed = llm.stats().tokens_computed - before
    assert [one.reply.seed for one in made] == [5, 6, 7, 8]
    length = len(llm.tokenize_chat(messages))
    recurrent = llm.engine.uses_boundaries
    own = length - (length - 1) // 32 * 32 if recurrent else 1
    assert computed == length + 3 * own + 4 * 4
    alone = [llm.start_chat(messages, seed=5 + i, cache_scope=str(i), **params).result() for i in range(4)]
    assert [one.reply.token_ids for one in made] == [one.reply.token_ids for one in alone]
