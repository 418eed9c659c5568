"""What older drafts and schema libraries write in their own way, in the words of draft 2020-12 that say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorsharp.text.subschemas import with_inner

STANDARD_FORMATS: Final = (
    frozenset({"date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"})
    | frozenset({"uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "regex"})
    | frozenset({"json-pointer", "relative-json-pointer"})
)
"""The formats that draft 2020-12 defines (JSON Schema Validation, section 7.3). Another one constrains nothing by itself."""


def respelled(schema: Any) -> Any:
    """The schema with these changes at every level; what has no such spelling stays, for those who check it.

    - A list as `items`, with `additionalItems` for the rest (draft 7 and before), becomes `prefixItems` and `items`.
    - `propertyNames` that only wants strings goes, as every name is one; with an `enum` it becomes `properties`.
    - A `format` of a library's own beside a `pattern` goes: the pattern is what constrains.
    - `$schema` goes: llguidance would leave out what the draft that it names does not have.
    """
    if not isinstance(schema, dict):
        return schema
    made = _without_own_format(_with_named_properties(_with_prefix_items(schema)))
    made.pop("$schema", None)
    return with_inner(made, respelled)


def _with_prefix_items(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(schema)
    if not isinstance(made.get("items"), list) or "prefixItems" in made:
        return made
    first, rest = made.pop("items"), made.pop("additionalItems", None)
    if first:
        made["prefixItems"] = first
    if rest is not None:
        made["items"] = rest
    return made


def _with_named_properties(made: dict[str, Any]) -> dict[str, Any]:
    names = made.get("propertyNames")
    if names is True or names in ({}, {"type": "string"}):
        del made["propertyNames"]
    elif isinstance(names, dict) and names.keys() <= {"type", "enum"} and names.get("type", "string") == "string":
        listed = names.get("enum")
        declared = "properties" in made or "patternProperties" in made
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed) and not declared:
            del made["propertyNames"]
            made["properties"] = dict.fromkeys(listed, made.get("additionalProperties", True))
            made["additionalProperties"] = False
    return made


def _without_own_format(made: dict[str, Any]) -> dict[str, Any]:
    if "pattern" in made and isinstance(made.get("format"), str) and made["format"] not in STANDARD_FORMATS:
        del made["format"]
    return made
