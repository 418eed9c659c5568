"""The steps of a measurement, and the form in which they are told."""

from __future__ import annotations

import pytest

from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp_app_cli.ladder import Row, frontiers
from tensorsharp_app_cli.stepper import held_bytes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((2048, 8192, 2048, 1.0), [2048, 4096, 6144, 8192]),
        ((2048, 5000, 2048, 1.0), [2048, 4096, 5000]),
        ((100, 100, 7, 1.0), [100]),
        ((500, 100, 7, 1.0), [100]),
        ((10, 40, 7, 1.5), [10, 15, 23, 35, 40]),
        ((1, 4, 7, 1.0000001), [1, 2, 3, 4]),
    ],
)
def test_frontiers(arguments: tuple[int, int, int, float], expected: list[int]) -> None:
    assert list(frontiers(*arguments)) == expected


def test_csv() -> None:
    row = Row(4096, 2048, 790.184, 128, 39.0, 3_000_000_000)
    assert ",".join(row.data()) == "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"
    assert row.csv() == "4096,2048,790.18,128,39.00,3000000000"


LAYOUT: Layout = {
    "k": Paged(8, "f16"),
    "near": Paged(4, "f32", window=40),
    "sparse": Paged(2, "bf16", stride=4),
    "ring": Tail(3, need=5),
    "state": Slot((2, 7)),
}
FIXED = 3 * 5 * 4 + 2 * 7 * 4


@pytest.mark.parametrize(
    ("length", "blocks", "near"),
    [(1, 1, 1), (32, 1, 1), (33, 2, 2), (71, 3, 2), (72, 3, 2), (100, 4, 3), (103, 4, 2)],
)
def test_held_bytes(length: int, blocks: int, near: int) -> None:
    """near: blocks of 32 that the last 39 positions touch, which is what the next row can see of the window."""
    per_block = 32 * 8 * 2 + 8 * 2 * 2
    assert held_bytes(LAYOUT, length, 32) == blocks * per_block + near * 32 * 4 * 4 + FIXED
