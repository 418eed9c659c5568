"""Text to ids and back, as the engine and the apps see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Immutable and safe to share between threads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a reply: eos, end of turn, and what the file marks as such."""
        ...

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Ids of a text. special: text of control tokens becomes those tokens. bos: None follows the file's rule."""
        ...

    def at_least(self, text: str, most: int) -> int:
        """A number of tokens that the text has or exceeds, however it is encoded; found without doing so. At most `most` + 1."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD. special: also the text of control tokens."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """The bytes one token stands for in the middle of a text (empty for a control token)."""
        ...

    def piece(self, token: int) -> str:
        """The token's own text in the vocabulary, for listings; also for control tokens."""
        ...
