"""What a model's file tells of itself, read from its header without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsharp.errors import ModelError, TensorSharpError
from tensorsharp.llm import TEMPLATE_KEY
from tensorsharp.weights.entry import Entry
from tensorsharp.weights.gguf import open_gguf

if TYPE_CHECKING:
    from tensorsharp.weights.gguf import GGUFFile


@dataclass(frozen=True, slots=True)
class Card:
    """quantization: of the file's name, else the type that most bytes have. template: empty if the file has none.

    capabilities: in Ollama's words. metadata: key -> value as JSON has it; arrays are None. digest: SHA-256 of the
    file where that is known without reading it all, else its fingerprint; 64 hexadecimal digits either way.
    """

    architecture: str
    parameters: int
    quantization: str
    template: str
    capabilities: tuple[str, ...]
    metadata: Mapping[str, Any]
    digest: str


class Cards:
    """Reads each file once, and again when it has changed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, float], Card] = {}

    def read(self, entry: Entry) -> Card:
        """ModelError if the file cannot be read."""
        key = (entry.path, entry.size, entry.modified.timestamp())
        if key not in self._known:
            with open_gguf(entry.path) as file:
                self._known[key] = _card(entry, file)
        return self._known[key]

    def of(self, entry: Entry) -> Card | None:
        """None for a file that cannot be read."""
        try:
            return self.read(entry)
        except ModelError:
            return None


def arrays(entry: Entry) -> dict[str, list[Any]]:
    """The metadata that a card leaves out. ModelError if the file cannot be read."""
    with open_gguf(entry.path) as file:
        values = file.metadata.items()
        return {
            key: [_plain(item) for item in value.tolist()]
            for key, value in values
            if not isinstance(value, bool | int | float | str)
        }


def _card(entry: Entry, file: GGUFFile) -> Card:
    size: Counter[str] = Counter()
    for tensor in file.tensors.values():
        size[tensor.type_name] += tensor.nbytes
    largest = size.most_common(1)
    template = file.metadata.get(TEMPLATE_KEY)
    return Card(
        architecture=file.architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        quantization=entry.quant or (largest[0][0] if largest else ""),
        template=template if isinstance(template, str) else "",
        capabilities=_capabilities(file, template if isinstance(template, str) else ""),
        metadata={key: _plain(value) for key, value in file.metadata.items()},
        digest=entry.digest or file.fingerprint,
    )


def _capabilities(file: GGUFFile, template: str) -> tuple[str, ...]:
    """What requests may ask of the model; with a chat template always tools, which a system message can tell of."""
    from tensorsharp.embedding import is_embedding
    from tensorsharp.text.fill import fill_tokens
    from tensorsharp.text.styles import reasons
    from tensorsharp.text.tokenizer import load_tokenizer

    if is_embedding(file):
        return ("embedding",)
    try:
        fills = fill_tokens(file.metadata, load_tokenizer(file)) is not None
    except TensorSharpError:
        fills = False
    found = {"completion": True, "tools": bool(template), "insert": fills, "thinking": reasons(template)}
    return tuple(name for name, has in found.items() if has)


def _plain(value: Any) -> Any:
    """JSON has no number that is not finite."""
    if isinstance(value, bool | int | str):
        return value
    return (value if math.isfinite(value) else str(value)) if isinstance(value, float) else None
