"""Who is told when a request starts and ends, and of every step."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tensorsharp.types import Finished, GenerationRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step. number: counted from 1, failed ones included. rows: tokens that were computed, of which `prompt_rows` belong
    to prompts. sequences: requests in the batch. tokens: that were added to replies. seconds: of the whole step, of which
    `model_s` in the backend. running, waiting, preemptions: after it, the last since the start. error: why it failed.
    """

    number: int
    rows: int
    prompt_rows: int
    sequences: int
    tokens: int
    seconds: float
    model_s: float
    running: int
    waiting: int
    preemptions: int
    error: str | None = None


class Observer(Protocol):
    """Called by the engine; must not take long: the model waits. One that raises is told no more. Requests carry their id."""

    def on_request_start(self, request: GenerationRequest) -> None:
        """The engine accepted a request. On the caller's thread."""
        ...

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        """The request ended, for whatever reason. On the engine's thread."""
        ...

    def on_step(self, step: StepEvent) -> None:
        """A step was computed, or failed. On the engine's thread."""
        ...


class Observers:
    """Several observers as one, which raises nothing: who fails is reported and told nothing more, and harms no request."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._told = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._told)

    def on_request_start(self, request: GenerationRequest) -> None:
        self._tell("on_request_start", request)

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        self._tell("on_request_end", request, finished)

    def on_step(self, step: StepEvent) -> None:
        self._tell("on_step", step)

    def _tell(self, event: str, *facts: object) -> None:
        for observer in self._told:
            try:
                getattr(observer, event)(*facts)
            except Exception:
                logger.exception("An observer is told nothing more, as its %s failed.", event)
                self._told = tuple(other for other in self._told if other is not observer)
