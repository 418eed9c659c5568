from __future__ import annotations

import itertools
import math
import random
from decimal import Decimal, localcontext

import numpy as np

from tensorsharp.engine import exactmath

LN2 = math.log(2)


def ulps(got: float, exact: Decimal) -> float:
    return abs(float((Decimal(got) - exact) / Decimal(math.ulp(float(exact)))))


def points() -> list[float]:
    rng = random.Random(5)
    spread = [rng.uniform(-708, 709) for _ in range(600)] + [rng.uniform(-1, 1) for _ in range(600)]
    tiny = [sign * 2.0**-e for e in range(1, 80) for sign in (1, -1)]
    # the reduction changes its multiple of ln 2 halfway between two multiples
    seams = [math.nextafter((k + 0.5) * LN2, d) for k in range(-30, 30) for d in (-math.inf, math.inf)]
    return [*spread, *tiny, *seams, 0.0, -708.0, 709.0]


def test_exp_is_within_one_ulp() -> None:
    x = points()
    with localcontext(prec=45):
        assert max(ulps(y, Decimal(v).exp()) for v, y in zip(x, exactmath.exp(np.array(x)).tolist(), strict=True)) <= 1.0


def test_exp_below_its_range_is_zero() -> None:
    assert exactmath.exp(np.array([-708.1, -1e300, -np.inf])).tolist() == [0.0, 0.0, 0.0]


def test_log_is_within_one_ulp() -> None:
    rng = random.Random(6)
    x = [rng.random() for _ in range(600)] + [rng.uniform(1, 3e5) for _ in range(600)] + [2.0**-e for e in range(1, 1000, 13)]
    x += [1 - 2.0**-e for e in range(1, 54)] + [1 + 2.0**-e for e in range(1, 53)] + [math.sqrt(0.5), math.sqrt(2), 1e300]
    with localcontext(prec=45):
        assert max(ulps(exactmath.log(v), Decimal(v).ln()) for v in x) <= 1.0
    assert exactmath.log(1.0) == 0.0


def test_a_value_does_not_depend_on_its_neighbours() -> None:
    x = np.random.default_rng(1).uniform(-9, 5, 10_001)
    assert [exactmath.exp(x[i : i + 1])[0] for i in range(0, len(x), 97)] == exactmath.exp(x)[::97].tolist()
    assert exactmath.exp(x[::3]).tolist() == exactmath.exp(x)[::3].tolist()


def test_sums_are_sequential() -> None:
    x = np.random.default_rng(2).uniform(-1, 1, 1001) * 10.0 ** np.arange(-8, 8).repeat(63)[:1001]
    running, sums = 0.0, []
    for number, value in enumerate(x.tolist()):
        running = value if number == 0 else running + value
        sums.append(running)
    assert exactmath.running_sum(x).tolist() == sums
    assert exactmath.total(x) == sums[-1]
    assert exactmath.total(x[:0]) == 0.0


def test_the_rest_is_added_in_pieces() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 100, 512, 513, 16384, 16385, 50_000):
        x = rng.normal(0, 3, size).astype(np.float32)
        x[1 :: 1 + size // 5] = -np.inf
        best = int(x.argmax())
        terms = exactmath.exp(x.astype(np.float64) - float(x[best])).tolist()
        terms[best] = 0.0
        pieces = [in_order(terms[i : i + 512]) for i in range(0, size, 512)]
        assert exactmath.exp_rest(x, best) == in_order(pieces)


def in_order(terms: list[float]) -> float:
    return list(itertools.accumulate(terms))[-1]
