"""The C library's heap, which ggml's graphs come from and go to."""

from __future__ import annotations

import ctypes
import os


def trim() -> bool:
    """Give what was freed back to the system. False where the C library has no call for it; glibc has `malloc_trim`.

    Memory that is freed between what is still used stays with the process, and what comes next is often too large for the hole.
    """
    call = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if call is not None:
        call(0)
    return call is not None
