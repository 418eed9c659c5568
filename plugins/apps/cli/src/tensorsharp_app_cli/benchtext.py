"""A text of any length to measure with: numbered notes, so that no part of it repeats another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tensorsharp.protocols.batch import I32
    from tensorsharp.protocols.tokenizer import Tokenizer

PLACES = ("the harbour", "a railway station", "the old observatory", "a mountain village", "the public library", "an island")
PEOPLE = ("a carpenter", "two students", "the night watchman", "a retired sailor", "the mayor", "a travelling musician")
THINGS = ("a letter without a stamp", "a map of the coast", "three brass keys", "a broken clock", "a basket of apples")
ENDS = (
    "Nobody could say how it had come there, and in the evening the question was still open.",
    "It was carried to the market, weighed, and sold before the bells rang at noon.",
    "The weather turned, the road was closed, and everything had to wait until spring.",
    "A child asked the simplest question of all, and the answer took the rest of the day.",
)


def note(number: int) -> str:
    """One short paragraph; the numbers of the choices are coprime enough to combine for a long time."""
    place, person = PLACES[number % len(PLACES)], PEOPLE[number // 2 % len(PEOPLE)]
    thing, end = THINGS[number % len(THINGS)], ENDS[number // 3 % len(ENDS)]
    return f"Note {number}. In the year {1700 + number % 311}, at {place}, {person} found {thing}. {end}\n\n"


def tokens(tokenizer: Tokenizer, count: int) -> I32:
    """[count] int32: the beginning of the notes."""
    notes = count // 32 + 1
    while True:
        ids = tokenizer.encode("".join(map(note, range(1, notes + 1))))
        if len(ids) >= count:
            return np.array(ids[:count], np.int32)
        notes *= 2
