"""How many threads, and the pool that keeps them between steps."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tensorsharp.errors import CapacityError
from tensorsharp_backend_ggml.binding import MAX_THREADS, Ggml, ThreadpoolParams
from tensorsharp_backend_ggml.native import Kernels

TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(topology: Path = TOPOLOGY) -> int:
    """Physical cores this process may run on; logical ones where the system does not tell them apart."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_core(topology / f"cpu{cpu}" / "topology", cpu) for cpu in os.sched_getaffinity(0)}
    return min(len(cores), MAX_THREADS)


def _core(folder: Path, cpu: int) -> tuple[str, str]:
    try:
        return (folder / "physical_package_id").read_text("ascii"), (folder / "core_id").read_text("ascii")
    except OSError:
        return "cpu", str(cpu)


class Pool:
    """Threads that share the calls of our kernels; between calls they spin for a moment, then sleep.

    ggml then runs its graphs on the calling thread alone, without a barrier between any two operations.
    """

    def __init__(self, kernels: Kernels, count: int) -> None:
        library = kernels.library
        library.ts_pool_create.argtypes = [ctypes.c_int32]
        library.ts_pool_create.restype = ctypes.c_void_p
        library.ts_pool_destroy.argtypes = [ctypes.c_void_p]
        library.ts_pool_destroy.restype = None
        self._destroy = library.ts_pool_destroy
        self.count = count
        self.parallel = ctypes.cast(library.ts_parallel, ctypes.c_void_p).value
        self.address: int | None = library.ts_pool_create(count)
        if not self.address:
            raise CapacityError("there is no memory for a pool of threads.")

    def close(self) -> None:
        """End the threads; no graph may run any more. Idempotent."""
        if self.address:
            self._destroy(self.address)
            self.address = None


class Threads:
    """A ggml CPU backend instance with threads of its own, which sleep between steps.

    plain: leave out the kernels that ggml switches to by the number of rows or keys (tiled attention and products).
    """

    def __init__(self, ggml: Ggml, count: int, *, plain: bool) -> None:
        self._ggml = ggml
        params = ThreadpoolParams()
        ggml.threadpool_params_init(ctypes.byref(params), count)
        params.poll = 0  # a thread without work sleeps at once: other programs and our own sampling need the core
        self._pool: int | None = ggml.threadpool_new(ctypes.byref(params))
        self.backend: int | None = ggml.backend_cpu_init()
        ggml.backend_cpu_set_n_threads(self.backend, count)
        ggml.backend_cpu_set_threadpool(self.backend, self._pool)
        ggml.backend_cpu_set_use_ref(self.backend, plain)

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self.backend:
            self._ggml.backend_free(self.backend)
            self.backend = None
        if self._pool:
            self._ggml.threadpool_free(self._pool)
            self._pool = None
