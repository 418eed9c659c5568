"""Byte-level BPE (`tokenizer.ggml.model` = `gpt2`) and its variant on plain UTF-8 (`gemma4`)."""

from __future__ import annotations

from typing import Final

from tensorsharp.text.merging import merge_pairs
from tensorsharp.text.pretokenizers import Pretokenizer
from tensorsharp.text.strings import Lookup, Strings
from tensorsharp.text.vocabulary import Vocabulary
from tensorsharp.text.words import Words

SPACE_MARK: Final = "\u2581"


def _letters() -> tuple[str, ...]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the rest for U+0100 and up in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return tuple(chr(byte if byte in kept else 0x100 + moved.index(byte)) for byte in range(256))


LETTERS: Final = _letters()
BYTES: Final = {letter: byte for byte, letter in enumerate(LETTERS)}
_ENCODED: Final = tuple(letter.encode() for letter in LETTERS)
_SPELLED: Final = dict(enumerate(LETTERS))


class BPE:
    """Splits a text into words and merges each word's letters, lowest rank first.

    merges: `left right`, the rank is the index. As no piece holds a space, the line itself is the key. A word's ids are
    remembered: texts repeat their words.
    """

    def __init__(self, vocabulary: Vocabulary, merges: Strings, pretokenizer: Pretokenizer) -> None:
        self._ids = vocabulary.ids
        self._texts = vocabulary.strings
        self._pre = pretokenizer
        self._merges = merges
        self._ranks = Lookup(merges)
        self._words = Words(self._word)

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens. Bytes that have no token are left out, as llama.cpp does."""
        if self._pre.raw:
            text = text.replace(" ", SPACE_MARK)
        return self._words.ids(self._pre.split(text))

    def spelled(self, text: str) -> bytes:
        """The text as tokens write it."""
        if self._pre.raw:
            return text.replace(" ", SPACE_MARK).encode()
        return text.encode().decode("latin-1").translate(_SPELLED).encode()

    def left_out(self) -> bytes:
        """Bytes of a spelled text that may get no token: of letters and of merged parts that are none themselves."""
        letters = [bytes((byte,)) for byte in range(256)] if self._pre.raw else _ENCODED
        parts = {*letters, *(merge.replace(b" ", b"", 1) for merge in self._merges.tolist())}.difference(self._texts.tolist())
        return bytes({byte for part in parts for byte in part if not self._bytes(bytes((byte,)))})

    def _word(self, word: str) -> list[int]:
        parts = [char.encode() for char in word] if self._pre.raw else [_ENCODED[byte] for byte in word.encode()]
        if self._pre.ignore_merges or (self._pre.newline_runs and not word.strip("\n")):
            whole = self._ids.get(b"".join(parts))
            if whole is not None:
                return [whole]
        out: list[int] = []
        for part in merge_pairs(parts, self._rank):
            token = self._ids.get(part)
            out += self._bytes(part) if token is None else (token,)
        return out

    def _rank(self, left: bytes, right: bytes) -> int | None:
        return self._ranks.get(b"%b %b" % (left, right))

    def _bytes(self, part: bytes) -> list[int]:
        texts = [b"<0x%02X>" % byte if self._pre.raw else bytes((byte,)) for byte in part]
        return [token for text in texts if (token := self._ids.get(text)) is not None]
