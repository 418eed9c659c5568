"""`tensorsharp ps` and `stop`: what a running server has loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tensorsharp import options
from tensorsharp.errors import TensorSharpError
from tensorsharp_app_cli.client import ask
from tensorsharp_app_cli.output import emit, emit_json
from tensorsharp_app_cli.tables import printable, size, table

SERVER = (
    click.option("--host", metavar="NAME", help="Where the server is.  [default: 127.0.0.1]"),
    click.option("--port", metavar="N", help="Its port.  [default: 8080]"),
    click.option("--api-key", metavar="KEY", help="A key that it takes; safer in TENSORSHARP_API_KEY."),
)


@click.command()
@options.flags(*SERVER)
@options.JSON
@click.pass_context
def ps(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """List the models that a running server has in memory."""
    data = ask(options.settle(ctx, given), "GET", "/api/ps")
    if not isinstance(data, dict) or not isinstance(data.get("models"), list):
        raise TensorSharpError("The server's answer holds no list of models.")
    if as_json:
        emit_json(data)
        return
    rows = [
        (printable(str(one.get("name"))), size(int(one.get("size") or 0)), _until(one.get("expires_at")))
        for one in data["models"]
    ]
    emit("\n".join(table(("NAME", "SIZE", "UNTIL"), rows, right=(1,))), end="\n")


@click.command()
@click.argument("model")
@options.flags(*SERVER)
@click.pass_context
def stop(ctx: click.Context, /, model: str, **given: Any) -> None:
    """Let a running server give back the memory of MODEL. Its name is the one that 'tensorsharp ps' tells."""
    ask(options.settle(ctx, given), "POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False})


def _until(text: object) -> str:
    """When a model leaves by itself, in local time."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return ""
    if when.year > datetime.now(UTC).year + 1:
        return "forever"
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"
