"""How long `import tensorsharp` and `tensorsharp plugins` take, over an empty Python process.

    python benchmarks/startup.py [--rounds N] [--json]

Each number is the best of the rounds, less the best of `python -c pass` in the same rounds. Targets: about 150 ms for the
import and 400 ms for the listing, on a laptop.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.compare import environment

EMPTY = "python -c pass"
COMMANDS = {
    EMPTY: [sys.executable, "-c", "pass"],
    "import tensorsharp": [sys.executable, "-c", "import tensorsharp"],
    "tensorsharp plugins": [sys.executable, "-m", "tensorsharp", "plugins"],
}
TARGETS_MS = {"import tensorsharp": 150, "tensorsharp plugins": 400}


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
    return time.perf_counter() - begin


def best(rounds: int) -> dict[str, float]:
    """Command -> seconds of its best round; one uncounted round fills the caches, then the commands take turns."""
    found = dict.fromkeys(COMMANDS, float("inf"))
    for turn in range(-1, rounds):
        for name, command in COMMANDS.items():
            took = seconds(command)
            if turn >= 0:
                found[name] = min(found[name], took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the start of the library and of the command.")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    found = best(options.rounds)
    over = {name: 1000 * (found[name] - found[EMPTY]) for name in TARGETS_MS}
    if options.json:
        print(json.dumps({"empty_ms": 1000 * found[EMPTY], "over_ms": over, "targets_ms": TARGETS_MS}))
        return
    for name, ms in over.items():
        print(f"{name:20} {ms:6.0f} ms over {EMPTY}; target about {TARGETS_MS[name]} ms")


if __name__ == "__main__":
    main()
