"""Grammars of tool calls, in the Lark that llguidance reads: what a reply has to be that calls, or that may call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.text.constraints import GAP, JSON_KINDS, TEXT_KINDS, json_rule, schema_of, terminal_of
from tensorsharp.text.masks import quoted
from tensorsharp.text.schemas import check_schema
from tensorsharp.text.toolcalls import Tool
from tensorsharp.types import Constraint

_SPECIAL: Final = re.compile(r"[.+*?()|\[\]{}^$\\/&~#\-]")
_NAME: Final = r'/[^<>"\n]+/'
"""Of an argument that no schema declares, where names stand in tags."""
_BOUNDS: Final = frozenset({"pattern", "format", "minLength", "maxLength"})
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


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

    def form(self, form: Constraint, *openers: str) -> str:
        """Content that has a form. openers: texts with which calls begin, so that it does not begin with them.

        UnsupportedError for a form that cannot be told from calls.
        """
        gap = GAP if form.after else ""
        if form.kind in JSON_KINDS:
            return f"{gap}{self.json(schema_of(form))}"
        if form.kind not in TEXT_KINDS:
            refuse_form(
                f"A {form.kind} cannot stand beside tools to call; expected a JSON schema, a regex or a choice as the form."
            )
        body = f"({terminal_of(form)})"
        if openers:
            body += rf" & ~/(?s:\s*(?:{'|'.join(map(_escaped, openers))}).*)/"
        if gap:  # a lexeme takes all it can: line breaks that begin the content could not be told from those before a call
            body += r" & ~/(?s:\n.*)/"
        return f"{gap}{self._named('TEXT', f': {body}')}"

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

        head: the grammar of what stands before a value: (grammar of the name, whether the value is written as a string is: raw).
        close: the text behind it. gap: the grammar of what may follow that.
        """
        schema = self.schema(tool)
        if schema == ANY_OBJECT:
            return f"({self._any_parameter(head, close)} {gap})*"
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

    def _any_parameter(self, head: Callable[[str, bool], str], close: str) -> str:
        name = self.rule(_NAME)
        text, value = head(name, True), head(name, False)
        ways = [f"{text} {self.until(close)}"]
        if value != text:
            ways.append(f"{value} {self.json({})} {self.literal(close)}")
        return self.rule(" | ".join(ways))

    def _parameter(
        self, tool: Tool, root: Mapping[str, Any], name: str, declared: Any, head: Callable[[str, bool], str], close: str
    ) -> str:
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = {**declared, **shared} if isinstance(declared, Mapping) else declared
        named, kinds = self.literal(name), tool.kinds(name)
        texts = declared.get("enum") if isinstance(declared, Mapping) else None
        if kinds == {"string"} and isinstance(texts, list):
            choices = " | ".join(self.literal(text + close) for text in texts if isinstance(text, str))
            return f"{head(named, True)} {self.rule(choices)}"
        if kinds and "string" not in kinds:
            return f"{head(named, False)} {self.json(schema)} {self.literal(close)}"
        if tool.strict and (kinds != {"string"} or not _BOUNDS.isdisjoint(declared)):
            raise RequestError(
                f"#/properties/{name}: this model writes strings without quotes, so they can be bounded by 'enum' alone.",
                param="tools",
                code="unsupported_schema",
            )
        return f"{head(named, True)} {self.until(close)}"

    def _named(self, kind: str, rest: str) -> str:
        """Regular expressions can be combined in terminals alone, which have names in capitals."""
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}{rest}")
        return name

    def _pieces(self, text: str) -> list[str]:
        return [piece for piece in (self._split.split(text) if self._split else [text]) if piece]


def refuse_form(message: str) -> NoReturn:
    raise UnsupportedError(message, param="constraint", hint="Leave the form or the tools out, or set tool_choice to none.")


def _escaped(text: str) -> str:
    """A text as part of a regular expression in a Lark grammar."""
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", r"\n")
