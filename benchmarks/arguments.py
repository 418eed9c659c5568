"""The command line of benchmarks that take one model and some counts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

Counts = Mapping[str, tuple[int | None, int, str]]
MODEL = "a GGUF file"
CHAT_MODEL = "a GGUF file with a chat template"
JSON = "print one object"


def model_parser(description: str, counts: Counts, *, model: str = MODEL, json: str = JSON) -> argparse.ArgumentParser:
    """A parser of `model`, `json`, and every count. counts: name -> (default, least, help). model, json: their helps."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path, help=model)
    for name, (default, _, text) in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help=json)
    return parser


def read_options(parser: argparse.ArgumentParser, counts: Counts) -> argparse.Namespace:
    """What was given. A count that is too small, or a model that is no file, ends the program."""
    options = parser.parse_args()
    for name, (_, least, _) in counts.items():
        value = getattr(options, name.replace("-", "_"))
        if value is not None and value < least:
            parser.error(f"--{name}: expected at least {least}")
    if not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    return options


def read_arguments(description: str, counts: Counts, *, model: str = MODEL, json: str = JSON) -> argparse.Namespace:
    """Both for a benchmark that takes nothing else."""
    return read_options(model_parser(description, counts, model=model, json=json), counts)
