"""A model's numbers from a file's metadata, checked, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import ModelFile


class Hyperparameters:
    """Reads ``<architecture>.<key>``. A key without a default is required; ModelError says what was expected."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.prefix = file.architecture

    def _get(self, key: str) -> object | None:
        value: object | None = self.file.metadata.get(f"{self.prefix}.{key}")
        return value

    def _fail(self, key: str, expected: str) -> ModelError:
        value = self._get(key)
        found = "it is missing" if value is None else f"found {value!r}"
        return ModelError(f"{self.file.path}: key {self.prefix}.{key}: expected {expected}, {found}.")

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._fail(key, f"an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
            raise self._fail(key, "a finite number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._fail(key, "a string")
        return value

    def per_layer(self, key: str, layers: int, default: int | None = None, *, least: int = 1) -> tuple[int, ...]:
        """One integer per layer, from a scalar or an array of at least `layers` entries."""
        value = self._get(key)
        if value is None or isinstance(value, int):
            return (self.integer(key, default, least=least),) * layers
        entries = list(value) if isinstance(value, Iterable) else []
        if len(entries) < layers or not all(isinstance(v, Integral) and int(v) >= least for v in entries[:layers]):
            raise self._fail(key, f"an integer of at least {least}, or {layers} of them")
        return tuple(int(v) for v in entries[:layers])

    def flags(self, key: str, layers: int, period: int) -> tuple[bool, ...]:
        """Sliding-window pattern: an array of booleans, or a period P: layer i slides unless i % P == P-1."""
        value = self._get(key)
        if value is not None and not isinstance(value, int):
            entries = list(value) if isinstance(value, Iterable) else []
            if len(entries) < layers:
                raise self._fail(key, f"a period or {layers} booleans")
            return tuple(bool(v) for v in entries[:layers])
        period = self.integer(key, period, least=0)
        return tuple(period > 0 and i % period != period - 1 for i in range(layers))
