"""Several replies to one prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tensorsharp.errors import RequestError
from tensorsharp.types import SEEDS, random_seed


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Started = TypeVar("Started", bound=Cancellable)


def choices(start: Callable[..., Started], count: int, **params: Any) -> list[Started]:
    """`count` replies to one prompt, all begun or none; it is computed once for all. Choice i has the seed of `params` + i.

    start: what begins one, given `params`; for example `partial(llm.stream, "Hi")` or `partial(llm.start_chat, messages)`.
    Without a seed one is drawn for all. An id becomes that of the first one, and `id-i` of the others. RequestError if
    there would be none.
    """
    if not _is_count(count):
        raise RequestError(f"The number of choices is {count!r:.100}; expected 1 or more.", param="n", code="invalid_value")
    given = params.get("seed")
    seed = random_seed() if given is None else given
    name = params.get("id")
    started = [start(**{**params, "seed": seed})]  # which refuses a seed that is none
    try:
        for i in range(1, count):
            own = {} if name is None else {"id": f"{name}-{i}"}
            started.append(start(**{**params, **own, "seed": (seed + i) % SEEDS}))
    except BaseException:
        for one in started:
            one.cancel()
        raise
    return started


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
