"""Which weight types our product kernel takes, and how its activations are laid out."""

from __future__ import annotations

SIMPLE = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
"""ggml types with one scale for 32 values; activations are quantised likewise."""
SUPER = {12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}
"""ggml types with super-blocks of 256 values; activations have one scale for 256 values."""
TYPES = SIMPLE | SUPER


def is_super(type_id: int) -> bool:
    return type_id in SUPER


def activation_bytes(inner: int, wide: bool) -> int:
    """Bytes of a quantised activation row of `inner` features: scales, sums of values, values."""
    return inner // 256 * 308 if wide else inner // 32 * 38
