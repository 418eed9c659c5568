"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY = 32 << 20
"""32 MiB: room for a few attachments, encoded as text."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """host: the address that is listened on. api_keys: empty: no key is asked for. origins: pages that may use the server.

    max_body: bytes. timeout_s: the longest that a request may take, waiting included (None: any time). ping_s: after so
    much silence a stream says that it is alive.
    """

    host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body: int = MAX_BODY
    timeout_s: float | None = 3600.0
    ping_s: float = 15.0
