"""SentencePiece-style vocabularies (`tokenizer.ggml.model` = `llama`): merging by the score of what comes out.

There is no list of merges: two neighbours merge if their joined text is a token, the highest score first. So the
vocabulary as it lies in the file is all that has to be ready, where other libraries need hundreds of thousands of merges
derived and loaded first.
"""

from __future__ import annotations

import re
from array import array
from functools import cached_property
from typing import Final

from tensorsharp.text.merging import merge_pairs
from tensorsharp.text.vocabulary import Vocabulary
from tensorsharp.text.words import Words

SHORT: Final = 256
SPACE_MARK: Final = "\u2581"
_MARK_INSIDE: Final = re.compile(rb"(?<!\0)(?<!\xe2\x96\x81)\xe2\x96\x81")


class SPM:
    """Merges the characters of a text; one that is no token becomes the tokens of its bytes.

    unknown: stands for a byte that has no token either.
    """

    def __init__(self, vocabulary: Vocabulary, scores: array[float], unknown: int) -> None:
        self._vocabulary = vocabulary
        self._ids = vocabulary.ids
        self._scores = scores
        self._unknown = unknown
        self._words = Words(self._word)

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        text = text.replace(" ", SPACE_MARK)
        if len(text) <= SHORT:
            return self._word(text)
        return self._words.ids(self._boundary.split(text))

    def spelled(self, text: str) -> bytes:
        """The text as tokens write it."""
        return text.replace(" ", SPACE_MARK).encode()

    def left_out(self) -> bytes:
        """Bytes of a spelled text that may get no token: none, as what is unknown gets the token for that."""
        return b""

    def _word(self, word: str) -> list[int]:
        out: list[int] = []
        for part in merge_pairs([char.encode() for char in word], self._priority):
            token = self._ids.get(part)
            out += map(self._byte, part) if token is None else (token,)
        return out

    def _priority(self, left: bytes, right: bytes) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _byte(self, byte: int) -> int:
        for text in (b"<0x%02X>" % byte, bytes((byte,))):
            token = self._ids.get(text)
            if token is not None:
                return token
        return self._unknown

    @cached_property
    def _boundary(self) -> re.Pattern[str]:
        """Where a long text may be cut without changing its ids: before a space that follows a character which stands
        before a space in no token, because then no merge can reach across.
        """
        data = self._vocabulary.strings.data
        never = {"\0", SPACE_MARK}
        for match in _MARK_INSIDE.finditer(data):
            never.add(data[max(match.start() - 4, 0) : match.start()].decode("utf-8", "replace")[-1:])
        return re.compile(f"(?<=[^{re.escape(''.join(never))}])(?={SPACE_MARK})")
