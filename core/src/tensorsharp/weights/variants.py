"""Which models the files of a repository or folder are: one of each quantisation, its parts, and the projector beside it.

Only names are looked at. A quantisation is named as llama.cpp names its file types, anywhere in the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tensorsharp.errors import ModelNotFoundError, did_you_mean
from tensorsharp.weights.shards import SPLIT_NAME

PREFERRED = (
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_S",
    "Q4_0",
    "IQ4_XS",
    "IQ4_NL",
    "MXFP4",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "F32",
)
"""What is taken where no quantisation is asked for: the first of these that there is, else the first by name."""

PROJECTORS = ("F16", "BF16", "Q8_0", "F32")
"""In which precision a projector is taken, where there are several."""

_QUANT = re.compile(
    r"(?<![a-z0-9])(?P<ud>ud-)?(?P<type>(?:i?q|tq)\d(?:_[a-z0-9]+)*|mxfp4(?:_moe)?|bf16|f16|f32|fp16|fp32)(?![a-z0-9])", re.I
)
_FLOATS = {"FP16": "F16", "FP32": "F32"}
_PROJECTOR = re.compile(r"mmproj", re.I)
_NO_MODEL = re.compile(r"mmproj|imatrix", re.I)


@dataclass(frozen=True, slots=True)
class Variant:
    """One model. label: its quantisation, or where that is not clear the name of its file without the ending; no two
    variants share one. quant: the quantisation, or None. files: its parts in order. projector: the file for images."""

    label: str
    quant: str | None
    files: tuple[str, ...]
    projector: str | None = None

    @property
    def stem(self) -> str:
        return stem(self.files[0])

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be asked for by, in capitals, the surest first."""
        names = (self.label, self.stem, PurePosixPath(self.stem).name, self.label.removeprefix("UD-"))
        return tuple(name.upper() for name in names)


def stem(name: str) -> str:
    """Name of a model file without the ending and the number of the part, with its folders."""
    match = SPLIT_NAME.fullmatch(name)
    if match:
        return match["prefix"]
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def quantisation(name: str) -> str | None:
    """The quantisation that a file's name tells, else its folder's name; in capitals."""
    for part in reversed(PurePosixPath(stem(name)).parts):
        found = list(_QUANT.finditer(part))
        if found:
            kind = found[-1]["type"].upper()
            return ("UD-" if found[-1]["ud"] else "") + _FLOATS.get(kind, kind)
    return None


def family(name: str) -> str:
    """Name of a model file without its folders and its quantisation: the same for all quantisations of one model."""
    return _QUANT.sub("", PurePosixPath(stem(name)).name).strip("-._ ").lower()


def variants(names: Iterable[str]) -> list[Variant]:
    """The complete models among files with these names ("/" between folders), by name, with their projectors."""
    files = sorted(name for name in names if name.lower().endswith(".gguf"))
    projectors = [name for name in files if _PROJECTOR.search(PurePosixPath(name).name)]
    groups: dict[str, list[str]] = {}
    for name in files:
        if not _NO_MODEL.search(PurePosixPath(name).name):
            groups.setdefault(stem(name), []).append(name)
    found: dict[str, Variant] = {}
    for title, parts in groups.items():
        if _complete(parts):
            quant = quantisation(parts[0])
            label = quant if quant and quant not in found else title
            found[label] = Variant(label, quant, tuple(parts), _projector(title, projectors))
    return list(found.values())


def _complete(parts: Sequence[str]) -> bool:
    matches = [match for match in map(SPLIT_NAME.fullmatch, parts) if match]
    if not matches:
        return len(parts) == 1
    return [int(match["number"]) for match in matches] == list(range(1, int(matches[0]["count"]) + 1))


def _projector(title: str, projectors: Sequence[str]) -> str | None:
    """The one in the model's own folder, else any; in the preferred precision."""
    folder = PurePosixPath(title).parent
    near = [name for name in projectors if PurePosixPath(name).parent == folder] or projectors
    return min(near, key=lambda name: (_rank(quantisation(name), PROJECTORS), name), default=None)


def _rank(quant: str | None, order: Sequence[str]) -> int:
    return order.index(quant) if quant in order else len(order)


def choose(found: Sequence[Variant], quant: str | None, where: str) -> Variant:
    """The variant of a quantisation, or of a file's name; None: by the order of :data:`PREFERRED`.

    Large and small letters are the same, and Q4_K_XL finds UD-Q4_K_XL. where: what holds the files, for the sentence of
    a ModelNotFoundError, which lists what there is.
    """
    if not found:
        raise ModelNotFoundError(f"{where} holds no complete .gguf model.", hint="Repositories of such often end in -GGUF.")
    if quant is None:
        return min(found, key=lambda one: (_rank(one.quant, PREFERRED), one.stem))
    asked = stem(quant).upper()
    matching = [one for one in found if asked in one.names]
    if matching:
        return min(matching, key=lambda one: one.names.index(asked))
    labels = [one.label for one in found]
    near = did_you_mean(asked, labels)
    raise ModelNotFoundError(f"{where} has no '{quant}'.", hint=f"{near + ' ' if near else ''}It has {', '.join(labels)}.")
