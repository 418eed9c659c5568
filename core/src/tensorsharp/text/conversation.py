"""Messages as chat templates expect them, from what clients send."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.text.reading import UnreadableError, parse_json

Message = Mapping[str, Any]

_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")


def read_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages of one shape: `role`, `content` (text), and where there are any `reasoning_content`, `tool_calls` (with ids, and
    arguments as objects), `tool_call_id` and `name`. Other fields are kept as they are.

    A tool's result gets the id and name of the call that it answers: by its id, else in order. RequestError names the
    field that is wrong; UnsupportedError a content part that is no text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise _refused("messages", f"is {messages!r:.100}; expected one message or more")
    reader = _Reader()
    return [reader.message(message, f"messages[{i}]") for i, message in enumerate(messages)]


class _Reader:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._unanswered: list[str] = []

    def message(self, message: Any, field: str) -> dict[str, Any]:
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            raise _refused(f"{field}.role", f"is {role!r:.100}; expected system, developer, user, assistant or tool")
        made = {**message, "content": _text(message.get("content"), f"{field}.content")}
        if role == "assistant":
            self._assistant(made, field)
        elif role == "tool":
            self._result(made, field)
        elif message.get("content") is None:
            raise _refused(f"{field}.content", "is missing; expected a text")
        return made

    def _assistant(self, message: dict[str, Any], field: str) -> None:
        reasoning = [message.pop(name) for name in _REASONING_NAMES if name in message]
        given = next((text for text in reasoning if text), "")
        if not isinstance(given, str):
            raise _refused(f"{field}.reasoning_content", f"is {given!r:.100}; expected a text")
        if given:
            message["reasoning_content"] = given
        calls = message.pop("tool_calls", None) or []
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise _refused(f"{field}.tool_calls", f"is {calls!r:.100}; expected a list of calls")
        if calls:
            message["tool_calls"] = [self._call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)]
            self._unanswered = [call["id"] for call in message["tool_calls"]]

    def _call(self, call: Any, field: str) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise _refused(f"{field}.function.name", f"is {name!r:.100}; expected the tool's name")
        id = call.get("id") or f"call_{len(self._names)}"
        if not isinstance(id, str):
            raise _refused(f"{field}.id", f"is {id!r:.100}; expected a text")
        self._names[id] = name
        arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
        return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}

    def _result(self, message: dict[str, Any], field: str) -> None:
        id = message.get("tool_call_id") or (self._unanswered[0] if self._unanswered else None)
        if id in self._unanswered:
            self._unanswered.remove(id)
        if id is not None:
            message["tool_call_id"] = id
        name = message.get("name") or message.pop("tool_name", None) or self._names.get(str(id))
        if name is not None:
            message["name"] = name


def _text(content: Any, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _refused(field, f"is {content!r:.100}; expected a text or a list of parts")
    return "\n".join(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS:
        raise UnsupportedError(f"{field}.type is {kind!r:.100}; this model reads text parts only.", param=field)
    text = part.get("text")
    if not isinstance(text, str):
        raise _refused(f"{field}.text", f"is {text!r:.100}; expected a text")
    return text


def _arguments(given: Any, field: str) -> dict[str, Any]:
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    try:
        value = parse_json(given) if isinstance(given, str) else given
    except UnreadableError:
        value = None
    if not isinstance(value, Mapping):
        raise _refused(field, f"is {given!r:.100}; expected a JSON object")
    return dict(value)


def _refused(field: str, sentence: str) -> RequestError:
    return RequestError(f"{field} {sentence}.", param=field, code="invalid_value")


# what templates differ in -----------------------------------------------------------------------------------------


def merge_system(messages: Sequence[Message], extra: str = "", *, developer: bool) -> list[dict[str, Any]]:
    """System and developer messages at the beginning as one message, with `extra` behind them.

    Templates refuse a second system message, and most know no developer: such messages are the system's, unless the template
    tells them apart (`developer`) and there is nothing to merge.
    """
    count = 0
    while count < len(messages) and messages[count]["role"] in ("system", "developer"):
        count += 1
    first, rest = messages[:count], messages[count:]
    if developer and len(first) == 1 and not extra:
        return [dict(m) for m in messages]
    texts = [*(m["content"] for m in first), *([extra] if extra else [])]
    merged = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    others = [{**m, "role": "system"} if m["role"] == "developer" and not developer else dict(m) for m in rest]
    return [*merged, *others]


def fold_system(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The first system message as the beginning of the user's first, for templates that have no place for it."""
    if not messages or messages[0]["role"] != "system":
        return [dict(m) for m in messages]
    system, rest = messages[0]["content"], [dict(m) for m in messages[1:]]
    first = next((m for m in rest if m["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *rest]
    first["content"] = f"{system}\n\n{first['content']}"
    return rest


def with_reasoning(messages: Iterable[Message], field: str | None) -> list[dict[str, Any]]:
    """The messages with what the model said to itself in another field, or (None) left out.

    A template with a field of its own takes what was said beside calls as reasoning too, and only one of both.
    """
    made = []
    for message in messages:
        plain = dict(message)
        reasoning = plain.pop("reasoning_content", None)
        if reasoning and field:
            if field != "reasoning_content" and "tool_calls" in plain and plain["content"]:
                reasoning, plain["content"] = f"{reasoning}\n\n{plain['content']}", ""
            plain[field] = reasoning
        made.append(plain)
    return made


def with_short_ids(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Identifiers of calls as nine letters and digits each."""

    def short(id: str) -> str:
        return id if len(id) == 9 and id.isalnum() else blake2b(id.encode("utf-8", "replace"), digest_size=5).hexdigest()[:9]

    made = []
    for message in messages:
        plain = dict(message)
        if "tool_calls" in plain:
            plain["tool_calls"] = [{**call, "id": short(call["id"])} for call in plain["tool_calls"]]
        if "tool_call_id" in plain:
            plain["tool_call_id"] = short(str(plain["tool_call_id"]))
        made.append(plain)
    return made


def one_call_each(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with several calls as several messages, each with its result behind it."""
    made: list[dict[str, Any]] = []
    results = {m.get("tool_call_id"): dict(m) for m in messages if m["role"] == "tool"}
    split: set[Any] = set()
    for message in messages:
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            if message.get("tool_call_id") not in split:
                made.append(dict(message))
            continue
        for i, call in enumerate(calls):
            made.append(
                {**message, "tool_calls": [call]} if i == 0 else {"role": "assistant", "content": "", "tool_calls": [call]}
            )
            if call["id"] in results:
                split.add(call["id"])
                made.append(results[call["id"]])
    return made


def with_text_arguments(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Arguments of calls as JSON text, for templates that write them as they are."""

    def call(c: Mapping[str, Any]) -> dict[str, Any]:
        text = json.dumps(c["function"]["arguments"], ensure_ascii=False)
        return {**c, "function": {**c["function"], "arguments": text}}

    return [{**m, "tool_calls": [call(c) for c in m["tool_calls"]]} if "tool_calls" in m else dict(m) for m in messages]


def with_parts(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Content as a list of one text part, for templates that read nothing else."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
