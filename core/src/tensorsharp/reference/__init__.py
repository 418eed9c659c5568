"""The numpy backend: the living definition of every operation and of every tensor type, chosen as ``reference``."""

from tensorsharp.plugin import PluginSpec

spec = PluginSpec(
    target="tensorsharp.reference.backend:ReferenceBackend",
    api=(1, 0),
    summary="numpy, row by row: the definition that every other backend is compared with; slow",
    capabilities=frozenset({"cpu", "quantised-weights", "f16-state", "bf16-state", "f32-state"}),
)
