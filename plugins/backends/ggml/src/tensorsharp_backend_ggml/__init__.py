"""tensorsharp-backend-ggml: runs models with ggml's CPU kernels and a set of our own."""

from tensorsharp.plugin import PluginSpec

spec = PluginSpec(
    target="tensorsharp_backend_ggml.backend:GgmlBackend",
    api=(1, 0),
    summary="CPU, with ggml's quantised matrix products and our own paged attention",
    capabilities=frozenset({"cpu", "quantised-weights", "mapped-weights", "f16-state", "f32-state", "bf16-state"}),
    requires=("numpy",),
    probe="tensorsharp_backend_ggml.probe:why_not",
)
