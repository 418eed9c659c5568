"""Calls as replies that are nothing else: `{"name": …, "parameters": {…}}`, several with `;` between them.

An object that calls none of the request's tools is content, as an answer may be JSON too. So is one that calls a strict tool and
is not written exactly so, as no grammar has held its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorsharp.text.channels import ReplyFormat, deliver
from tensorsharp.text.deltas import Writer
from tensorsharp.text.formats.tagged_json import call_of, json_call
from tensorsharp.text.reading import Markers, Source, Steps
from tensorsharp.text.toolcalls import Call, Tool, Tools
from tensorsharp.types import Constraint

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

_MARK: Final = "<|python_tag|>"
_KEYS: Final = ("name", "parameters")


def _read(source: Source, writer: Writer, tools: Tools, thinking: bool, formed: bool) -> Steps[None]:
    if tools:
        yield from source.attempt(deliver(_calls(source, tools), writer))
    yield from source.text(Markers(), writer.content)


def _calls(source: Source, tools: Tools) -> Steps[list[Call]]:
    calls: list[Call] = []
    yield from source.space()
    marked = yield from source.take(_MARK)
    yield from source.space()
    while not calls or (yield from source.take(";")):
        yield from source.space()
        if not (yield from source.starts("{")):
            source.fail()
        value = yield from source.json()
        name, arguments = call_of(value)
        found = tools.by_name.get(name)
        if found is None or (found.strict and (marked or tuple(value) != _KEYS)):
            source.fail()
        calls.append((name, arguments))
        yield from source.space()
    if (yield from source.peek()):
        source.fail()
    return calls


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool, free: bool, form: Constraint | None = None) -> str:
    if form is not None:
        return _write_beside(writer, tools, several, form)
    call = writer.choice(tools, lambda tool: json_call(writer, tool, "parameters"))
    calls = f"{call} ({writer.literal('; ')} {call})*" if several else call
    return rf"/([^\s{{](?s:.*))?/ | {calls}" if free else calls


def _write_beside(writer: GrammarWriter, tools: Sequence[Tool], several: bool, form: Constraint) -> str:
    """Calls or content in a form. Both may begin alike, so that calls are written with the lexemes of JSON, as the content is."""
    from tensorsharp.text.callgrammar import refuse_form
    from tensorsharp.text.constraints import JSON_KINDS, schema_of

    if form.kind not in JSON_KINDS:
        refuse_form(f"A {form.kind} cannot be told from calls of this model, which are JSON; expected a JSON schema as the form.")
    if any(tool.strict for tool in tools) and _fits_a_call(schema_of(form)):
        refuse_form(
            "Strict tools cannot be kept beside a form that calls of this model fit, which are JSON with 'name' and 'parameters'."
        )
    call = writer.choice(tools, lambda tool: writer.json(_call_schema(tool.name, writer.schema(tool))))
    more = f" ({writer.literal('; ')} {call})*" if several else ""
    return f"{call}{more} | {writer.form(form)}"


def _call_schema(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    from tensorsharp.text.schemas import moved

    properties = {"name": {"const": name}, "parameters": moved(parameters, "#/properties/parameters")}
    return {"type": "object", "properties": properties, "required": list(_KEYS), "additionalProperties": False}


def _fits_a_call(schema: Any) -> bool:
    """Whether an object with nothing but a call's keys may fit a schema, as far as can be told without looking into it."""
    if not isinstance(schema, dict):
        return True
    if "object" not in schema.get("type", "object") or not set(schema.get("required", ())) <= set(_KEYS):
        return False
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return not closed or set(_KEYS) <= schema.get("properties", {}).keys()


BARE_JSON: Final = ReplyFormat((_MARK,), _read, _write)
