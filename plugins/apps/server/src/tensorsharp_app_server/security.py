"""Who may use the server: API keys, the addresses that browsers may come from, and how large a body may be."""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Receive

from tensorsharp.errors import ConfigError
from tensorsharp_app_server.errors import RefusedError


class Keys:
    """The API keys. Without any, everybody may enter."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    def check(self, headers: Headers) -> None:
        """RefusedError (401) unless a key of the headers is one of ours. The time it takes tells nothing about the keys."""
        if not self._keys:
            return
        given = _given(headers)
        found = [hmac.compare_digest(key, candidate) for key in self._keys for candidate in given]
        if not any(found):
            what = "is not known" if given else "is missing"
            raise RefusedError(
                401,
                f"The API key {what}; expected one in the header Authorization, as 'Bearer KEY', or in x-api-key.",
                code="invalid_api_key",
                final=True,
            )


def _given(headers: Headers) -> list[bytes]:
    """Bearer is what OpenAI's and Ollama's clients send, x-api-key what Anthropic's does."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return [key.encode("latin-1") for key in (*bearer, *headers.getlist("x-api-key")) if key]


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one a line; empty lines and those that begin with # are skipped.

    ConfigError if it cannot be read, holds none, or others than its owner may read it.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path} cannot be read: {error}.") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"--api-key-file {path} may be read by others than its owner.", hint=f"chmod 600 {path}")
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key; expected one a line.")
    return keys


class Visitors:
    """Keeps other people's web pages out: a page in the user's browser reaches what listens on this machine, too.

    host: the address that the server listens on. origins: pages that may use it (`*`: every one).
    """

    def __init__(self, host: str, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origins)
        self._local_only = is_loopback(host)

    def check(self, headers: Headers) -> None:
        """RefusedError (403) for a page of a foreign origin, or a name that somebody else has made to mean this machine."""
        host = headers.get("host", "")
        if self._local_only and not _is_local_name(host):
            raise RefusedError(403, f"The server is not called '{host[:80]}'.", code="unknown_host", hint="Use localhost.")
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins or _host_of(origin) == host:
            return
        raise RefusedError(
            403, f"Pages of {origin[:80]} may not use this server.", code="unknown_origin", hint="Allow them with --cors ORIGIN."
        )


def _host_of(origin: str) -> str | None:
    """Name and port of an origin; None if it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_name(host: str) -> bool:
    """Addresses cannot be rebound by a name server; of names only those that are local by definition count."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or not host:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body. RefusedError (413) as soon as it is larger than `limit` bytes, (415) if it is compressed; DisconnectedError
    if the client leaves.
    """
    coding = headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        told = f"The body has the Content-Encoding {coding[:40]}; expected JSON as it is."
        raise RefusedError(415, told, code="unsupported_encoding", final=True)
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


class DisconnectedError(Exception):
    """The client left; nobody is there to be told."""


def _too_large(limit: int) -> RefusedError:
    message = f"The body is larger than {limit:,} bytes."
    return RefusedError(413, message, code="body_too_large", hint="Raise --max-body.", final=True)
