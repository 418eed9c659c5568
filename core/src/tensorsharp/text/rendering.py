"""A rendered conversation, and where in its text the parts are that other conversations may have in common with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorsharp.errors import TemplateError
from tensorsharp.text.template import ChatTemplate

Message = Mapping[str, Any]

_SYSTEM: Final = ("system", "developer")


class Rendered:
    """A conversation as text, ready for the reply.

    messages: as the template takes them. variables: its other ones. TemplateError if the template refuses the conversation.
    """

    def __init__(self, template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, Any]) -> None:
        self._template = template
        self._messages = messages
        self._variables = variables
        self.text = template.render(messages, **variables)

    def marks(self) -> list[int]:
        """Offsets into the text, ascending: where that ends which every conversation with these system messages and tools
        begins with (0: nothing), where the last message starts, and where the reply does. Of the last two those that the template
        does not show are left out. Three more renderings, however long the conversation is."""
        messages = self._messages
        first = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
        begun = [*messages[:first], *map(_other, messages[first : first + 1])]
        shared, *starts = (self._common(part) for part in (begun, messages[:-1], messages))
        return [shared, *sorted({*starts} - {0, shared, len(self.text)})]

    def _common(self, messages: Sequence[Message]) -> int:
        """How many characters of the text the rendering of other messages begins with."""
        if not messages:
            return 0
        try:
            other = self._template.render(messages, **{**self._variables, "add_generation_prompt": False})
        except TemplateError:
            return 0
        return common_length(self.text, other)


def _other(message: Message) -> Message:
    """A message of the same role that says something else from its first letter on."""
    content = message["content"]
    said = content if isinstance(content, str) else "".join(part["text"] for part in content)
    letter = "b" if said.lstrip().startswith("a") else "a"
    return {"role": message["role"], "content": letter if isinstance(content, str) else [{"type": "text", "text": letter}]}


def common_length(a: str, b: str) -> int:
    """How many characters both begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices are compared faster than characters, so it is searched by halves
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
