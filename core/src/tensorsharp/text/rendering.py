"""A rendered conversation, and where in its text the parts are that other conversations may have in common with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        begins with (0: nothing), where what each later message says begins, as one that is changed or left out from there on has
        the text before in common, and where the reply starts. What the template does not show as it is has no mark. Two more
        renderings, however long the conversation is."""
        messages = self._messages
        first = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
        begun = [*messages[:first], *map(_other, messages[first : first + 1])]
        shared, reply = self._common(begun), self._common(messages)
        return [shared, *sorted({reply, *self._contents(messages[first:], shared)} - {0, shared, len(self.text)})]

    def _contents(self, messages: Sequence[Message], begin: int) -> Iterator[int]:
        """Where the contents of messages begin behind `begin`, each looked for behind the one before.

        A short one may be found too early, in its own header: next to its place, and no later one is missed for it. One that the
        template leaves out or changes, but that is said again later, is found there, and those in between are passed over.
        """
        for message in messages:
            said = next(filter(None, map(str.strip, _texts(message))), "")  # some templates strip contents
            found = self.text.find(said, begin) if said else -1
            if found >= 0:
                yield found
                begin = found + len(said)

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
    letter = "b" if "".join(_texts(message)).lstrip().startswith("a") else "a"
    said = letter if isinstance(message["content"], str) else [{"type": "text", "text": letter}]
    return {"role": message["role"], "content": said}


def _texts(message: Message) -> list[str]:
    """What a message says, in its parts."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


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
