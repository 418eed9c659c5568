"""The lines of a batch file: what each one asks for.

A line is a request of OpenAI's batch format (`custom_id`, `url`, `body` of a chat completion or completion), or the body
alone: `{"messages": [...]}`, or `{"prompt": "..."}`, which is asked as `tensorsharp run` would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tensorsharp.errors import ConfigError, RequestError

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
Kind = Literal["chat", "completion", "run"]
NAMES = {
    "max_completion_tokens": "max_tokens",
    **{name: name for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repeat_penalty", "repeat_last_n", "logit_bias")},
}
"""Field of a body -> parameter of a request."""
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""Fields that would change the result and are not served here -> the values that change nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One line. key: its custom_id, or its number. error: why it cannot be run."""

    number: int
    key: str
    kind: Kind = "run"
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str = ""
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    error: RequestError | None = None


def read_lines(path: Path) -> Iterator[Asked]:
    """Every line that is not empty. ConfigError if the file cannot be read; a line that is wrong carries its error."""
    seen: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(number, line, seen)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def _line(number: int, line: bytes, seen: dict[str, int]) -> Asked:
    key = f"line-{number}"
    try:
        data = _object(line)
        key = _key(data, number)
        if key in seen:
            raise _wrong("custom_id", f"custom_id '{key}' is that of line {seen[key]} too; expected one that no other line has.")
        seen[key] = number
        return _asked(number, key, data)
    except RequestError as error:
        return Asked(number, key if key not in seen or seen[key] == number else f"line-{number}", error=error)


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The line is no JSON: {error}.", code="invalid_json") from error
    if not isinstance(data, dict):
        raise RequestError("The line is no JSON object.", code="invalid_json")
    return data


def _key(data: Mapping[str, Any], number: int) -> str:
    key = data.get("custom_id")
    if key is None:
        return f"line-{number}"
    if not isinstance(key, str) or not key:
        raise _wrong("custom_id", f"custom_id is {key!r}; expected a string that is not empty.")
    return key


def _asked(number: int, key: str, data: Mapping[str, Any]) -> Asked:
    body, url = data.get("body", data), data.get("url")
    if not isinstance(body, dict):
        raise _wrong("body", f"body is {body!r:.80}; expected an object.")
    if url not in (None, CHAT, COMPLETION):
        raise _wrong("url", f"url is {url!r}; expected {CHAT} or {COMPLETION}.")
    params = _params(body)
    if url == CHAT or (url is None and "messages" in body):
        return Asked(number, key, "chat", messages=_messages(body), params=params)
    if url == COMPLETION or "body" in data:
        return Asked(number, key, "completion", prompt=_text(body, "prompt"), params=params)
    system = None if body.get("system") is None else _text(body, "system")
    return Asked(number, key, "run", prompt=_text(body, "prompt"), system=system, params=params)


def _messages(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _wrong("messages", "messages is missing or wrong; expected a list of objects with role and content.")
    return tuple(messages)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise _wrong(name, f"{name} is {'missing' if value is None else repr(value)[:80]}; expected a string.")
    return value


def _params(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that choose tokens. What is not known is ignored; what is known and not served here is refused."""
    for name, harmless in REFUSED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise _wrong(name, f"{name} is {body[name]!r:.80}, which a batch does not serve.")
    params = {ours: body[theirs] for theirs, ours in NAMES.items() if body.get(theirs) is not None}
    if "logit_bias" in params:
        params["logit_bias"] = _bias(params["logit_bias"])
    return params


def _bias(bias: object) -> dict[int, Any]:
    """JSON's keys are strings."""
    if not isinstance(bias, dict) or not all(key.isascii() and key.isdecimal() for key in bias):
        raise _wrong("logit_bias", f"logit_bias is {bias!r:.80}; expected an object of token ids and numbers.")
    return {int(key): value for key, value in bias.items()}


def _wrong(param: str, message: str) -> RequestError:
    return RequestError(message, param=param, code="invalid_value")
