"""Grammars of tool calls, in the Lark that llguidance reads: what a reply has to be where a call is required."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tensorsharp.errors import RequestError
from tensorsharp.text.constraints import json_rule
from tensorsharp.text.masks import quoted
from tensorsharp.text.schemas import check_schema
from tensorsharp.text.toolcalls import Tool

_SPECIAL: Final = re.compile(r"[.+*?()|\[\]{}^$\\/&~#\-]")
_BOUNDS: Final = frozenset({"pattern", "format", "minLength", "maxLength"})


class WriteCall(Protocol):
    """Writes one call, or one block of calls, from behind the opening marker on: the body of a rule.

    several: whether a block may hold more than one call.
    """

    def __call__(self, writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str: ...


class GrammarWriter:
    """Collects rules. controls: the vocabulary's control tokens that texts may hold, by text; they are written by id.

    loose: schemas of tools that are not strict are let go where they cannot be followed.
    """

    def __init__(self, controls: Mapping[str, int], *, loose: bool = False) -> None:
        self._controls = dict(controls)
        self._loose = loose
        self._rules: list[str] = []
        names = sorted(map(re.escape, controls), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(names)})") if names else None

    def rule(self, body: str, options: str = "") -> str:
        """The name of a new rule."""
        return self._named("rule", f"{options}: {body}")

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    def literal(self, text: str) -> str:
        """A text as it is."""
        return " ".join(f"<[{self._controls[p]}]>" if p in self._controls else quoted(p) for p in self._pieces(text))

    def until(self, text: str) -> str:
        """Any text up to and with the first occurrence of `text`."""
        first, *rest = self._pieces(text)
        if first in self._controls:
            return f"{self.rule('/(?s:.*)/')} {self.literal(text)}"
        lazy = self.rule(f"/(?s:.*){_escaped(first)}/", "[lazy]")
        return f"{lazy} {self.literal(''.join(rest))}" if rest else lazy

    def without(self, text: str) -> str:
        """Any text in which `text` does not occur."""
        first, *_ = self._pieces(text)
        if first in self._controls:
            return self.rule("/(?s:.*)/")
        return self._named("TEXT", f": /(?s:.*)/ & ~/(?s:.*){_escaped(first)}(?s:.*)/")

    def is_control(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        return self._pieces(text)[0] in self._controls

    def json(self, schema: Any) -> str:
        """A JSON value that fits a schema."""
        return self.rule(json_rule(schema))

    def arguments(self, tool: Tool) -> str:
        """The JSON object of a tool's arguments."""
        return self.json(self.schema(tool))

    def choice(self, tools: Sequence[Tool], write: Callable[[Tool], str]) -> str:
        """One of what is written for each tool."""
        return self.rule(" | ".join(write(tool) for tool in tools))

    def parameters(self, tool: Tool, head: Callable[[str, bool], str], close: str, gap: str = "") -> str:
        """All required and any of the other parameters, in the schema's order.

        head: the grammar of what stands before a value: (name, whether the value is written as a string is: raw). close: the text
        behind it. gap: the grammar of what may follow that.
        """
        schema = self.schema(tool)
        required = schema.get("required", ())
        written = []
        for name, declared in schema.get("properties", {}).items():
            body = f"{self._parameter(tool, schema, name, declared, head, close)} {gap}"
            written.append(body if name in required else f"({body})?")
        return " ".join(written)

    def schema(self, tool: Tool) -> dict[str, Any]:
        """A tool's schema, closed to names that it does not declare. RequestError for one that cannot be followed."""
        try:
            checked = check_schema(dict(tool.parameters))
        except RequestError:
            if not self._loose or tool.strict:
                raise
            checked = {}
        schema = {**checked, "type": "object"} if isinstance(checked, dict) else {"type": "object"}
        return schema if not schema.get("properties") else {"additionalProperties": False, **schema}

    def _parameter(
        self, tool: Tool, root: Mapping[str, Any], name: str, declared: Any, head: Callable[[str, bool], str], close: str
    ) -> str:
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = {**declared, **shared} if isinstance(declared, Mapping) else declared
        kinds = tool.kinds(name)
        texts = declared.get("enum") if isinstance(declared, Mapping) else None
        if kinds == {"string"} and isinstance(texts, list):
            choices = " | ".join(self.literal(text + close) for text in texts if isinstance(text, str))
            return f"{head(name, True)} {self.rule(choices)}"
        if kinds and "string" not in kinds:
            return f"{head(name, False)} {self.json(schema)} {self.literal(close)}"
        if tool.strict and (kinds != {"string"} or not _BOUNDS.isdisjoint(declared)):
            raise RequestError(
                f"#/properties/{name}: this model writes strings without quotes, so they can be bounded by 'enum' alone.",
                param="tools",
                code="unsupported_schema",
            )
        return f"{head(name, True)} {self.until(close)}"

    def _named(self, kind: str, rest: str) -> str:
        """Regular expressions can be combined in terminals alone, which have names in capitals."""
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}{rest}")
        return name

    def _pieces(self, text: str) -> list[str]:
        return [piece for piece in (self._split.split(text) if self._split else [text]) if piece]


def _escaped(text: str) -> str:
    """A text as part of a regular expression in a Lark grammar."""
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", r"\n")
