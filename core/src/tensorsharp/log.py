"""Logging for programs. A library never calls this: it logs through ``logging.getLogger`` and leaves the rest to its host."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Literal


def configure(verbosity: int = 0, *, style: Literal["text", "json"] = "text", processors: Sequence[Any] = ()) -> None:
    """Render the records of this process to stderr with structlog: warnings, with 1 information, with 2 everything.

    processors: structlog processors that run before the renderer (see the hook ``add_log_processors``).
    """
    import structlog

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *processors,
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if style == "text":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([structlog.processors.format_exc_info] if style == "json" else []),
            renderer,
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logger = logging.getLogger("tensorsharp")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
