"""conv and scan: by definition, and that chunks, batches and workers change no bit."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorsharp.protocols.batch import F32
from tensorsharp_backend_ggml import native

from .attention import exp_of, fma
from .harness import Rows, call

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Spans = list[tuple[int, int, int]]


def pieces(data: st.DataObject, lengths: list[int], most: int) -> list[Spans]:
    """Batches of (sequence, start, rows) that together cover all sequences in order."""
    done, out = [0] * len(lengths), []
    while any(a < n for a, n in zip(done, lengths, strict=True)):
        left = [s for s, n in enumerate(lengths) if done[s] < n]
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        spans = [(s, done[s], min(data.draw(st.integers(1, most)), lengths[s] - done[s])) for s in chosen]
        for s, _, n in spans:
            done[s] += n
        out.append(spans)
    return out


# conv ----------------------------------------------------------------------------------------------------------------


def conv(
    kernels: native.Kernels,
    x: list[F32],
    spans: Spans,
    ring: F32,
    weight: F32,
    bias: F32 | None,
    dilation: int,
    workers: int = 1,
    padding: int = 0,
) -> list[F32]:
    rows = Rows([(a, n) for _, a, n in spans], padding, tail_slot=[s for s, _, _ in spans])
    taken = np.concatenate([x[s][a : a + n] for s, a, n in spans] + [np.full((padding, x[0].shape[1]), np.nan, np.float32)])
    out = np.full_like(taken, np.nan)
    job = native.TsConv(batch=rows.address, ring=ring.ctypes.data, ring_rows=ring.shape[1], taps=weight.shape[1])
    job.dilation, job.has_bias = dilation, int(bias is not None)
    call(kernels, "conv", out, [taken, weight] if bias is None else [taken, weight, bias], job, workers=workers)
    assert not out[len(out) - padding :].any()
    return np.split(out[: len(out) - padding], np.cumsum([n for _, _, n in spans])[:-1])


def conv_definition(x: F32, weight: F32, bias: F32 | None, dilation: int) -> F32:
    out = np.zeros_like(x) if bias is None else np.tile(bias, (len(x), 1))
    taps = weight.shape[1]
    for p in range(len(x)):
        for t in range(taps):
            earlier = p - (taps - 1 - t) * dilation
            if earlier >= 0:
                out[p] = fma(weight[:, t], x[earlier], out[p])
    return out


@SETTINGS
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    channels=st.sampled_from([1, 15, 64, 100, 200]),
    taps=st.sampled_from([1, 4]),
    dilation=st.sampled_from([1, 3]),
    slack=st.integers(0, 3),
    biased=st.booleans(),
    workers=st.sampled_from([1, 2, 3, 5]),
    data=st.data(),
)
def test_conv_is_its_definition_in_any_pieces(
    each: native.Kernels,
    lengths: list[int],
    channels: int,
    taps: int,
    dilation: int,
    slack: int,
    biased: bool,
    workers: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(channels)
    x = [rng.standard_normal((n, channels)).astype(np.float32) for n in lengths]
    weight = rng.standard_normal((channels, taps)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) if biased else None
    ring = np.full((len(lengths), (taps - 1) * dilation + slack, channels), np.nan, np.float32)
    expected = [conv_definition(part, weight, bias, dilation) for part in x]
    for spans in pieces(data, lengths, 9):
        found = conv(each, x, spans, ring, weight, bias, dilation, workers, padding=2)
        for (s, a, n), rows in zip(spans, found, strict=True):
            assert np.array_equal(rows, expected[s][a : a + n])
    size = ring.shape[1]
    for s, n in enumerate(lengths):
        for p in range(max(0, n - size), n):
            assert np.array_equal(ring[s, p % size], x[s][p])


def test_conv_takes_rows_back_within_the_slack(kernels: native.Kernels) -> None:
    """Three of four verified rows are refused; the ring still holds what the next row needs."""
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((12, 70)).astype(np.float32)]
    weight = rng.standard_normal((70, 4)).astype(np.float32)
    ring = np.zeros((1, 3 + 3, 70), np.float32)
    conv(kernels, x, [(0, 0, 6)], ring, weight, None, 1)
    refused = [x[0].copy()]
    refused[0][7:] = 99.0
    conv(kernels, refused, [(0, 6, 4)], ring, weight, None, 1)
    found = conv(kernels, x, [(0, 7, 5)], ring, weight, None, 1)[0]
    assert np.array_equal(found, conv_definition(x[0], weight, None, 1)[7:])


# scan ----------------------------------------------------------------------------------------------------------------


class Scan:
    """A recurrence on random data: keys of unit length, gates that decay."""

    def __init__(
        self, lengths: list[int], heads: int, key_heads: int, dim: int, width: int, delta: bool, tile: bool, channels: bool
    ) -> None:
        rng = np.random.default_rng(heads * dim + width)
        self.shape = (heads, key_heads, dim, width)
        self.delta, self.tile, self.channels = delta, tile, channels

        def draw(*shape: int) -> list[F32]:
            return [rng.standard_normal((n, *shape)).astype(np.float32) for n in lengths]

        self.q, self.k, self.v = draw(key_heads, dim), draw(key_heads, dim), draw(heads, width)
        self.k = [k / np.sqrt((k * k).sum(-1, keepdims=True)) for k in self.k]
        self.g = [-np.abs(g) for g in draw(*((heads, dim) if channels else (heads,)))]
        self.beta = [np.abs(b) for b in draw(heads)]

    def run(
        self,
        kernels: native.Kernels,
        spans: Spans,
        state: F32,
        slot_in: list[int],
        slot_out: list[list[int]],
        workers: int = 1,
        padding: int = 0,
    ) -> list[F32]:
        rows = Rows([(a, n) for _, a, n in spans], padding, slot_in=slot_in)
        rows.slot_out[: len(rows.seq) - padding] = np.concatenate(slot_out)
        sources = []
        for parts in (self.q, self.k, self.v, self.g, self.beta):
            blank = np.full((padding, *parts[0].shape[1:]), np.nan, np.float32)
            sources.append(np.ascontiguousarray(np.concatenate([*(parts[s][a : a + n] for s, a, n in spans), blank])))
        heads, key_heads, dim, width = self.shape
        out = np.full((len(rows.seq), heads, width), np.nan, np.float32)
        job = native.TsScan(batch=rows.address, state=state.ctypes.data, heads=heads, key_heads=key_heads, key_dim=dim)
        job.value_dim, job.delta, job.tile, job.gate_per_channel = width, int(self.delta), int(self.tile), int(self.channels)
        call(kernels, "scan", out, sources, job, workers=workers)
        assert not out[len(out) - padding :].any()
        return np.split(out[: len(out) - padding], np.cumsum([n for _, _, n in spans])[:-1])

    def definition(self, kernels: native.Kernels, s: int) -> tuple[F32, F32]:
        """(results [n, H, Dv], states after every row [n, H, Dk, Dv]) of one sequence, from zero."""
        heads, key_heads, dim, width = self.shape
        exp = exp_of(kernels)
        n = len(self.v[s])
        out, states = np.zeros((n, heads, width), np.float32), np.zeros((n, heads, dim, width), np.float32)
        state = np.zeros((heads, dim, width), np.float32)
        for r in range(n):
            for h in range(heads):
                key_head = h % key_heads if self.tile else h // (heads // key_heads)
                k, q = self.k[s][r, key_head], self.q[s][r, key_head]
                decay = exp(np.atleast_1d(self.g[s][r, h]))
                here = state[h] * (decay[:, None] if self.channels else decay[0])
                known = np.zeros(width, np.float32)
                for i in range(dim if self.delta else 0):
                    known = fma(here[i], k[i], known)
                step = (self.v[s][r, h] - known) * self.beta[s][r, h]
                for i in range(dim):
                    here[i] = fma(k[i], step, here[i])
                    out[r, h] = fma(here[i], q[i], out[r, h])
                state[h] = here
            states[r] = state
        return out, states


@SETTINGS
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    dim=st.sampled_from([1, 8, 13]),
    width=st.sampled_from([1, 16, 40]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    workers=st.sampled_from([1, 2, 3, 5]),
    data=st.data(),
)
def test_scan_is_its_definition_in_any_pieces(
    each: native.Kernels,
    lengths: list[int],
    heads: tuple[int, int],
    dim: int,
    width: int,
    flags: tuple[bool, bool, bool],
    workers: int,
    data: st.DataObject,
) -> None:
    problem = Scan(lengths, *heads, dim, width, *flags)
    expected = [problem.definition(each, s) for s in range(len(lengths))]
    state = np.full((len(lengths), heads[0], dim, width), np.nan, np.float32)
    for spans in pieces(data, lengths, 4):
        slot_in = [s if a else -1 for s, a, _ in spans]
        slot_out = [[-1] * (n - 1) + [s] for s, _, n in spans]
        found = problem.run(each, spans, state, slot_in, slot_out, workers, padding=1)
        for (s, a, n), rows in zip(spans, found, strict=True):
            assert np.array_equal(rows, expected[s][0][a : a + n])
            assert np.array_equal(state[s], expected[s][1][a + n - 1])


def test_scan_writes_the_state_after_every_row_asked_for(each: native.Kernels) -> None:
    problem = Scan([5], 2, 1, 16, 48, True, False, False)
    _, states = problem.definition(each, 0)
    state = np.full((6, 2, 16, 48), np.nan, np.float32)
    problem.run(each, [(0, 0, 5)], state, [-1], [[3, -1, 0, 5, 1]], workers=3)
    for slot, row in ((3, 0), (0, 2), (5, 3), (1, 4)):
        assert np.array_equal(state[slot], states[row])
    assert np.isnan(state[[2, 4]]).all()


def test_scan_of_usual_size_is_close_to_float64(kernels: native.Kernels, portable: native.Kernels) -> None:
    """Keys have length one and gates decay, so errors do not grow: 64 rows of sums over 128 elements, each rounded by
    2^-24 of magnitudes up to about 10, stay well under 1e-4."""
    problem = Scan([64], 4, 2, 128, 128, True, True, False)
    state = np.zeros((1, 4, 128, 128), np.float32)
    found = problem.run(kernels, [(0, 0, 64)], state, [-1], [[-1] * 63 + [0]], workers=2)[0]
    s = np.zeros((4, 128, 128))
    for r in range(64):
        for h in range(4):
            k, q = problem.k[0][r, h % 2].astype(float), problem.q[0][r, h % 2].astype(float)
            s[h] *= np.exp(float(problem.g[0][r, h]))
            s[h] += np.outer(k, float(problem.beta[0][r, h]) * (problem.v[0][r, h] - k @ s[h]))
            assert np.abs(found[r, h] - q @ s[h]).max() < 1e-4
    again = np.zeros_like(state)
    assert np.array_equal(found, problem.run(portable, [(0, 0, 64)], again, [-1], [[-1] * 63 + [0]])[0])
    assert np.array_equal(state, again)


def test_exponential_is_accurate(each: native.Kernels) -> None:
    """One unit in the last place, also among denormal results; zero below them and infinity above."""
    x = np.concatenate([np.linspace(-104, 88.7, 20001), np.linspace(-1, 1, 5001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    found = exp_of(each)(x)
    assert (np.abs(found - exact) <= np.maximum(np.spacing(exact.astype(np.float32)), 2.0**-149)).all()
    ends = exp_of(each)(np.array([-np.inf, -1000, 89, np.inf, np.nan, 0, -0.0], np.float32))
    assert ends[:2].tolist() == [0, 0]
    assert ends[2:4].tolist() == [np.inf, np.inf]
    assert np.isnan(ends[4])
    assert ends[5:].tolist() == [1, 1]
