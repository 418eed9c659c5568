"""Greedy replies of llama.cpp, followed token by token: what would we have said at each position?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

import tensorsharp as ts
from tensorsharp.llm import LLM
from tests.goldens.records import NEW_TOKENS, Greedy
from tests.realmodels import REAL_MODELS, needs

NEAR = 0.5
"""Logits. Activations are rounded to eight bits before every product, so two correct implementations drift apart: where
llama.cpp's own two settings differ, its choice was up to 0.3 ahead, and at single positions they move a lead by 0.9."""
SHARE = 1.5
"""How much oftener than llama.cpp's two settings among themselves: the counts are small numbers, which scatter."""


@dataclass(slots=True)
class Count:
    """Positions compared, those that differ, and the largest lead of the less certain side among these."""

    compared: int = 0
    different: int = 0
    lead: float = 0.0


@contextmanager
def loaded(key: str) -> Iterator[LLM]:
    with ts.load(needs(REAL_MODELS[key]), backend="ggml", kv_type="f32", ctx_size=256) as llm:
        yield llm


def compare(llm: LLM, recorded: Greedy, prompts: range) -> Count:
    count = Count()
    for i in prompts:
        ids, rows = recorded.rows(i)
        logits = llm.logits(ids)[rows]
        ours, theirs = logits.argmax(1), recorded.top[0, i, :, 0]
        at = np.flatnonzero(ours != theirs)
        count.compared += len(ours)
        count.different += len(at)
        if len(at):
            our_lead = logits[at, ours[at]] - logits[at, theirs[at]]
            count.lead = max(count.lead, float(np.minimum(our_lead, recorded.gap[i, at]).max()))
    return count


@pytest.mark.parametrize("key", REAL_MODELS)
def test_a_few_replies(key: str) -> None:
    recorded = Greedy.of(key)
    last = len(recorded.text)
    with loaded(key) as llm:
        count = compare(llm, recorded, range(0, last, last // 4))
    assert count.lead < NEAR
    # A twentieth of 256 positions: llama.cpp's settings differ at one in forty.
    assert count.different <= count.compared // 20


@pytest.mark.heavy
@pytest.mark.parametrize("key", REAL_MODELS)
def test_all_replies(key: str) -> None:
    recorded = Greedy.of(key)
    with loaded(key) as llm:
        count = compare(llm, recorded, range(len(recorded.text)))
    assert count.compared == NEW_TOKENS * len(recorded.text)
    assert count.lead < NEAR
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
