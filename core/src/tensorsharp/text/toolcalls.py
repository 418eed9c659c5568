"""Tools as a request declares them, and the arguments that a reply gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorsharp.errors import RequestError
from tensorsharp.text.reading import UnreadableError, parse_json

Call = tuple[str, Mapping[str, Any]]
"""(name of the tool, its arguments)."""

NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
NAME_CHARACTER: Final = re.compile(r"[A-Za-z0-9_.:/-]")
_MAX_DEPTH: Final = 16
_ORDER: Final = ("type", "description", "enum", "items", "properties", "required")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_VALUES: Final = ("enum", "const", "default", "examples")
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "none": None}
"""Also as Python writes them, which models do at times."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def kinds(self, parameter: str) -> set[str]:
        """The JSON types that a parameter may have; empty if the schema does not say."""
        return _types(_property(self.parameters, parameter), self.parameters)

    def as_json(self) -> dict[str, Any]:
        """The tool as chat templates expect it. The same schema gives the same text, in whatever order a client wrote it."""
        function = {"name": self.name, "description": self.description, "parameters": _customary(self.parameters)}
        return {"type": "function", "function": function}


class Tools:
    """The tools of a request, by name."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.by_name = {tool.name: tool for tool in tools}

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def value(self, tool: str, parameter: str, raw: str) -> Any:
        """The value of an argument that is written without quotes: of the type that the tool's schema declares.

        A text that is no value of any other declared type is a string. Where nothing is declared, whatever is JSON and no
        string counts as such.
        """
        found = self.by_name.get(tool)
        kinds = found.kinds(parameter) if found else set()
        text = raw.strip()
        if kinds and text.lower() in _CONSTANTS and _type(_CONSTANTS[text.lower()]) in kinds:
            return _CONSTANTS[text.lower()]
        try:
            value = parse_json(text)
        except UnreadableError:
            return raw
        kind = _type(value)
        allowed = not kinds or kind in kinds or (kind == "integer" and "number" in kinds)
        return value if allowed and kind != "string" else raw


def read_tools(items: Sequence[Any], field: str = "tools") -> Tools:
    """Tools from their definitions: `{"type": "function", "function": {…}}`, or the function alone.

    RequestError names the field that is wrong.
    """
    tools = [_tool(item, f"{field}[{i}]") for i, item in enumerate(items)]
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _refused(f"{field}[{i}].function.name", f"is {name!r}, which another tool has; expected another name")
    return Tools(tools)


def _tool(item: Any, field: str) -> Tool:
    if not isinstance(item, Mapping):
        raise _refused(field, f"is {item!r:.100}; expected an object with 'function'")
    kind = item.get("type", "function")
    if kind != "function":
        raise _refused(f"{field}.type", f"is {kind!r:.100}; expected 'function'")
    function = item.get("function", item)
    if function is not item:
        field = f"{field}.function"
    if not isinstance(function, Mapping):
        raise _refused(field, f"is {function!r:.100}; expected an object with 'name'")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refused(f"{field}.name", f"is {name!r:.150}; expected 1 to 128 letters, digits and any of _ . : / -")
    description = function.get("description")
    if not isinstance(description, str | None):
        raise _refused(f"{field}.description", f"is {description!r:.100}; expected a text")
    parameters = function.get("parameters", function.get("input_schema"))
    if not isinstance(parameters, Mapping | None):
        raise _refused(f"{field}.parameters", f"is {parameters!r:.100}; expected a JSON schema")
    empty = {"type": "object", "properties": {}}
    return Tool(name, description or "", parameters or empty, bool(function.get("strict", False)))


def _refused(field: str, sentence: str) -> RequestError:
    return RequestError(f"{field} {sentence}.", param=field, code="invalid_value")


def _customary(schema: Any, depth: int = 0) -> Any:
    """A schema with its keywords in the order in which most are written; names of properties stay in theirs."""
    if isinstance(schema, list):
        return [_customary(item, depth + 1) for item in schema]
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema
    made = {}
    for keyword in (*(k for k in _ORDER if k in schema), *(k for k in schema if k not in _ORDER)):
        value = schema[keyword]
        if keyword in _NAMED and isinstance(value, Mapping):
            made[keyword] = {name: _customary(one, depth + 1) for name, one in value.items()}
        else:
            made[keyword] = value if keyword in _VALUES else _customary(value, depth + 1)
    return made


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return schema.get("additionalProperties") if found is None else found


def _types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema lets pass, as far as it says; empty if it says nothing."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    declared = schema.get("type")
    kinds = {declared} if isinstance(declared, str) else set(declared) if isinstance(declared, list) else set()
    if not kinds:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        kinds = {_type(value) for value in choices} if isinstance(choices, list) else set()
    if not kinds and isinstance(reference := schema.get("$ref"), str):
        kinds = _types(_resolve(reference, root), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if not kinds and isinstance(branches := schema.get(keyword), list):
            found = [_types(branch, root, depth + 1) for branch in branches]
            # A branch that says nothing lets everything pass, unless all branches have to hold.
            kinds = set().union(*found) if keyword == "allOf" or all(found) else set()
    return kinds


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
