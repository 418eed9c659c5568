"""What a model file holds, needs and is served by, as plain data. Reads the header only, never a tensor."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tensorsharp.engine.config import STEP_TOKENS
from tensorsharp.engine.sizing import plan_state
from tensorsharp.errors import ConfigError, PluginError, TensorSharpError
from tensorsharp.llm import TEMPLATE_KEY
from tensorsharp.loading import DEFAULT_CONTEXT
from tensorsharp.protocols.layout import FORMAT_BYTES, Format
from tensorsharp.state import state_bytes

if TYPE_CHECKING:
    from tensorsharp.protocols.model import IBatchedPagedModel
    from tensorsharp.registry import Registry
    from tensorsharp.weights.gguf import GGUFFile
    from tensorsharp.weights.gguf_reader import KVItem

FIRST = 8
"""How many elements of an array are told."""


def describe(file: GGUFFile, registry: Registry, ctx_size: int | None) -> dict[str, Any]:
    """Everything about a file.

    ctx_size: the context whose memory is told; None: what a run takes. ConfigError if the model has no such context.
    Sizes are bytes.
    """
    tensors = file.tensors.values()
    text = file.metadata.get
    data: dict[str, Any] = {
        "file": file.path,
        "shards": len(file.shard_paths),
        "bytes": sum(len(file.shard(i)) for i in range(len(file.shard_paths))),
        "name": text("general.name"),
        "architecture": file.architecture,
        "served": False,
        "parameters": sum(math.prod(t.shape) for t in tensors),
        "context": text(f"{file.architecture}.context_length"),
        "tokenizer": _tokenizer(file),
        "chat_template": bool(text(TEMPLATE_KEY)),
        "types": _types(file),
        "memory": None,
    }
    data |= _serving(file, registry, ctx_size)
    data["metadata"] = {item.key: _entry(item) for item in file.kv_items}
    data["tensors"] = [{"name": t.name, "shape": list(t.shape), "type": t.type_name, "bytes": t.nbytes} for t in tensors]
    return data


def _tokenizer(file: GGUFFile) -> dict[str, Any]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return {
        "model": file.metadata.get("tokenizer.ggml.model"),
        "pre": file.metadata.get("tokenizer.ggml.pre"),
        "tokens": len(tokens) if isinstance(tokens, Sequence) and not isinstance(tokens, str) else None,
    }


def _types(file: GGUFFile) -> list[dict[str, Any]]:
    """Totals of every tensor type, the largest first."""
    count: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for info in file.tensors.values():
        count[info.type_name] += 1
        parameters[info.type_name] += math.prod(info.shape)
        size[info.type_name] += info.nbytes
    return [{"type": n, "tensors": count[n], "parameters": parameters[n], "bytes": b} for n, b in size.most_common()]


def _serving(file: GGUFFile, registry: Registry, ctx_size: int | None) -> dict[str, Any]:
    """Which plugin serves the file and what memory a run takes; or why that is not known, and what to do."""
    try:
        row = registry.row("model", file.architecture)
        target = registry.load("model", file.architecture)
    except PluginError as error:
        return {"why": str(error), "hint": error.hint}
    data: dict[str, Any] = {"served": True, "plugin": {"distribution": row.distribution, "version": row.version}}
    try:
        return data | {"memory": _memory(file, target.from_file(file), ctx_size)}
    except ConfigError:
        raise
    except TensorSharpError as error:
        return data | {"served": False, "why": str(error), "hint": error.hint}


def _memory(file: GGUFFile, model: IBatchedPagedModel, ctx_size: int | None) -> dict[str, Any]:
    """Bytes of weights, and of the state of one sequence in every format it can be kept in."""
    if ctx_size is not None and not 2 <= ctx_size <= model.context_length:
        raise ConfigError(f"--ctx-size is {ctx_size}; expected 2 to {model.context_length}, which the model was made for.")
    context = ctx_size or min(model.context_length, DEFAULT_CONTEXT)
    names = model.weights()
    state = {}
    for fmt in FORMAT_BYTES:
        layout = model.layout(cast("Format", fmt))
        sizes = plan_state(layout, context=context, sequences=1, rows=STEP_TOKENS, available=sys.maxsize)
        state[fmt] = state_bytes(layout, sizes)
    return {"context": context, "weights": sum(t.nbytes for n, t in file.tensors.items() if n in names), "state": state}


def _entry(item: KVItem) -> dict[str, Any]:
    value = item.value
    if isinstance(value, (bool, int, float, str)):
        return {"type": item.type_name, "value": _plain(value)}
    return {"type": item.type_name, "length": len(value), "first": [_plain(v) for v in value[:FIRST].tolist()]}


def _plain(value: Any) -> Any:
    """JSON has no number that is not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
