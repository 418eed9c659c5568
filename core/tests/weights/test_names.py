"""MODEL as people write it, aliases, and folders of models."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from tensorsharp.errors import ConfigError, ModelError, ModelNotFoundError
from tensorsharp.testing.fakehub import fake_hub
from tensorsharp.weights.aliases import Aliases
from tensorsharp.weights.folder import ModelsFolder
from tensorsharp.weights.hub import Hub
from tensorsharp.weights.hubcache import HubName
from tensorsharp.weights.names import locate, read_name


@pytest.fixture
def aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aliases:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return Aliases(tmp_path / "aliases.json")


def write(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_name_is_an_alias_then_a_file_then_a_repository(aliases: Aliases, tmp_path: Path) -> None:
    aliases.set("smol", "user/repo:Q4_0")
    write(tmp_path / "smol")
    write(tmp_path / "user/here.gguf")
    assert read_name("smol", aliases) == HubName("user/repo", "Q4_0")
    assert read_name("./smol", aliases) == Path("smol")
    assert read_name("user/here.gguf", aliases) == Path("user/here.gguf")
    assert read_name("user/there", aliases) == HubName("user/there")
    assert read_name("user/there.gguf", aliases) == Path("user/there.gguf")
    assert read_name("~/x.gguf", aliases) == Path.home() / "x.gguf"
    assert read_name("hf.co/user/there", aliases) == HubName("user/there")


def test_names_that_are_nothing(aliases: Aliases, tmp_path: Path) -> None:
    aliases.set("smollm", "user/repo")
    write(tmp_path / "user/repo/m-Q4_0.gguf")
    (tmp_path / "user/empty").mkdir()
    for text, kind, message, hint in [
        ("", ModelError, "MODEL is empty; expected the path", None),
        ("smolm", ModelNotFoundError, "'smolm' is no file and no alias.", "Did you mean 'smollm'?"),
        (
            "other",
            ModelNotFoundError,
            "'other' is no file",
            "'tensorsharp alias list' tells the aliases; a repository has a '/'.",
        ),
        (" ", ModelError, "MODEL is empty; expected", None),
        ("user/repo", ModelError, "user/repo is a folder; expected a .gguf file.", "It holds m-Q4_0.gguf."),
        ("user/empty", ModelError, "user/empty is a folder", "For the repository on the hub write hf.co/user/empty."),
        ("smollm", ModelError, "user/repo is a folder", "It holds m-Q4_0.gguf."),
    ]:
        with pytest.raises(kind) as caught:
            read_name(text, aliases)
        assert str(caught.value).startswith(message)
        assert caught.value.hint == hint
    assert read_name("x" * 5000 + "/y.gguf", aliases).name == "y.gguf"  # type: ignore[union-attr]


def test_located_files(aliases: Aliases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    path = write(tmp_path / "m.gguf")
    assert locate(str(path)).path == path
    with fake_hub({"user/repo": {"m-Q4_0.gguf": b"GGUF", "mmproj-m.gguf": b"GGUF eyes"}}) as remote:
        hub = Hub(cache=tmp_path / "hub", endpoint=remote.url)
        found = locate("user/repo", hub)
        assert (found.name, found.path.name, found.projector) == (
            "user/repo:Q4_0",
            "m-Q4_0.gguf",
            found.path.with_name("mmproj-m.gguf"),
        )


# aliases --------------------------------------------------------------------------------------------------------------


def test_aliases_are_kept_and_forgotten(aliases: Aliases) -> None:
    assert aliases.all() == {}
    aliases.set("smol", "user/repo")
    aliases.set("löwe:8b", "smol")
    aliases.set("smol", "user/repo:Q8_0")
    assert Aliases(aliases.path).all() == {"smol": "user/repo:Q8_0", "löwe:8b": "smol"}
    assert aliases.resolve("löwe:8b") == "user/repo:Q8_0"
    assert aliases.resolve("unknown") == "unknown"
    aliases.remove("smol")
    assert aliases.all() == {"löwe:8b": "smol"}
    with pytest.raises(ModelNotFoundError, match=r"^There is no alias 'smol'\.$"):
        aliases.remove("smol")
    assert [path.name for path in aliases.path.parent.iterdir() if path.is_file()] == ["aliases.json"]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-x", "m.gguf", "a:b:c", "../x"])
def test_names_that_no_alias_can_have(aliases: Aliases, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be an alias"):
        aliases.set(name, "user/repo")


def test_circles_are_refused(aliases: Aliases) -> None:
    aliases.set("a", "b")
    aliases.set("b", "c")
    with pytest.raises(ConfigError, match=r"^Aliases go in a circle: c -> a -> b -> c \("):
        aliases.set("c", "a")
    with pytest.raises(ConfigError, match="circle: d -> d"):
        aliases.set("d", "d")
    assert aliases.all() == {"a": "b", "b": "c"}
    aliases.path.write_text('{"a": "b", "b": "a"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="circle: a -> b -> a"):
        aliases.resolve("a")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is no JSON"), ("[]", "expected one JSON object"), ('{"a": 1}', "expected one JSON")]
)
def test_a_file_that_holds_something_else(aliases: Aliases, text: str, message: str) -> None:
    aliases.path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        aliases.all()


# folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_is_a_list_of_names(tmp_path: Path) -> None:
    write(tmp_path / "Smol-Q4_0.gguf", b"GGUF smol")
    write(tmp_path / "mmproj-other.gguf")
    write(tmp_path / "other-Q8_0.gguf")
    write(tmp_path / "big/big-Q8_0-00001-of-00002.gguf")
    write(tmp_path / "big/big-Q8_0-00002-of-00002.gguf")
    write(tmp_path / "big/mmproj-F16.gguf")
    write(tmp_path / "notes.txt")
    folder = ModelsFolder(tmp_path)
    assert [entry.name for entry in folder.entries()] == ["Smol-Q4_0", "big/big-Q8_0", "other-Q8_0"]
    smol, big = folder.find("Smol-Q4_0"), folder.find("big/big-Q8_0")
    assert (smol.quant, smol.size, smol.projector, smol.digest) == ("Q4_0", 9, None, None)
    assert [path.name for path in big.files] == [f"big-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)] + ["mmproj-F16.gguf"]
    assert folder.find("Smol-Q4_0.gguf") == smol


def test_a_projector_stays_while_a_model_needs_it(tmp_path: Path) -> None:
    for name in ("m-Q4_0", "m-Q8_0", "mmproj-m"):
        write(tmp_path / f"{name}.gguf")
    folder = ModelsFolder(tmp_path)
    assert folder.remove("m-Q4_0") == 4
    assert folder.find("m-Q8_0").projector == tmp_path / "mmproj-m.gguf"
    assert folder.remove("m-Q8_0") == 8
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../secret", "sub/../../secret", "/etc/passwd", "..", "", "sub\\secret", "secret\0", "%2e%2e/secret"]
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    write(tmp_path / "secret.gguf")
    write(tmp_path / "models/sub/m.gguf")
    folder = ModelsFolder(tmp_path / "models")
    with pytest.raises(ModelNotFoundError):
        folder.find(name)
    with pytest.raises(ModelNotFoundError):
        folder.find(str(tmp_path / "secret.gguf"))


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.listdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigError) as caught:
        ModelsFolder(tmp_path)
    assert str(caught.value) == f"{tmp_path.resolve()} cannot be read: Permission denied."


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no folder; expected one with \.gguf files\.$"):
        ModelsFolder(tmp_path / "none")
    write(tmp_path / "smol.gguf")
    with pytest.raises(ModelNotFoundError, match=r"^There is no model 'smoll'\.$") as caught:
        ModelsFolder(tmp_path).find("smoll")
    assert caught.value.hint == "Did you mean 'smol'?"


def test_a_file_that_cannot_be_replaced_stays_as_it_was(aliases: Aliases, monkeypatch: pytest.MonkeyPatch) -> None:
    aliases.set("a", "user/repo")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(ConfigError, match=r"aliases\.json cannot be written: Permission denied\.$"):
        aliases.set("b", "user/repo")
    monkeypatch.undo()
    assert aliases.all() == {"a": "user/repo"}
    assert [path.name for path in aliases.path.parent.glob("*.tmp")] == []
