"""From an error to what a client is told: HTTP status, sentence, field and code. Each wire protocol gives it its own shape."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from tensorsharp.errors import (
    BackendError,
    CapacityError,
    DownloadError,
    ModelNotFoundError,
    RequestError,
    TemplateError,
    TensorSharpError,
    UnsupportedError,
)

BUSY_RETRY_S = 1
LOADING_RETRY_S = 2
SHOWN = 400
"""Characters of a long message that are told, from its beginning and from its end."""


class RefusedError(TensorSharpError):
    """A request that the server itself turns down, with the HTTP status that says why.

    retry_after: seconds after which it may work. final: it makes no sense to send it again. allowed: the methods that the
    address has, where another one was used.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        hint: str | None = None,
        retry_after: int | None = None,
        final: bool = False,
        allowed: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.final = final
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told. kind: OpenAI's and Anthropic's word for the class of error."""

    status: int
    message: str
    kind: str
    code: str | None = None
    param: str | None = None
    hint: str | None = None
    retry_after: int | None = None
    final: bool = False
    allowed: tuple[str, ...] | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`x-should-retry` is what the OpenAI and Anthropic clients look at before their own rules.

        RFC 9110 asks for `www-authenticate` (15.5.2) and `allow` (15.5.6).
        """
        found = [] if self.retry_after is None else [(b"retry-after", str(self.retry_after).encode())]
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.allowed is not None:
            found.append((b"allow", ", ".join(self.allowed).encode()))
        return [*found, (b"x-should-retry", b"false")] if self.final else found

    @property
    def text(self) -> str:
        """Sentence and hint, for protocols without a field for it."""
        return self.message if self.hint is None else f"{self.message} {self.hint}"

    @property
    def named(self) -> str:
        """The same with the field before it, if it does not say it, for protocols without a field for that either."""
        return self.text if self.param is None or self.param in self.text else f"{self.param}: {self.text}"


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "api_error",
    501: "not_implemented_error",
    503: "overloaded_error",
}


def failure(error: BaseException) -> Failure:
    """What a client is told about an error. One that nobody expected is logged, and not told in detail."""
    hint = error.hint if isinstance(error, TensorSharpError) else None
    if isinstance(error, RefusedError):
        told = _failure(error.status, str(error), error.code, error.param, hint)
        return replace(told, retry_after=error.retry_after, final=error.final, allowed=error.allowed)
    if isinstance(error, UnsupportedError):
        return _failure(400, str(error), error.code or "unsupported", error.param, hint)
    if isinstance(error, RequestError):
        return _failure(400, str(error), error.code or "invalid_request", error.param, hint)
    if isinstance(error, ModelNotFoundError):
        return _failure(404, str(error), "model_not_found", "model", hint, final=True)
    if isinstance(error, TemplateError):
        return _failure(400, str(error), "template_error", "messages", hint)
    if isinstance(error, CapacityError):
        return _failure(429, str(error), "queue_full", None, hint, retry_after=BUSY_RETRY_S)
    if isinstance(error, DownloadError):
        return _failure(503, str(error), "download_failed", None, hint)
    if isinstance(error, BackendError):
        return _failure(500, str(error), "backend_error", None, hint)
    logging.getLogger("tensorsharp.server").error("A request failed.", exc_info=error)
    return _failure(500, f"The server failed: {type(error).__name__}.", "internal_error", None, "Its log says more.")


def _failure(
    status: int,
    message: str,
    code: str,
    param: str | None,
    hint: str | None,
    *,
    retry_after: int | None = None,
    final: bool = False,
) -> Failure:
    return Failure(status, _shown(message), KINDS[status], code, param and _shown(param), hint, retry_after, final)


def _shown(text: str) -> str:
    """A text without the middle, if it is long: it repeats what the client sent."""
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} … {text[-SHOWN:]}"
