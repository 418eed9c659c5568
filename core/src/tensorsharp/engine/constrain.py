"""Where a constraint meets the sampler: masks computed beside the model's step, waited for, never skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tensorsharp.engine.sampler import Choice, Sampler
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.protocols.constraint import Grammar, Mask, Matcher

_WORKERS = 4
"""Most threads that compute masks: one mask takes far less time than a step."""


class MaskCost:
    """masks: how many were computed; seconds: processor time that they took; waited: seconds for which the engine waited."""

    __slots__ = ("masks", "seconds", "waited")

    def __init__(self) -> None:
        self.masks = 0
        self.seconds = 0.0
        self.waited = 0.0

    def add(self, masks: int, seconds: float, waited: float) -> None:
        self.masks += masks
        self.seconds += seconds
        self.waited += waited


class Masks:
    """The workers that compute masks of `vocab` tokens, and what that cost so far."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.cost = MaskCost()
        self.workers = ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1), "tensorsharp-masks")

    def guide(self, grammar: Grammar, ends: frozenset[int]) -> Guide:
        """The guide of one reply that `ends` end."""
        return Guide(grammar.start(), ends, self)

    def close(self) -> None:
        self.workers.shutdown()


class Guide:
    """The constraint of one reply. Its masks are a pure function of the tokens that the reply has.

    ends: tokens that end the reply: allowed where the grammar accepts. Belongs to the thread that steps the engine.
    """

    def __init__(self, matcher: Matcher, ends: frozenset[int], masks: Masks) -> None:
        self.cost = MaskCost()
        self._matcher = matcher
        self._ends = np.array(sorted(ends), np.int64)
        self._masks = masks
        self._pending: tuple[tuple[int, ...], Future[tuple[list[Mask], float]]] | None = None

    @property
    def complete(self) -> bool:
        """Whether the reply ends here, because nothing can follow."""
        return self._matcher.complete

    def prepare(self, drafts: tuple[int, ...] = ()) -> None:
        """Begin to compute the masks of the next row, and of those after each of `drafts`, on a worker."""
        if self._pending is None or self._pending[0] != drafts:
            self._settle()
            self._pending = drafts, self._masks.workers.submit(self._compute, drafts)

    def masks(self, drafts: tuple[int, ...] = ()) -> list[Mask]:
        """Those masks, [vocab] bool each: as far as the drafts are allowed, and at least one. BackendError for one that allows
        nothing."""
        self.prepare(drafts)
        began = time.perf_counter()
        masks, seconds = self._settle()
        waited = time.perf_counter() - began
        for cost in (self.cost, self._masks.cost):
            cost.add(len(masks), seconds, waited)
        return masks

    def accept(self, token: int) -> None:
        """Go on after `token`, which a mask allowed."""
        self._settle()
        self._matcher.accept(token)

    def _settle(self) -> tuple[list[Mask], float]:
        """What the worker found; from then on the matcher is this thread's."""
        pending, self._pending = self._pending, None
        return ([], 0.0) if pending is None else pending[1].result()

    def _compute(self, drafts: tuple[int, ...]) -> tuple[list[Mask], float]:
        began = time.thread_time()
        masks, taken = [self._mask()], 0
        try:
            for draft in drafts:
                if not masks[-1][draft] or draft in self._ends:
                    break
                self._matcher.accept(draft)
                taken += 1
                if self._matcher.complete:
                    break
                masks.append(self._mask())
        finally:
            self._matcher.rollback(taken)
        return masks, time.thread_time() - began

    def _mask(self) -> Mask:
        allowed, vocab = self._matcher.mask(), self._masks.vocab
        mask = np.zeros(vocab, np.bool_)
        if allowed is None:
            mask[:] = True
            mask[self._ends] = False
        else:
            mask[: len(allowed)] = allowed[:vocab]
        if self._matcher.accepting:
            mask[self._ends] = True
        if not mask.any():
            raise BackendError("No token of the vocabulary continues the reply as its constraint demands.")
        return mask


def choose_rows(
    sampler: Sampler,
    logits: F32,
    ids: I32,
    drafts: Sequence[int] = (),
    guide: Guide | None = None,
    ends: frozenset[int] = frozenset(),
) -> list[Choice]:
    """The choices of a window of rows, one after the other as long as each is its draft: what as many steps would choose.

    logits [n, vocab]: row i is for the token after `ids` and the first i of `drafts`, at most n - 1 of them. The last choice is
    the one that differs from its draft, that has none, that is one of `ends`, or that completes the constraint. The guide has
    taken every choice but one of `ends`.
    """
    window = tuple(drafts[: len(logits) - 1])
    path = np.concatenate([ids, np.array(window, ids.dtype)]) if window else ids
    masks = None if guide is None else guide.masks(window)
    chosen: list[Choice] = []
    for number, row in enumerate(logits):
        known = len(ids) + number
        choice = sampler.choose(row, path[:known], known, None if masks is None else masks[number])
        chosen.append(choice)
        if choice.token in ends:
            break
        if guide is not None:
            guide.accept(choice.token)
            if guide.complete:
                break
        if number == len(window) or choice.token != window[number]:
            break
    return chosen
