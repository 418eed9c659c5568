"""The golden files: what is in them, and the measures by which answers are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

HERE = Path(__file__).parent
NEW_TOKENS = 64
ROWS = 512
COLUMNS = 256
"""Vocabulary entries of a float32 row that are kept: every row, a fixed choice of entries, so that a file stays small."""


def columns_of(vocab_size: int) -> npt.NDArray[np.int64]:
    """[COLUMNS] the entries kept, ascending; the same for every run."""
    return np.sort(np.random.default_rng(20).choice(vocab_size, COLUMNS, replace=False))


def one_minus_cosine(a: F32, b: F32) -> F64:
    """[rows] 1 - cosine of each pair of rows, in float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(1.0 - (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def top_two(logits: F32) -> tuple[I32, F32]:
    """[rows, 2] ids and logits of the two largest entries, the lower id first among equals."""
    first = logits.argmax(1)
    rest = logits.copy()
    rest[np.arange(len(rest)), first] = -np.inf
    ids = np.stack([first, rest.argmax(1)], 1)
    return ids.astype(np.int32), np.take_along_axis(logits, ids, 1)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Teacher-forced replies. N prompts, NEW_TOKENS positions each, two settings.

    ids [N, L]: prompt and reply, -1 behind the end. prompt [N]: length of the prompt. text: the prompt as text.
    top [2, N, NEW_TOKENS, 2], logits likewise: the two best entries at each position of the reply.
    """

    text: list[str]
    ids: I32
    prompt: I32
    top: I32
    logits: F32

    def rows(self, i: int) -> tuple[list[int], slice]:
        """Ids to compute for prompt i, and which of their rows predict the reply."""
        n = int(self.prompt[i])
        return self.ids[i, : n + NEW_TOKENS - 1].tolist(), slice(n - 1, n - 1 + NEW_TOKENS)

    def own_differences(self) -> int:
        """Positions at which llama.cpp's two settings choose another token."""
        return int((self.top[0, ..., 0] != self.top[1, ..., 0]).sum())

    @property
    def gap(self) -> F32:
        """[N, NEW_TOKENS] how far llama.cpp's first choice is ahead of its second, with one row at a time."""
        return self.logits[0, ..., 0] - self.logits[0, ..., 1]

    def save(self, path: Path) -> None:
        text = np.frombuffer(json.dumps(self.text).encode(), np.uint8)
        np.savez_compressed(path, text=text, ids=self.ids, prompt=self.prompt, top=self.top, logits=self.logits)

    @classmethod
    def of(cls, key: str, folder: Path = HERE) -> Greedy:
        """The recorded file of a real model."""
        return cls.load(folder / f"{key}-greedy.npz")

    @classmethod
    def load(cls, path: Path) -> Greedy:
        with np.load(path) as z:
            return cls(json.loads(z["text"].tobytes()), z["ids"], z["prompt"], z["top"], z["logits"])


@dataclass(frozen=True, slots=True)
class Float32:
    """ids [ROWS]: a text. columns [COLUMNS], logits [ROWS, COLUMNS] float16: of llama.cpp on the float32 copy.

    peer [ROWS]: 1 - cosine over these columns of llama.cpp on the quantised file; peer_whole: over whole rows.
    """

    ids: I32
    columns: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float16]
    peer: F64
    peer_whole: F64

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path, ids=self.ids, columns=self.columns, logits=self.logits, peer=self.peer, peer_whole=self.peer_whole
        )

    def distance(self, rows: F32) -> F64:
        """1 - cosine of whole rows [n, vocab] of ours to the float32 rows, over the columns kept."""
        return one_minus_cosine(rows[:, self.columns], self.logits[: len(rows)].astype(np.float32))

    @classmethod
    def of(cls, key: str, folder: Path = HERE) -> Float32:
        """The recorded file of a real model."""
        return cls.load(folder / f"{key}-float32.npz")

    @classmethod
    def load(cls, path: Path) -> Float32:
        with np.load(path) as z:
            return cls(z["ids"], z["columns"], z["logits"], z["peer"], z["peer_whole"])


@dataclass(frozen=True, slots=True)
class TinyRun:
    """Logits of a tiny checkpoint. digest: SHA-256 of the file. ids [n]; logits [n, vocab]."""

    digest: str
    ids: I32
    logits: F32

    def save(self, path: Path) -> None:
        np.savez_compressed(path, digest=np.array(self.digest), ids=self.ids, logits=self.logits)

    @classmethod
    def of(cls, name: str, folder: Path = HERE) -> TinyRun:
        with np.load(folder / f"{name}.npz") as z:
            return cls(str(z["digest"]), z["ids"], z["logits"])
