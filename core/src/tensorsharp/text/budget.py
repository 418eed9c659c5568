"""A limit on how long a reply reasons: once it is reached, the text that ends the reasoning is all that may come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tensorsharp.protocols.constraint import Grammar, Mask, Matcher


class ReasoningBudget:
    """A :class:`~tensorsharp.protocols.constraint.Grammar` that lets `tokens` tokens of reasoning pass and then forces `closing`.

    Tokens that are forced count as the reply's like all others. opening, end: the texts around reasoning; opening is empty if
    the prompt has begun it. Only reasoning at the beginning of the reply is limited. closing: token ids whose text holds `end`.
    text_of: the bytes that a token stands for, those of control tokens too. inner: what else holds for the reply.
    """

    def __init__(
        self,
        tokens: int,
        opening: str,
        end: str,
        closing: Sequence[int],
        text_of: Callable[[int], bytes],
        vocab: int,
        inner: Grammar | None = None,
    ) -> None:
        self.tokens = tokens
        self.opening = opening.encode()
        self.end = end.encode()
        self.closing = tuple(closing)
        self.text_of = text_of
        self.vocab = vocab
        self._inner = inner

    def start(self) -> BudgetMatcher:
        return BudgetMatcher(self, None if self._inner is None else self._inner.start())

    def only(self, token: int) -> Mask:
        mask = np.zeros(self.vocab, np.bool_)
        mask[token] = True
        return mask


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reply stands. text: what may still be a part of the opening or of the end. used: tokens of reasoning.
    forced: how many tokens of the closing text are there."""

    phase: Literal["opening", "reasoning", "closing", "behind"]
    text: bytes = b""
    used: int = 0
    forced: int = 0


class BudgetMatcher:
    """A :class:`~tensorsharp.protocols.constraint.Matcher` of a budget."""

    def __init__(self, budget: ReasoningBudget, inner: Matcher | None) -> None:
        self._budget = budget
        self._inner = inner
        self._trail: list[_Place] = []
        self._place = _Place("opening") if budget.opening else self._reasoning(b"", 0)

    def mask(self) -> Mask | None:
        if self._place.phase == "closing":
            return self._budget.only(self._budget.closing[self._place.forced])
        return None if self._inner is None else self._inner.mask()

    @property
    def accepting(self) -> bool:
        return self._place.phase != "closing" and (self._inner is None or self._inner.accepting)

    @property
    def complete(self) -> bool:
        return self._place.phase != "closing" and self._inner is not None and self._inner.complete

    def accept(self, token: int) -> None:
        self._trail.append(self._place)
        self._place = self._after(token)
        if self._inner is not None:
            self._inner.accept(token)

    def rollback(self, count: int) -> None:
        if count:
            self._place = self._trail[-count]
            del self._trail[-count:]
            if self._inner is not None:
                self._inner.rollback(count)

    def _after(self, token: int) -> _Place:
        place, budget = self._place, self._budget
        if place.phase == "closing":
            forced = place.forced + 1
            return _Place("behind") if forced == len(budget.closing) else replace(place, forced=forced)
        if place.phase == "behind":
            return place
        text = place.text + budget.text_of(token)
        if place.phase == "reasoning":
            return self._reasoning(text, place.used + 1)
        begun = text.lstrip()
        if begun.startswith(budget.opening):
            return self._reasoning(begun[len(budget.opening) :], 0)
        return _Place("opening", text) if budget.opening.startswith(begun) else _Place("behind")

    def _reasoning(self, text: bytes, used: int) -> _Place:
        if self._budget.end in text:
            return _Place("behind")
        phase: Literal["reasoning", "closing"] = "reasoning" if used < self._budget.tokens else "closing"
        return _Place(phase, text[-len(self._budget.end) :], used)
