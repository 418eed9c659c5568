"""The measured speeds as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tensorsharp.errors import ConfigError
from tensorsharp_app_cli.ladder import Row

ENDINGS = (".svg", ".png")


def check_plot(path: Path) -> None:
    """ConfigError if `save_plot` could not work, so that it is known before minutes are spent on measuring."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot is {path}; expected a name that ends in {' or '.join(ENDINGS)}.")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib.", hint="Try: pip install 'tensorsharp-app-cli[plot]'")


def save_plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Reading above writing, each over the length of the context."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    reading, writing = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title)
    lengths = [row.ctx_tokens for row in rows]
    reading.plot(lengths, [row.prefill_tps for row in rows], marker="o")
    writing.plot(lengths, [row.gen_tps for row in rows], marker="o")
    for axes, name in ((reading, "prefill"), (writing, "generation")):
        axes.set_ylabel(f"{name} (tok/s)")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True)
    writing.set_xlabel("context (tokens)")
    figure.savefig(path)
