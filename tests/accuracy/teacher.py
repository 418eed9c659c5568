"""Following a recorded reply token by token: what would we have said at each position?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

import tensorsharp as ts
from tensorsharp.llm import LLM
from tests.goldens.records import Greedy
from tests.realmodels import REAL_MODELS, needs

NEAR = 0.5
"""Logits by which the less certain of the two sides may lead where they differ. Activations are rounded to eight bits
before every product, so correct implementations drift apart: llama.cpp's own two settings move the lead of one token over
another by up to 0.7 on SmolLM2 and 1.0 on Gemma 3 (99 of 100 positions: 0.6)."""
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
