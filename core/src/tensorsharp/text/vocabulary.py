"""The vocabulary of a model file: tokens as bytes, their kinds, and which of them mean something special."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError, RequestError
from tensorsharp.protocols.file import ModelFile

UNKNOWN: Final = 1
UNUSED: Final = 2
NORMAL: Final = 4
CONTROL: Final = 8
USER_DEFINED: Final = 16
BYTE: Final = 32

# `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte (gguf's TokenType).
_KINDS: Final = np.array([0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE], np.uint8)


@dataclass(frozen=True)
class Strings:
    """An array of strings as one buffer: string i is `data[starts[i]:ends[i]]`.

    Each start has eight bytes before it that belong to no string, as in the file.
    """

    data: bytes
    starts: list[int]
    ends: list[int]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    @cached_property
    def all(self) -> list[bytes]:
        data = self.data
        return [data[start:end] for start, end in zip(self.starts, self.ends, strict=True)]


def read_strings(file: ModelFile, key: str) -> Strings | None:
    """The string array `key` without decoding it, or None if the file has none. ModelError if it is something else."""
    value: Any = file.metadata.get(key)
    if value is None:
        return None
    if hasattr(value, "raw"):
        return Strings(value.raw.tobytes(), value.starts.tolist(), value.ends.tolist())
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(text, str) for text in value):
        raise ModelError(f"{file.path}: '{key}' is {value!r:.100}; expected an array of strings.")
    data, starts, ends = bytearray(), [], []
    for text in value:
        data += bytes(8)
        starts.append(len(data))
        data += text.encode("utf-8", "surrogatepass")
        ends.append(len(data))
    return Strings(bytes(data), starts, ends)


class Vocabulary:
    """Tokens by id and by text.

    strings: the texts as the file has them. flags: one byte a token, the kinds above combined. ids: text -> token.
    """

    def __init__(self, file: ModelFile) -> None:
        self.path = file.path
        strings = read_strings(file, "tokenizer.ggml.tokens")
        if strings is None or not len(strings):
            raise ModelError(f"{file.path}: has no 'tokenizer.ggml.tokens'; expected the vocabulary.")
        self.strings = strings
        self.size = len(strings)
        self.flags = bytearray(self._kinds(file.metadata))
        self.ids = dict(zip(strings.all, range(self.size), strict=True))
        if b"" in self.ids:
            self._name_empty_tokens()
        if len(self.ids) != self.size:
            self._refuse_twins()

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

    def _name_empty_tokens(self) -> None:
        """Tokens without a text get one that names them, as llama.cpp does: they can be decoded, and stay apart."""
        texts = [text or b"[EMPTY_%d]" % token for token, text in enumerate(self.strings.all)]
        data = b"".join(bytes(8) + text for text in texts)
        ends = np.cumsum([8 + len(text) for text in texts])
        starts = ends - [len(text) for text in texts]
        self.strings = Strings(data, starts.tolist(), ends.tolist())
        self.ids = dict(zip(texts, range(self.size), strict=True))

    def _refuse_twins(self) -> None:
        for token, text in enumerate(self.strings.all):
            if self.ids[text] != token:
                other = self.ids[text]
                raise ModelError(
                    f"{self.path}: 'tokenizer.ggml.tokens' has {text!r:.100} twice, as {token} and {other};"
                    " expected every token to differ.",
                    hint="Convert the model again.",
                )

    def check(self, token: int) -> None:
        """Raise RequestError unless `token` is an id of this vocabulary."""
        if not 0 <= token < self.size:
            raise RequestError(
                f"token id {token} is not in the vocabulary; expected 0 to {self.size - 1}.", param="token", code="invalid_token"
            )
