"""Greedy replies of llama.cpp, followed token by token."""

from __future__ import annotations

import pytest

from tests.accuracy.teacher import FAR, SHARE, WIDEST, compare, loaded
from tests.goldens.records import NEW_TOKENS, Greedy
from tests.realmodels import REAL_MODELS


@pytest.mark.parametrize("key", REAL_MODELS)
def test_a_few_replies(key: str) -> None:
    recorded = Greedy.of(key)
    last = len(recorded.text)
    with loaded(key) as llm:
        count = compare(llm, recorded, range(0, last, last // 4))
    assert count.far <= FAR[key]
    assert count.lead < WIDEST
    # A twentieth of 256 positions: llama.cpp's settings differ at one in forty.
    assert count.different <= count.compared // 20


@pytest.mark.heavy
@pytest.mark.parametrize("key", REAL_MODELS)
def test_all_replies(key: str) -> None:
    recorded = Greedy.of(key)
    with loaded(key) as llm:
        count = compare(llm, recorded, range(len(recorded.text)))
    assert count.compared == NEW_TOKENS * len(recorded.text)
    assert count.far <= FAR[key]
    assert count.lead < WIDEST
    assert count.different <= SHARE * recorded.own_differences()


@pytest.mark.parametrize("key", REAL_MODELS)
def test_prompts_become_the_same_ids(key: str) -> None:
    recorded = Greedy.of(key)
    with loaded(key) as llm:
        for text, ids, n in zip(recorded.text, recorded.ids, recorded.prompt, strict=True):
            assert llm.tokenize(text) == ids[:n].tolist()


@pytest.mark.parametrize("key", REAL_MODELS)
def test_a_generated_reply_is_the_arg_max_of_its_own_logits(key: str) -> None:
    recorded = Greedy.of(key)
    prompt = recorded.text[1]
    with loaded(key) as llm:
        reply = llm.generate(prompt, raw=True, temperature=0, max_tokens=24, ignore_eos=True)
        asked = llm.tokenize(prompt)
        rows = llm.logits([*asked, *reply.token_ids])[len(asked) - 1 : -1]
    assert list(reply.token_ids) == rows.argmax(1).tolist()
