"""Replay a composition log and say whether every bit is the same.

Usage: python scripts/replay.py LOG [--model FILE] [--step N] [--backend NAME] [--device NAME] [--threads N]

A log is written by `--composition-log FILE` (or `load(composition_log=...)`). A step begins with the state that the steps
before it left, so those are computed too; --step only says which one to report. Exit code 0: all the same; 1: differences.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tensorsharp.errors import TensorSharpError
from tensorsharp.replay import read_log, replay_log


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--model", help="The model file, if it is no longer where it was.")
@click.option("--step", type=click.IntRange(min=1), help="Report this step alone.")
@click.option("--backend", help="Another backend than that of the log.")
@click.option("--device")
@click.option("--threads", type=click.IntRange(min=1))
def main(log: Path, model: str | None, step: int | None, backend: str | None, device: str | None, threads: int | None) -> None:
    """Replay LOG and report each step."""
    found = read_log(log)
    click.echo(f"{found.facts['model']}: {found.facts['arithmetic_id']}, KV {found.facts['kv_type']}")
    steps = different = 0
    for done in replay_log(found, model, backend=backend, device=device, threads=threads):
        if step in (None, done.number):
            steps += 1
            different += bool(done.differences)
            click.echo(
                f"step {done.number}: {done.rows} rows of {', '.join(done.requests)}: {'; '.join(done.differences) or 'same'}"
            )
        if done.number == step:
            break
    if not steps:
        raise click.UsageError(f"{log} has no step {step}." if step else f"{log} has no steps.")
    click.echo(f"{different} of {steps} steps differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    try:
        main()
    except TensorSharpError as error:
        sys.exit(f"error: {error}")
