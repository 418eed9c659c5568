"""What a request of Anthropic's Messages API asks for. The wire format is that of Anthropic's API reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from tensorsharp.chat import ChatOptions, NamedTool
from tensorsharp.errors import UnsupportedError
from tensorsharp.types import EFFORTS, Constraint, Effort
from tensorsharp_app_server.api.shared_fields import MODEL, NEEDED_NAME, SAMPLING, SCHEMA, SCHEMA_FIELD, SEED, STREAM
from tensorsharp_app_server.describe import FLAG, OBJECT, TEXT, TEXTS, Field, an_object, either, listed, one_of, whole
from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.fields import Fields, invalid
from tensorsharp_app_server.forms import schema_of
from tensorsharp_app_server.internal import Ask
from tensorsharp_app_server.sampling import SHARED, check_sampling, read_sampling
from tensorsharp_app_server.wire import Wire, event

NAMES: Final = SHARED | {"max_tokens": "max_tokens"}
TOLD: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "prompt_ids": "messages",
    "reasoning": "thinking",
    "reasoning_budget": "thinking.budget_tokens",
    "constraint": "output_config.format.schema",
}
"""Field of the engine or of ChatOptions -> what clients call it."""
CHOICES: Final[Mapping[str, Literal["auto", "none", "required"]]] = {"auto": "auto", "none": "none", "any": "required"}
SKIPPED: Final = ("redacted_thinking",)
"""Blocks that nobody but their author can read."""


TEXT_BLOCKS: Final = either(
    TEXT, listed(an_object(Field("type", one_of("text"), "text", needed=True), Field("text", TEXT, "x", needed=True)))
)
TURN: Final = an_object(
    Field("role", one_of("user", "assistant", "system"), "user", needed=True),
    Field("content", either(TEXT, listed(an_object(Field("type", TEXT, "text", needed=True)), 1)), "Hallo?", needed=True),
)
CUSTOM: Final[Any] = {"name": "weather", "input_schema": {"type": "object"}}
CHOICE: Final = an_object(
    Field("type", one_of("auto", "any", "none", "tool"), "auto", needed=True),
    Field("name", TEXT, "weather"),
    Field("disable_parallel_tool_use", FLAG, True),
)
PROMPT: Final = (
    MODEL,
    Field("messages", listed(TURN, 1), [{"role": "user", "content": "Hallo?"}], needed=True),
    Field("system", TEXT_BLOCKS, "Be brief."),
    Field(
        "tools",
        listed(an_object(NEEDED_NAME, Field("type", one_of("custom"), "custom"), Field("input_schema", OBJECT, {}, needed=True))),
        [CUSTOM],
    ),
    Field("tool_choice", CHOICE, {"type": "tool", "name": "weather"}, beside={"tools": [CUSTOM]}),
    Field(
        "thinking",
        an_object(
            Field("type", one_of("enabled", "disabled", "adaptive"), "adaptive", needed=True),
            Field("budget_tokens", whole(1), 8),
        ),
        {"type": "enabled", "budget_tokens": 8},
    ),
    Field(
        "output_config",
        an_object(
            Field("effort", one_of(*EFFORTS), "low"),
            Field(
                "format",
                an_object(
                    Field("type", one_of("json_schema"), "json_schema", needed=True),
                    Field("schema", SCHEMA_FIELD, SCHEMA, needed=True),
                ),
                {"type": "json_schema", "schema": SCHEMA},
            ),
        ),
        {"format": {"type": "json_schema", "schema": SCHEMA}},
    ),
)
"""Fields that decide what the model reads."""
REQUEST: Final = (
    *PROMPT,
    Field("max_tokens", whole(1), 5, needed=True),
    Field("stop_sequences", TEXTS, ["x"]),
    *SAMPLING,
    SEED,
    STREAM,
)


def error_body(failure: Failure) -> dict[str, Any]:
    details = {} if failure.code is None else {"details": {"error_code": failure.code}}
    # by these words Claude Code knows that it has to shorten the conversation
    told = f"prompt is too long: {failure.text}" if failure.code == "context_length_exceeded" else failure.named
    return {"type": "error", "error": {"type": failure.kind, "message": told, **details}}


WIRE = Wire("anthropic", error_body, lambda failure: event(error_body(failure), "error"), ping=event({"type": "ping"}, "ping"))


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    if "thread" in body:
        # by this code Anthropic's own clients know that they have to send the whole conversation each time
        raise UnsupportedError(
            "thread cannot be used: the server keeps no conversations.",
            param="thread",
            code="thread_unsupported_request",
            hint="Send the whole conversation as messages.",
        )
    if body.whole("max_tokens", 1) is None:
        raise body.refuse("max_tokens", "a whole number of at least 1")
    params = read_sampling(body, NAMES)
    if (stop := body.strings("stop_sequences")) is not None:
        params["stop"] = stop
        check_sampling(body, params, TOLD)
    return Ask(body.text("model"), params, messages=read_messages(body), options=read_options(body), names=TOLD)


# conversations ------------------------------------------------------------------------------------------------------


def read_messages(body: Fields) -> list[dict[str, Any]]:
    """The conversation as the core takes it: the system's text, messages, and results of tools as messages of their own."""
    made: list[dict[str, Any]] = []
    if body.data.get("system") not in (None, "", []):
        made.append({"role": "system", "content": _texts(body, "system")})
    for message in body.objects("messages"):
        role = message.choice("role", "user", "assistant", "system")
        if role is None:
            raise message.refuse("role", "user or assistant")
        if isinstance(message.data.get("content"), str):
            made.append({"role": role, "content": message.data["content"]})
        else:
            made += [_said(message)] if role == "assistant" else _asked(message, role)
    if not body.items("messages"):
        raise body.refuse("messages", "a list with at least one message", code="empty_messages")
    if made[-1]["role"] == "assistant":
        raise UnsupportedError(
            "messages ends with one of the assistant's, and its text cannot be continued.",
            param="messages",
            hint="End with one of the user's.",
        )
    return made


def _said(message: Fields) -> dict[str, Any]:
    """A reply of the past."""
    made: dict[str, Any] = {"role": "assistant", "content": [], "reasoning_content": "", "tool_calls": []}
    for block, kind in _blocks(message, "text", "thinking", "tool_use", *SKIPPED):
        if kind == "text":
            made["content"].append({"type": "text", "text": block.needed_text("text")})
        elif kind == "thinking":
            made["reasoning_content"] += block.needed_text("thinking")
        elif kind == "tool_use":
            arguments = block.object("input")
            if arguments is None:
                raise block.refuse("input", "an object")
            function = {"name": block.needed_text("name"), "arguments": arguments.data}
            made["tool_calls"].append({"id": block.needed_text("id"), "type": "function", "function": function})
    return made


def _asked(message: Fields, role: str) -> Iterator[dict[str, Any]]:
    """A message of the user's, with the results that it brings before or between its texts."""
    texts: list[dict[str, Any]] = []
    for block, kind in _blocks(message, "text", "tool_result"):
        if kind == "text":
            texts.append({"type": "text", "text": block.needed_text("text")})
            continue
        if texts:
            yield {"role": role, "content": texts}
            texts = []
        content = _texts(block, "content") if block.data.get("content") else ""
        yield {"role": "tool", "tool_call_id": block.needed_text("tool_use_id"), "content": content}
    if texts:
        yield {"role": role, "content": texts}


def _texts(body: Fields, field: str) -> str | list[dict[str, Any]]:
    """A text, or a list of blocks of text."""
    if isinstance(body.data[field], str):
        return str(body.data[field])
    if not isinstance(body.data[field], list):
        raise body.refuse(field, "a string or a list of blocks")
    return [{"type": "text", "text": block.needed_text("text")} for block, _ in _blocks(body, "text", field=field)]


def _blocks(body: Fields, *kinds: str, field: str = "content") -> Iterator[tuple[Fields, str]]:
    """Each block with its type. UnsupportedError for one of another type, such as an image."""
    if not isinstance(body.data.get(field), list) or not body.data[field]:
        raise body.refuse(field, "a string or a list of blocks")
    for block in body.objects(field):
        kind = block.needed_text("type")
        if kind not in kinds:
            expected = ", ".join(kind for kind in kinds if kind not in SKIPPED)
            name = block.name("type")
            raise UnsupportedError(f"{name} is '{kind[:40]}'; here the server reads {expected}.", param=name)
        yield block, kind


# options ------------------------------------------------------------------------------------------------------------


def read_options(body: Fields) -> ChatOptions:
    """Tools, thinking and the form of the reply; the core checks them further."""
    choice = body.object("tool_choice")
    reasoning, budget = _thinking(body)
    return ChatOptions(
        tools=[_tool(tool) for tool in body.objects("tools")],
        tool_choice=_tool_choice(choice) if choice else "auto",
        parallel_tool_calls=not (choice and choice.flag("disable_parallel_tool_use")),
        reasoning=reasoning,
        reasoning_budget=budget,
        constraint=_form(body),
    )


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.text("type")
    if kind not in (None, "custom"):
        name = tool.name("type")
        raise UnsupportedError(f"{name} is '{kind[:40]}'; expected custom: the server has no tools of its own.", param=name)
    schema = tool.object("input_schema")
    if schema is None:
        raise tool.refuse("input_schema", "a JSON schema")
    about = {name: tool.data[name] for name in ("name", "description") if name in tool.data}
    return {**about, "parameters": schema.data, "strict": tool.flag("strict")}


def _tool_choice(choice: Fields) -> Literal["auto", "none", "required"] | NamedTool:
    kind = choice.choice("type", *CHOICES, "tool")
    if kind is None:
        raise choice.refuse("type", f"one of {', '.join(CHOICES)}, tool")
    return NamedTool(choice.needed_text("name")) if kind == "tool" else CHOICES[kind]


def _thinking(body: Fields) -> tuple[bool | Effort | None, int | None]:
    """(whether or how much to think, the most tokens of it). `adaptive` leaves it to the model."""
    output = body.object("output_config")
    effort: Any = output.choice("effort", *EFFORTS) if output else None
    thinking = body.object("thinking")
    if thinking is None:
        return None, None
    kind = thinking.choice("type", "enabled", "disabled", "adaptive")
    if kind is None:
        raise thinking.refuse("type", "enabled, disabled or adaptive")
    if kind == "enabled":
        return effort or True, thinking.whole("budget_tokens", 1)
    return (False if kind == "disabled" else None), None


def _form(body: Fields) -> Constraint | None:
    output = body.object("output_config")
    form = output.object("format") if output else None
    if form is None:
        return None
    if form.choice("type", "json_schema") is None:
        raise form.refuse("type", "json_schema")
    if "schema" not in form:
        raise invalid(form.name("schema"), f"{form.name('schema')} is missing; expected a JSON schema.")
    return schema_of(form, "schema")
