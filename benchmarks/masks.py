"""What constraints cost while many streams reply: the processor time of their masks, as a part of that of decoding.

    python benchmarks/masks.py MODEL [--streams N] [--threads N] [--tokens N] [--rounds N] [--json]

Free and constrained replies alternate, with the same prompts and the same number of tokens. `masks` is the processor time of all
masks over the time that decoding would take on as many processors as the backend has threads, which is the strictest
measure: as if masks were not computed beside the model's steps. `all` is the processor time of the whole process for constrained
replies over that for free ones. Both are medians over rounds. Processor time hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.arguments import read_arguments
from benchmarks.compare import cpu_model
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.types import Constraint

SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 40},
            "kind": {"enum": ["person", "place", "thing"]},
            "size": {"type": "number", "minimum": 0, "maximum": 1000},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 4},
            "parent": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 99999}]},
        },
        "required": ["name", "kind", "size", "tags", "parent"],
        "additionalProperties": False,
    },
    "minItems": 1000,
}
"""Strings, numbers, choices and nesting, and no end before the reply is cut."""
MOST = 0.1
"""The part of decode time that masks may take."""


def round_of(llm: LLM, options: argparse.Namespace, constraint: Constraint | None) -> tuple[float, float, int]:
    """Processor seconds of the process and of the masks while all streams reply, and the number of tokens."""
    before, began = llm.stats(), time.process_time()
    streams = [
        llm.stream(
            f"List some things that begin with {letter}.",
            constraint=constraint,
            max_tokens=options.tokens,
            temperature=0.8,
            seed=number,
            ignore_eos=True,
        )
        for number, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: options.streams])
    ]
    replies = [stream.result() for stream in streams]
    took, after = time.process_time() - began, llm.stats()
    return took, after.mask_s - before.mask_s, sum(len(reply.token_ids) for reply in replies)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain data. most: what `masks` may be."""
    constraint = Constraint.json_schema(SCHEMA)
    with load(options.model, threads=options.threads, parallel=options.streams, ctx_size=options.tokens + 128) as llm:
        threads = llm.backend.threads
        began = time.process_time()
        llm.grammar(constraint)
        compiled = time.process_time() - began
        round_of(llm, options, None)  # prompts are found from now on
        parts, whole, each = [], [], []
        for _ in range(options.rounds):
            free, _, free_tokens = round_of(llm, options, None)
            held, masks, held_tokens = round_of(llm, options, constraint)
            parts.append(masks / ((held - masks) / threads))
            whole.append((held / held_tokens) / (free / free_tokens))
            each.append(1e6 * masks / held_tokens)
    return {
        "model": options.model.name,
        "cpu": cpu_model(),
        "threads": threads,
        "streams": options.streams,
        "compile_s": compiled,
        "mask_us": statistics.median(each),
        "masks": statistics.median(parts),
        "most": MOST,
        "all": statistics.median(whole),
    }


def arguments() -> argparse.Namespace:
    counts = {
        "threads": (os.cpu_count() or 1, 1, "of the backend (default: all cores)"),
        "streams": (8, 1, "at the same time, at most 26 (default: 8)"),
        "tokens": (64, 1, "of each reply (default: 64)"),
        "rounds": (3, 1, "of free and constrained replies (default: 3)"),
    }
    return read_arguments("Measure the processor time of constraints as a part of decoding.", counts)


def main() -> None:
    options = arguments()
    found = compare(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(", ".join(f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
