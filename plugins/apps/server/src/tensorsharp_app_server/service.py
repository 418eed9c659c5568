"""What all endpoints of one server share."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import structlog
from starlette.types import Scope

from tensorsharp_app_server.host import ModelHost
from tensorsharp_app_server.security import Keys, Visitors
from tensorsharp_app_server.settings import ServerSettings

if TYPE_CHECKING:
    from tensorsharp_app_server.endpoint import Call


class Service:
    """started: seconds since 1970."""

    def __init__(self, host: ModelHost, settings: ServerSettings) -> None:
        self.host = host
        self.settings = settings
        self.keys = Keys(settings.api_keys)
        self.visitors = Visitors(settings.host, settings.origins)
        self.started = time.time()
        self._log = _logger()

    def log(self, call: Call, scope: Scope, status: int, seconds: float) -> None:
        """One line a request. Neither prompts nor replies nor keys are in it."""
        self._log.info(
            "request",
            id=call.id,
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=round(seconds, 4),
            **call.told,
        )


def _logger() -> Any:
    """A structlog logger that hands its events to the standard logger, where the program renders them."""
    return structlog.wrap_logger(
        logging.getLogger("tensorsharp.server"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
