"""The form that a reply has to have, in the fields of any client: a schema, a grammar, a pattern, a list of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensorsharp.types import Constraint
from tensorsharp_app_server.fields import Fields, invalid, read_json

Form = tuple[str, Constraint]
"""(the field's name as the client wrote it, what it asks for)."""


def read_form(body: Fields) -> Form | None:
    """`response_format` of OpenAI; `json_schema` and `grammar` of llama.cpp; `regex`, `choice` and the like, also in
    `structured_outputs`, of vLLM. RequestError where there is more than one.
    """
    forms = [*_response_format(body), *_plain(body)]
    if (structured := body.object("structured_outputs")) is not None:
        forms += _plain(structured)
    if len(forms) > 1:
        raise invalid(forms[1][0], f"{forms[1][0]} and {forms[0][0]} cannot both be followed; expected one of them.")
    return forms[0] if forms else None


def _response_format(body: Fields) -> Iterator[Form]:
    asked = body.object("response_format")
    if asked is None:
        return
    kind = asked.choice("type", "text", "json_object", "json_schema")
    if kind is None:
        raise asked.refuse("type", "text, json_object or json_schema")
    if kind == "json_object":
        yield (asked.name("schema"), schema_of(asked, "schema")) if "schema" in asked else (asked.name("type"), JSON_OBJECT)
    elif kind == "json_schema":
        named = asked.object("json_schema")
        if named is None:
            raise asked.refuse("json_schema", "an object with schema")
        yield named.name("schema"), schema_of(named, "schema")


def _plain(body: Fields) -> Iterator[Form]:
    for field, read in FIELDS.items():
        if field in body:
            yield body.name(field), read(body, field)
    if body.flag("json_object"):
        yield body.name("json_object"), JSON_OBJECT


def schema_of(body: Fields, field: str) -> Constraint:
    """A JSON schema, as an object or as text."""
    schema: Any = body.data.get(field)
    if isinstance(schema, str):
        try:
            schema = read_json(schema)
        except ValueError as error:
            raise body.refuse(field, f"a JSON schema: {error}") from error
    if not isinstance(schema, dict | bool):
        raise body.refuse(field, "a JSON schema")
    return Constraint.json_schema(schema)


def _grammar(body: Fields, field: str) -> Constraint:
    """GBNF writes rules with `::=`, Lark with a colon."""
    source = body.needed_text(field)
    return Constraint("grammar" if "::=" in source else "lark", source)


def _regex(body: Fields, field: str) -> Constraint:
    return Constraint("regex", body.needed_text(field))


def _choice(body: Fields, field: str) -> Constraint:
    texts = body.strings(field)
    if not texts or isinstance(body.data[field], str):
        raise body.refuse(field, "a list of strings")
    return Constraint.choice(texts)


JSON_OBJECT = Constraint("json_object")
FIELDS: dict[str, Callable[[Fields, str], Constraint]] = {
    "json": schema_of,
    "json_schema": schema_of,
    "guided_json": schema_of,
    "grammar": _grammar,
    "guided_grammar": _grammar,
    "regex": _regex,
    "guided_regex": _regex,
    "choice": _choice,
    "guided_choice": _choice,
}
