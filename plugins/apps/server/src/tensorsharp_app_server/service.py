"""What all endpoints of one server share."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.routing import Route
from starlette.types import Scope

from tensorsharp_app_server.host import ModelHost
from tensorsharp_app_server.security import Keys, Visitors
from tensorsharp_app_server.settings import ServerSettings

if TYPE_CHECKING:
    from tensorsharp_app_server.endpoint import Call

logger = logging.getLogger("tensorsharp.server")


class Service:
    """started: seconds since 1970. routes: those of all adapters."""

    def __init__(self, host: ModelHost, settings: ServerSettings) -> None:
        self.host = host
        self.settings = settings
        self.keys = Keys(settings.api_keys)
        self.visitors = Visitors(settings.host, settings.origins)
        self.started = time.time()
        self.routes: list[Route] = []

    def log(self, call: Call, scope: Scope, status: int, seconds: float) -> None:
        """One line a call, with the id that the engine's own line has. Neither prompts nor replies nor keys are in it."""
        facts = {"id": call.id, "method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 4)}
        logger.info("answered", extra=facts | call.told)
