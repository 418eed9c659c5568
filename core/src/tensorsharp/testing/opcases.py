"""Cases of the stateless operations, with shapes drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from tensorsharp.inputs import ModelBatch, Rope, Tensor
from tensorsharp.ops import Activation, GatedKind, Ops
from tensorsharp.protocols.batch import I32
from tensorsharp.testing.opmodel import OpCase


def spread(tokens: I32, previous: I32, pos: I32) -> I32:
    """-1, 0, 1, ... 11 by position, in a mixed order."""
    return (pos * 5 % 13 - 1).astype(np.int32)


def ids(batch: ModelBatch) -> Tensor:
    """[R] ids from -1 to 11."""
    return batch.host("spread", spread)


def flat(ops: Ops, x: Tensor) -> Tensor:
    size = 1
    for n in x.shape[1:]:
        size *= n
    return ops.reshape(x, (-1, size))


def stateless_cases(seed: int) -> Iterator[OpCase]:
    """Every stateless operation, in every form that its contract names."""
    rng = np.random.default_rng(seed)

    def draw(*choices: int) -> int:
        return int(rng.choice(choices))

    yield from _selection(draw(8, 33, 64), draw(5, 17, 40))
    yield from _shapes(draw(3, 8), draw(4, 16, 33))
    yield from _arithmetic(draw(2, 4), draw(8, 20, 33))
    yield from _activations(draw(7, 32, 100))
    yield from _reductions(draw(2, 4), draw(8, 32, 100))
    yield from _products(draw(32, 64, 100), draw(3, 16, 33), draw(2, 3))
    yield from _experts(draw(32, 64), draw(8, 17), draw(4, 7), draw(1, 2, 3))
    yield from _mixing(draw(2, 4), draw(8, 24))
    yield from _rotation(draw(1, 3), draw(16, 32))


def _selection(width: int, n: int) -> Iterator[OpCase]:
    def take(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.take(ops.weight("t"), ids(batch))

    def take_twice(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return flat(ops, ops.take(ops.weight("t"), ops.take(ops.weight("table"), ids(batch))))

    def pick(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.pick(x, ops.top_k(ops.mul(x, -1.0), 3))

    def top_k(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.pick(x, ops.top_k(x, n))

    def ties(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        """Clamped values are equal in many columns; the columns chosen are found by what another row holds there."""
        return flat(ops, ops.take(ops.weight("t"), ops.top_k(ops.clamp(x, -0.4, 0.4), 5)))

    yield OpCase("take", 4, width, take, {"t": (12, width)}, tolerance=0.0)
    yield OpCase(
        "take-int-table", 4, 3 * width, take_twice, {"t": (36, width), "table": (12, 3)}, {"table": "I32"}, tolerance=0.0
    )
    yield OpCase("pick", n, 3, pick, tolerance=0.0)
    yield OpCase("top_k", n, n, top_k, tolerance=0.0)
    yield OpCase("top_k-ties", n, 5 * width, ties, {"t": (n, width)}, tolerance=0.0)


def _shapes(heads: int, depth: int) -> Iterator[OpCase]:
    def cut(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        a, b, c = ops.split(x, (2, depth, heads * depth - depth))
        return ops.concat([c, a, b])

    def cut_heads(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        a, b = ops.split(ops.reshape(x, (-1, heads, depth)), (1, depth - 1))
        return flat(ops, ops.concat([b, a]))

    def repeat(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.concat([flat(ops, ops.repeat(x, 3)), flat(ops, ops.repeat(ops.reshape(x, (-1, 1, depth)), 2))])

    yield OpCase("split-concat", 2 + heads * depth, 2 + heads * depth, cut, tolerance=0.0)
    yield OpCase("split-concat-heads", heads * depth, heads * depth, cut_heads, tolerance=0.0)
    yield OpCase("repeat", depth, 5 * depth, repeat, tolerance=0.0)


def _arithmetic(heads: int, depth: int) -> Iterator[OpCase]:
    size = heads * depth

    def arithmetic(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        a, b = ops.split(x, (size, size))
        y = ops.sub(ops.add(a, b), ops.mul(a, b))
        return ops.add(ops.mul(ops.div(y, ops.add(ops.act(b, "exp"), 0.5)), 3.0), ops.sub(a, 0.25))

    def broadcast(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        a, per_head = ops.split(x, (size, heads))
        y = ops.mul(ops.reshape(a, (-1, heads, depth)), ops.reshape(per_head, (-1, heads, 1)))
        y = ops.add(ops.sub(y, ops.weight("channel")), ops.weight("matrix"))
        return flat(ops, ops.div(y, 2.0))

    def clamp(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.add(ops.clamp(x, -0.5, 0.25), ops.clamp(x, 0.0, float("inf")))

    yield OpCase("arithmetic", 2 * size, size, arithmetic)
    yield OpCase("broadcast", size + heads, size, broadcast, {"channel": (depth,), "matrix": (heads, depth)})
    yield OpCase("clamp", size, size, clamp, tolerance=0.0)


def _activations(width: int) -> Iterator[OpCase]:
    def activation(kind: Activation) -> OpCase:
        def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
            wide = ops.mul(x, 8.0)
            if kind == "exp":
                wide = x
            elif kind == "sqrt":
                wide = ops.add(ops.act(x, "relu"), 0.01)
            return ops.act(wide, kind)

        return OpCase(f"act-{kind}", width, width, build)

    def gated(kind: GatedKind, limit: float) -> OpCase:
        def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
            gate, up = ops.split(ops.mul(x, 4.0), (width, width))
            return ops.glu(gate, up, kind, limit)

        return OpCase(f"glu-{kind}-{limit:g}", 2 * width, width, build)

    yield from (activation(kind) for kind in get_args(Activation))
    yield from (gated(kind, limit) for kind in get_args(GatedKind) for limit in (0.0, 3.0) if limit or kind != "oai")


def _reductions(heads: int, depth: int) -> Iterator[OpCase]:
    size = heads * depth

    def rms(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        h = ops.reshape(x, (-1, heads, depth))
        parts = [ops.rms_norm(h, w, 1e-5) for w in (None, ops.weight("d"), ops.weight("hd"))]
        return ops.concat([*(flat(ops, part) for part in parts), ops.rms_norm(x, ops.weight("n"), 1e-6)])

    def layer(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        both = ops.layer_norm(x, ops.weight("n"), ops.weight("b"), 1e-5)
        return ops.concat([both, ops.layer_norm(x, None, None, 1e-5), ops.layer_norm(x, ops.weight("n"), None, 1e-5)])

    def sums(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        h = ops.reshape(x, (-1, heads, depth))
        return ops.concat([flat(ops, ops.total(h)), flat(ops, ops.softmax(ops.mul(h, 4.0))), ops.softmax(x)])

    yield OpCase("rms_norm", size, 4 * size, rms, {"d": (depth,), "hd": (heads, depth), "n": (size,)})
    yield OpCase("layer_norm", size, 3 * size, layer, {"n": (size,), "b": (size,)})
    yield OpCase("total-softmax", size, heads + 2 * size, sums)


def _products(inputs: int, outputs: int, groups: int) -> Iterator[OpCase]:
    def plain(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.concat([ops.linear(x, ops.weight("w")), ops.linear(x, ops.weight("w"), ops.weight("b"))])

    def heads(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return flat(ops, ops.linear(ops.reshape(x, (-1, groups, inputs)), ops.weight("w"), ops.weight("b")))

    def grouped(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return flat(ops, ops.linear(ops.reshape(x, (-1, groups, inputs)), ops.weight("g")))

    def transposed(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.linear(x, ops.weight("w"), transposed=True)

    both: dict[str, tuple[int, ...]] = {"w": (outputs, inputs), "b": (outputs,)}
    yield OpCase("linear", inputs, 2 * outputs, plain, both)
    yield OpCase("linear-heads", groups * inputs, groups * outputs, heads, both)
    yield OpCase("linear-grouped", groups * inputs, groups * outputs, grouped, {"g": (groups, outputs, inputs)})
    yield OpCase("linear-transposed", outputs, inputs, transposed, {"w": (outputs, inputs)})


def _experts(inputs: int, outputs: int, experts: int, k: int) -> Iterator[OpCase]:
    def routed(biased: bool) -> OpCase:
        def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
            rows, scores = ops.split(x, (inputs, experts))
            bias = ops.weight("b") if biased else None
            return flat(ops, ops.expert_linear(rows, ops.weight("w"), ops.top_k(scores, k), bias))

        return OpCase(f"expert_linear{'-bias' if biased else ''}", inputs + experts, k * outputs, build, shapes)

    def chosen(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        rows, scores = ops.split(x, (k * inputs, experts))
        index = ops.top_k(scores, k)
        y = ops.expert_linear(ops.reshape(rows, (-1, k, inputs)), ops.weight("w"), index)
        return flat(ops, ops.mix(y, ops.reshape(ops.softmax(ops.pick(scores, index)), (-1, k, 1))))

    shapes = {"w": (experts, outputs, inputs), "b": (experts, outputs)}
    yield from (routed(biased) for biased in (False, True))
    yield OpCase("expert_linear-mix", k * inputs + experts, outputs, chosen, {"w": (experts, outputs, inputs)})


def _mixing(streams: int, width: int) -> Iterator[OpCase]:
    size = streams * streams

    def mix(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        rows, m = ops.split(x, (streams * width, size))
        return flat(ops, ops.mix(ops.reshape(rows, (-1, streams, width)), ops.reshape(m, (-1, streams, streams))))

    def sinkhorn(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return flat(ops, ops.sinkhorn(ops.reshape(x, (-1, streams, streams)), 1e-6, 4))

    yield OpCase("mix", streams * width + size, streams * width, mix)
    yield OpCase("sinkhorn", size, size, sinkhorn)


def _rotation(heads: int, depth: int) -> Iterator[OpCase]:
    def rotated(style: Literal["norm", "neox"], dims: int, offset: int, inverse: bool) -> OpCase:
        table = Rope(50.0 ** -np.linspace(0, 1, dims // 2), style=style, magnitude=1.25, offset=offset)

        def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
            h = ops.reshape(x, (-1, heads, depth))
            return flat(ops, ops.rope(h, batch.angles(table), table, inverse=inverse))

        suffix = "-inverse" if inverse else ""
        return OpCase(f"rope-{style}-{dims}-{offset}{suffix}", heads * depth, heads * depth, build)

    for style in ("norm", "neox"):
        yield rotated(style, depth, 0, False)
        yield rotated(style, depth // 2, 0, True)
        yield rotated(style, depth // 2, depth // 4, False)
