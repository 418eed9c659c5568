from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tensorsharp_backend_ggml.heap import trim

HELD = Path("/proc/self/statm")


def held() -> int:
    """Bytes of this process in memory."""
    return int(HELD.read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_holes_between_what_is_used_are_given_back() -> None:
    if not trim() or not HELD.exists():
        pytest.skip("this C library gives nothing back, or the system does not say how much is held")
    blocks = [np.ones(1 << 16, np.uint8) for _ in range(1024)]  # smaller than what the library maps by itself
    full = held()
    del blocks[1::2]
    assert trim()
    assert full - held() > 16 << 20  # of 32 MiB
    assert all(block.all() for block in blocks)
