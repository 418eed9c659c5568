"""A constraint that begins inside a reply: where its reasoning ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from tensorsharp.protocols.constraint import Mask
from tensorsharp.text.masks import GuidedGrammar, GuidedMatcher, TokenTrie


class Gate:
    """A :class:`~tensorsharp.protocols.constraint.Grammar` that holds behind the first `closing` text of a reply.

    Before it everything is allowed but to end, as far as what a token holds behind the closing text fits the grammar. opening:
    the text with which that part begins; a reply that begins otherwise is constrained from its first token, and begins with no
    line break if it may begin otherwise: those between reasoning and content are in the grammar. Empty: the prompt has begun it.
    Both texts may be control tokens, several tokens, or share a token with what stands around them.
    """

    def __init__(self, grammar: GuidedGrammar, trie: TokenTrie, closing: str, opening: str = "") -> None:
        self.grammar = grammar
        self.trie = trie
        self.closing = closing.encode()
        self.opening = opening.encode()
        last = self.closing[-1:]
        self._across = [(token, text) for token, text in enumerate(trie.texts) if last in text[:-1]]
        self.before = cache(self._before)
        self.openers = cache(self._openers)
        self.direct = cache(self._direct)

    def start(self) -> GatedMatcher:
        return GatedMatcher(self)

    def advance(self, matched: int, text: bytes) -> tuple[int, bytes | None]:
        """How much of the closing text is there after more text, and what stands behind it once it is whole, else None."""
        seen = self.closing[:matched] + text
        end = seen.find(self.closing)
        if end >= 0:
            return len(self.closing), seen[end + len(self.closing) :]
        longest = min(len(seen), len(self.closing) - 1)
        return next(n for n in range(longest, -1, -1) if seen.endswith(self.closing[:n])), None

    def _before(self, matched: int) -> Mask | None:
        """What may come where so much of the closing text is there: None for everything."""
        wrong = [token for token, text in self._across if not self._fits(self.advance(matched, text)[1])]
        if not wrong:
            return None
        mask = np.ones(self.trie.size, np.bool_)
        mask[wrong] = False
        return mask

    def _fits(self, behind: bytes | None) -> bool:
        return not behind or self.grammar.start().accept_bytes(behind) == len(behind)

    def _openers(self, matched: int) -> Mask:
        """Which tokens go on with the opening text, of which so much is there, or complete it."""
        rest = self.opening[matched:]
        mask = np.zeros(self.trie.size, np.bool_)
        for token, text in enumerate(self.trie.texts):
            if rest.startswith(text):
                mask[token] = True
            elif text.startswith(rest):
                mask[token] = self._fits(self.advance(0, text[len(rest) :])[1])
        return mask

    def _direct(self) -> Mask:
        """What a reply without the part before may begin with."""
        mask = self.grammar.start().mask()
        broken = np.array([text.startswith(b"\n") for text in self.trie.texts], np.bool_)
        return mask & ~broken if (mask & ~broken).any() else mask


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reply stands. matched: of the text that is waited for. inner: the grammar's matcher; taken: its tokens;
    fits: whether the reply so far is one that the grammar allows."""

    phase: Literal["opening", "before", "inside"]
    matched: int
    inner: GuidedMatcher
    taken: int
    fits: bool


class GatedMatcher:
    """A :class:`~tensorsharp.protocols.constraint.Matcher` of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        opens = bool(gate.opening)
        self._place = _Place("opening" if opens else "before", 0, gate.grammar.start(), 0, opens)
        self._trail: list[_Place] = []

    def mask(self) -> Mask | None:
        place = self._place
        if place.phase == "inside":
            return place.inner.mask()
        if place.phase == "before":
            return self._gate.before(place.matched)
        openers = self._gate.openers(place.matched)
        if not place.fits:
            return openers
        return openers | (place.inner.mask() if place.matched else self._gate.direct())

    @property
    def accepting(self) -> bool:
        return self._place.fits and self._place.inner.accepting

    @property
    def complete(self) -> bool:
        return self._place.phase == "inside" and self._place.inner.complete

    def accept(self, token: int) -> None:
        place, text = self._place, self._gate.trie.texts[token]
        if place.phase == "inside":
            after = self._inside(token)
        elif place.phase == "before":
            after = self._close(place, text)
        else:
            after = self._open(token, text)
        self._trail.append(place)
        self._place = after

    def rollback(self, count: int) -> None:
        for _ in range(count):
            inner, taken = self._place.inner, self._place.taken
            self._place = self._trail.pop()
            if self._place.inner is inner:
                inner.rollback(taken - self._place.taken)

    def _inside(self, token: int) -> _Place:
        self._place.inner.accept(token)
        return replace(self._place, phase="inside", taken=self._place.taken + 1)

    def _close(self, place: _Place, text: bytes) -> _Place:
        matched, behind = self._gate.advance(place.matched, text)
        if behind is None:
            return replace(place, matched=matched)
        return _Place("inside", 0, place.inner, place.inner.accept_bytes(behind), True)

    def _open(self, token: int, text: bytes) -> _Place:
        place = self._place
        rest = self._gate.opening[place.matched :]
        if text.startswith(rest):
            return self._close(_Place("before", 0, self._gate.grammar.start(), 0, False), text[len(rest) :])
        if not rest.startswith(text):
            return self._inside(token)
        after = replace(place, matched=place.matched + len(text))
        if place.fits and place.inner.allows(token):
            place.inner.accept(token)
            return replace(after, taken=place.taken + 1)
        return replace(after, fits=False)
