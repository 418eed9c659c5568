"""Descriptions of the fields that several protocols have under the same names."""

from __future__ import annotations

from typing import Any, Final

from tensorsharp.types import EFFORTS
from tensorsharp_app_server.describe import (
    FLAG,
    OBJECT,
    TEXT,
    Field,
    an_object,
    either,
    listed,
    number,
    one_of,
    whole,
)

IDS: Final = listed(whole(0))
SCHEMA: Final[Any] = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
"""An example of what a reply may have to fit."""
SCHEMA_FIELD: Final = either(OBJECT, FLAG, TEXT)
"""A schema, or one written as text."""

MODEL: Final = Field("model", TEXT, "model")
STREAM: Final = Field("stream", FLAG, False)
TEMPERATURE: Final = Field("temperature", number(0, 100), 0.5)
TOP_P: Final = Field("top_p", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5)
TOP_K: Final = Field("top_k", whole(0), 5)
SEED: Final = Field("seed", whole(0, 2**63 - 1), 7)
SAMPLING: Final = (
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Field("min_p", number(0, 1), 0.1),
    Field("repeat_penalty", number(0.01, 100), 1.1),
    Field("repeat_last_n", whole(-1), 64),
    Field("presence_penalty", number(-100, 100), 0.5),
    Field("frequency_penalty", number(-100, 100), 0.5),
    Field(
        "logit_bias",
        {"type": "object", "patternProperties": {"^[0-9]+$": {"type": ["number", "null"]}}, "additionalProperties": False},
        {"5": 1},
    ),
)
STOPS: Final = (
    Field("stop", either(TEXT | {"minLength": 1}, listed(TEXT | {"minLength": 1})), ["x"]),
    Field("stop_token_ids", IDS, [5]),
    Field("ignore_eos", FLAG, False),
)
LOGPROBS: Final = (
    Field("logprobs", FLAG, True),
    Field("top_logprobs", whole(0, 20), 2, beside={"logprobs": True}),
)
NEEDED_NAME: Final = Field("name", TEXT, "weather", needed=True)
FUNCTION: Final = (NEEDED_NAME, Field("description", TEXT, "What."), Field("parameters", OBJECT, {"type": "object"}))
TOOL: Final[Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TOOLS: Final = (
    Field("tools", listed(an_object(Field("type", one_of("function"), "function"))), [TOOL]),
    Field(
        "tool_choice",
        either(
            one_of("auto", "none", "required"),
            an_object(Field("function", an_object(NEEDED_NAME), {"name": "weather"}, needed=True)),
            an_object(NEEDED_NAME),
        ),
        "auto",
        beside={"tools": [TOOL]},
    ),
    Field("parallel_tool_calls", FLAG, False),
)
REASONING: Final = (
    Field("reasoning_effort", one_of(True, False, "none", *EFFORTS), "low"),
    Field("think", one_of(True, False, "none", *EFFORTS), False),
    Field("enable_thinking", one_of(True, False, "none", *EFFORTS), True),
    Field("thinking_budget", whole(0), 8),
    Field("reasoning_budget", whole(0), 8),
    Field("chat_template_kwargs", OBJECT, {"enable_thinking": False}),
)
PLAIN_FORMS: Final = (
    *(Field(name, SCHEMA_FIELD, SCHEMA) for name in ("json", "json_schema", "guided_json")),
    *(Field(name, TEXT, 'root ::= "x"') for name in ("grammar", "guided_grammar")),
    *(Field(name, TEXT, "a+") for name in ("regex", "guided_regex")),
    *(Field(name, listed(TEXT, 1), ["yes", "no"]) for name in ("choice", "guided_choice")),
)
FORMS: Final = (
    Field(
        "response_format",
        an_object(
            Field("type", one_of("text", "json_object", "json_schema"), "text", needed=True),
            Field("json_schema", an_object(Field("schema", SCHEMA_FIELD, SCHEMA, needed=True)), {"schema": SCHEMA}),
        ),
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    ),
    *PLAIN_FORMS,
    Field(
        "structured_outputs",
        an_object(*(one for one in PLAIN_FORMS if "guided" not in one.name), Field("json_object", FLAG, True)),
        {},
    ),
)
SERVING: Final = (Field("cache_salt", TEXT, "mine"), Field("priority", whole(-(2**31), 2**31), 1))
KEEP_ALIVE: Final = Field("keep_alive", either({"type": "number"}, TEXT), "5m")
PROMPT: Final = either(TEXT, listed(whole(0), 1))
PROMPTS: Final = either(PROMPT, listed(PROMPT, 1))
PART: Final = an_object(Field("type", TEXT, "text", needed=True), Field("text", TEXT, "Hallo?"))
CONTENT: Final = Field("content", either(TEXT, listed(either(TEXT, PART))), "Hallo?")
MESSAGE: Final = an_object(Field("role", TEXT, "user", needed=True), CONTENT)
MESSAGES: Final = Field("messages", listed(MESSAGE, 1), [{"role": "user", "content": "Hallo?"}], needed=True)
CONVERSATION: Final = (MESSAGES, *TOOLS, *REASONING)
