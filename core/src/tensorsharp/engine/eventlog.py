"""A line in the log for each request, and at the debug level for each step. What was asked and answered is never written."""

from __future__ import annotations

import logging
from dataclasses import asdict

from tensorsharp.engine.observer import StepEvent
from tensorsharp.types import Finished, GenerationRequest

requests = logging.getLogger("tensorsharp.requests")
steps = logging.getLogger("tensorsharp.steps")


class EventLog:
    """An observer that logs. The numbers are attributes of the record (`extra`), which a program may render as it likes."""

    def __init__(self, model: str) -> None:
        self._model = model

    def on_request_start(self, request: GenerationRequest) -> None:
        requests.debug("request started", extra={"id": request.id, "model": self._model, "tokens_in": len(request.prompt_ids)})

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        if not requests.isEnabledFor(logging.INFO):
            return
        usage, timings = finished.usage, finished.timings
        facts = {
            "id": request.id,
            "model": self._model,
            "finish": finished.reason,
            "tokens_in": usage.prompt,
            "cached": usage.cached,
            "tokens_out": usage.completion,
            "queue_s": round(timings.queue_s, 4),
            "ttft_s": round(timings.queue_s + timings.prefill_s, 4) if usage.completion else None,
            "tok_s": round(timings.decode_tps, 2),
        }
        requests.info("request ended", extra=facts if finished.error is None else facts | {"error": finished.error})

    def on_step(self, step: StepEvent) -> None:
        if steps.isEnabledFor(logging.DEBUG):
            facts = {name: value for name, value in asdict(step).items() if value is not None}
            steps.debug("step", extra={"model": self._model, **facts})
