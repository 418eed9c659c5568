"""The prompt of a single answer: an argument, a pipe, or both."""

from __future__ import annotations

import sys

from tensorsharp.errors import RequestError
from tensorsharp_app_cli.status import Status


def piped() -> bool:
    """Whether standard input is something other than a person at a terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def one_shot(argument: str | None, status: Status) -> str | None:
    """The argument, then after a blank line what the pipe holds. None: neither, so a person is there to be asked.

    The last line end of a pipe is left out, so that `echo hi |` and an argument give the same prompt. RequestError if the
    prompt is empty or the pipe holds no UTF-8 text.
    """
    if argument is None and not piped():
        return None
    parts = [argument or ""]
    if piped():
        status.say("waiting for the end of standard input")
        parts.append(_pipe())
        status.clear()
    prompt = "\n\n".join(part for part in parts if part)
    if not prompt:
        raise RequestError("The prompt is empty; expected a text as PROMPT or from a pipe.", param="prompt", code="empty_prompt")
    return prompt


def _pipe() -> str:
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"The pipe holds no UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.", param="prompt", code="invalid_text"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
