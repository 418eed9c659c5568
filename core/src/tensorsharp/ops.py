"""The operation vocabulary that models are written in: 23 primitives, 17 stateless and 6 stateful.

Shapes are row-major. R rows of the batch, S sequences, C windows completed, H/Hk query/key heads, E experts,
K chosen, I/O input/output features. Activations are float32; ids, rows and indices are int32, and -1 means "none".
No tensor has a dimension that depends on the context length: scores, masks and gathered keys live only inside
`attend` and `select`. A row's result may depend only on that row, on its own sequence's state and on constants.
The numbers are defined by `tensorsharp.reference`; every backend agrees with it to a stated tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tensorsharp.inputs import Rope, Tensor

__all__ = ["OUTPUT", "Activation", "GatedKind", "Ops", "Rope", "Source", "Tensor"]

Activation = Literal["silu", "sigmoid", "gelu_tanh", "gelu_erf", "softplus", "relu", "relu2", "tanh", "exp", "sqrt", "ssqrt"]
"""`relu2` = relu(x)^2; `ssqrt` = sign(x)*sqrt(max(|x|, 1e-6)); `softplus` = x where x > 20."""

GatedKind = Literal["silu", "sigmoid", "gelu_tanh", "gelu_erf", "relu", "relu2", "oai"]
"""The activation of the gate in `glu`; `oai`: min(g,L)*sigmoid(1.702*min(g,L)) * (clamp(u,-L,L)+1)."""

OUTPUT = "output"
"""The tap of the rows [W, width] that logits are made from, normalised; embeddings are pooled from it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One set of keys and values for `attend`.

    key, value: names of paged stores, or batch tensors [R, kv_heads*D] (batch-local source). value None: the value is
    the key row, cut to `value_dim`. Visible rows of a batch row: `range` [R, 2] (lo, hi), or with `select` [R, k] the
    rows group*s .. group*s+group-1 of every s >= 0. A borrowed store is named like an own one.
    """

    key: str | Tensor
    range: Tensor
    value: str | Tensor | None = None
    kv_heads: int = 1
    select: Tensor | None = None
    group: int = 1
    value_dim: int | None = None


class Ops(Protocol):
    """What a backend implements. Operands written `Tensor | float` accept a constant."""

    # weights ---------------------------------------------------------------------------------------------------

    def weight(self, name: str) -> Tensor:
        """The model file's tensor of that name, [out, in] for a matrix. ModelError if it is absent."""
        ...

    def has(self, name: str) -> bool:
        """Whether the model file holds that tensor. A model may branch on it."""
        ...

    # 1-5 selection, shape, arithmetic --------------------------------------------------------------------------

    def take(self, table: Tensor, index: Tensor) -> Tensor:
        """1. [N, ...], int [...] -> [..., ...]: rows of a weight (dequantised) or tensor; -1 gives a row of zeros."""
        ...

    def pick(self, x: Tensor, index: Tensor) -> Tensor:
        """2. [R, N], int [R, K] -> [R, K]: x[r, index[r, k]]."""
        ...

    def top_k(self, x: Tensor, k: int) -> Tensor:
        """3. [R, N] -> int [R, k]: the k largest, descending; equal values: lowest index first."""
        ...

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """4. Regroup the trailing axes; the leading row axis is given as -1 and stays."""
        ...

    def split(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """4. Cut the last axis into pieces of `sizes`, which sum to it."""
        ...

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """4. Join along the last axis."""
        ...

    def repeat(self, x: Tensor, n: int) -> Tensor:
        """4. [R, D] -> [R, n, D] (or [R, 1, D] -> [R, n, D]): the same row n times."""
        ...

    def add(self, a: Tensor, b: Tensor | float) -> Tensor:
        """5. a + b; b broadcasts over rows, heads or channels (numpy rules, a has the result's shape)."""
        ...

    def sub(self, a: Tensor, b: Tensor | float) -> Tensor:
        """5. a - b, broadcasting as `add`."""
        ...

    def mul(self, a: Tensor, b: Tensor | float) -> Tensor:
        """5. a * b, broadcasting as `add`."""
        ...

    def div(self, a: Tensor, b: Tensor | float) -> Tensor:
        """5. a / b, broadcasting as `add`."""
        ...

    def clamp(self, x: Tensor, lo: float, hi: float) -> Tensor:
        """5. min(max(x, lo), hi)."""
        ...

    # 6-11 activations, reductions, norms -----------------------------------------------------------------------

    def act(self, x: Tensor, kind: Activation) -> Tensor:
        """6. Elementwise activation, exact float32 formulas (no lookup tables)."""
        ...

    def glu(self, gate: Tensor, up: Tensor, kind: GatedKind, limit: float = 0.0) -> Tensor:
        """7. kind(min(gate, L)) * clamp(up, -L, L); limit 0 means no clamp."""
        ...

    def softmax(self, x: Tensor) -> Tensor:
        """8. Over the last axis: exp(x - max) / sum."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """9. [..., N] -> [..., 1]: the sum over the last axis."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """10. x * rsqrt(mean(x^2) + eps) * weight over the last axis; weight [D], [H, D] or None."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """11. (x - mean) * rsqrt(var + eps) * weight + bias over the last axis."""
        ...

    # 12-17 products and the rest -------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Tensor:
        """12. [..., I] by [O, I] -> [..., O]; [R, G, I] by [G, O, I] -> [R, G, O]; transposed: [..., O] by [O, I] -> [..., I]."""
        ...

    def expert_linear(self, x: Tensor, weight: Tensor, index: Tensor, bias: Tensor | None = None) -> Tensor:
        """13. [R, I] or [R, K, I], [E, O, I], int [R, K] -> [R, K, O]: weight[index[r, k]] by x, plus bias[index]."""
        ...

    def mix(self, x: Tensor, m: Tensor) -> Tensor:
        """14. [R, S, n], [R, S, T] -> [R, T, n]: sum over s, ascending, of m[s, t] * x[s]."""
        ...

    def sinkhorn(self, x: Tensor, eps: float, iterations: int) -> Tensor:
        """15. [R, S, S] (source, destination): softmax over destination, +eps; / (column sum + eps); then iterations-1
        times / (row sum + eps), / (column sum + eps). A column sum runs over sources."""
        ...

    def rope(self, x: Tensor, angles: Tensor, rope: Rope, *, inverse: bool = False) -> Tensor:
        """16. [R, H, D] -> the same: rotate pairs by `angles`; a' = a*c - b*s, b' = a*s + b*c; inverse uses -s."""
        ...

    def tap(self, name: str, x: Tensor) -> None:
        """17. Publish a tensor under a name; costs nothing unless the step asks for it. It has a row for each of the batch,
        but under :data:`OUTPUT` one for each row that logits are wanted for."""
        ...

    # 18-23 stateful --------------------------------------------------------------------------------------------

    def store(self, name: str, x: Tensor, *, at: Tensor | None = None) -> None:
        """18. x [R, w]: write row `pos` of the row's sequence, converted to the store's format. With `at` = windows
        [C, 2] and x [C, w]: write row `index`. Padding and -1 write nothing."""
        ...

    def attend(
        self, q: Tensor, sources: Sequence[Source], scale: float, *, sinks: Tensor | None = None, softcap: float = 0.0
    ) -> Tensor:
        """19. q [R, H, D] -> [R, H, Dv]: one softmax over the union of all sources' visible rows.

        x_i = scale * <q_h, k_i>, softcap c: c*tanh(x/c); head h uses key head h // (H/Hk). A source is cut into
        segments of 1,024 absolute store rows, a segment into tiles of 32. A segment starts with m=-inf, l=0, a=0; per
        tile: m' = max(m, max x), l and a scaled by exp(m-m'), then ascending p = exp(x_i-m'), l += p, a += p*v_i.
        Partial results are merged ascending, sources in the order given, the sink last (it adds to l only).
        The result is a/l, zeros where nothing is visible."""
        ...

    def select(
        self,
        q: Tensor,
        w: Tensor | None,
        keys: str,
        range: Tensor,
        k: int,
        *,
        group: int = 1,
        pin_last: bool = False,
        within: Tensor | None = None,
        within_group: int = 1,
    ) -> Tensor:
        """20. q [R, Hi, Di], w [R, Hi] or None (ones) -> int [R, k].

        score_i = sum over h, ascending, of w_h * max(0, <q_h, key_i>) for visible i, and i // within_group in `within`
        [R, j] when given. Units are i // group, scored by the maximum of their visible members; `pin_last` gives the
        newest unit +inf. The k best by (score descending, unit ascending), in ascending unit order, -1 padded."""
        ...

    def conv(self, x: Tensor, tail: str, weight: Tensor, bias: Tensor | None = None, *, dilation: int = 1) -> Tensor:
        """21. x [R, C], weight [C, K] -> [R, C]: causal depthwise convolution; y(p) = bias + sum over t ascending of
        weight[:, t] * x(p - (K-1-t)*dilation), earlier rows from the Tail ring, 0 before the start. The ring takes the rows."""
        ...

    def pool(self, x: Tensor, tail: str, windows: Tensor, ratio: int, *, overlap: bool = False, gated: bool = True) -> Tensor:
        """22. x [R, 2C] = [value | gate] (or [R, C] ungated) -> [windows, D]: per channel the softmax of the gate over
        the window's members weights the values, ascending; ungated: the mean. Overlap: 2*ratio members, the older
        ratio use columns 0..D-1, the newer D..2D-1, D = C/2; members before position 0 are left out. The ring takes the rows."""
        ...

    def scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        slot: str,
        *,
        delta: bool,
        heads: Literal["tile", "group"],
    ) -> Tensor:
        """23. q, k [R, Hk, Dk], v [R, H, Dv], g [R, H] or [R, H, Dk], beta [R, H] -> [R, H, Dv].

        State S [H, Dk, Dv], zero at the start; per row in order: S = exp(g)*S; u = v - S'k if delta else v;
        S += k (x) (beta*u); out = S'q. Key head of h: h % Hk (tile) or h // (H/Hk) (group). Reads `slot_in`, writes
        the state after row r to `slot_out[r]` where that is >= 0."""
        ...
