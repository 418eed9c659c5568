"""`tensorsharp show`: what a model file holds, what it needs, and who serves it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tensorsharp import options
from tensorsharp.cli import Program
from tensorsharp_app_cli.modelpath import MODEL, cached_path
from tensorsharp_app_cli.output import emit, emit_json
from tensorsharp_app_cli.tables import printable, size, table

LONGEST = 100


@click.command()
@MODEL
@options.CONTEXT
@click.option("--metadata", is_flag=True, help="Only the metadata, with texts in full length.")
@click.option("--tensors", is_flag=True, help="Only the tensors, one a line.")
@options.JSON
@click.pass_context
def show(ctx: click.Context, /, model: str, ctx_size: str | None, metadata: bool, tensors: bool, as_json: bool) -> None:
    """Show what the file of MODEL holds, the memory that it needs, and which plugin serves it.

    MODEL is a file, an alias, or user/repo[:QUANT] in the cache: nothing is downloaded. The file is read whether or not a
    plugin serves it. --json prints everything, arrays with their length and beginning.
    """
    from tensorsharp.weights.gguf import open_gguf
    from tensorsharp_app_cli.modelfacts import describe

    settings = options.settle(ctx, {"ctx_size": ctx_size})
    with open_gguf(cached_path(model)) as file:
        data = describe(file, ctx.ensure_object(Program).registry, settings.ctx_size)
    if as_json:
        emit_json(data)
        return
    sections = []
    if not (metadata or tensors):
        sections += [_summary(data), _types(data["types"])]
    if metadata or not tensors:
        sections.append(_metadata(data["metadata"], None if metadata else LONGEST))
    if tensors:
        sections.append(_tensors(data["tensors"]))
    emit("\n\n".join("\n".join(lines) for lines in sections), end="\n")


def _summary(data: Mapping[str, Any]) -> list[str]:
    tokenizer = data["tokenizer"]
    shards = f" in {data['shards']} files" if data["shards"] > 1 else ""
    rows = {
        "file": f"{data['file']} ({size(data['bytes'])}{shards})",
        "name": data["name"],
        "architecture": data["architecture"],
        "plugin": _plugin(data),
        "parameters": f"{data['parameters']:,}",
        "context": data["context"],
        "tokenizer": " ".join(str(tokenizer[key]) for key in ("model", "pre") if tokenizer[key]) or "none",
        "vocabulary": None if tokenizer["tokens"] is None else f"{tokenizer['tokens']:,} tokens",
        "chat template": "yes" if data["chat_template"] else "no",
        "memory": _memory(data["memory"]),
    }
    return [f"{name:<14} {printable(str(value))}" for name, value in rows.items() if value is not None]


def _plugin(data: Mapping[str, Any]) -> str:
    if data["served"]:
        return "{distribution} {version}".format(**data["plugin"])
    return " ".join(part for part in (data["why"], data["hint"]) if part)


def _memory(memory: Mapping[str, Any] | None) -> str:
    if memory is None:
        return "not known without the plugin"
    state = ", ".join(f"{size(total)} as {fmt}" for fmt, total in memory["state"].items())
    return f"weights {size(memory['weights'])}; state of {memory['context']} tokens {state}"


def _types(types: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(t["type"], str(t["tensors"]), f"{t['parameters']:,}", size(t["bytes"])) for t in types]
    return list(table(("TYPE", "TENSORS", "PARAMETERS", "SIZE"), rows, right=(1, 2, 3)))


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(printable(t["name"]), "x".join(map(str, t["shape"])) or "scalar", t["type"], size(t["bytes"])) for t in tensors]
    return list(table(("TENSOR", "SHAPE", "TYPE", "SIZE"), rows, right=(3,)))


def _metadata(entries: Mapping[str, Mapping[str, Any]], longest: int | None) -> list[str]:
    rows = [(printable(key), entry["type"], _value(entry, longest)) for key, entry in entries.items()]
    return list(table(("KEY", "TYPE", "VALUE"), rows))


def _value(entry: Mapping[str, Any], longest: int | None) -> str:
    if "value" in entry:
        text = printable(_number(entry["value"]) if entry["type"] == "f32" else str(entry["value"]))
    else:
        more = ", …" if entry["length"] > len(entry["first"]) else ""
        text = printable(f"{entry['length']} [{', '.join(json.dumps(v, ensure_ascii=False) for v in entry['first'])}{more}]")
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def _number(value: float | str) -> str:
    """A float32 in the shortest form that means it: 1e-05, where its exact value is 9.999999747378752e-06."""
    import numpy as np

    return str(np.float32(value))
