"""The messages of a conversation, as OpenAI's and Ollama's clients write them, for a chat template."""

from __future__ import annotations

import json
from typing import Any

from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp_app_server.fields import Fields

ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(body: Fields) -> list[dict[str, Any]]:
    """The field `messages`. RequestError names the message and the field that is wrong."""
    if not body.items("messages"):
        raise body.refuse("messages", "a list with at least one message", code="empty_messages")
    return [_message(message) for message in body.objects("messages")]


def _message(message: Fields) -> dict[str, Any]:
    role = message.choice("role", *ROLES)
    if role is None:
        raise message.refuse("role", f"one of {', '.join(ROLES)}")
    calls = [_call(call) for call in message.objects("tool_calls")]
    content = text_of(message, "content")
    if content is None and not (role == "assistant" and (calls or "reasoning_content" in message)):
        raise message.refuse("content", "a string or a list of parts")
    found: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := message.text(name)) is not None:
            found[name] = value
    return found | ({"tool_calls": calls} if calls else {})


def text_of(message: Fields, field: str) -> str | None:
    """A string, or the texts of a list of parts, each on a line of its own."""
    if not isinstance(message.data.get(field), list):
        return message.text(field)
    return "\n".join(_part(part) for part in message.objects(field))


def _part(part: Fields) -> str:
    kind = part.needed_text("type")
    if kind in ("text", "input_text", "output_text"):
        return part.needed_text("text")
    if kind == "refusal":
        return part.needed_text("refusal")
    raise UnsupportedError(
        f"{part.name('type')} is '{kind[:40]}'; this model reads text only.", param=part.name("type"), code="unsupported_content"
    )


def _call(call: Fields) -> dict[str, Any]:
    """Templates want the arguments as an object; OpenAI's clients send them as text."""
    function = call.object("function")
    if function is None:
        raise call.refuse("function", "an object with name and arguments")
    name = function.needed_text("name")
    given = function.data.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except ValueError as error:
            raise RequestError(
                f"{function.name('arguments')} is no JSON: {error}.", param=function.name("arguments"), code="invalid_json"
            ) from error
    if given is not None and not isinstance(given, dict):
        raise function.refuse("arguments", "a JSON object as text")
    found: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": given or {}}}
    if (id := call.text("id")) is not None:
        found["id"] = id
    return found
