"""GBNF, llama.cpp's notation for grammars (its grammars/README.md), read into a tree.

A rule is `name ::= ...`, and `root` describes the whole text. Parts: "text", [characters], [^others], `.` for any character,
names, (groups), `|`, the repetitions * + ? {m} {m,} {m,n}, <token> or <[id]> for one token, !<[id]> for any other, # comments. A
rule goes on over a line break inside parentheses, behind `::=` and around `|`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from tensorsharp.errors import RequestError
from tensorsharp.text.nesting import MAX_LEVELS

Ranges = tuple[tuple[int, int], ...]
"""Code points, first and last of each range, ascending and apart."""
LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
"""Code points that are no characters."""
MAX_DEPTH: Final = 64
"""Levels of nested groups."""
_COPIED: Final = 16
"""Up to so many times a character is written out, so that each place is known apart."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_COUNT: Final = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_TOKEN: Final = re.compile(r"(?:<(\[[0-9]+\]|[^<>\s\[\]]+)|!<(\[[0-9]+\]))>")
_BLANK: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BREAKS: Final = re.compile(r"(?:\s|#[^\r\n]*)*")
_ESCAPE: Final = re.compile(r'\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\"\[\]\-^/]))')
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character. Each place of a grammar is an object of its own."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token, by its text or by [id]; or any other one."""

    name: str
    other: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of that name describes."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None


Node = Chars | Token | Rule | Sequence | Choice | Repeat


def read_gbnf(source: str) -> dict[str, Node]:
    """Rule name -> what it describes, without what would never end. RequestError, with line and column, if it is no grammar."""
    rules = _Reader(source).grammar()
    ending = _ending(rules)
    if "root" not in ending:
        raise RequestError(
            "The grammar is refused: no text that 'root' describes has an end.", param="constraint", code="invalid_grammar"
        )
    return {name: found for name, node in rules.items() if (found := _ended(node, ending)) is not None}


def _ending(rules: dict[str, Node]) -> set[str]:
    """The rules that have a text. A rule mostly refers to the next ones, or to those before: two rounds do then."""
    found: set[str] = set()
    names, before = list(rules), -1
    while len(found) > before:
        before = len(found)
        names.reverse()
        for name in names:
            if name not in found and _ended(rules[name], found) is not None:
                found.add(name)
    return found


def _ended(node: Node, ending: set[str]) -> Node | None:
    """A part without options that need rules which are not `ending`; None if nothing is left."""
    if isinstance(node, (Chars, Token)):
        return node
    if isinstance(node, Rule):
        return node if node.name in ending else None
    if isinstance(node, Repeat):
        item = _ended(node.item, ending)
        return replace(node, item=item) if item is not None else Sequence(()) if node.least == 0 else None
    if isinstance(node, Sequence):
        items = tuple(found for item in node.items if (found := _ended(item, ending)) is not None)
        return Sequence(items) if len(items) == len(node.items) else None
    options = tuple(found for option in node.options if (found := _ended(option, ending)) is not None)
    return Choice(options) if options else None


def normalised(ranges: list[tuple[int, int]]) -> Ranges:
    """The same code points in ranges that are ascending and apart."""
    made: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = made[-1][0], max(made[-1][1], last)
        else:
            made.append((first, last))
    return tuple(made)


def others(ranges: Ranges) -> Ranges:
    """Every character that is not in the ranges."""
    ranges = normalised([*ranges, _SURROGATES])
    edges = [-1, *(edge for first, last in ranges for edge in (first, last)), LAST + 1]
    return tuple((edges[i] + 1, edges[i + 1] - 1) for i in range(0, len(edges), 2) if edges[i] + 1 <= edges[i + 1] - 1)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._named: dict[str, int] = {}

    def grammar(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_BREAKS)
        while self._at < len(self._source):
            start = self._at
            name = self._take(_NAME, "the name of a rule")[0]
            if len(rules) == MAX_LEVELS:
                self._fail(f"there are more than {MAX_LEVELS:,} rules", start)
            if name in rules:
                self._fail(f"the rule {name!r} is there twice", start)
            self._skip(_BLANK)
            self._expect("::=")
            self._skip(_BREAKS)
            rules[name] = self._choice(0)
            if self._at < len(self._source) and self._source[self._at] not in "\r\n":
                self._fail("expected the end of the rule")
            self._skip(_BREAKS)
        for name, at in self._named.items():
            if name not in rules:
                self._fail(f"there is no rule {name!r}", at)
        if "root" not in rules:
            self._fail("there is no rule 'root', which describes the whole text", 0)
        return rules

    def _choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self._fail(f"groups are nested deeper than {MAX_DEPTH} levels")
        options = [self._sequence(depth)]
        while self._next_option():
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _next_option(self) -> bool:
        found = _BREAKS.match(self._source, self._at)
        assert found is not None  # it matches nothing, too
        if not self._source.startswith("|", found.end()):
            return False
        self._at = found.end() + 1
        self._skip(_BREAKS)
        return True

    def _sequence(self, depth: int) -> Node:
        blank = _BREAKS if depth else _BLANK
        items: list[Node] = []
        while (found := self._item(depth)) is not None:
            items.append(self._repeated(found))
            self._skip(blank)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, depth: int) -> Node | None:
        char = self._source[self._at : self._at + 1]
        if char == '"':
            return self._text()
        if char == "[":
            return self._class()
        if char == ".":
            self._at += 1
            return Chars(others(()))
        if char == "(":
            self._at += 1
            self._skip(_BREAKS)
            inside = self._choice(depth + 1)
            self._skip(_BREAKS)
            self._expect(")")
            return inside
        if char and char in "<!":
            token = self._take(_TOKEN, "a token such as <[42]>, <|name|> or !<[42]>")
            return Token(token[1] or token[2], token[2] is not None)
        named = _NAME.match(self._source, self._at)
        if named is None:
            return None
        self._named.setdefault(named[0], self._at)
        self._at = named.end()
        return Rule(named[0])

    def _repeated(self, item: Node) -> Node:
        char = self._source[self._at : self._at + 1]
        if char and char in "*+?":
            self._at += 1
            return Repeat(item, int(char == "+"), 1 if char == "?" else None)
        if char != "{":
            return item
        start = self._at
        count = self._take(_COUNT, "a repetition such as {2}, {2,} or {2,5}")
        least = int(count[1])
        most = int(count[3]) if count[3] else None if count[2] else least
        if most is not None and most < least:
            self._fail("the repetition ends below where it begins", start)
        if isinstance(item, Chars) and least == most and 0 < least <= _COPIED:
            return Sequence(tuple(Chars(item.ranges) for _ in range(least)))
        return Repeat(item, least, most)

    def _text(self) -> Node:
        self._at += 1
        chars: list[Node] = []
        while not self._source.startswith('"', self._at):
            code = self._char('"')
            chars.append(Chars(((code, code),)))
        self._at += 1
        return chars[0] if len(chars) == 1 else Sequence(tuple(chars))

    def _class(self) -> Chars:
        self._at += 1
        negated = self._source.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while not self._source.startswith("]", self._at):
            start = self._at
            first = last = self._char("]")
            if self._source.startswith("-", self._at) and not self._source.startswith("-]", self._at):
                self._at += 1
                last = self._char("]")
            if last < first:
                self._fail("the range ends below where it begins", start)
            ranges.append((first, last))
        self._at += 1
        found = others(normalised(ranges))
        found = found if negated else others(found)
        if not found:
            self._fail("the brackets hold no character")
        return Chars(found)

    def _char(self, closing: str) -> int:
        """The code point of a character or an escape."""
        if self._source.startswith("\\", self._at):
            escape = self._take(_ESCAPE, 'an escape such as \\n, \\" or \\x41')
            digits = escape[1] or escape[2] or escape[3]
            code = int(digits, 16) if digits else ord(_LETTERS.get(escape[4], escape[4]))
            if code > LAST or 0xD800 <= code <= 0xDFFF:
                self._fail(f"U+{code:X} is no character", escape.start())
            return code
        if self._at == len(self._source):
            self._fail(f"expected {closing}")
        self._at += 1
        return ord(self._source[self._at - 1])

    def _skip(self, blank: re.Pattern[str]) -> None:
        self._take(blank, "")

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = pattern.match(self._source, self._at)
        if found is None:
            self._fail(f"expected {expected}")
        self._at = found.end()
        return found

    def _expect(self, text: str) -> None:
        if not self._source.startswith(text, self._at):
            self._fail(f"expected {text}")
        self._at += len(text)

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        before = self._source[: self._at if at is None else at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"The grammar is refused: line {line}, column {column}: {what}."
        raise RequestError(message, param="constraint", code="invalid_grammar")
