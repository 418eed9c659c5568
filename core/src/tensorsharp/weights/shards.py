"""A model split over several files: their names, and whether they belong together.

Names end in -00001-of-000NN.gguf; each file says `split.no` (from 0), `split.count` and `split.tensors.count` (all files).
The metadata of the model is in the first. Source: llama.cpp's gguf-split.
"""

from __future__ import annotations

import os
import re

from tensorsharp.errors import ModelError
from tensorsharp.weights.gguf_reader import Shard, read_shard, shown

SPLIT_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.gguf", re.DOTALL)
"""A part's name: prefix, number (from 1) and count."""


def read_all_shards(path: str) -> tuple[Shard, ...]:
    """All files of the model that `path` is one file of, in order. Raises ModelError."""
    given = read_shard(path, 0)
    count = _split_number(given, "split.count")
    if count is None or count <= 1:
        return (given,)
    paths = _shard_paths(given, count)
    shards = tuple(read_shard(name, index) for index, name in enumerate(paths))
    for index, shard in enumerate(shards):
        _check_belongs(shard, index, shards[0], count)
    _check_tensors(shards)
    return shards


def _split_number(shard: Shard, key: str) -> int | None:
    value = shard.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelError(f"{shard.path}: {key!r} is {shown(value)}; expected a whole number.")
    return value


def _shard_paths(given: Shard, count: int) -> list[str]:
    number = _split_number(given, "split.no")
    match = SPLIT_NAME.fullmatch(given.path)
    if match is None or int(match["count"]) != count or number is None or int(match["number"]) != number + 1:
        expected = f"-{(number or 0) + 1:05d}-of-{count:05d}.gguf"
        says = f"is file {number + 1} of {count}" if number is not None else f"is one of {count} files"
        raise ModelError(
            f"{given.path}: says that it {says} of a split model; its name should end in {expected}.",
            hint="Give all files of the model the names they were published under.",
        )
    paths = [f"{match['prefix']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    missing = [name for name in paths if not os.path.exists(name)]
    if missing:
        which = f"1 is missing: {missing[0]}" if len(missing) == 1 else f"{len(missing)} are missing, the first {missing[0]}"
        raise ModelError(
            f"{given.path} is one of {count} files, of which {which}.", hint="Download all files of the model into one folder."
        )
    return paths


def _check_belongs(shard: Shard, index: int, first: Shard, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", index)):
        if (value := _split_number(shard, key)) != expected:
            raise ModelError(f"{shard.path}: {key!r} is {value}; expected {expected}, as file {index + 1} of {count}.")
    for key in ("general.architecture", "split.tensors.count"):
        here, there = shown(shard.get(key)), shown(first.get(key))
        if shard.get(key) is not None and here != there:
            raise ModelError(f"{shard.path}: {key!r} is {here}, but {first.path} says {there}: files of two models.")


def _check_tensors(shards: tuple[Shard, ...]) -> None:
    owner: dict[str, Shard] = {}
    for shard in shards:
        for info in shard.tensors:
            if info.name in owner:
                raise ModelError(f"{shard.path}: tensor {shown(info.name)} is also in {owner[info.name].path}.")
            owner[info.name] = shard
    total = _split_number(shards[0], "split.tensors.count")
    if total is not None and total != len(owner):
        raise ModelError(
            f"{shards[0].path}: the {len(shards)} files hold {len(owner)} tensors; 'split.tensors.count' says {total}."
        )
