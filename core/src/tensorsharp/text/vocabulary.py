"""The vocabulary of a model file: tokens as bytes, their kinds, and which of them mean something special."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError, RequestError
from tensorsharp.protocols.file import ModelFile
from tensorsharp.text.strings import Lookup, Strings, read_strings

UNKNOWN: Final = 1
UNUSED: Final = 2
NORMAL: Final = 4
CONTROL: Final = 8
USER_DEFINED: Final = 16
BYTE: Final = 32

# `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte (gguf's TokenType).
_KINDS: Final = np.array([0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE], np.uint8)


class Vocabulary:
    """Tokens by id and by text.

    strings: the texts as the file has them. flags: one byte a token, the kinds above combined. ids: text -> token.
    """

    def __init__(self, file: ModelFile) -> None:
        self.path = file.path
        strings = read_strings(file, "tokenizer.ggml.tokens")
        if strings is None or not len(strings):
            raise ModelError(f"{file.path}: has no 'tokenizer.ggml.tokens'; expected the vocabulary.")
        if (strings.starts == strings.ends).any():
            # llama.cpp names them so, too: they can be listed and stay apart.
            strings = Strings.of([text or b"[EMPTY_%d]" % token for token, text in enumerate(strings.tolist())])
        self.strings = strings
        self.size = len(strings)
        self.flags = bytearray(self._kinds(file.metadata))
        self.ids = Lookup(strings)
        twins = self.ids.twins()
        if twins is not None:
            raise ModelError(
                f"{file.path}: 'tokenizer.ggml.tokens' has {strings[twins[0]]!r:.100} twice, as {twins[0]} and {twins[1]};"
                " expected every token to differ.",
                hint="Convert the model again.",
            )

    def _kinds(self, metadata: Mapping[str, Any]) -> bytes:
        kinds = metadata.get("tokenizer.ggml.token_type")
        if kinds is None:
            return bytes([NORMAL]) * self.size
        kinds = self._numbers(kinds, "tokenizer.ggml.token_type")
        return _KINDS[np.where((kinds < 0) | (kinds >= len(_KINDS)), 0, kinds).astype(np.intp)].tobytes()

    def scores(self, metadata: Mapping[str, Any]) -> array[float]:
        """float32 [n] `tokenizer.ggml.scores`, zeros where the file has none."""
        scores = metadata.get("tokenizer.ggml.scores")
        if scores is None:
            return array("f", bytes(4 * self.size))
        return array("f", self._numbers(scores, "tokenizer.ggml.scores").astype(np.float32).tobytes())

    def _numbers(self, value: Any, key: str) -> npt.NDArray[Any]:
        numbers = np.asarray(value)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf" or len(numbers) < self.size:
            raise ModelError(f"{self.path}: '{key}' is {value!r:.100}; expected one number for each of {self.size} tokens.")
        return numbers[: self.size]

    def of_kind(self, kinds: int, but: int = 0) -> list[int]:
        """Ids of the tokens that are of one of `kinds` and of none of `but`."""
        flags = np.frombuffer(self.flags, np.uint8)
        return np.flatnonzero((flags & kinds != 0) & (flags & but == 0)).tolist()

    def check(self, token: int) -> None:
        """Raise RequestError unless `token` is an id of this vocabulary."""
        if not 0 <= token < self.size:
            raise RequestError(
                f"token id {token} is not in the vocabulary; expected 0 to {self.size - 1}.", param="token", code="invalid_token"
            )
