"""How much memory the host has, from the operating system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def host_memory() -> tuple[int, int]:
    """(total, available) bytes. Available counts what the system can reclaim, where it says so; else it is the total."""
    if sys.platform == "win32":
        return _windows()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, _linux_available() or total


def _linux_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(number) * 1024 for number in kib), None)


def _windows() -> tuple[int, int]:
    """GlobalMemoryStatusEx: two 32-bit fields, then total and available physical memory among seven 64-bit ones."""
    status = (ctypes.c_uint64 * 8)()
    ctypes.c_uint32.from_buffer(status).value = ctypes.sizeof(status)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return status[1], status[2]
