"""Reading a model's numbers and tensors: what is right passes, what is wrong is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.layers.tensors import Expected, check_tensors, vocabulary_size
from tensorsharp.protocols.file import TensorInfo


def file(metadata: dict[str, Any] | None = None, tensors: dict[str, tuple[int, ...]] | None = None) -> Any:
    """A file with the architecture `toy`; keys are given without its prefix."""
    infos = {n: TensorInfo(n, s, 0, "F32", 4 * int(np.prod(s)), 0, 0) for n, s in (tensors or {}).items()}
    keys = {f"toy.{k}": v for k, v in (metadata or {}).items()}
    return SimpleNamespace(path="toy.gguf", architecture="toy", metadata=keys, tensors=infos)


def read(**metadata: Any) -> Hyperparameters:
    return Hyperparameters(file(metadata))


def test_values_and_defaults() -> None:
    h = read(count=3, eps=1e-5, whole=2, kind="yarn")
    assert h.integer("count") == 3
    assert h.integer("absent", 7) == 7
    assert h.number("eps") == 1e-5
    assert h.number("whole") == 2.0
    assert h.number("absent", 0.5) == 0.5
    assert h.text("kind", "none") == "yarn"
    assert h.text("absent", "none") == "none"


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("integer", None, "expected an integer of at least 1, it is missing"),
        ("integer", 0, "expected an integer of at least 1, found 0"),
        ("integer", 2.5, "found 2.5"),
        ("integer", True, "found True"),
        ("integer", "8", "found '8'"),
        ("number", None, "expected a finite number, it is missing"),
        ("number", float("nan"), "found nan"),
        ("number", float("inf"), "found inf"),
        ("number", "x", "found 'x'"),
    ],
)
def test_a_wrong_value_is_named(method: str, value: Any, expected: str) -> None:
    h = read() if value is None else read(key=value)
    with pytest.raises(ModelError, match=r"toy\.gguf: key toy\.key: ") as caught:
        getattr(h, method)("key")
    assert expected in str(caught.value)


def test_one_integer_a_layer() -> None:
    assert read(ff=64).per_layer("ff", 3) == (64, 64, 64)
    assert read(ff=np.array([1, 2, 3, 4], np.int32)).per_layer("ff", 3) == (1, 2, 3)
    assert read().per_layer("ff", 2, 5) == (5, 5)
    for bad in (np.array([1, 2], np.int32), [1, 0, 1], "abc", 0):
        with pytest.raises(ModelError, match=r"toy\.ff"):
            read(ff=bad).per_layer("ff", 3)


def test_sliding_window_patterns() -> None:
    assert read().flags("pattern", 7, 3) == (True, True, False, True, True, False, True)
    assert read(pattern=2).flags("pattern", 4, 6) == (True, False, True, False)
    assert read(pattern=1).flags("pattern", 3, 6) == (False, False, False)
    assert read(pattern=0).flags("pattern", 3, 6) == (False, False, False)
    assert read(pattern=np.array([True, False, True])).flags("pattern", 3, 6) == (True, False, True)
    with pytest.raises(ModelError, match="3 booleans"):
        read(pattern=[True]).flags("pattern", 3, 6)


def test_tensors_are_checked_by_name_and_shape() -> None:
    found = file(tensors={"a": (2, 3), "b": (4,)})
    wanted = [Expected("a", (2, 3)), Expected("b", (4,), optional=True), Expected("c", (1,), optional=True)]
    assert check_tensors(found, wanted) == {"a", "b"}
    with pytest.raises(ModelError, match=r"toy\.gguf: tensor c is missing; expected shape \[1\]"):
        check_tensors(found, [Expected("c", (1,))])
    with pytest.raises(ModelError, match=r"tensor b has shape \[4\]; expected \[5\]"):
        check_tensors(found, [Expected("b", (5,), optional=True)])


def test_the_vocabulary_is_the_embedding() -> None:
    assert vocabulary_size(file(tensors={"token_embd.weight": (48, 8)})) == 48
    for tensors in ({}, {"token_embd.weight": (48,)}):
        with pytest.raises(ModelError, match=r"token_embd\.weight"):
            vocabulary_size(file(tensors=tensors))
