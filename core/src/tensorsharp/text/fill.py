"""Fill in the middle: the prompt that makes a model write what stands between two texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.roles import FILL_TEXTS, OLD_FILL_KEYS

_ROLES: Final = ("fim_pre", "fim_suf", "fim_mid")


@dataclass(frozen=True, slots=True)
class FillTokens:
    """Control tokens before the text that precedes, before the text that follows, and before what is to be written."""

    prefix: int
    suffix: int
    middle: int

    def prompt(self, tokenizer: Tokenizer, before: str, after: str) -> list[int]:
        """Ids in the order that models are trained on (prefix, suffix, middle; Bavarian et al. 2022, section 3).

        Text of control tokens in `before` and `after` stays text.
        """
        begin = tokenizer.encode("")
        texts = [tokenizer.encode(text, special=False, bos=False) for text in (before, after)]
        return [*begin, self.prefix, *texts[0], self.suffix, *texts[1], self.middle]


def fill_tokens(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> FillTokens | None:
    """The tokens that the file names, else those of a well-known text; None unless there are all three."""
    found = [_token(role, metadata, tokenizer) for role in _ROLES]
    prefix, suffix, middle = found
    return None if prefix is None or suffix is None or middle is None else FillTokens(prefix, suffix, middle)


def _token(role: str, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    for name in (OLD_FILL_KEYS[role], role):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int) and 0 <= token < tokenizer.vocab_size:
            return token
    ids = [tokenizer.encode(text, bos=False) for text in FILL_TEXTS[role]]
    return next((one[0] for one in ids if len(one) == 1 and not tokenizer.bytes_of(one[0])), None)
