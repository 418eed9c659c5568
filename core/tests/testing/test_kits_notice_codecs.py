"""Planted faults in codecs: each test of the kit must fail on the mistake that it is there for, and pass without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from tensorsharp.codecs.numbers import block_of, rows_of
from tensorsharp.codecs.raw import RawCodec
from tensorsharp.codecs.sealed import bits_of, check_size, seal, unseal
from tensorsharp.plugin import PluginSpec
from tensorsharp.protocols.codec import BlockLayout
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.codec import LAYOUTS, CodecConformance

FAILURES = (AssertionError, pytest.fail.Exception, ValueError)
F16 = LAYOUTS["f16"]


class RawKit(CodecConformance):
    plugin = "raw"
    codec_class: ClassVar[type[Any]] = RawCodec

    def make(self) -> Any:
        return self.codec_class()


class CoarseKit(RawKit):
    plugin = "coarse"
    codec_class = CoarseCodec

    @classmethod
    def spec(cls) -> PluginSpec:
        return PluginSpec("tensorsharp.testing.coarse:CoarseCodec", (1, 0), "for tests")


class OtherName(RawCodec):
    name = "row"


class NotSoLossless(RawCodec):
    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        return bytes(b & 0xFE for b in super().decode(data, layout))


class Unsealed(RawCodec):
    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        return check_size(data, layout)

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        return check_size(data, layout)


class IgnoresTheLayout(RawCodec):
    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        return seal(data)

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        return unseal(data)


class ForgetsItsOverhead(RawCodec):
    def bits_per_element(self, layout: BlockLayout) -> float:
        return bits_of(sum(rows.nbytes for rows in layout), layout)


class Differences(RawCodec):
    """Encodes against the block before."""

    def __init__(self) -> None:
        self.before = b""

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        known, self.before = self.before, data
        codes = bytes(a ^ b for a, b in zip(data, known.ljust(len(data), b"\x00"), strict=False))
        return super().encode(codes, layout)


class Optimistic(CoarseCodec):
    error_bound = 0.01


class SaysItIsLossless(CoarseCodec):
    """So it is applied only to blocks that are spilled."""

    lossless = True


class EncodesDifferently(CoarseCodec):
    """Each time a bit more."""

    times = 0

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        self.times += 1
        return super().encode(block_of([x / np.float32(self.times) for x in rows_of(data, layout)], layout), layout)


class MakesNumbers(CoarseCodec):
    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        return super().encode(block_of([np.nan_to_num(x, posinf=1.0) for x in rows_of(data, layout)], layout), layout)


Check = Callable[[RawKit], Any]
CHECKS: dict[str, Check] = {
    "name": lambda kit: kit.test_it_says_what_it_is(kit.make()),
    "exact": lambda kit: kit.test_every_bit_comes_back(kit.make(), F16),
    "bound": lambda kit: kit.test_errors_are_within_the_bound(kit.make(), F16),
    "size": lambda kit: kit.test_codes_are_no_longer_than_declared(kit.make(), F16),
    "alone": lambda kit: kit.test_a_block_is_encoded_alone(kit.make(), F16),
    "damaged": lambda kit: kit.test_damaged_codes_are_refused(kit.make()),
    "layout": lambda kit: kit.test_codes_of_another_layout_are_refused(kit.make()),
    "other size": lambda kit: kit.test_blocks_of_another_size_are_refused(kit.make(), F16),
    "spilled": lambda kit: kit.test_replies_do_not_depend_on_what_was_spilled(kit.make()),
    "no number": lambda kit: kit.test_what_is_no_number_stays_none(kit.make(), np.inf),
}
FAULTS: list[tuple[type[RawKit], type[Any], str]] = [
    (RawKit, OtherName, "name"),
    (RawKit, NotSoLossless, "exact"),
    (RawKit, NotSoLossless, "bound"),
    (RawKit, Unsealed, "damaged"),
    (RawKit, IgnoresTheLayout, "layout"),
    (RawKit, IgnoresTheLayout, "other size"),
    (RawKit, ForgetsItsOverhead, "size"),
    (RawKit, Differences, "alone"),
    (RawKit, SaysItIsLossless, "spilled"),
    (CoarseKit, EncodesDifferently, "spilled"),
    (CoarseKit, RawCodec, "name"),
    (CoarseKit, Optimistic, "bound"),
    (CoarseKit, MakesNumbers, "no number"),
]


@pytest.mark.parametrize(("kit", "fault", "check"), FAULTS, ids=[f"{f.__name__}-{c}" for _, f, c in FAULTS])
def test_faulty_codecs_fail(kit: type[RawKit], fault: type[Any], check: str) -> None:
    class Faulty(kit):  # type: ignore[misc,valid-type]
        codec_class = fault

    CHECKS[check](kit())
    with pytest.raises(FAILURES):
        CHECKS[check](Faulty())


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "exact"])
def test_a_coarse_codec_passes(check: str) -> None:
    CHECKS[check](CoarseKit())
