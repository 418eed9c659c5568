"""What a chat template makes of a conversation, found by rendering small ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from tensorsharp.errors import TemplateError
from tensorsharp.text.conversation import with_parts
from tensorsharp.text.template import ChatTemplate

_MARK: Final = "needle"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _MARK,
        "description": "Finds.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "What."}}, "required": ["key"]},
    },
}
_ASKED: Final = {"role": "user", "content": "Hello"}
_THINKING: Final = re.compile(r"""\.thinking\b|["']thinking["'](\]| in )""")
_SHORT_IDS: Final = re.compile(r"length\s*!=\s*9\b")
_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORTS: Final = ("reasoning_effort", "reasoning_strength", "thinking_effort")


class Traits:
    """Facts about one template, each found when it is first asked for."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    @cached_property
    def system(self) -> bool:
        """It has a place for a system message."""
        return _MARK in self._render([{"role": "system", "content": _MARK}, _ASKED])

    @cached_property
    def developer(self) -> bool:
        """It knows the role `developer`."""
        return "developer" in self._template.source and _MARK in self._render([{"role": "developer", "content": _MARK}, _ASKED])

    @cached_property
    def parts(self) -> bool:
        """It reads content only as a list of parts."""
        part = [{"type": "text", "text": _MARK}]
        plain, listed = (self._attempt([{"role": "user", "content": content}]) for content in (_MARK, part))
        return _MARK not in plain and _MARK in listed

    @cached_property
    def tools(self) -> bool:
        """It describes the tools that it is given."""
        return _MARK in self._render([_ASKED], tools=[_TOOL])

    @cached_property
    def text_arguments(self) -> bool:
        """It writes the arguments of a past call as they are, so that they have to be JSON text."""
        as_object, as_text = (self._past_calls("f", arguments=a) for a in ({_MARK: "value"}, f'{{"{_MARK}": "value"}}'))
        return f"'{_MARK}'" in as_object or (_MARK not in as_object and _MARK in as_text)

    @cached_property
    def several_calls(self) -> bool:
        """It writes all calls of a message, not the first one alone."""
        first, second = self._past_calls("first"), self._past_calls("first", _MARK)
        return not first or _MARK in second

    @cached_property
    def short_ids(self) -> bool:
        """It refuses identifiers of calls that have not nine letters and digits."""
        return _SHORT_IDS.search(self._template.source) is not None

    @cached_property
    def reasoning(self) -> str | None:
        """The field in which it reads the reasoning of past replies, if it does; it decides itself how much of it to keep."""
        source = self._template.source
        return "reasoning_content" if "reasoning_content" in source else "thinking" if _THINKING.search(source) else None

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Its variables that switch reasoning on and off."""
        return tuple(name for name in _SWITCHES if name in self._template.variables)

    @cached_property
    def efforts(self) -> tuple[str, ...]:
        """Its variables that say how much to reason, by name."""
        return tuple(name for name in _EFFORTS if name in self._template.variables)

    def _past_calls(self, *names: str, arguments: Any = MappingProxyType({})) -> str:
        ids = [f"call0000{i}" for i in range(len(names))]
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        calls = [
            {"type": "function", "id": i, "function": {"name": n, "arguments": given}} for i, n in zip(ids, names, strict=True)
        ]
        results = [{"role": "tool", "content": "found", "tool_call_id": i} for i in ids]
        return self._render([_ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *results])

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        return self._attempt(with_parts(messages) if self.parts else messages, tools)

    def _attempt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The text, empty if the template refuses."""
        try:
            return self._template.render(messages, tools=tools)
        except TemplateError:
            return ""
