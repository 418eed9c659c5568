"""What a request of OpenAI's Responses API asks for. The wire format is that of the OpenAI API reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from tensorsharp.chat import ChatOptions, NamedTool
from tensorsharp.errors import UnsupportedError
from tensorsharp.text.reading import UnreadableError, parse_json
from tensorsharp.types import EFFORTS, Constraint, Effort
from tensorsharp_app_server.fields import Fields
from tensorsharp_app_server.forms import JSON_OBJECT, schema_of
from tensorsharp_app_server.internal import Ask
from tensorsharp_app_server.sampling import SHARED, check_sampling, read_sampling

NAMES: Final = SHARED | {"max_tokens": "max_output_tokens"}
TOLD: Final = NAMES | {
    "logprobs": "top_logprobs",
    "prompt_ids": "input",
    "reasoning": "reasoning.effort",
    "constraint": "text.format.schema",
}
"""Field of the engine or of ChatOptions -> what clients call it."""
LOGPROBS: Final = "message.output_text.logprobs"
TEXTS: Final = ("input_text", "output_text", "text", "refusal")
STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to what a server has kept."""


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    _check_stateless(body)
    params = read_sampling(body, NAMES)
    top = body.whole("top_logprobs", 0)
    if top or LOGPROBS in (body.strings("include") or ()):
        params["logprobs"] = top or 0
        check_sampling(body, params, TOLD)
    return Ask(body.text("model"), params, messages=read_input(body), options=read_options(body), names=TOLD)


def _check_stateless(body: Fields) -> None:
    for field in STATEFUL:
        if field in body:
            raise UnsupportedError(
                f"{field} cannot be used: the server keeps no responses.",
                param=field,
                hint="Send the whole conversation as input.",
            )
    if body.flag("background"):
        raise UnsupportedError(
            "background cannot be true: the server keeps no responses.", param="background", hint="Stream the response instead."
        )
    if body.choice("truncation", "auto", "disabled") == "auto":
        raise UnsupportedError("truncation cannot be auto: an input that is too long is refused.", param="truncation")


# the conversation ---------------------------------------------------------------------------------------------------


def read_input(body: Fields) -> list[dict[str, Any]]:
    """The conversation as the core takes it: instructions, then messages, calls and their results in order."""
    made: list[dict[str, Any]] = []
    if instructions := body.text("instructions"):
        made.append({"role": "system", "content": instructions})
    if isinstance(body.data.get("input"), str):
        return [*made, {"role": "user", "content": body.data["input"]}]
    if not isinstance(body.data.get("input"), list) or not body.data["input"]:
        raise body.refuse("input", "a string, or a list with at least one item")
    for item in body.objects("input"):
        _take(made, item)
    return made


def _take(made: list[dict[str, Any]], item: Fields) -> None:
    """Add an item. What the model thought, said and called in one turn is one message."""
    kind = item.text("type") or "message"
    if kind == "reasoning":
        texts = [part.needed_text("text") for field in ("content", "summary") for part in item.objects(field)]
        made.append({"role": "assistant", "content": "", "reasoning_content": "\n\n".join(texts)})
    elif kind == "function_call":
        name, space = item.needed_text("name"), item.text("namespace")
        call = {"name": within(space, name) if space else name, "arguments": _arguments(item)}
        turn = _turn(made)
        turn["tool_calls"] = [
            *turn.get("tool_calls", ()),
            {"id": item.needed_text("call_id"), "type": "function", "function": call},
        ]
    elif kind == "function_call_output":
        made.append({"role": "tool", "tool_call_id": item.needed_text("call_id"), "content": _content(item, "output")})
    elif kind != "message":
        name = item.name("type")
        raise UnsupportedError(
            f"{name} is '{kind[:40]}'; expected message, reasoning, function_call or function_call_output.", param=name
        )
    else:
        role = item.choice("role", "user", "assistant", "system", "developer")
        if role is None:
            raise item.refuse("role", "user, assistant, system or developer")
        content = _content(item, "content")
        if role == "assistant" and not _turn(made)["content"]:
            made[-1]["content"] = content
        else:
            made.append({"role": role, "content": content})


def _arguments(item: Fields) -> str:
    """Of a call, as the text of an object, or empty."""
    text = item.needed_text("arguments")
    try:
        found = parse_json(text) if text.strip() else {}
    except UnreadableError:
        found = None
    if not isinstance(found, dict):
        raise item.refuse("arguments", "a JSON object as text")
    return text


def _turn(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's turn that is being read; a new one behind anything else."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": ""})
    return made[-1]


def _content(item: Fields, field: str) -> str | list[dict[str, Any]]:
    """A text, or parts of text."""
    value = item.data.get(field)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise item.refuse(field, "a string or a list of parts")
    return [_part(part) for part in item.objects(field)]


def _part(part: Fields) -> dict[str, Any]:
    kind = part.needed_text("type")
    if kind not in TEXTS:
        name = part.name("type")
        raise UnsupportedError(f"{name} is '{kind[:40]}'; this model reads texts only.", param=name)
    return {"type": "text", "text": part.needed_text("refusal" if kind == "refusal" else "text")}


# options ------------------------------------------------------------------------------------------------------------


def read_options(body: Fields) -> ChatOptions:
    """Tools, reasoning and the form of the reply; the core checks them further."""
    return ChatOptions(
        tools=list(_tools(body)),
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.flag("parallel_tool_calls", True),
        reasoning=_effort(body),
        constraint=_form(body),
    )


def within(space: str, name: str) -> str:
    """What the model calls a function of a namespace."""
    return f"{space}.{name}"


def namespaces(body: Fields) -> dict[str, dict[str, str]]:
    """What the model calls each function of a namespace -> the fields by which a client knows it."""
    inner = [(space.needed_text("name"), tool.needed_text("name")) for tool, space in _listed(body) if space]
    return {within(space, name): {"name": name, "namespace": space} for space, name in inner}


def _listed(body: Fields) -> Iterator[tuple[Fields, Fields | None]]:
    """Each function, and the namespace that it is in."""
    for tool in body.objects("tools"):
        if tool.data.get("type") != "namespace":
            yield tool, None
            continue
        tool.needed_text("name")
        if tool.items("tools") is None:
            raise tool.refuse("tools", "a list of functions")
        yield from ((inner, tool) for inner in tool.objects("tools"))


def _tools(body: Fields) -> Iterator[dict[str, Any]]:
    """The functions; one of a namespace has its name there, and the namespace's description before its own."""
    for tool, space in _listed(body):
        found = _function(tool)
        if space:
            about = (space.text("description"), tool.text("description"))
            found |= {
                "name": within(space.needed_text("name"), tool.needed_text("name")),
                "description": " ".join(text for text in about if text),
            }
        yield found


def _function(tool: Fields) -> dict[str, Any]:
    kind = tool.data.get("type", "function")
    if kind != "function":
        name = tool.name("type")
        raise UnsupportedError(
            f"{name} is {kind!r:.60}; expected function or namespace: the server has no tools of its own.", param=name
        )
    return dict(tool.data)


def _tool_choice(body: Fields) -> Literal["auto", "none", "required"] | NamedTool:
    if isinstance(body.data.get("tool_choice"), dict):
        choice = body.object("tool_choice")
        if choice is None or choice.choice("type", "function") is None:
            raise body.refuse("tool_choice", "auto, none, required, or an object with the type function and a name")
        return NamedTool(choice.needed_text("name"))
    return body.choice("tool_choice", "auto", "none", "required") or "auto"  # type: ignore[return-value]


def _effort(body: Fields) -> bool | Effort | None:
    reasoning = body.object("reasoning")
    effort: Any = reasoning.choice("effort", "none", *EFFORTS) if reasoning else None
    return False if effort == "none" else effort


def _form(body: Fields) -> Constraint | None:
    text = body.object("text")
    form = text.object("format") if text else None
    if form is None:
        return None
    kind = form.choice("type", "text", "json_object", "json_schema")
    if kind is None:
        raise form.refuse("type", "text, json_object or json_schema")
    if kind == "json_schema":
        return schema_of(form, "schema")
    return JSON_OBJECT if kind == "json_object" else None
