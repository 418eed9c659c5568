"""How a loaded model writes conversations: its template, its reasoning, its tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsharp.errors import ConfigError, RequestError, UnsupportedError
from tensorsharp.protocols.chat import ChatStyle
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text import conversation, toolprompt
from tensorsharp.text.channels import Reasoning, ReplyFormat, tagged_reply
from tensorsharp.text.formats.tagged_json import TAGGED_JSON
from tensorsharp.text.rendering import Rendered
from tensorsharp.text.styles import FORMATS, PLAIN, detect_format, detect_reasoning
from tensorsharp.text.template import ChatTemplate
from tensorsharp.text.toolcalls import Tools
from tensorsharp.text.traits import Traits
from tensorsharp.types import EFFORTS, Effort


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. format: how the reply will be written.

    opened, closed: the prompt ends inside the reasoning, or behind reasoning that it has closed.
    """

    rendered: Rendered
    format: ReplyFormat
    opened: bool
    closed: bool = False

    @property
    def text(self) -> str:
        return self.rendered.text


class Dialect:
    """Made of a model's template, vocabulary and what its plugin says; the template's own marks come first.

    ConfigError if the plugin names a format that does not exist.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, style: ChatStyle | None = None) -> None:
        self.template = template
        self.traits = Traits(template)
        self._tokenizer = tokenizer
        name = detect_format(template.source) or (style.format if style else PLAIN)
        if name != PLAIN and name not in FORMATS:
            raise ConfigError(f"The model's chat format is {name!r}; expected {PLAIN} or one of {', '.join(FORMATS)}.")
        self.format = name
        declared = style.reasoning if style else None
        self.reasoning = detect_reasoning(template.source) or (_reasoning(declared) if declared else None)

    @property
    def reasons(self) -> bool:
        """Whether replies may hold reasoning."""
        return self.reasoning is not None or isinstance(FORMATS.get(self.format), ReplyFormat)

    @property
    def native_tools(self) -> bool:
        """Whether the template describes tools itself, in a shape that is known; else the system message does."""
        return self.format in FORMATS and self.traits.tools

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        reasoning: bool | Effort | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render a conversation, ready for the reply.

        variables: further ones for the template. RequestError and UnsupportedError name the field that cannot be used,
        TemplateError says what the template refuses.
        """
        if variables and "messages" in variables:
            message = "template_kwargs has 'messages', which the conversation itself is; expected other variables."
            raise RequestError(message, param="template_kwargs", code="invalid_value")
        switches, closes = self._switches(reasoning)
        made, listed, format = self._arranged(conversation.read_messages(messages), tools)
        rendered = Rendered(self.template, made, {"tools": listed, **switches, **(variables or {})})
        tags, end = self.reasoning, rendered.text.rstrip()
        if tags is None:
            return ChatPrompt(rendered, format, opened=False)
        opened, closed = (end.endswith(tag) for tag in (tags.open, tags.close))
        if closes and not closed:
            rendered.text += f"{'' if opened else tags.open}\n\n{tags.close}\n\n"
            opened, closed = False, True
        return ChatPrompt(rendered, format, opened, closed)

    def shown(self, format: ReplyFormat) -> dict[int, str]:
        """The control tokens whose text the format needs to see."""
        tokens = {token for text in format.markers for token in self._tokenizer.encode(text, bos=False)}
        return {token: self._tokenizer.piece(token) for token in sorted(tokens) if not self._tokenizer.bytes_of(token)}

    def _arranged(
        self, messages: list[dict[str, Any]], tools: Tools
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, ReplyFormat]:
        """The messages as this template takes them, the tools that it is told, and the format of the reply."""
        known = FORMATS.get(self.format)
        uses_calls = bool(tools) or any("tool_calls" in m or m["role"] == "tool" for m in messages)
        native = not uses_calls or self.native_tools
        extra = toolprompt.describe(tools) if tools and not native else ""
        if not native:
            messages = toolprompt.as_text(messages)
            known = known if isinstance(known, ReplyFormat) else TAGGED_JSON
        messages = conversation.merge_system(messages, extra, developer=self.traits.developer)
        if messages[0]["role"] == "system" and not self.traits.system:
            messages = conversation.fold_system(messages)
        messages = conversation.with_reasoning(messages, self.traits.reasoning)
        if any(len(m.get("tool_calls", ())) > 1 for m in messages) and not self.traits.several_calls:
            messages = conversation.one_call_each(messages)
        if uses_calls and native and self.traits.short_ids:
            messages = conversation.with_short_ids(messages)
        if uses_calls and native and self.traits.text_arguments:
            messages = conversation.with_text_arguments(messages)
        if self.traits.parts:
            messages = conversation.with_parts(messages)
        format = known if isinstance(known, ReplyFormat) else tagged_reply(known, self.reasoning)
        return messages, [tool.as_json() for tool in tools] if tools and native else None, format

    def _switches(self, reasoning: bool | Effort | None) -> tuple[dict[str, Any], bool]:
        """(the template's variables, whether reasoning is to be closed behind the prompt)."""
        if reasoning is None:
            return {}, False
        if not isinstance(reasoning, bool) and reasoning not in EFFORTS:
            raise RequestError(
                f"reasoning is {reasoning!r:.100}; expected true, false or one of {', '.join(EFFORTS)}.",
                param="reasoning",
                code="invalid_value",
            )
        if not self.reasons:
            if reasoning is False:
                return {}, False
            raise UnsupportedError(
                "This model does not reason before it answers.", param="reasoning", hint="Leave reasoning out."
            )
        found: dict[str, Any] = dict.fromkeys(self.traits.switches, reasoning is not False)
        if isinstance(reasoning, str):
            found |= dict.fromkeys(self.traits.efforts, reasoning)
        if reasoning is False and not found and self.reasoning is None:
            raise UnsupportedError(
                "This model always reasons; it cannot be switched off.", param="reasoning", hint="Ask for low effort instead."
            )
        return found, reasoning is False and not found


def _reasoning(texts: tuple[str, ...]) -> Reasoning:
    return Reasoning(texts[0], texts[1], (texts[2], texts[3]) if len(texts) == 4 else None)
