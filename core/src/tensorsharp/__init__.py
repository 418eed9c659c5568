"""TensorSharp: run language models from GGUF files, with plugins for families, devices, drafters and cache formats.

The names below are imported on first use, so that ``import tensorsharp`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorsharp.chat import ChatGeneration, ChatOptions, ChatReply, ToolCall
    from tensorsharp.engine.engine import Engine
    from tensorsharp.errors import (
        BackendError,
        CapacityError,
        ConfigError,
        DownloadError,
        ModelError,
        ModelNotFoundError,
        PluginError,
        RequestError,
        TemplateError,
        TensorSharpError,
        UnsupportedError,
    )
    from tensorsharp.llm import LLM
    from tensorsharp.loading import load
    from tensorsharp.plugin import API_VERSION, PluginSpec
    from tensorsharp.registry import Registry
    from tensorsharp.types import (
        Constraint,
        Finished,
        GenerationRequest,
        SamplingParams,
        Timings,
        TokenEvent,
        TokenLogprob,
        Usage,
    )

    __version__: str

__all__ = [
    "API_VERSION",
    "LLM",
    "BackendError",
    "CapacityError",
    "ChatGeneration",
    "ChatOptions",
    "ChatReply",
    "ConfigError",
    "Constraint",
    "DownloadError",
    "Engine",
    "Finished",
    "GenerationRequest",
    "ModelError",
    "ModelNotFoundError",
    "PluginError",
    "PluginSpec",
    "Registry",
    "RequestError",
    "SamplingParams",
    "TemplateError",
    "TensorSharpError",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
    "ToolCall",
    "UnsupportedError",
    "Usage",
    "__version__",
    "load",
]

_HOME = {
    "API_VERSION": "plugin",
    "ChatGeneration": "chat",
    "ChatOptions": "chat",
    "ChatReply": "chat",
    "Constraint": "types",
    "Engine": "engine.engine",
    "Finished": "types",
    "GenerationRequest": "types",
    "LLM": "llm",
    "PluginSpec": "plugin",
    "Registry": "registry",
    "SamplingParams": "types",
    "Timings": "types",
    "TokenEvent": "types",
    "TokenLogprob": "types",
    "ToolCall": "chat",
    "Usage": "types",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tensorsharp-core")
        except PackageNotFoundError:  # imported from a source tree that nobody installed
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module 'tensorsharp' has no attribute {name!r}")
    return getattr(import_module(f"tensorsharp.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
