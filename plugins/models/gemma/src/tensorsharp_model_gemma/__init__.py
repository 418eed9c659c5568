"""Gemma: the plugin's specification, nothing else."""

from tensorsharp.plugin import PluginSpec

spec = PluginSpec(
    target="tensorsharp_model_gemma.model:Gemma3",
    api=(1, 0),
    summary="Gemma 3: sliding and full attention layers, norms before and after every block",
    capabilities=frozenset({"embedding", "text", "batch", "truncate"}),
)
