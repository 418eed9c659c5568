"""What rendering one template may use: time, size of a value, and size of everything made along the way."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from typing import Any, Final

from jinja2.utils import Namespace

SECONDS: Final = 1.0
VALUE: Final = 1 << 22
TOTAL: Final = 1 << 26
SECONDS_PER_INPUT: Final = 2e-6
INPUT_SHARE: Final = 16
MAX_DEPTH: Final = 100
MAX_BITS: Final = 4096
ITEM: Final = 16
_TICKS_PER_CLOCK: Final = 8
_BIG: Final = 4096
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_VIEWS: Final = (KeysView, ValuesView, ItemsView)


class LimitError(Exception):
    """A template went over a limit; the text says which."""


class Limits:
    """Counts down while one template renders.

    The limits grow with the conversation, so that a long one renders and a short one cannot be made to cost much:
    SECONDS of this thread's processor time, VALUE characters for a single value written out, TOTAL characters (an item
    of a container counts for sixteen) for all values together.
    """

    def __init__(self, inputs: Any) -> None:
        self._weights: dict[int, tuple[Any, int]] = {}
        self.value = 1 << 62
        size = self.weigh(inputs)
        self.value = VALUE + INPUT_SHARE * size
        self._left = TOTAL + INPUT_SHARE * INPUT_SHARE * size
        self._deadline = time.thread_time() + SECONDS + SECONDS_PER_INPUT * size
        self._ticks = 0

    def tick(self) -> None:
        """To be called for every step that a template can repeat."""
        self._ticks += 1
        if not self._ticks % _TICKS_PER_CLOCK:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        if time.thread_time() > self._deadline:
            raise LimitError("it takes too long")

    def charge(self, size: int) -> None:
        """Take `size` off what may still be made, before it is made where it can be known."""
        self._left -= max(size, 0)
        if size > _BIG:
            self._look_at_clock()
        if size > self.value or self._left < 0:
            raise LimitError("it makes too much text")

    def made(self, value: Any) -> Any:
        """`value`, once it has been counted as newly made."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, _CONTAINERS):
            self.charge(ITEM * len(value))
            if self.weigh(value) > self.value:
                raise LimitError("it makes too large a value")
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise LimitError("it makes too large a number")
        elif isinstance(value, Iterator):
            return self.watched(value)
        return value

    def writable(self, value: Any) -> None:
        """To be called before `value` is written out, which for a list that holds one list many times can be huge."""
        self.charge(self.weigh(value))

    def watched(self, values: Iterable[Any]) -> Iterable[Any]:
        """The same values, with a tick for each."""
        return _WatchedSized(values, self) if isinstance(values, Sized) else _watch(values, self)

    def weigh(self, value: Any, depth: int = 0) -> int:
        """About how many characters `value` has when written out."""
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, Namespace):
            return self._weigh_new(object.__getattribute__(value, "_Namespace__attrs"), depth)
        if isinstance(value, _VIEWS):
            return self._weigh_new(list(value), depth)
        if not isinstance(value, _CONTAINERS):
            return ITEM
        known = self._weights.get(id(value))
        if known is None:
            known = self._weights[id(value)] = (value, self._weigh_new(value, depth))
        return known[1]

    def _weigh_new(self, value: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise LimitError("it nests values too deeply")
        total = ITEM
        parts = [part for pair in value.items() for part in pair] if isinstance(value, Mapping) else value
        for part in parts:
            if isinstance(part, Namespace):
                # A namespace changes, so the weight of what holds it could not be relied on.
                raise LimitError("it puts a namespace into another value")
            total += ITEM + self.weigh(part, depth + 1)
        return total


class _WatchedSized:
    """Keeps the length, which `loop.length` asks for."""

    def __init__(self, values: Any, limits: Limits) -> None:
        self._values = values
        self._limits = limits

    def __iter__(self) -> Iterator[Any]:
        return _watch(self._values, self._limits)

    def __len__(self) -> int:
        return len(self._values)


def _watch(values: Iterable[Any], limits: Limits) -> Iterator[Any]:
    for value in values:
        limits.tick()
        yield value
