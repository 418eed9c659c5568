"""Random JSON schemas of every supported keyword whose values are all of bounded size, and checks of values."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from tensorsharp.llm import LLM
from tensorsharp.types import Constraint

Schema = dict[str, Any]

WORDS = ("a", "id", "name", "größe", "a b", "x/y", "tags", "n1", 'q"', "\\d")
PATTERNS = (r"^[a-z]{1,5}$", r"^\d{3}-\d{2}$", r"^(ab|cd)+x?$", r"^[^a-z]{0,4}$", r"^\w{2,4}$")
FORMATS = ("date", "email", "ipv4", "ipv6", "uuid", "hostname", "time", "date-time", "duration", "uri")
VALUES: tuple[Any, ...] = (None, True, False, 0, -7, 12.5, "", "text", "é\n", [1, "a"], {"k": [None]}, 10**12)


class Schemas:
    """Schemas by chance, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self) -> Schema:
        """A schema, one in four with definitions that it refers to."""
        made = self._value(3)
        if self._random.random() < 0.25:
            place = self._random.choice(("$defs", "definitions"))
            made = {place: {"d": self._value(1)}, "type": "array", "items": {"$ref": f"#/{place}/d"}, "maxItems": 3}
        if self._random.random() < 0.2:
            made = {"title": "T", "description": "words", **made}
        return made

    def _value(self, depth: int) -> Schema:
        leaves = [self._string, self._string, self._integer, self._number, self._constant, self._enum, self._simple]
        inner = [self._object, self._object, self._array, self._tuple, self._any_of, self._one_of, self._all_of]
        return self._random.choice(leaves if depth == 0 else leaves[:4] + inner if depth < 3 else inner)(depth)

    def _string(self, depth: int) -> Schema:
        kind = self._random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self._random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self._random.choice(FORMATS)}
        least = self._random.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": least + self._random.randrange(20)}

    def _integer(self, depth: int) -> Schema:
        least = self._random.choice((0, 1, -5, -1000, 17, -(10**6)))
        made = {"type": "integer", "minimum": least, "maximum": least + self._random.choice((0, 1, 9, 123, 10**7))}
        if self._random.random() < 0.2:
            made = {"type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": least + self._random.choice((2, 11, 500))}
        if self._random.random() < 0.2:
            made = {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": self._random.choice((2, 5, 7, 100))}
        return made

    def _number(self, depth: int) -> Schema:
        least = self._random.choice((0, -1, -2.5, 0.125, 100))
        bounds = ("minimum", "maximum") if self._random.random() < 0.7 else ("exclusiveMinimum", "exclusiveMaximum")
        return {"type": "number", bounds[0]: least, bounds[1]: least + self._random.choice((0.5, 1, 3.25, 1000))}

    def _simple(self, depth: int) -> Schema:
        return {"type": self._random.choice(("null", "boolean", ["null", "boolean"]))}

    def _constant(self, depth: int) -> Schema:
        return {"const": self._random.choice(VALUES)}

    def _enum(self, depth: int) -> Schema:
        return {"enum": self._random.sample(VALUES, self._random.randint(1, 5))}

    def _array(self, depth: int) -> Schema:
        least = self._random.randrange(3)
        return {
            "type": "array",
            "items": self._value(depth - 1),
            "minItems": least,
            "maxItems": least + self._random.randrange(3),
        }

    def _tuple(self, depth: int) -> Schema:
        places = [self._value(depth - 1) for _ in range(self._random.randint(1, 3))]
        return {"type": "array", "prefixItems": places, "items": False, "minItems": self._random.randint(0, len(places))}

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._value(depth - 1) for _ in range(self._random.randint(2, 3))]}

    def _one_of(self, depth: int) -> Schema:
        """Alternatives of different types: of others it would not be certain that no value fits two."""
        kinds = [self._string, self._number, self._object, self._array]
        return {"oneOf": [make(depth) for make in self._random.sample(kinds, self._random.randint(2, 3))]}

    def _all_of(self, depth: int) -> Schema:
        return {"allOf": [{"type": "integer", "minimum": -20}, {"maximum": self._random.randint(0, 300)}]}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(WORDS, self._random.randint(1, 4))
        made: Schema = {
            "type": "object",
            "properties": {name: self._value(depth - 1) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
            "additionalProperties": False,
        }
        if self._random.random() < 0.1:
            made = {
                "type": "object",
                "patternProperties": {"^p[0-9]$": self._value(0)},
                "additionalProperties": False,
                "minProperties": self._random.randrange(2),
                "maxProperties": 3,
            }
        return made


def check_valid(schema: Schema, text: str) -> None:
    """By a validator that knows nothing of how the text was made."""
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert [error.message for error in validator.iter_errors(json.loads(text))] == [], (schema, text)


def completed(llm: LLM, schema: Schema, ids: Sequence[int]) -> str:
    """The text of a reply that was cut, with what its form lets end it soonest behind it."""
    form, whole = llm.grammar(Constraint.json_schema(schema)).start(), list(ids)
    for token in ids:
        form.accept(token)
    ranks = [_rank(llm.tokenizer.bytes_of(token)) for token in range(llm.tokenizer.vocab_size)]
    while not form.accepting:
        assert len(whole) < len(ids) + 300, "it has an end"
        mask = form.mask()
        assert mask is not None
        whole.append(min(np.flatnonzero(mask).tolist(), key=ranks.__getitem__))
        form.accept(whole[-1])
    return llm.detokenize(whole)


def _rank(text: bytes) -> tuple[int, int]:
    """What closes something comes first, then letters, which end what digits may go on with, then high digits, which are above
    any bound; white space comes last."""
    closes = b'"@}],:'
    if len(text) == 1 and text in closes:
        return 0, closes.index(text)
    return 1 if text.isalpha() else 3 if text.isspace() else 2, -sum(text[:1])
