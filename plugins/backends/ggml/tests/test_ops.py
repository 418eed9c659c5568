"""Every stateless operation gives what the reference defines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Rope
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp_backend_ggml.backend import GgmlBackend

ROWS = 5
rng = np.random.default_rng(7)


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.standard_normal(shape).astype(np.float32)


INPUTS = {
    "x": numbers(ROWS, 24),
    "y": numbers(ROWS, 24),
    "heads": numbers(ROWS, 3, 8),
    "four": numbers(ROWS, 4, 4),
    "three": numbers(ROWS, 3, 3),
    "streams": numbers(ROWS, 3, 16),
    "weights3": numbers(ROWS, 3, 2),
    "column": numbers(ROWS, 1),
    "ties": np.array(
        [[1, 3, 3, 0, 3, 1], [0, 0, 0, 0, 0, 0], [5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], [2, 9, 9, 2, 9, 2]], np.float32
    ),
    "index": np.array([[3, 0], [1, 5], [2, 2], [0, 4], [5, 1]], np.int32),
    "absent": np.array([[0, -1], [-1, -1], [5, 2], [1, 0], [-1, 3]], np.int32),
}
WEIGHTS = {
    "vector": numbers(24),
    "shift": numbers(24),
    "by_head": numbers(3, 8),
    "per_head": numbers(8),
    "matrix": numbers(40, 24),
    "out_bias": numbers(40),
    "groups": numbers(3, 6, 8),
    "experts": numbers(6, 10, 24),
    "expert_bias": numbers(6, 10),
    "scalars": numbers(6),
}
NORM = Rope(1.0 / 10.0 ** np.arange(3), style="norm", offset=1)
NEOX = Rope(1.0 / 10.0 ** np.arange(4), style="neox", magnitude=1.1)

Write = Callable[[Any, Any], Any]


def activation(kind: str) -> Write:
    return lambda o, g: o.act(g("x"), kind)


def gate(kind: str, limit: float) -> Write:
    return lambda o, g: o.glu(g("x"), g("y"), kind, limit)


EXACT: dict[str, Write] = {
    "take": lambda o, g: o.take(o.weight("matrix"), g("index")),
    "take absent": lambda o, g: o.take(o.weight("matrix"), g("absent")),
    "take a scalar": lambda o, g: o.take(o.weight("scalars"), g("index")),
    "take deep rows": lambda o, g: o.take(o.weight("experts"), g("index")),
    "pick": lambda o, g: o.pick(g("ties"), g("chosen")),
    "reshape": lambda o, g: o.reshape(g("x"), (-1, 4, 6)),
    "split": lambda o, g: o.concat([o.split(g("x"), [4, 12, 8])[i] for i in (2, 0, 1)]),
    "split heads": lambda o, g: o.mul(o.split(g("heads"), [3, 5])[1], 2.0),
    "split and regroup": lambda o, g: o.rms_norm(o.reshape(o.split(g("x"), [16, 8])[0], (-1, 4, 4)), None, 1e-6),
    "concat": lambda o, g: o.concat([g("x"), g("y"), g("column")]),
    "repeat": lambda o, g: o.repeat(g("x"), 3),
    "repeat an axis": lambda o, g: o.repeat(o.reshape(g("x"), (-1, 1, 24)), 2),
    "add": lambda o, g: o.add(g("x"), o.weight("vector")),
    "add by head": lambda o, g: o.add(g("heads"), o.weight("by_head")),
    "sub by row": lambda o, g: o.sub(g("x"), g("column")),
    "mul": lambda o, g: o.mul(g("x"), g("y")),
    "div": lambda o, g: o.div(g("x"), g("y")),
    "add a number": lambda o, g: o.add(g("x"), 0.25),
    "sub a number": lambda o, g: o.sub(g("x"), 0.25),
    "mul by a number": lambda o, g: o.mul(g("x"), -1.5),
    "div by a number": lambda o, g: o.div(g("x"), 4.0),
    "clamp": lambda o, g: o.add(o.clamp(g("x"), -0.5, 0.25), g("x")),
    "relu": lambda o, g: o.act(g("x"), "relu"),
    "relu2": lambda o, g: o.act(g("x"), "relu2"),
    "sqrt": lambda o, g: o.act(o.mul(g("x"), g("x")), "sqrt"),
    "ssqrt": lambda o, g: o.act(g("x"), "ssqrt"),
    "glu relu": lambda o, g: o.glu(g("x"), g("y"), "relu"),
    "glu relu2": lambda o, g: o.glu(g("x"), g("y"), "relu2", 1.0),
}
CLOSE: dict[str, Write] = {
    **{kind: activation(kind) for kind in ("silu", "sigmoid", "softplus", "tanh", "exp", "gelu_tanh", "gelu_erf")},
    **{
        f"glu {kind} {limit}": gate(kind, limit)
        for kind in ("silu", "sigmoid", "gelu_tanh", "gelu_erf", "oai")
        for limit in (0.0, 0.75)
    },
    "softmax": lambda o, g: o.softmax(g("heads")),
    "total": lambda o, g: o.total(g("heads")),
    "rms_norm": lambda o, g: o.rms_norm(g("x"), o.weight("vector"), 1e-5),
    "rms_norm bare": lambda o, g: o.rms_norm(g("heads"), None, 1e-5),
    "rms_norm per head": lambda o, g: o.rms_norm(g("heads"), o.weight("per_head"), 1e-5),
    "rms_norm by head": lambda o, g: o.rms_norm(g("heads"), o.weight("by_head"), 1e-5),
    "layer_norm": lambda o, g: o.layer_norm(g("x"), o.weight("vector"), o.weight("shift"), 1e-5),
    "linear": lambda o, g: o.linear(g("x"), o.weight("matrix"), o.weight("out_bias")),
    "linear of heads": lambda o, g: o.linear(o.repeat(g("x"), 2), o.weight("matrix")),
    "linear of a part": lambda o, g: o.linear(o.split(o.concat([g("y"), g("x")]), [24, 24])[1], o.weight("matrix")),
    "linear grouped": lambda o, g: o.linear(g("heads"), o.weight("groups")),
    "expert_linear": lambda o, g: o.expert_linear(g("x"), o.weight("experts"), g("chosen"), o.weight("expert_bias")),
    "expert_linear each": lambda o, g: o.expert_linear(o.repeat(g("x"), 2), o.weight("experts"), g("chosen")),
    "mix to one": lambda o, g: o.mix(g("streams"), o.split(g("weights3"), [1, 1])[1]),
    "mix": lambda o, g: o.mix(g("streams"), g("weights3")),
    "sinkhorn": lambda o, g: o.sinkhorn(g("four"), 1e-6, 5),
    "rope norm": lambda o, g: o.rope(g("heads"), g.batch.angles(NORM), NORM),
    "rope neox": lambda o, g: o.rope(g("heads"), g.batch.angles(NEOX), NEOX),
    "rope inverse": lambda o, g: o.rope(g("heads"), g.batch.angles(NEOX), NEOX, inverse=True),
    "rope of a part": lambda o, g: o.rope(o.split(o.repeat(g("x"), 2), [16, 8])[1], g.batch.angles(NEOX), NEOX),
}
HOST: dict[str, Write] = {
    "take": lambda o, g: o.mul(o.take(o.weight("matrix"), o.split(g("absent"), [1, 1])[1]), 0.5),
    "pick": lambda o, g: o.pick(g("ties"), g("index")),
    "expert_linear": lambda o, g: o.expert_linear(g("x"), o.weight("experts"), g("absent"), o.weight("expert_bias")),
    "sinkhorn": lambda o, g: o.sinkhorn(g("three"), 1e-6, 5),
    "linear": lambda o, g: o.linear(o.softmax(g("x")), o.weight("table"), transposed=True),
}


class Giver:
    """`g("x")` is the input x of the batch being written; `g("chosen")` is computed, so it is known to hold no -1."""

    def __init__(self, ops: Any, batch: Any, give: Any) -> None:
        self.batch, self._give = batch, give
        self._chosen = ops.top_k(self("ties"), 2)

    def __call__(self, name: str) -> Any:
        return self._chosen if name == "chosen" else self._give(self.batch, name, INPUTS[name])


@pytest.fixture
def both(machine: Any, memory_file: Any, float_tensors: Any, give: Any, rows: Any, ragged_batch: Any) -> Any:
    """(write, backend) -> (ours, the reference's, fallbacks), [R, n] each."""

    def run(write: Write, backend: GgmlBackend) -> tuple[Any, Any, Any]:
        def forward(ops: Any, batch: Any) -> Any:
            out = write(ops, Giver(ops, batch, give))
            return ops.reshape(out, (-1, math.prod(out.shape[1:])))

        file = memory_file(float_tensors(**WEIGHTS, table=numbers(24, 9) * 0 + WEIGHTS["matrix"][:24, :9]))
        batch = ragged_batch(rows(list(range(ROWS))))
        ours = machine(backend, file, forward).step(batch)
        theirs = machine(ReferenceBackend(), file, forward).step(batch)
        return ours.logits, theirs.logits, ours.fallbacks

    return run


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str, both: Any, any_backend: GgmlBackend) -> None:
    ours, theirs, _ = both(EXACT[name], any_backend)
    # Copies, and single roundings of IEEE operations: one bit apart where ggml multiplies by a reciprocal or a mean.
    np.testing.assert_allclose(ours, theirs, rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", CLOSE)
def test_close(name: str, both: Any, any_backend: GgmlBackend) -> None:
    ours, theirs, _ = both(CLOSE[name], any_backend)
    # Sums of at most 24 products of size 1 in another order, and exponentials within 2 units of the last place.
    np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("name", HOST)
def test_on_the_host(name: str, both: Any, any_backend: GgmlBackend) -> None:
    ours, theirs, fallbacks = both(HOST[name], any_backend)
    np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=3e-6)
    assert fallbacks[name] == 1


def test_top_k_takes_the_lowest_of_equals(both: Any, any_backend: GgmlBackend) -> None:
    ours, theirs, _ = both(lambda o, g: o.take(o.weight("scalars"), o.top_k(g("ties"), 4)), any_backend)
    np.testing.assert_array_equal(ours, theirs)
    expected = WEIGHTS["scalars"][[[1, 2, 4, 0], [0, 1, 2, 3], [0, 1, 2, 3], [5, 4, 3, 2], [1, 2, 4, 0]]]
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("write", "operation"),
    [
        (lambda o, g: o.linear(g("x"), o.weight("groups")), "linear"),
        (lambda o, g: o.linear(g("y"), o.weight("experts")), "linear"),
        (lambda o, g: o.add(g("x"), o.weight("out_bias")), "add"),
        (lambda o, g: o.split(g("x"), [1, 2])[0], "split"),
        (lambda o, g: o.concat([g("x"), g("heads")]), "concat"),
        (lambda o, g: o.reshape(g("x"), (-1, 7)), "reshape"),
        (lambda o, g: o.rope(g("x"), g.batch.angles(NEOX), NEOX), "rope"),
        (lambda o, g: o.glu(g("x"), g("heads"), "silu"), "glu"),
        (lambda o, g: o.pick(g("ties"), o.weight("matrix")), "pick"),
        (lambda o, g: o.top_k(g("ties"), 7), "top_k"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(write: Write, operation: str, both: Any, any_backend: GgmlBackend) -> None:
    with pytest.raises(ModelError, match=f"`{operation}"):
        both(write, any_backend)


def test_unknown_weight_is_refused(both: Any, any_backend: GgmlBackend) -> None:
    with pytest.raises(ModelError, match=r"tensor missing\.weight"):
        both(lambda o, g: o.weight("missing.weight"), any_backend)
