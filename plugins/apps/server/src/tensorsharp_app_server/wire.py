"""What differs between wire protocols besides their fields: how errors and streams look."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorsharp_app_server.errors import Failure

EVENT_STREAM = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"
PING = b": alive\n\n"
"""A comment, which every reader of an event stream skips."""
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Wire:
    """error: the body of an error. stream_type: media type of a stream. error_frames: an error in a stream that has begun.

    ping: what a silent stream sends, empty where the format has nothing to skip. busy: the HTTP status of a full queue.
    """

    name: str
    error: Callable[[Failure], dict[str, Any]]
    error_frames: Callable[[Failure], bytes]
    stream_type: str = EVENT_STREAM
    ping: bytes = PING
    busy: int = 429


def encoded(data: Any) -> bytes:
    """Compact JSON; a number that is not finite is an error of ours."""
    return _JSON.encode(data).encode()


def event(data: Any, name: str | None = None) -> bytes:
    """One event of an event stream."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return b"%sdata: %s\n\n" % (head, encoded(data))


def line(data: Any) -> bytes:
    """One line of a stream of lines."""
    return encoded(data) + b"\n"


class Pattern:
    """A frame that is the same but for one text, encoded once. frame: makes it of a text."""

    def __init__(self, frame: Callable[[str], bytes]) -> None:
        mark = secrets.token_hex()  # stands nowhere else in it
        self._before, self._after = frame(mark).split(encoded(mark))

    def filled(self, text: str) -> bytes:
        """The frame of that text."""
        return b"%s%s%s" % (self._before, encoded(text), self._after)
