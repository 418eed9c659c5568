"""How much a model is to think before it answers, in the fields of any client."""

from __future__ import annotations

from typing import Any

from tensorsharp.types import EFFORTS, Effort
from tensorsharp_app_server.fields import Fields

FIELDS = ("reasoning_effort", "think", "enable_thinking")
BUDGETS = ("thinking_budget", "reasoning_budget")


def read_reasoning(body: Fields) -> bool | Effort | None:
    """The first of :data:`FIELDS` that is there: true, false, a level, or `none` for false. None: as the template has it."""
    for field in FIELDS:
        if field in body:
            return _level(body, field)
    variables = body.object("chat_template_kwargs")
    # Of a template without that variable the core closes the reasoning; with it, the template does what the client wrote.
    return False if variables is not None and variables.data.get("enable_thinking") is False else None


def option_names(body: Fields) -> dict[str, str]:
    """Field of ChatOptions -> what the client calls it, where that differs."""
    return {
        "template_kwargs": "chat_template_kwargs",
        "reasoning": next((field for field in FIELDS if field in body), FIELDS[0]),
        "reasoning_budget": next((field for field in BUDGETS if field in body), BUDGETS[0]),
    }


def read_budget(body: Fields) -> int | None:
    """The most tokens that it may think."""
    return next((body.whole(field, 0) for field in BUDGETS if field in body), None)


def _level(body: Fields, field: str) -> bool | Effort:
    value: Any = body.data[field]
    if isinstance(value, bool):
        return value
    if value == "none":
        return False
    if value not in EFFORTS:
        raise body.refuse(field, f"true, false, none or one of {', '.join(EFFORTS)}")
    return value  # type: ignore[no-any-return]
