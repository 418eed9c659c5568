"""Where a setting comes from, and what is said of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorsharp.config import EXPECTED, resolve
from tensorsharp.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('temp = 0.1\ntop-k = 11\nmin_p = 0.2\nstop = ["a", "b"]\ndisable-plugins = ["x"]\n', encoding="utf-8")
    return path


def test_flag_beats_environment_beats_file_beats_default(file: Path) -> None:
    environ = {"TENSORSHARP_TEMP": "0.2", "TENSORSHARP_TOP_K": "22", "TENSORSHARP_SEED": ""}
    resolved = resolve({"temp": 0.3, "top_p": None}, config=file, environ=environ)
    settings, sources = resolved.settings, resolved.sources
    assert (settings.temp, sources["temp"]) == (0.3, "--temp")
    assert (settings.top_k, sources["top_k"]) == (22, "TENSORSHARP_TOP_K")
    assert (settings.min_p, sources["min_p"]) == (0.2, str(file))
    assert (settings.top_p, sources["top_p"]) == (0.95, "default")
    assert (settings.seed, sources["seed"]) == (None, "default")
    assert settings.stop == ("a", "b")
    assert resolved.file == file


def test_the_file_may_be_named_in_the_environment(file: Path) -> None:
    assert resolve(environ={"TENSORSHARP_CONFIG": str(file)}).settings.temp == 0.1


def test_lists_in_the_environment() -> None:
    resolved = resolve(environ={"TENSORSHARP_DISABLE_PLUGINS": "a, b/c ,", "TENSORSHARP_STOP": "one, two"})
    assert resolved.settings.disable_plugins == ("a", "b/c")
    assert resolved.settings.stop == ("one, two",)


def test_every_setting_has_its_variable() -> None:
    good = {"backend": "x", "device": "x", "kv_type": "f32", "stop": "x", "disable_plugins": "x", "top_p": "1", "raw": "1"}
    good |= {"offline": "1", "history_ids": "1", "no_mmproj": "1", "think": "on", "cors": "*"}
    good["log_format"] = "json"
    for name in EXPECTED:
        variable = f"TENSORSHARP_{name.upper()}"
        assert resolve(environ={variable: good.get(name, "3" if name != "min_p" else "1")}).sources[name] == variable


@pytest.mark.parametrize(
    ("written", "count"),
    [(0, 0), ("0", 0), (4096, 4096), ("4096", 4096), ("1k", 1024), ("1.5M", 3 << 19), ("2G", 2 << 30), (" 1T", 1 << 40)],
)
def test_a_size_is_bytes_or_has_a_unit(written: object, count: int) -> None:
    assert resolve({"saved_bytes": written}, environ={}).settings.saved_bytes == count


@pytest.mark.parametrize("written", ["", "M", "-1", "1MB", "1 X", "nan", "infG", -1, 1.5, True])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match=r"--saved-bytes is .*; expected a number of bytes, or of K, M, G or T of them"):
        resolve({"saved_bytes": written}, environ={})


@pytest.mark.parametrize(
    ("flags", "environ", "text", "message"),
    [
        ({"temp": -1.0}, {}, "", "--temp is -1.0; expected a number from 0 (always the likeliest token) to 100."),
        ({"ctx_size": 0}, {}, "", "--ctx-size is 0; expected a number of tokens, 1 or more."),
        ({}, {"TENSORSHARP_TOP_K": "many"}, "", "TENSORSHARP_TOP_K is 'many'; expected a whole number, 0 (off) or more."),
        ({}, {}, "temp = 'hot'", "{file}: temp is 'hot'; expected a number from 0 (always the likeliest token) to 100."),
        ({}, {}, "kv-type = 'q8'", "{file}: kv-type is 'q8'; expected f16, bf16 or f32."),
        ({}, {}, "temp = nan", "{file}: temp is nan; expected a number from 0 (always the likeliest token) to 100."),
        ({"cors": ("https://a.org/",)}, {}, "", f"--cors is ['https://a.org/']; expected {EXPECTED['cors']}."),
        ({"cors": ("*", "a.org")}, {}, "", f"--cors is ['*', 'a.org']; expected {EXPECTED['cors']}."),
        ({}, {}, "stop = ['a', '']", "{file}: stop is ['a', '']; expected strings that are not empty."),
    ],
)
def test_a_bad_value_names_its_source_and_what_was_expected(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], text: str, message: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve(flags, config=path, environ=environ)
    assert str(caught.value) == message.format(file=path)
    assert caught.value.exit_code == 2


def test_an_unknown_key_is_named_with_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("ctx-sizes = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve(config=path, environ={})
    assert str(caught.value).startswith(f"{path}: there is no setting 'ctx-sizes'; expected one of backend, device,")
    assert caught.value.hint == "Did you mean 'ctx-size'?"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b"temp = ", "not valid TOML"), (b"\xff\xfe", "not valid TOML")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(config=path, environ={})
    assert str(caught.value).startswith(str(path))
