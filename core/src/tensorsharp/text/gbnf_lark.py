"""From GBNF to llguidance's Lark, with the same texts.

GBNF knows no lexemes, while llguidance takes the longest lexeme and never goes back. So every character becomes a lexeme of its
own, which is exact and slow: llguidance then visits every byte of every token. A class of characters that may be repeated
without end is one lexeme, as long as it pleases, where that is exact, too: where whatever else may come at any of its characters
begins with another byte. What may come together is found over the places of the grammar and what may follow each, stacks left
aside (Glushkov's automaton), which can only find more than there is.
"""

from __future__ import annotations

from functools import cached_property, reduce
from itertools import chain
from operator import or_
from typing import Final

from tensorsharp.text.gbnf import LAST, Chars, Choice, Node, Ranges, Repeat, Rule, Sequence, Token, read_gbnf

_PLACES: Final = 400
"""Most places of a grammar for which lexemes are looked for: it takes their number squared."""

Place = Chars | Token


def gbnf_to_lark(source: str) -> str:
    """A grammar in GBNF as one in Lark. RequestError, with line and column, if it is none."""
    rules = read_gbnf(source)
    long = _Places(rules).long
    names = {name: "start" if name == "root" else f"rule{number}" for number, name in enumerate(rules)}
    return "".join(f"{names[name]}: {_lark(node, names, long, top=True)}\n" for name, node in rules.items())


def _lark(node: Node, names: dict[str, str], long: set[Place], *, top: bool = False) -> str:
    if isinstance(node, Chars):
        return f"/{_class(node.ranges)}{'+' if node in long else ''}/"
    if isinstance(node, Token):
        return f"<{node.name.replace('[', '[^') if node.other else node.name}>"
    if isinstance(node, Rule):
        return names[node.name]
    if isinstance(node, Repeat):
        most = "" if node.most is None else node.most
        inside = f"{_lark(node.item, names, long)}{{{node.least},{most}}}"
    elif isinstance(node, Sequence):
        inside = " ".join(_lark(item, names, long) for item in node.items) or '""'
    else:
        inside = " | ".join(_lark(option, names, long) for option in node.options)
    return inside if top else f"({inside})"


def _class(ranges: Ranges) -> str:
    return "[" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges) + "]"


def _lead(code: int) -> int:
    """The first byte of a character in UTF-8."""
    if code < 0x80:
        return code
    if code < 0x800:
        return 0xC0 | code >> 6
    return 0xE0 | code >> 12 if code < 0x10000 else 0xF0 | code >> 18


def _overlap(a: Ranges, b: Ranges) -> bool:
    return any(first <= end and start <= last for first, last in a for start, end in b)


class _Places:
    """The characters of a grammar as places of an automaton.

    first, last: rule -> places that its texts can begin and end with, as bits. follow: place -> places that can come next.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._all: list[Place] = list(chain.from_iterable(map(_places, rules.values())))
        self._number = {place: number for number, place in enumerate(self._all)}
        self._empty: set[str] = set()
        self._first = dict.fromkeys(rules, 0)
        self._last = dict.fromkeys(rules, 0)
        self._follow = [0] * len(self._all)

    @cached_property
    def long(self) -> set[Place]:
        """The classes that may be lexemes of any length."""
        free = [place for node in self._rules.values() for place in _free(node)]
        if not free or len(self._all) > _PLACES:
            return set()
        while self._grow():
            pass
        together = self._together()
        return {place for place in free if self._apart(place, together[self._number[place]])}

    def _apart(self, place: Place, others: int) -> bool:
        """Whether the first byte tells a class from all others that may come where it may."""
        leads = self._leads[self._number[place]]
        return all(not leads & self._leads[n] for n in _bits(others) if n != self._number[place])

    @cached_property
    def _leads(self) -> list[int]:
        """The first bytes of each place, as bits; of a token any."""
        return [
            (1 << 256) - 1
            if isinstance(place, Token)
            else sum(1 << byte for byte in {b for r in place.ranges for b in range(_lead(r[0]), _lead(r[1]) + 1)})
            for place in self._all
        ]

    def _together(self) -> list[int]:
        """place -> places that may be possible at the same point of a text."""
        ranges = [((0, LAST),) if isinstance(place, Token) else place.ranges for place in self._all]
        found = [0] * len(self._all)
        waiting = [(p, q) for p in _bits(self._first["root"]) for q in _bits(self._first["root"])]
        for p, q in waiting:
            found[p] |= 1 << q
        while waiting:
            p, q = waiting.pop()
            if not _overlap(ranges[p], ranges[q]):
                continue
            for after in _bits(self._follow[p]):
                fresh = self._follow[q] & ~found[after]
                found[after] |= fresh
                waiting += [(after, other) for other in _bits(fresh)]
        return found

    def _grow(self) -> bool:
        """One more round of what rules begin and end with, and what follows what: True if more was found."""
        before = (len(self._empty), *self._first.values(), *self._last.values(), *self._follow)
        for name, node in self._rules.items():
            empty, first, last = self._walk(node)
            if empty:
                self._empty.add(name)
            self._first[name] |= first
            self._last[name] |= last
        return before != (len(self._empty), *self._first.values(), *self._last.values(), *self._follow)

    def _walk(self, node: Node) -> tuple[bool, int, int]:
        """Whether a part can be empty, and what it begins and ends with."""
        if isinstance(node, (Chars, Token)):
            bit = 1 << self._number[node]
            return False, bit, bit
        if isinstance(node, Rule):
            return node.name in self._empty, self._first[node.name], self._last[node.name]
        if isinstance(node, Repeat):
            empty, first, last = self._walk(node.item)
            if node.most is None or node.most > 1:
                self._link(last, first)
            return empty or node.least == 0, first, last
        if isinstance(node, Choice):
            walked = [self._walk(option) for option in node.options]
            empties, firsts, lasts = zip(*walked, strict=True)
            return any(empties), reduce(or_, firsts), reduce(or_, lasts)
        empty, first, last = True, 0, 0
        for item in node.items:
            blank, begins, ends = self._walk(item)
            self._link(last, begins)
            first |= begins if empty else 0
            last = ends | (last if blank else 0)
            empty = empty and blank
        return empty, first, last

    def _link(self, before: int, after: int) -> None:
        for place in _bits(before):
            self._follow[place] |= after


def _places(node: Node) -> list[Place]:
    if isinstance(node, (Chars, Token)):
        return [node]
    return [place for part in _parts(node) for place in _places(part)]


def _parts(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Repeat):
        return (node.item,)
    if isinstance(node, Sequence):
        return node.items
    return node.options if isinstance(node, Choice) else ()


def _free(node: Node) -> list[Chars]:
    """Classes that are all of what repeats without end, or one of the options that do: once or many times is the same."""
    found = [place for part in _parts(node) for place in _free(part)]
    if isinstance(node, Repeat) and node.most is None and node.least < 2:
        options = node.item.options if isinstance(node.item, Choice) else (node.item,)
        found += [option for option in options if isinstance(option, Chars)]
    return found


def _bits(number: int) -> list[int]:
    """Which bits are set."""
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found
