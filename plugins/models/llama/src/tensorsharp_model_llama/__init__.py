"""Llama and its near relatives: the plugin's specification, nothing else."""

from tensorsharp.plugin import PluginSpec

spec = PluginSpec(
    target="tensorsharp_model_llama.model:Llama",
    api=(1, 0),
    summary="Llama, Mistral 3, Qwen 2 and 3, SmolLM 3: dense or routed decoders with rotary attention",
    capabilities=frozenset({"text", "batch", "truncate", "embedding"}),
)
