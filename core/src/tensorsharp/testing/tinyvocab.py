"""A byte-level BPE vocabulary of a few hundred tokens, as GGUF metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsharp.errors import ConfigError

MERGES = ("Ġ t", "h e", "Ġ a", "i n", "r e", "Ġt he", "o n", "Ġ w", "e r", "Ġ s", "a t", "n d", "o u", "in g", "Ġa nd", "e s")
"""Merges in order of rank; Ġ stands for a space. (Frequent pairs of English.)"""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SMALLEST = 300
NORMAL, CONTROL_TYPE, UNUSED = 1, 3, 5
"""GGUF's numbers for kinds of token."""


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2): itself where it is visible, else one
    from U+0100 on, in order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (chr(0x100 + i) for i in range(256))
    return [chr(b) if b in visible else next(hidden) for b in range(256)]


def byte_vocabulary(size: int, merges: Sequence[str] = MERGES) -> dict[str, Any]:
    """Metadata of a vocabulary of `size` ids: 256 bytes, a token for every merge, 3 control tokens, the rest unused.

    <|endoftext|> begins nothing and ends a text, <|im_end|> ends a turn. ConfigError for fewer than 300 ids, or too few for
    the merges.
    """
    if size < SMALLEST:
        raise ConfigError(f"a byte vocabulary needs {SMALLEST} ids or more, not {size}.")
    tokens = [*byte_symbols(), *(merge.replace(" ", "") for merge in merges)]
    end = len(tokens)
    types = [NORMAL] * end + [CONTROL_TYPE] * len(CONTROL)
    tokens += CONTROL
    unused = size - len(tokens)
    if unused < 0:
        raise ConfigError(f"{len(merges)} merges need {len(tokens)} ids, not {size}.")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *(f"[unused{i}]" for i in range(unused))],
        "tokenizer.ggml.token_type": [*types, *[UNUSED] * unused],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end + 2,
        "tokenizer.ggml.eot_token_id": end + 2,
        "tokenizer.ggml.add_bos_token": False,
    }
