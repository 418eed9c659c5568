"""Makes generated requests quick, and about a model that is there."""

from __future__ import annotations

from typing import Any

MOST = {"n": 2, "best_of": 2, "max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "num_predict": 8}
"""Field -> the largest value that is sent: larger ones ask for the same work many times over."""
NAMES = ("model", "name")
"""Fields that name a model, in which a text that was made at random names none."""


def quick(body: Any, model: str) -> Any:
    """A body with its counts cut and its model named; what is no object, or of another type, stays as it was made."""
    if not isinstance(body, dict):
        return body
    made = {name: _cut(name, value) for name, value in body.items()}
    made |= {name: model for name in NAMES if isinstance(made.get(name), str) and made[name]}
    options = made.get("options")
    return made | {"options": quick(options, model)} if isinstance(options, dict) else made


def _cut(name: str, value: Any) -> Any:
    counts = name in MOST and isinstance(value, int | float) and not isinstance(value, bool)
    return min(value, MOST[name]) if counts else value
