"""The conformance kit for codecs of KV blocks."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np
import pytest

from tensorsharp.codecs.numbers import block_of, rows_of
from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.codec import BlockLayout, IKvBlockCodec, StoreRows
from tensorsharp.protocols.layout import Format
from tensorsharp.testing.plugincheck import PluginChecks
from tensorsharp.testing.spilling import PROMPTS, replies

FORMATS: tuple[Format, ...] = ("f16", "bf16", "f32")
LAYOUTS: dict[str, BlockLayout] = {
    **{fmt: (StoreRows("k", 32, 64, fmt), StoreRows("v", 32, 64, fmt)) for fmt in FORMATS},
    "narrow": (StoreRows("k", 32, 1, "f32"),),
    "mixed": (StoreRows("k", 64, 24, "f16"), StoreRows("entry", 16, 7, "bf16"), StoreRows("index", 8, 3, "f32")),
}
SMALL: BlockLayout = (StoreRows("k", 32, 3, "f16"), StoreRows("v", 32, 2, "f16"))
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def blocks(layout: BlockLayout) -> dict[str, bytes]:
    """Blocks of finite numbers: small and large ones, few and many different ones."""
    rng = np.random.default_rng(11)
    shapes = [(rows.rows, rows.width) for rows in layout]
    normal = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    scales = [np.float32(10.0) ** rng.integers(-4, 4, (shape[0], 1)).astype(np.float32) for shape in shapes]
    one = [np.zeros(shape, np.float32) for shape in shapes]
    for x in one:
        x[x.shape[0] // 2, -1] = -3.0
    found = {
        "normal": normal,
        "rows of other sizes": [x * scale for x, scale in zip(normal, scales, strict=True)],
        "zeros": [np.zeros(shape, np.float32) for shape in shapes],
        "one number": one,
        "all the same": [np.full(shape, 0.7, np.float32) for shape in shapes],
        "a large one": [np.where(np.abs(x) == np.abs(x).max(), np.float32(6e4), x) for x in normal],
    }
    return {name: block_of(numbers, layout) for name, numbers in found.items()}


class CodecConformance(PluginChecks):
    """Everything a codec promises. Write a class with `plugin`, the codec's name.

    A codec is lossless if its spec declares the capability "lossless".
    """

    kind: ClassVar[str] = "codec"

    @pytest.fixture
    def codec(self) -> IKvBlockCodec:
        return self.make()

    def make(self) -> IKvBlockCodec:
        found: IKvBlockCodec = self.implementation()()
        return found

    def test_it_says_what_it_is(self, codec: IKvBlockCodec) -> None:
        assert codec.name == self.plugin
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", codec.name), "the name is part of file names"
        assert codec.lossless == ("lossless" in self.spec().capabilities)
        assert codec.error_bound >= 0
        assert codec.lossless == (codec.error_bound == 0)

    @EVERY_LAYOUT
    @pytest.mark.capability("lossless")
    def test_every_bit_comes_back(self, codec: IKvBlockCodec, layout: BlockLayout) -> None:
        size = sum(rows.nbytes for rows in layout)
        for data in (*blocks(layout).values(), np.random.default_rng(5).bytes(size), b"\xff" * size):
            assert codec.decode(codec.encode(data, layout), layout) == data

    @EVERY_LAYOUT
    def test_errors_are_within_the_bound(self, codec: IKvBlockCodec, layout: BlockLayout) -> None:
        for name, data in blocks(layout).items():
            decoded = codec.decode(codec.encode(data, layout), layout)
            for number, (x, y) in enumerate(zip(rows_of(data, layout), rows_of(decoded, layout), strict=True)):
                assert np.isfinite(y).all(), (name, number)
                most = codec.error_bound * np.abs(x.astype(np.float64)).max(axis=1, keepdims=True)
                assert (np.abs(x.astype(np.float64) - y) <= most).all(), (name, number)

    @EVERY_LAYOUT
    def test_codes_are_no_longer_than_declared(self, codec: IKvBlockCodec, layout: BlockLayout) -> None:
        elements = sum(rows.elements for rows in layout)
        noise = np.random.default_rng(6).standard_normal(elements).astype(np.float32)
        ends = np.cumsum([rows.elements for rows in layout])[:-1]
        parts = [part.reshape(rows.rows, rows.width) for part, rows in zip(np.split(noise, ends), layout, strict=True)]
        for data in (*blocks(layout).values(), block_of(parts, layout)):
            assert 8 * len(codec.encode(data, layout)) <= codec.bits_per_element(layout) * elements

    @EVERY_LAYOUT
    def test_a_block_is_encoded_alone(self, codec: IKvBlockCodec, layout: BlockLayout) -> None:
        found = blocks(layout)
        codes = {name: codec.encode(data, layout) for name, data in found.items()}
        other = self.make()
        for name in reversed(found):
            assert other.encode(found[name], layout) == codes[name]
            assert other.decode(codes[name], layout) == codec.decode(codes[name], layout)

    def test_damaged_codes_are_refused(self, codec: IKvBlockCodec) -> None:
        codes = codec.encode(blocks(SMALL)["normal"], SMALL)
        damaged = [codes[:n] for n in range(len(codes))] + [codes + b"\x00", codes + codes, b"\x00" * len(codes)]
        for place in range(len(codes)):
            for bit in range(8):
                flipped = bytearray(codes)
                flipped[place] ^= 1 << bit
                damaged.append(bytes(flipped))
        accepted = sum(_accepts(codec, data, SMALL) for data in damaged)
        assert accepted == 0, f"{accepted} of {len(damaged)} damaged blocks were decoded"

    def test_codes_of_another_layout_are_refused(self, codec: IKvBlockCodec) -> None:
        codes = codec.encode(blocks(SMALL)["normal"], SMALL)
        longer = tuple(StoreRows(rows.name, 2 * rows.rows, rows.width, rows.format) for rows in SMALL)
        for other in (longer, SMALL[:1], (*SMALL, SMALL[0])):
            assert not _accepts(codec, codes, other)

    @EVERY_LAYOUT
    def test_blocks_of_another_size_are_refused(self, codec: IKvBlockCodec, layout: BlockLayout) -> None:
        data = blocks(layout)["normal"]
        for wrong in (b"", data[:-1], data + b"\x00"):
            with pytest.raises(ValueError):
                codec.encode(wrong, layout)

    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    def test_what_is_no_number_stays_none(self, codec: IKvBlockCodec, odd: float) -> None:
        """It is refused or it comes back as it is: never a number."""
        numbers = rows_of(blocks(SMALL)["normal"], SMALL)
        numbers[1][7, 1] = odd
        data = block_of(numbers, SMALL)
        try:
            codes = codec.encode(data, SMALL)
        except ValueError:
            assert not codec.lossless, "a codec without loss takes every block"
            return
        assert not np.isfinite(rows_of(codec.decode(codes, SMALL), SMALL)[1][7, 1])

    def test_replies_do_not_depend_on_what_was_spilled(self, codec: IKvBlockCodec) -> None:
        never = [replies(CacheConfig(codec), [ids], blocks=8, chunk=64)[0][0] for ids in PROMPTS]
        spilled = replies(CacheConfig(codec, ram=1 << 24), [*PROMPTS, *PROMPTS], blocks=4, chunk=17)
        assert [cached for _, cached in spilled] == [0] * len(PROMPTS) + [64] * len(PROMPTS)
        assert [said for said, _ in spilled] == never + never
        if codec.lossless:
            assert never == [replies(CacheConfig(), [ids], blocks=8, chunk=64)[0][0] for ids in PROMPTS]


def _accepts(codec: IKvBlockCodec, codes: bytes, layout: BlockLayout) -> bool:
    try:
        codec.decode(codes, layout)
    except ValueError:
        return False
    return True
