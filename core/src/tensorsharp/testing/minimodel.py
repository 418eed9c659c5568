"""A model with every kind of state in three small layers, for tests of backends, which may not need a model plugin."""

from __future__ import annotations

from typing import Self

import numpy as np

from tensorsharp.errors import ModelError
from tensorsharp.inputs import ModelBatch, Rope, Tensor
from tensorsharp.ops import Ops, Source
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout, Paged, Slot, Tail
from tensorsharp.testing.memoryfile import MemoryFile, random_file

WIDTH, HEADS, KV_HEADS, DEPTH = 32, 4, 2, 8
KERNEL, STRIDE, WINDOW, VOCAB = 4, 4, 9, 61
EPS = 1e-5

SHAPES = {
    "embedding": (VOCAB, WIDTH),
    "norm": (WIDTH,),
    "q": (HEADS * DEPTH, WIDTH),
    "k": (KV_HEADS * DEPTH, WIDTH),
    "v": (KV_HEADS * DEPTH, WIDTH),
    "out": (WIDTH, HEADS * DEPTH),
    "sinks": (HEADS,),
    "conv": (WIDTH, KERNEL),
    "beta": (HEADS, WIDTH),
    "entry": (2 * DEPTH, WIDTH),
    "up": (2 * WIDTH, WIDTH),
    "down": (WIDTH, WIDTH),
}


class MiniModel:
    """A convolution, a delta-rule recurrence, full attention, windowed attention with sinks, attention over compressed
    entries, and a gated MLP; implements `IBatchedPagedModel`. ModelError for another architecture or a missing tensor."""

    architecture = "mini"
    vocab_size = VOCAB
    context_length = 512
    layers = 1
    width = WIDTH

    def __init__(self) -> None:
        self.rope = Rope(100.0 ** -np.linspace(0, 1, DEPTH // 2), style="neox")

    @classmethod
    def file(cls, type_name: str = "F32", seed: int = 0) -> MemoryFile:
        return random_file(cls.architecture, SHAPES, type_name=type_name, seed=seed)

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        if file.architecture != cls.architecture:
            raise ModelError(f"{file.path}: architecture {file.architecture!r} is not {cls.architecture!r}.")
        for name in SHAPES:
            if name not in file.tensors:
                raise ModelError(f"{file.path}: tensor {name} is missing.")
        return cls()

    def layout(self, kv_format: Format) -> Layout:
        width = KV_HEADS * DEPTH
        return {
            "k": Paged(width, kv_format),
            "v": Paged(width, kv_format),
            "near.k": Paged(width, kv_format, window=WINDOW),
            "near.v": Paged(width, kv_format, window=WINDOW),
            "entry": Paged(DEPTH, kv_format, stride=STRIDE),
            "conv": Tail(WIDTH, KERNEL - 1),
            "pool": Tail(2 * DEPTH, STRIDE - 1),
            "state": Slot((HEADS, DEPTH, DEPTH)),
        }

    def weights(self) -> frozenset[str]:
        return frozenset(SHAPES)

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        h = ops.take(ops.weight("embedding"), batch.tokens)
        ops.tap("layer.0", h)
        h = ops.add(h, ops.act(ops.conv(h, "conv", ops.weight("conv")), "silu"))
        h = ops.add(h, self.recur(ops, ops.rms_norm(h, ops.weight("norm"), EPS)))
        h = ops.add(h, self.attend(ops, batch, ops.rms_norm(h, ops.weight("norm"), EPS)))
        gate, up = ops.split(ops.linear(ops.rms_norm(h, None, EPS), ops.weight("up")), (WIDTH, WIDTH))
        h = ops.add(h, ops.linear(ops.glu(gate, up, "gelu_tanh"), ops.weight("down")))
        ops.tap("layer.1", h)
        h = ops.rms_norm(ops.take(h, batch.wanted), ops.weight("norm"), EPS)
        return ops.linear(h, ops.weight("embedding"))

    def heads(self, ops: Ops, x: Tensor, name: str, count: int) -> Tensor:
        return ops.reshape(ops.linear(x, ops.weight(name)), (-1, count, DEPTH))

    def recur(self, ops: Ops, x: Tensor) -> Tensor:
        q, k = self.heads(ops, x, "k", KV_HEADS), self.heads(ops, x, "v", KV_HEADS)
        v = self.heads(ops, x, "q", HEADS)
        beta = ops.act(ops.linear(x, ops.weight("beta")), "sigmoid")
        k = ops.mul(ops.rms_norm(k, None, EPS), DEPTH**-0.5)
        y = ops.scan(q, k, v, ops.mul(beta, -1.0), beta, "state", delta=True, heads="tile")
        return ops.linear(ops.reshape(y, (-1, HEADS * DEPTH)), ops.weight("out"))

    def attend(self, ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        angles, windows = batch.angles(self.rope), batch.windows(STRIDE)
        q = ops.rope(self.heads(ops, x, "q", HEADS), angles, self.rope)
        k = ops.rope(self.heads(ops, x, "k", KV_HEADS), angles, self.rope)
        flat, v = ops.reshape(k, (-1, KV_HEADS * DEPTH)), ops.linear(x, ops.weight("v"))
        for store in ("", "near."):
            ops.store(f"{store}k", flat)
            ops.store(f"{store}v", v)
        entry = ops.pool(ops.linear(x, ops.weight("entry")), "pool", windows, STRIDE)
        ops.store("entry", entry, at=windows)
        far = ops.attend(q, [Source("k", batch.visible(), "v", KV_HEADS)], DEPTH**-0.5)
        near = [Source("near.k", batch.visible(WINDOW), "near.v", KV_HEADS)]
        close = ops.attend(q, near, DEPTH**-0.5, sinks=ops.weight("sinks"))
        coarse = ops.attend(q, [Source("entry", batch.strided(STRIDE))], DEPTH**-0.5, softcap=5.0)
        y = ops.add(far, ops.add(close, coarse))
        return ops.linear(ops.reshape(y, (-1, HEADS * DEPTH)), ops.weight("out"))
