"""What goes to stdout: text of models, which may hold any character and go anywhere."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import click

from tensorsharp.errors import TensorSharpError


def emit(text: str, *, end: str = "") -> None:
    """Print at once. Characters that the output's encoding lacks become "?".

    TensorSharpError if it cannot be written; a reader that has left is BrokenPipeError, which ends the program quietly.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    try:
        click.echo(text + end, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TensorSharpError(f"The output cannot be written: {error.strerror or error}.") from error


def emit_json(data: Any) -> None:
    """One object on one line, escaped to ASCII where the output is not UTF-8."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    emit(json.dumps(data, ensure_ascii=not utf8), end="\n")
