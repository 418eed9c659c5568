"""The keywords of a JSON schema behind which further schemas stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

ONE: Final = ("items", "additionalProperties")
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS: Final = ("$defs", "definitions", "properties", "patternProperties")


def with_inner(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema whose inner ones are changed. What is no list, or no object, where the keyword wants one stays."""
    made = dict(schema)
    for keyword in ONE:
        if keyword in made:
            made[keyword] = change(made[keyword])
    for keyword in LISTS:
        if isinstance(made.get(keyword), list):
            made[keyword] = [change(item) for item in made[keyword]]
    for keyword in MAPS:
        if isinstance(made.get(keyword), dict):
            made[keyword] = {name: change(item) for name, item in made[keyword].items()}
    return made
