"""`tensorsharp show`: what it says about files that somebody serves, and that nobody does."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tensorsharp.plugin import GROUPS
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp_app_cli.show import show
from tensorsharp_app_cli.tables import size

if TYPE_CHECKING:
    from conftest import World


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(show, list(arguments), catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_json_holds_everything(world: World) -> None:
    path = world.write_model("m.gguf", **{"general.name": "Müller", "scripted.context_length": 500})
    data = json.loads(shown(str(path), "--json"))
    metadata = data.pop("metadata")
    assert metadata["general.architecture"] == {"type": "str", "value": "scripted"}
    assert metadata["scripted.context_length"] == {"type": "u32", "value": 500}
    tokens = metadata["tokenizer.ggml.tokens"]
    assert (tokens["type"], tokens["length"], len(tokens["first"])) == ("[str]", 300, 8)
    memory = data.pop("memory")
    assert (memory["context"], memory["weights"]) == (500, 24)
    assert memory["state"]["f16"] == memory["state"]["bf16"] == memory["state"]["f32"] // 2
    assert data == {
        "file": str(path),
        "shards": 1,
        "bytes": path.stat().st_size,
        "name": "Müller",
        "architecture": "scripted",
        "served": True,
        "plugin": {"distribution": "scripted", "version": "1.0"},
        "parameters": 6,
        "context": 500,
        "tokenizer": {"model": "gpt2", "pre": "gpt-2", "tokens": 300},
        "chat_template": True,
        "types": [{"type": "F32", "tensors": 1, "parameters": 6, "bytes": 24}],
        "tensors": [{"name": "w", "shape": [3, 2], "type": "F32", "bytes": 24}],
    }


@pytest.mark.parametrize(("context", "blocks"), [("2", 1), ("32", 1), ("33", 2), ("500", 16)])
def test_state_is_told_for_a_context(world: World, context: str, blocks: int) -> None:
    """Blocks of 32 positions, each two stores of two values of two bytes; the window saves nothing, because a step may
    compute 512 rows."""
    state = json.loads(shown(world.model, "--json", "-c", context))["memory"]["state"]
    assert state["f16"] == blocks * 32 * 2 * 2 * 2


def test_text_for_people(world: World) -> None:
    out = shown(world.model)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if line.strip())
    assert lines["architecture"] == "scripted"
    assert lines["plugin"] == "scripted 1.0"
    assert lines["parameters"] == "6"
    assert lines["memory"].startswith("weights 24 B; state of 500 tokens 4.0 KiB as f16, 4.0 KiB as bf16, 8.0 KiB as f32")
    assert lines["F32"].split() == ["1", "6", "24", "B"]
    assert lines["tokenizer.ggml.merges"].startswith('[str]  16 ["Ġ t", "h e", ')
    assert lines["tokenizer.ggml.merges"].endswith(", …]")


def test_filters(world: World) -> None:
    assert shown(world.model, "--tensors").split() == ["TENSOR", "SHAPE", "TYPE", "SIZE", "w", "3x2", "F32", "24", "B"]
    assert shown(world.model, "--metadata").splitlines()[0].split() == ["KEY", "TYPE", "VALUE"]


def test_long_texts_are_cut_unless_asked_for(world: World) -> None:
    path = str(world.write_model("m.gguf", **{"general.description": "x" * 300}))
    assert "x" * 300 not in shown(path)
    assert "x" * 99 + "…\n" in shown(path)
    assert "x" * 300 in shown(path, "--metadata")


def test_nothing_in_a_file_can_command_the_terminal(world: World) -> None:
    path = str(world.write_model("m.gguf", **{"general.name": "a\x1b[2Jb\nc\u202ed"}))
    for arguments in ((), ("--metadata",), ("--tensors",)):
        out = shown(path, *arguments)
        assert not set(out) & {"\x1b", "\u202e"}
    assert "a\\x1b[2Jb\\nc\\u202ed" in shown(path)


def test_floats_are_written_as_short_as_they_mean(world: World) -> None:
    path = str(world.write_model("m.gguf", **{"scripted.epsilon": 1e-5}))
    (line,) = [line for line in shown(path).splitlines() if line.startswith("scripted.epsilon")]
    assert line.split() == ["scripted.epsilon", "f32", "1e-05"]


def test_numbers_that_json_has_not(world: World) -> None:
    path = str(world.write_model("m.gguf", **{"scripted.epsilon": float("nan")}))
    assert json.loads(shown(path, "--json"), parse_constant=pytest.fail)["metadata"]["scripted.epsilon"]["value"] == "nan"


def test_a_file_that_no_plugin_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (entry for group in GROUPS.values() for entry in metadata.entry_points(group=group))
    others = metadata.EntryPoints(entry for entry in found if entry.name != "qwen2")
    monkeypatch.setattr(metadata, "entry_points", lambda: others)  # as if it was not installed, where it is
    path = write_tiny(world.folder / "tiny.gguf", tiny("qwen2", weight_type="Q8_0"))
    data = json.loads(shown(str(path), "--json"))
    assert (data["served"], data["memory"], data["why"]) == (False, None, "No model plugin serves 'qwen2'.")
    assert data["hint"] == "Try: pip install tensorsharp-model-llama"
    assert {t["type"] for t in data["types"]} == {"Q8_0", "F32"}
    assert sum(t["tensors"] for t in data["types"]) == len(data["tensors"])
    assert "No model plugin serves 'qwen2'. Try: pip install tensorsharp-model-llama" in shown(str(path))


def test_errors_and_exit_codes(world: World) -> None:
    code, out, err = world.command("show", world.model, "-c", "501")
    assert (code, out, err) == (2, "", "error: --ctx-size is 501; expected 2 to 500, which the model was made for.\n")
    code, out, err = world.command("show", str(world.folder / "no.gguf"))
    assert (code, out) == (3, "")
    assert err == f"error: {world.folder / 'no.gguf'} does not exist; expected a .gguf file.\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 40, "3.0 TiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_it_reads_no_tensor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorsharp.weights.gguf.GGUFFile.raw", lambda self, name: pytest.fail(f"{name} was read"))
    assert "scripted" in shown(world.model)
