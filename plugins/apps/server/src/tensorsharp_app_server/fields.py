"""Reads the fields of a JSON object: a wrong type or value is an error that names the field, unknown ones are ignored."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from tensorsharp.errors import RequestError

Value = TypeVar("Value")
_DIGITS = "integer string conversion"
"""Part of what Python says of a whole number that is too long."""
SHOWN = 80
"""Most characters of a wrong value that an error repeats."""


def parse(body: bytes) -> Fields:
    """The object that a request's body holds. RequestError if it is no JSON, no object, or no Unicode text."""
    if not body.strip():
        raise RequestError("The body is empty; expected an object of JSON.", code="invalid_json")
    try:
        data = read_json(body.decode(json.detect_encoding(body)))
    except ValueError as error:
        raise RequestError(f"The body is no valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(data, dict):
        raise RequestError(f"The body is {_kind(data)}; expected an object.", code="invalid_json")
    return Fields(data)


def read_json(text: str) -> Any:
    """What a JSON text holds. ValueError, in words for a client, if it is none, or holds what is no Unicode text."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:  # half of a surrogate pair can be written, but is no character
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if _DIGITS in str(error):
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
        raise
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def invalid(param: str, message: str) -> RequestError:
    """The error for a value of `param`, to raise."""
    return RequestError(message, param=param, code="invalid_value")


class Fields:
    """An object. A field that is null counts as absent. path: what errors put before a field's name."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def name(self, field: str) -> str:
        """The field's name with its path, as errors give it."""
        return f"{self.path}{field}"

    def refuse(self, field: str, expected: str, *, code: str = "invalid_value", hint: str | None = None) -> RequestError:
        """The error for a field's value, to raise."""
        name = self.name(field)
        if field not in self.data:
            return RequestError(f"{name} is missing; expected {expected}.", param=name, code="missing", hint=hint)
        return RequestError(f"{name} is {_short(self.data[field])}; expected {expected}.", param=name, code=code, hint=hint)

    def _typed(self, field: str, kind: type[Value], expected: str) -> Value | None:
        value = self.data.get(field)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise self.refuse(field, expected)
        return value

    def text(self, field: str) -> str | None:
        return self._typed(field, str, "a string")

    def needed_text(self, field: str) -> str:
        value = self.text(field)
        if value is None:
            raise self.refuse(field, "a string")
        return value

    def choice(self, field: str, *options: str) -> str | None:
        value = self.data.get(field)
        if value is not None and value not in options:
            raise self.refuse(field, f"one of {', '.join(options)}")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        value = self._typed(field, bool, "true or false")
        return default if value is None else value

    def whole(self, field: str, least: int, most: int | None = None) -> int | None:
        value = self.data.get(field)
        if value is None:
            return None
        whole = as_whole(value)
        if whole is None or whole < least or (most is not None and whole > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.refuse(field, f"a whole number {limits}")
        return whole

    def number(self, field: str) -> float | None:
        value = self.data.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, "a number")
        return value

    def object(self, field: str) -> Fields | None:
        value = self._typed(field, dict, "an object")
        return None if value is None else Fields(value, f"{self.name(field)}.")

    def items(self, field: str) -> list[Any] | None:
        return self._typed(field, list, "a list")

    def objects(self, field: str) -> Iterator[Fields]:
        """The objects of a list; none if it is absent."""
        for number, value in enumerate(self.items(field) or []):
            path = f"{self.name(field)}[{number}]"
            if not isinstance(value, dict):
                raise invalid(path, f"{path} is {_kind(value)}; expected an object.")
            yield Fields(value, f"{path}.")

    def strings(self, field: str) -> tuple[str, ...] | None:
        """One string, or a list of them."""
        value = self.data.get(field)
        if value is None:
            return None
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(field, "a string or a list of strings")
        return tuple(value)


def as_whole(value: object) -> int | None:
    """A whole number, also one that was written as 3.0, as some clients do; else None."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def are_ids(value: object) -> bool:
    """Whether a value is a list of whole numbers, and not empty."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)


def texts_or_ids(body: Fields, field: str, most: int) -> list[str | list[int]]:
    """A text, token ids, or a list of up to `most` of either."""
    given = body.data.get(field)
    if isinstance(given, str):
        return [given]
    if are_ids(given):
        return [given]  # type: ignore[list-item]
    several = isinstance(given, list) and 0 < len(given) <= most
    if not several or not all(isinstance(one, str) or are_ids(one) for one in given or ()):
        raise body.refuse(field, f"a text, a list of token ids, or a list of up to {most} of either")
    return list(given or ())


def _short(value: object) -> str:
    """The value as it was written, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _kind(value: object) -> str:
    kinds: Sequence[tuple[type | tuple[type, ...], str]] = (
        (bool, "true or false"),
        (str, "a string"),
        ((int, float), "a number"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
