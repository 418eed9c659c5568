"""JSON schemas (draft 2020-12) that can constrain a reply: what is not understood is refused, with its place and keyword."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from difflib import get_close_matches
from math import lcm
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from tensorsharp.errors import RequestError
from tensorsharp.text.dates import PATTERNS
from tensorsharp.text.nesting import MAX_LEVELS, refuse_levels
from tensorsharp.text.spellings import respelled
from tensorsharp.text.subschemas import LISTS, MAPS, ONE, with_inner

MAX_DEPTH: Final = 64
"""Levels of nested JSON in a schema."""
TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS: Final = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

Schema = dict[str, Any] | bool


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in TYPES for name in names)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(_is_schema(item) for item in value)


def _is_schema_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_schema(item) for item in value.values())


_A_SCHEMA: Final = (_is_schema, "a schema: an object or a boolean")
_SCHEMAS: Final = (_is_schemas, "a list of schemas that is not empty")
_SCHEMA_MAP: Final = (_is_schema_map, "an object whose values are schemas")
_COUNT: Final = (_is_count, "a whole number, 0 or more")
_FROM: Final = (lambda value: _is_number(value) and value <= EXACT, "a number of at most 9007199254740991")
_TO: Final = (lambda value: _is_number(value) and value >= -EXACT, "a number of at least -9007199254740991")
_STEP: Final = (
    lambda value: _is_number(value) and 0 < value <= MAX_STEP,
    "a number above 0, of at most 14 digits before the point",
)
_TEXT: Final = (lambda value: isinstance(value, str), "a string")

KEYWORDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "type": (_is_type, f"one or several of {', '.join(TYPES)}"),
    "enum": (lambda value: isinstance(value, list) and len(value) > 0, "a list that is not empty"),
    "const": (lambda value: True, "any value"),
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "allOf": _SCHEMAS,
    "$ref": (lambda value: isinstance(value, str) and value.startswith("#"), "a reference within the schema, such as #/$defs/x"),
    "$defs": _SCHEMA_MAP,
    "definitions": _SCHEMA_MAP,
    "items": _A_SCHEMA,
    "prefixItems": _SCHEMAS,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "properties": _SCHEMA_MAP,
    "patternProperties": _SCHEMA_MAP,
    "additionalProperties": _A_SCHEMA,
    "required": (_is_texts, "a list of names"),
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": _TEXT,
    "format": (lambda value: value in FORMATS, f"one of {', '.join(FORMATS)}"),
    "minimum": _FROM,
    "maximum": _TO,
    "exclusiveMinimum": _FROM,
    "exclusiveMaximum": _TO,
    "multipleOf": _STEP,
}
"""What constrains a value -> (whether the keyword's value is sound, what is expected of it)."""
ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "title", "description", "default", "examples", "example", "deprecated"}
) | frozenset({"readOnly", "writeOnly", "contentEncoding", "contentMediaType", "discriminator", "externalDocs", "xml"})
"""What describes a value and constrains nothing; so does every keyword that begins with `x-`."""
UNSUPPORTED: Final = (
    frozenset({"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "nullable"})
    | frozenset({"dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"})
    | frozenset({"additionalItems", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "contentSchema"})
)
"""Known words, which nobody mistyped."""
_LOWER: Final = ("minimum", "exclusiveMinimum")
_BOUNDS: Final = (*_LOWER, "maximum", "exclusiveMaximum")
_DIGITS: Final = 15
"""All of so many digits of a decimal number count in float64."""
_HOST_NAME: Final = 253
"""Characters of a host name, at most (RFC 1034, 3.1: 255 bytes with the length of each label and an empty one at the end)."""
MAX_REMAINDERS: Final = 100_000
"""A million of them take 10 seconds and half a gigabyte."""
MAX_STEP: Final = 10 ** (_DIGITS - 1) - 1
EXACT: Final = 2**53 - 1
"""Up to here, and down to its negative, float64 has every whole number (RFC 8259, section 6)."""


def read_schema(source: str) -> Schema:
    """The schema in a JSON text. RequestError, which names place and keyword, for one that cannot be followed to the letter."""
    return check_schema(read_json(source))


def check_schema(schema: Any) -> Schema:
    """The same for a schema that was read from JSON. What means the same may come back for it, see `closed`."""
    if not _is_schema(schema):
        _refuse(f"The schema is {schema!r:.100}; expected an object or a boolean.")
    if schema is False:
        _refuse("The schema is false, which nothing fits.")
    schema = respelled(schema)
    _check(schema, "#", schema)
    _check_references(schema)
    remainders(schema)
    return closed(schema)


def read_json(source: str) -> Any:
    """The value of a JSON text. RequestError if it is none, or nested too deeply."""
    try:
        value = json.loads(source, parse_constant=_no_constant)
    except RecursionError:
        _refuse_depth()
    except ValueError as error:
        _refuse(f"The schema is not JSON: {error}.")
    if _deeper(value, MAX_DEPTH):
        _refuse_depth()
    return value


def closed(schema: Schema) -> Schema:
    """The schema with bounds that llguidance reads exactly, inclusive ones for exclusive ones at whole numbers, patterns for
    dates and times, and a limit on host names.

    It reads decimals of up to 15 digits and whole numbers up to EXACT exactly, so others are rounded inwards. Version 1.9 lets
    `0` through for numbers above 0 and below 1, and the like at other whole numbers, so such a bound moves by the last of 15
    digits.
    """
    if isinstance(schema, bool):
        return schema
    made: dict[str, Any] = {
        keyword: _inward(value, keyword in _LOWER) if keyword in _BOUNDS else value for keyword, value in schema.items()
    }
    low, high = made.get("exclusiveMinimum"), made.get("exclusiveMaximum")
    if low is not None and low >= 0 and low == int(low):
        del made["exclusiveMinimum"]
        made["minimum"] = max(made.get("minimum", low), low + _step(low))
    if high is not None and high <= 0 and high == int(high):
        del made["exclusiveMaximum"]
        made["maximum"] = min(made.get("maximum", high), high - _step(high))
    if made.get("format") == "hostname":
        made["maxLength"] = min(made.get("maxLength", _HOST_NAME), _HOST_NAME)
    if made.get("format") in PATTERNS:
        made["allOf"] = [*made.get("allOf", ()), {"pattern": PATTERNS[made.pop("format")]}]
    return with_inner(made, closed)


def _inward(bound: float, up: bool) -> float:
    """The bound as a whole number up to EXACT or in 15 digits, rounded up or down."""
    if abs(bound) >= EXACT:
        return EXACT if bound > 0 else -EXACT
    value = Decimal(repr(bound))
    if bound == int(bound) or len(value.as_tuple().digits) <= _DIGITS:
        return bound
    return float(Context(_DIGITS, ROUND_CEILING if up else ROUND_FLOOR).plus(value))


def _step(bound: float) -> float:
    """The last of 15 digits of a whole number with its fraction, and 1 for one that has more."""
    return float(min(1.0, 10.0 ** (len(str(abs(int(bound)))) - _DIGITS)))


def children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside one, each with its path from there."""
    if isinstance(schema, bool):
        return
    for keyword in ONE:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in LISTS:
        for number, item in enumerate(schema.get(keyword, ())):
            yield f"{keyword}/{number}", item
    for keyword in MAPS:
        for name, item in schema.get(keyword, {}).items():
            yield f"{keyword}/{_escaped(name)}", item


def moved(schema: Schema, place: str) -> Schema:
    """A schema as it has to be where it stands at a place within another one, as a pointer such as `#/items`."""
    if isinstance(schema, bool):
        return schema
    reference = {"$ref": place + schema["$ref"].removeprefix("#")} if "$ref" in schema else {}
    return with_inner({**schema, **reference}, lambda inner: moved(inner, place))


def _check(schema: Schema, path: str, root: Schema) -> None:
    if isinstance(schema, bool):
        return
    for keyword, value in schema.items():
        if keyword in KEYWORDS:
            sound, expected = KEYWORDS[keyword]
            if not sound(value):
                _refuse(f"{path}/{keyword} is {json.dumps(value):.100}; expected {expected}.")
        elif keyword not in ANNOTATIONS and (not keyword.startswith("x-") or keyword == "x-guidance"):
            _refuse_keyword(keyword, f"{path}/{_escaped(keyword)}")
    reference = schema.get("$ref", "#")
    if reference.startswith("#/") and not _is_schema(_referred(reference, root)):
        _refuse(f"{path}/$ref is {reference!r:.100}, and there is no such place in the schema.")
    needed, required = schema.get("minProperties", 0), len(set(schema.get("required", ())))
    if needed > required + 1:
        # a key that no keyword names may come twice, and counts once
        _refuse(
            f"{path}/minProperties is {needed}, which is supported up to one more than what 'required' names, here {required}.",
            code="unsupported_schema",
        )
    for place, child in children(schema):
        _check(child, f"{path}/{place}", root)


def _check_references(root: Schema) -> None:
    """Refuse what may be deeper than a compiler can follow: whatever is referred to may stand inside all else that is."""
    levels = sum(_levels(_referred(reference, root)) for reference in set(_referring(root)))
    if levels > MAX_LEVELS:
        refuse_levels("schema", f"references to {levels:,} levels of JSON", "unsupported_schema")


def _referring(root: Schema) -> Iterator[str]:
    return (reference for reference in _every(root, "$ref") if isinstance(reference, str))


def remainders(root: Any) -> int:
    """How many the steps of a schema, or of a list of them, have together: those of one value may come from several places.

    RequestError if there are too many.
    """
    together = 1
    for step in _every(root, "multipleOf"):
        if _is_number(step) and 0 < step <= MAX_STEP:
            together = lcm(together, _remainders(step))
        if together > MAX_REMAINDERS:
            _refuse(
                f"multipleOf is {step:.{_DIGITS}g}, with all others above {MAX_REMAINDERS:,} without factors 2 and 5; "
                "expected less.",
                code="unsupported_schema",
            )
    return together


def _remainders(step: float) -> int:
    """How many of its remainders llguidance keeps apart while it reads digits."""
    found = int("".join(map(str, Decimal(repr(step)).as_tuple().digits)))
    for factor in (2, 5):
        while found % factor == 0:
            found //= factor
    return found


def _every(value: Any, keyword: str) -> Iterator[Any]:
    """What stands behind a keyword, also in places where no keyword puts a schema: a reference may lead there."""
    if isinstance(value, dict) and keyword in value:
        yield value[keyword]
    for item in _inside(value):
        yield from _every(item, keyword)


def _levels(value: Any) -> int:
    return 1 + max(map(_levels, _inside(value)), default=0) if isinstance(value, dict | list) else 0


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse_keyword(keyword: str, path: str) -> NoReturn:
    close = [] if keyword in UNSUPPORTED else get_close_matches(keyword, KEYWORDS, 1)
    _refuse(
        f"{path}: the keyword '{keyword}' is not supported.",
        code="unsupported_schema",
        hint=f"Did you mean '{close[0]}'?" if close else "Remove it, or describe it in 'description'.",
    )


def _refuse(message: str, *, code: str = "invalid_schema", hint: str | None = None) -> NoReturn:
    raise RequestError(message, param="constraint", code=code, hint=hint)


def _refuse_depth() -> NoReturn:
    _refuse(f"The schema is nested deeper than {MAX_DEPTH} levels; expected fewer.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _deeper(value: Any, levels: int) -> bool:
    return levels == 0 or any(_deeper(item, levels - 1) for item in _inside(value))


def _referred(reference: str, root: Any) -> Any:
    """What a JSON pointer behind `#` names; None if there is nothing."""
    place = root
    for name in unquote(reference).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


def _escaped(name: str) -> str:
    """A name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
