"""Who is told when a request starts and ends."""

from __future__ import annotations

from typing import Protocol

from tensorsharp.types import Finished, GenerationRequest


class Observer(Protocol):
    """Called by the engine; must not raise and must not take long: the model waits."""

    def on_request_start(self, request: GenerationRequest) -> None:
        """The engine accepted a request. On the caller's thread."""
        ...

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        """The request ended, for whatever reason. On the engine's thread."""
        ...
