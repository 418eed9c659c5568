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
"""Where we differ, llama.cpp's first choice leads its second by less than this many logits."""
FAR = {"smollm2": 0, "gemma3": 3}
"""Positions of all replies at which it leads by more. Activations are rounded to eight bits before every product, so correct
implementations drift apart: llama.cpp's own two settings move the lead of one token over another by up to 0.7 on SmolLM2 and
1.0 on Gemma 3, whose GELU it looks up in a table of half precision; three in 1,280 positions were seen there (0.52 to 0.78)."""
WIDEST = 1.0
"""No lead that we overturn is wider: what llama.cpp's own settings move."""
SHARE = 1.5
"""How much oftener than llama.cpp's two settings among themselves: the counts are small numbers, which scatter."""


@dataclass(slots=True)
class Count:
    """Positions compared, those that differ, those of them where llama.cpp is not near a tie, and its widest lead there."""

    compared: int = 0
    different: int = 0
    far: int = 0
    lead: float = 0.0


@contextmanager
def loaded(key: str) -> Iterator[LLM]:
    with ts.load(needs(REAL_MODELS[key]), backend="ggml", kv_type="f32", ctx_size=256) as llm:
        yield llm


def compare(llm: LLM, recorded: Greedy, prompts: range) -> Count:
    count = Count()
    for i in prompts:
        ids, rows = recorded.rows(i)
        ours, theirs = llm.logits(ids)[rows].argmax(1), recorded.top[0, i, :, 0]
        at = np.flatnonzero(ours != theirs)
        count.compared += len(ours)
        count.different += len(at)
        count.far += int((recorded.gap[i, at] >= NEAR).sum())
        count.lead = max(count.lead, float(recorded.gap[i, at].max(initial=0.0)))
    return count
