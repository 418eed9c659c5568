"""The command line of benchmarks that take one model and some counts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path


def read_arguments(description: str, counts: Mapping[str, tuple[int, str]]) -> argparse.Namespace:
    """`model`, `json`, and every count, 1 or more. counts: name -> (default, help). A bad one ends the program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path, help="a GGUF file")
    for name, (default, text) in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1")
    if not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    return options
