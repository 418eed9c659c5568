"""A running server, asked over HTTP in Ollama's form."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from tensorsharp.errors import ConfigError, ModelNotFoundError, TensorSharpError

if TYPE_CHECKING:
    from tensorsharp.config import Settings

TIMEOUT_S = 30.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that a server listens on, and where it is found then."""


def ask(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """The server's answer as data; the settings host, port and api-key say which server.

    TensorSharpError if it cannot be reached or failed, ConfigError for a key that it does not take, ModelNotFoundError
    for a model that it does not know.
    """
    where = f"{settings.host}:{settings.port}"
    connection = http.client.HTTPConnection(_ANY.get(settings.host, settings.host), settings.port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key[0]}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TensorSharpError(
            f"No server answers at {where}: {why}.",
            hint="'tensorsharp serve' starts one; --host and --port say where it is.",
        ) from error
    finally:
        connection.close()
    data = _read(text, where)
    if answer.status == 200:
        return data
    raise _refusal(answer.status, data, where)


def _read(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TensorSharpError(f"What answers at {where} is no TensorSharp server: it sent no JSON.") from error


def _refusal(status: int, data: Any, where: str) -> TensorSharpError:
    """The error for an answer other than 200, with the server's own sentence."""
    told = data.get("error") if isinstance(data, dict) else None
    told = told.get("message") if isinstance(told, dict) else told
    sentence = f"The server at {where} answered {status}: {told or 'without a reason'}"
    if status in (401, 403):
        return ConfigError(sentence, hint="Give its key with --api-key, or in TENSORSHARP_API_KEY.")
    if status == 404:
        return ModelNotFoundError(sentence, hint="'tensorsharp ps' tells which models run.")
    return TensorSharpError(sentence)
