"""The host state store: shapes, exact round trips, refusals that change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tensorsharp.errors import CapacityError, ConfigError
from tensorsharp.protocols.backend import StateSizes, StateStore
from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp.state import HostStateStore, decode_rows, encode_rows, from_bf16, state_bytes, to_bf16

LAYOUT: Layout = {
    "k": Paged(8, "f16"),
    "entry": Paged(4, "bf16", stride=4),
    "w": Paged(6, "f32", window=16),
    "tail": Tail(5, 3),
    "slot": Slot((2, 3)),
}
SIZES = StateSizes(block_tokens=64, blocks={None: 5, 16: 3}, sequences=4, slots=6, slack=2)


def filled() -> HostStateStore:
    """A store in which every byte was drawn."""
    store = HostStateStore(LAYOUT, SIZES)
    rng = np.random.default_rng(7)
    for array in store.arrays.values():
        array[...] = rng.integers(0, 100, array.shape).astype(array.dtype)
    return store


def contents(store: HostStateStore) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in store.arrays.items()}


def test_shapes_types_and_sizes() -> None:
    store: StateStore = HostStateStore(LAYOUT, SIZES)
    assert isinstance(store, HostStateStore)
    found = {name: (array.shape, array.dtype.name) for name, array in store.arrays.items()}
    assert found == {
        "k": ((5, 64, 8), "float16"),
        "entry": ((5, 16, 4), "uint16"),
        "w": ((3, 64, 6), "float32"),
        "tail": ((4, 5, 5), "float32"),
        "slot": ((6, 2, 3), "float32"),
    }
    assert all(not array.any() and array.flags.c_contiguous and array.ctypes.data % 64 == 0 for array in store.arrays.values())
    assert (
        store.nbytes == state_bytes(LAYOUT, SIZES) == 5 * store.block_bytes(None) + 3 * store.block_bytes(16) + 4 * 100 + 6 * 24
    )
    assert store.block_bytes(None) == 64 * 16 + 16 * 8 == len(store.read(None, 0))
    assert store.slot_bytes() == 5 * 5 * 4 + 6 * 4 == len(store.snapshot(0, 0))


def test_a_pool_that_is_not_used_is_not_touched() -> None:
    sizes = StateSizes(block_tokens=256, blocks={None: 1 << 16}, sequences=1)
    store = HostStateStore({"k": Paged(512, "f16")}, sizes)  # 16 GiB of addresses
    store.arrays["k"][-1, -1] = 1
    assert store.arrays["k"][-1, -1].sum() == 512
    store.free()


@pytest.mark.parametrize("group", [None, 16])
def test_blocks_are_copied_read_and_written_exactly(group: int | None) -> None:
    store = filled()
    before = contents(store)
    data = store.read(group, 1)
    store.copy(group, 1, 2)
    assert store.read(group, 2) == data
    store.write(group, 0, data)
    assert store.read(group, 0) == data
    touched = {"k", "entry"} if group is None else {"w"}
    assert {name for name, value in contents(store).items() if value != before[name]} == touched


def test_snapshot_and_restore_are_exact_and_touch_nothing_else() -> None:
    store = filled()
    before = contents(store)
    data = store.snapshot(1, 2)
    store.restore(3, 4, data)
    assert store.snapshot(3, 4) == data
    store.restore(3, 4, filled().snapshot(3, 4))
    assert contents(store) == before
    assert store.snapshot(1, -1) == data[:100]
    assert store.snapshot(-1, 2) == data[100:]


@pytest.mark.parametrize("data", [b"", b"x"])
def test_wrong_sizes_are_refused_with_nothing_changed(data: bytes) -> None:
    store = filled()
    before = contents(store)
    with pytest.raises(ValueError, match="1152 bytes"):
        store.write(None, 0, store.read(None, 1)[:-1] + data * 2)
    with pytest.raises(ValueError, match="124 bytes"):
        store.restore(0, 0, data)
    assert contents(store) == before


def test_freeing_twice_is_allowed() -> None:
    store = filled()
    store.free()
    store.free()
    assert not store.arrays


def test_too_much_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match="1,000 bytes are available"):
        HostStateStore(LAYOUT, SIZES, limit=1000)
    with pytest.raises(CapacityError, match="refused"):
        HostStateStore({"k": Paged(1 << 20)}, StateSizes(block_tokens=1 << 20, blocks={None: 1 << 20}, sequences=1))
    HostStateStore(LAYOUT, SIZES, limit=state_bytes(LAYOUT, SIZES))


@pytest.mark.parametrize(
    ("layout", "sizes", "sentence"),
    [
        ({"k": Paged(8)}, StateSizes(48, {None: 1}, 1), "48 is not a multiple of 32"),
        ({"k": Paged(8)}, StateSizes(0, {None: 1}, 1), "0 is not a multiple of 32"),
        ({"k": Paged(8, stride=128)}, StateSizes(64, {None: 1}, 1), "stride 128 of store 'k'"),
        ({"k": Paged(8, window=8)}, StateSizes(64, {None: 1}, 1), "block group 8"),
    ],
)
def test_contradictions_are_refused(layout: Layout, sizes: StateSizes, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        HostStateStore(layout, sizes)


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0xFF800000, 0x80000000], np.uint32)
    expected = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80, 0x8000]
    assert to_bf16(bits.view(np.float32)).tolist() == expected
    assert np.isnan(from_bf16(to_bf16(np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)))).all()


def test_bf16_is_the_nearest_of_all_values() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4096) * 10.0 ** rng.integers(-30, 30, 4096)).astype(np.float32)
    rounded = to_bf16(x)
    error = np.abs(from_bf16(rounded).astype(np.float64) - x)
    for step in (-1, 1):
        neighbour = from_bf16((rounded.astype(np.int64) + step).astype(np.uint16))
        assert np.all(error <= np.abs(neighbour.astype(np.float64) - x))


@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32"])
def test_stored_rows_come_back_as_they_were_rounded(fmt: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    once = decode_rows(encode_rows(x, fmt), fmt)  # type: ignore[arg-type]
    assert once.dtype == np.float32
    assert np.array_equal(decode_rows(encode_rows(once, fmt), fmt), once)  # type: ignore[arg-type]
    relative = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 0.0}[fmt]  # half a unit in the last place of the format
    assert np.all(np.abs(once - x) <= relative * np.abs(x) + 2.0**-25)
