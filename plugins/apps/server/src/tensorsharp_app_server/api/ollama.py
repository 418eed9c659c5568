"""What Ollama's endpoints have in common. The wire format is that of Ollama's docs/api.md; durations are nanoseconds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from tensorsharp.config import DURATION, duration
from tensorsharp.types import Constraint
from tensorsharp_app_server.api.shared_fields import KEEP_ALIVE, LOGPROBS, MODEL, SAMPLING, SCHEMA, STOPS, STREAM
from tensorsharp_app_server.describe import OBJECT, TEXT, Field, an_object, either, one_of, whole
from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.fields import Fields
from tensorsharp_app_server.forms import JSON_OBJECT, schema_of
from tensorsharp_app_server.sampling import SHARED, read_sampling
from tensorsharp_app_server.wire import LINES, Wire, line

NAMES = SHARED | {"max_tokens": "num_predict"}
UNLIMITED = (-1, -2)
"""Values of num_predict: until the model ends, and until the context is full. Both are what no limit means here."""
OFF = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
"""Ways to choose tokens that the engine does not have, and the value that switches each off."""

BEYOND = ("tool_choice", "parallel_tool_calls", "chat_template_kwargs", "thinking_budget")
"""Fields that Ollama does not have; its own clients send unknown ones in `options` alone."""


NAMED: Final = (MODEL, Field("name", TEXT, "model"))
OPTIONS: Final = Field(
    "options",
    an_object(
        *SAMPLING,
        *STOPS,
        Field("num_predict", either(one_of(*UNLIMITED), whole(1)), 5),
        Field("seed", either(one_of(-1), whole(0, 2**63 - 1)), 7),
        *(Field(name, one_of(value), value) for name, value in OFF.items()),
    ),
    {"num_predict": 5},
)
REQUEST: Final = (
    *NAMED,
    OPTIONS,
    Field("format", either(one_of("", "json"), OBJECT), SCHEMA),
    *LOGPROBS,
    KEEP_ALIVE,
    replace(STREAM, example=False),
)
"""Fields of both kinds of replies."""


def error_body(failure: Failure) -> dict[str, Any]:
    return {"error": failure.named}


WIRE = Wire("ollama", error_body, lambda failure: line(error_body(failure)), LINES, ping=b"", busy=503)


def read_name(body: Fields) -> str | None:
    """The model's name; `name` is what older clients call it."""
    return body.text("model") or body.text("name")


def with_beyond(body: Fields) -> Fields:
    """The body with what it has beyond Ollama's fields in `options`."""
    given = body.object("options") or Fields({})
    return Fields({**body.data, **{field: given.data[field] for field in BEYOND if field in given and field not in body}})


def read_options(body: Fields) -> tuple[dict[str, Any], dict[str, str]]:
    """(arguments of SamplingParams from `options`, what the client calls them).

    What concerns loading, such as num_ctx, is decided when the server starts and ignored here.
    """
    given = body.object("options") or Fields({}, "options.")
    for field, off in OFF.items():
        value = given.number(field)
        if value is not None and value != off:
            raise given.refuse(field, f"{off}, which switches it off: the engine does not have it")
    meant = dict(given.data)
    if meant.get("num_predict") in UNLIMITED:
        del meant["num_predict"]
    if meant.get("seed") == -1:
        del meant["seed"]
    options = Fields(meant, given.path)
    params = read_sampling(options, NAMES)
    return params, {ours: options.name(NAMES.get(ours, ours)) for ours in params}


def read_keep_alive(body: Fields) -> float | None:
    """Seconds for which the model stays afterwards; None: as the server was told."""
    value = body.data.get("keep_alive")
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise ValueError(value)
        return duration(value)
    except (TypeError, ValueError):
        raise body.refuse("keep_alive", DURATION) from None


def read_format(body: Fields) -> Constraint | None:
    """`json`, or a JSON schema."""
    value = body.data.get("format")
    if value is None or value == "":
        return None
    if value != "json" and not isinstance(value, dict):
        raise body.refuse("format", "json, or a JSON schema")
    return JSON_OBJECT if value == "json" else schema_of(body, "format")


def timestamp(moment: datetime | None = None) -> str:
    """A moment, or now, as RFC 3339 has it."""
    return (moment or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
