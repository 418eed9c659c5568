"""Facts about this machine and what is installed, for people and for reports of a problem."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorsharp.config import cache_folder
from tensorsharp.registry import PluginRow, Registry


def report(registry: Registry, version: str) -> dict[str, Any]:
    """Everything that `tensorsharp doctor` shows. Imports the backends, each for itself; one that fails is told as such."""
    rows = registry.rows()
    return {
        "core": version,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory(),
        "cache": str(cache_folder()),
        "plugins": [summary(row) for row in rows],
        "unmatched": list(registry.unmatched),
        "backends": [backend(registry, row) for row in rows if row.kind == "backend" and row.state == "ready"],
    }


def summary(row: PluginRow) -> dict[str, Any]:
    """A row as plain data, without the spec."""
    return {
        "kind": row.kind,
        "name": row.name,
        "state": row.state,
        "distribution": row.distribution,
        "version": row.version,
        "why": row.why,
    }


def backend(registry: Registry, row: PluginRow) -> dict[str, Any]:
    """What one backend says of itself, or the error it ended with."""
    from tensorsharp.protocols.backend import Backend, BackendOptions

    facts: dict[str, Any] = {"name": row.name}
    try:
        made: Backend = registry.load("backend", row.id)(BackendOptions())
        try:
            contract = made.bitwise(())
            total, available = made.memory()
            facts |= {
                "device": made.device,
                "threads": made.threads,
                "memory_bytes": total,
                "available_bytes": available,
                "arithmetic_id": made.arithmetic_id,
                "bitwise": contract.holds,
                "bitwise_reason": contract.reason,
                "describe": dict(made.describe()),
            }
        finally:
            made.close()
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def processor() -> str:
    """The processor's own name, where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory() -> int | None:
    """Bytes of memory, or None where the system does not tell."""
    configuration: Callable[[str], int] | None = getattr(os, "sysconf", None)
    if configuration is None:
        return None
    try:
        return configuration("SC_PAGE_SIZE") * configuration("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def lines(facts: Mapping[str, Any]) -> list[str]:
    """The report as text, without the table of plugins."""
    size = facts["memory_bytes"]
    out = [
        f"tensorsharp-core  {facts['core']}",
        f"python            {facts['python']}",
        f"system            {facts['system']}",
        f"processor         {facts['processor']}, {facts['cores']} logical cores",
        f"memory            {'unknown' if size is None else gibibytes(size)}",
        f"cache             {facts['cache']}",
    ]
    for entry in facts["backends"]:
        out += ["", *_backend_lines(entry)]
    return out


def _backend_lines(entry: Mapping[str, Any]) -> list[str]:
    if "error" in entry:
        return [f"backend {entry['name']}: failed: {entry['error']}"]
    contract = "holds" if entry["bitwise"] else "does not hold"
    reason = f": {entry['bitwise_reason']}" if entry["bitwise_reason"] else ""
    memory_line = f"{gibibytes(entry['available_bytes'])} of {gibibytes(entry['memory_bytes'])} available"
    return [
        f"backend {entry['name']} on {entry['device']}, {entry['threads']} thread{'s' * (entry['threads'] != 1)}, {memory_line}",
        f"  bitwise contract  {contract}{reason}",
        f"  arithmetic        {entry['arithmetic_id']}",
        *(f"  {key:<17} {value}" for key, value in entry["describe"].items()),
    ]


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
