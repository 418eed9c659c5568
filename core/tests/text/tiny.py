"""Tiny vocabularies for every kind of tokenizer: real enough to show every word boundary, made from the test texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.file import TensorInfo
from tensorsharp.testing.ggufs import gguf_file

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MERGES = 300
MARK = "\u2581"
UNREACHED = (" ellipsis", " trailing", " controls", "XMLHttpRequest", " українськи")
"""Tokens that no merge makes: only a vocabulary that takes whole words first ever gives them."""


@dataclass
class MetadataFile:
    """A model file that is nothing but its metadata."""

    metadata: Mapping[str, Any]
    path: str = "tiny.gguf"
    architecture: str = "llama"
    fingerprint: str = ""
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        raise NotImplementedError


def letters() -> list[str]:
    """GPT-2's letter for each byte: bytes that print as Latin-1 as themselves, the others from U+0100 on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def trained_merges(pieces: list[list[str]], count: int) -> list[tuple[str, str]]:
    """Plain byte-pair training over whole texts, so that merges reach across every word boundary."""
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(pair for piece in pieces for pair in pairwise(piece))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        pieces = [_merged(piece, best) for piece in pieces]
    return merges


def _merged(piece: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(piece):
        if at + 1 < len(piece) and (piece[at], piece[at + 1]) == pair:
            out.append(piece[at] + piece[at + 1])
            at += 2
        else:
            out.append(piece[at])
            at += 1
    return out


@cache
def _byte_level(texts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges of a byte-level vocabulary. Every two bytes that are neighbours in a text merge in the end."""
    alphabet = letters()
    pieces = [[alphabet[byte] for byte in text.encode("utf-8", "replace")] for text in texts]
    merges = trained_merges(pieces, MERGES)
    neighbours = sorted({pair for piece in pieces for pair in pairwise(piece)} - set(merges))
    merges += neighbours
    unreached = ["".join(alphabet[byte] for byte in text.encode()) for text in UNREACHED]
    tokens = dict.fromkeys([*alphabet, *(left + right for left, right in merges), *unreached])
    return tuple(tokens), tuple(f"{left} {right}" for left, right in merges)


def byte_level(texts: tuple[str, ...], pre: str | None, **more: Any) -> dict[str, Any]:
    """Metadata of a `gpt2` tokenizer with that `tokenizer.ggml.pre`, with three special tokens at the end."""
    tokens, merges = _byte_level(texts)
    special = {"<BOS>": CONTROL, "<EOS>": CONTROL, "<CONTROL>": CONTROL, "<USER>": USER_DEFINED}
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, *special],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + list(special.values()),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        **more,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata


@cache
def _marked(texts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges on characters, spaces written as U+2581; half of the characters are left to byte tokens."""
    pieces = [list(line.replace(" ", MARK)) for text in texts for line in text.split("\n") if line]
    # llama.cpp reads a token's text up to a NUL only, so no token may hold one.
    known = sorted({char for piece in pieces for char in piece if ord(char) % 2 or char.isascii()} - {"\0"} | {"\n", MARK})
    pieces = [[char for char in piece if char in known] for piece in pieces]
    merges = trained_merges(pieces, MERGES)
    tokens = dict.fromkeys([*known, *(left + right for left, right in merges), "\n\n\n"])
    return tuple(tokens), tuple(f"{left} {right}" for left, right in merges)


def marked(texts: tuple[str, ...], model: str, *extra: str, **more: Any) -> dict[str, Any]:
    """Metadata of a `llama` (by scores) or `gemma4` (by merges) tokenizer, with byte tokens and special tokens in front.

    extra: more control tokens. Scores fall in steps of three tokens, so that ties have to be broken.
    """
    special = {
        "<unk>": UNKNOWN,
        "<BOS>": CONTROL,
        "<EOS>": CONTROL,
        "<CONTROL>": CONTROL,
        "<USER>": USER_DEFINED,
        "  ": USER_DEFINED,
    }
    special |= dict.fromkeys(extra, CONTROL)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens, merges = _marked(texts)
    front = len(special) + len(bytes_)
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [*special, *bytes_, *tokens],
        "tokenizer.ggml.token_type": [*special.values(), *[BYTE] * len(bytes_), *[NORMAL] * len(tokens)],
        "tokenizer.ggml.scores": [0.0] * front + [-float(index // 3) for index in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }
    if model != "llama":
        metadata["tokenizer.ggml.merges"] = list(merges)
    return metadata


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    """The same metadata as a GGUF file without tensors."""
    keys = dict(metadata)
    with gguf_file(path, keys.pop("general.architecture"), keys):
        return path
