"""Reading a text that is still being written: steps that wait for more of it.

A reader is a generator. It yields nothing but the control: "more text, please". What it decides depends on the text alone,
never on how it arrived, as every step waits until the rest of the text cannot change its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A reader in progress; its return value is what it read."""

MAX_FAILURES: Final = 64
"""How often markup of one text may turn out to be text."""
_COMPACT: Final = 1 << 12
_STRUCTURE: Final = re.compile(r'[{}\[\]"]')
_IN_STRING: Final = re.compile(r'["\\]')
_SCALAR_END: Final = re.compile(r"[\s,\]}<\[]")


class UnreadableError(Exception):
    """The text is not what the reader expected: markup that is to be delivered as text."""


class Markers:
    """Texts to look for at once. The first one counts, and of those that begin at the same place the longest."""

    def __init__(self, *texts: str) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(set(texts), key=len, reverse=True))) or r"(?!)")
        self._beginnings = {text[:n] for text in texts for n in range(1, len(text))}
        self._longest = max(map(len, texts), default=1)

    def search(self, text: str, start: int, *, closed: bool) -> tuple[int, str | None]:
        """(place, marker that begins there), or (place up to which no marker can begin any more, None)."""
        found = self._pattern.search(text, start)
        if not closed:
            end = len(text) if found is None else found.start() + 1
            for place in range(max(start, len(text) - self._longest + 1), end):
                if text[place:] in self._beginnings:
                    return place, None
        return (len(text), None) if found is None else (found.start(), found[0])


class Source:
    """The text so far, and the place up to which it was read. Places are offsets into the whole text."""

    def __init__(self) -> None:
        self._text = ""
        self._dropped = 0
        self._kept: int | None = None
        self._failures = 0
        self.place = 0
        self.closed = False

    def feed(self, text: str) -> None:
        unused = min(self.place, self.place if self._kept is None else self._kept) - self._dropped
        if unused > _COMPACT:
            self._text = self._text[unused:]
            self._dropped += unused
        self._text += text

    @property
    def end(self) -> int:
        return self._dropped + len(self._text)

    def slice(self, start: int, end: int) -> str:
        return self._text[start - self._dropped : end - self._dropped]

    def attempt(self, steps: Steps[T]) -> Steps[T | None]:
        """Run a reader. If it finds its text unreadable, return to where it began and give None.

        After too many that did, none is run any more: each may have read the whole rest of the text.
        """
        if self._failures == MAX_FAILURES:
            steps.close()
            return None
        begin = self._kept = self.place
        try:
            result = yield from steps
        except UnreadableError:
            self.place = begin
            self._failures += 1
            return None
        finally:
            self._kept = None
        return result

    def available(self, count: int) -> Steps[bool]:
        """Wait until so many characters follow; False if the text ends before."""
        while self.end - self.place < count:
            if self.closed:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, not consumed; empty at the end."""
        yield from self.available(1)
        return self.slice(self.place, self.place + 1)

    def ahead(self, *literals: str) -> Steps[bool]:
        """Whether one of these texts follows behind white space; nothing is consumed."""
        begin = self._kept = self.place
        yield from self.space()
        found = yield from self.starts(*literals)
        self.place, self._kept = begin, None
        return found

    def text(self, markers: Markers, take: Callable[[str], None]) -> Steps[str | None]:
        """Hand what comes before the next marker to `take`, as soon as it is certain; consume and return the marker.

        None if there is no marker until the end.
        """
        while True:
            place, found = markers.search(self._text, self.place - self._dropped, closed=self.closed)
            if place + self._dropped > self.place:
                take(self.slice(self.place, place + self._dropped))
                self.place = place + self._dropped
            if found is not None:
                self.place += len(found)
                return found
            if self.closed:
                return None
            yield

    def until(self, *ends: str) -> Steps[str]:
        """What comes before the first of `ends`, which is consumed too. UnreadableError if none comes."""
        pieces: list[str] = []
        if (yield from self.text(Markers(*ends), pieces.append)) is None:
            self.fail()
        return "".join(pieces)

    def take(self, literal: str) -> Steps[bool]:
        """Consume a literal text if it follows."""
        while True:
            there = self.slice(self.place, self.place + len(literal))
            if there == literal:
                self.place += len(literal)
                return True
            if self.closed or not literal.startswith(there):
                return False
            yield

    def expect(self, literal: str) -> Steps[None]:
        """Consume a literal text. UnreadableError if something else follows."""
        if not (yield from self.take(literal)):
            self.fail()

    def starts(self, *literals: str) -> Steps[bool]:
        """Whether one of these texts follows; nothing is consumed."""
        while True:
            there = self.slice(self.place, self.place + max(map(len, literals)))
            if there.startswith(literals):
                return True
            if self.closed or not any(literal.startswith(there) for literal in literals):
                return False
            yield

    def close(self, literal: str) -> Steps[None]:
        """Consume white space and a closing text, which may be missing or cut at the end of the whole text."""
        yield from self.space()
        if not (yield from self.take(literal)):
            if not self.closed or not literal.startswith(self.slice(self.place, self.end)):
                self.fail()
            self.place = self.end

    def space(self) -> Steps[None]:
        """Consume white space."""
        while (yield from self.peek()).isspace():
            self.place += 1

    def matching(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Consume the longest run of single characters that match. UnreadableError if there is none."""
        begin = self.place
        while pattern.match((yield from self.peek())):
            self.place += 1
        if self.place == begin:
            self.fail()
        return self.slice(begin, self.place)

    def json(self) -> Steps[Any]:
        """Consume one JSON value. UnreadableError if it is none."""
        yield from self.space()
        begin = self.place
        first = yield from self.peek()
        if first in ("{", "["):
            yield from self._nested()
        elif first == '"':
            self.place += 1
            yield from self._string()
        else:
            while (char := (yield from self.peek())) and not _SCALAR_END.match(char):
                self.place += 1
        return parse_json(self.slice(begin, self.place))

    def fail(self) -> NoReturn:
        raise UnreadableError

    def _nested(self) -> Steps[None]:
        depth = 0
        while True:
            char = yield from self._next(_STRUCTURE)
            if char == '"':
                yield from self._string()
            else:
                depth += 1 if char in "{[" else -1
                if depth == 0:
                    return

    def _string(self) -> Steps[None]:
        while (yield from self._next(_IN_STRING)) == "\\":
            if not (yield from self.available(1)):
                self.fail()
            self.place += 1

    def _next(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Go behind the next character that matches."""
        while True:
            found = pattern.search(self._text, self.place - self._dropped)
            if found is not None:
                self.place = found.end() + self._dropped
                return found[0]
            self.place = self.end
            if self.closed:
                self.fail()
            yield


def parse_json(text: str) -> Any:
    """The value that a JSON text stands for; line breaks in strings are let pass, NaN and infinities are not."""

    def refuse(name: str) -> NoReturn:
        raise UnreadableError

    try:
        return json.loads(text, strict=False, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UnreadableError from error
