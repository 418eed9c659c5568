"""What an endpoint takes and gives, as data beside its handler: /openapi.json is made of it, and tests hold it to be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorsharp_app_server.answers import JSON

Schema = dict[str, Any]
"""A JSON schema (draft 2020-12)."""

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
TEXTS: Final[Schema] = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request, which may be null or absent unless it is needed.

    schema: values that it fits are of a type that is taken, all others are refused by name. example: a value that is taken.
    beside: further fields that the example makes sense with.
    """

    name: str
    schema: Schema
    example: Any
    needed: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """fields: of the body of a POST, else of the query. streams: whether there may be a stream in place of one answer.

    media: of an answer. statuses: further ones than those of every endpoint.
    """

    summary: str
    fields: Sequence[Field] = ()
    streams: bool = False
    media: str = JSON
    statuses: Sequence[int] = ()


def whole(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def listed(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    bounds = ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})
    return {"type": "array", "items": items} | bounds


def an_object(*fields: Field) -> Schema:
    """An object with these fields, and any others."""
    needed = [one.name for one in fields if one.needed]
    found: Schema = {"type": "object", "properties": {one.name: value_schema(one) for one in fields}}
    return found | ({"required": needed} if needed else {})


def value_schema(one: Field) -> Schema:
    """What a request may have in a field: its schema, and null where the field may be absent."""
    shown = {"examples": [one.example]}
    if one.needed or not one.schema:
        return one.schema | shown
    if isinstance(one.schema.get("type"), str):
        return one.schema | {"type": [one.schema["type"], "null"]} | shown
    return either(*one.schema.get("anyOf", [one.schema]), {"type": "null"}) | shown
