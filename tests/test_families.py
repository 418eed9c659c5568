"""The chat templates that model plugins bring for files without one: on a real file, and beside llama.cpp's own writers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorsharp as ts
from tensorsharp.llm import TEMPLATE_KEY
from tensorsharp.protocols.chat import ChatStyle
from tensorsharp.text.template import ChatTemplate
from tensorsharp_model_gemma.conversations import STYLE
from tensorsharp_model_llama.conversations import STYLES
from tests.oracle.llamacpp import find_library, load
from tests.realmodels import GEMMA3, needs

TALKS = (
    (("user", "Why is the sky blue?"),),
    (("system", "Answer in French."), ("user", "Why is the sky blue?")),
    (("user", "Hi"), ("assistant", "Hello,\n\nhow are you?"), ("user", "Fine & you? <b>é</b>")),
    (("system", "Be\nbrief."), ("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "5")),
)


@pytest.fixture(scope="module")
def llm() -> Iterator[ts.LLM]:
    with ts.load(needs(GEMMA3), ctx_size=256) as made:
        yield made


def test_a_file_without_a_template_chats(llm: ts.LLM) -> None:
    assert TEMPLATE_KEY not in llm.file.metadata
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    turn = [llm.tokenizer.encode(f"<{edge}_of_turn>", bos=False) for edge in ("start", "end")]
    assert turn == [[105], [106]]
    text = [llm.tokenizer.encode(text, bos=False) for text in ("user\nBe brief.\n\nHi", "\n", "model\n")]
    assert llm.tokenize_chat(messages) == [2, 105, *text[0], 106, *text[1], 105, *text[2]]
    assert 106 in llm.tokenizer.end_tokens
    reply = llm.start_chat(messages, max_tokens=8, temperature=0.0).result()
    assert reply.reply.usage.prompt == len(llm.tokenize_chat(messages))
    assert reply.reply.usage.completion > 0


@pytest.mark.oracle
@pytest.mark.parametrize(("style", "writer"), [(STYLE, "gemma"), (STYLES["qwen2"], "chatml")], ids=["gemma", "chatml"])
@pytest.mark.parametrize("talk", TALKS, ids=len)
def test_turns_are_those_that_llamacpp_writes(style: ChatStyle, writer: str, talk: tuple[tuple[str, str], ...]) -> None:
    if find_library() is None:
        pytest.skip("llama.cpp is not installed; pip install xllamacpp")
    assert style.template is not None
    messages = [{"role": role, "content": content} for role, content in talk]
    assert ChatTemplate(style.template, "", "").render(messages) == load().chat_text(writer, talk)
