"""Settings, and where each one comes from: flag > environment > TOML file > default.

A setting has one name everywhere: ``--ctx-size`` on the command line, ``TENSORSHARP_CTX_SIZE`` in the environment and
``ctx-size`` in the file.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from platformdirs import user_cache_path, user_config_path, user_state_path

from tensorsharp.engine.config import SchedulerConfig
from tensorsharp.errors import ConfigError, did_you_mean
from tensorsharp.types import EFFORTS, SamplingParams

PREFIX = "TENSORSHARP_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
_SAMPLING = SamplingParams()
_SCHEDULER = SchedulerConfig()
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_TOKENS = "a number of tokens, 1 or more"
SIZE = "a number of bytes, or of K, M, G or T of them, such as 512M"
DURATION = "a number of seconds, or of s, m or h, such as 5m; below 0 it has no end"

Check = Callable[[object], object]
"""Gives the setting's value for what was written, or raises ValueError or TypeError."""


def _whole(least: int, most: float = math.inf) -> Check:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or int(value) != float(value):
            raise ValueError(value)
        if not least <= int(value) <= most:
            raise ValueError(value)
        return int(value)

    return check


def _number(least: float, most: float, *, above: bool = False) -> Check:
    """From least (or only above it) to most."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(value)
        try:
            found = float(value)
        except OverflowError as error:  # a whole number beyond all others
            raise ValueError(value) from error
        if not least <= found <= most or (above and found == least):
            raise ValueError(value)
        return found

    return check


def size(value: object) -> int:
    """Bytes: a number, or one with K, M, G or T (powers of 1024) after it. ValueError if it is neither."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    text = str(value).strip().upper()
    unit = _UNITS.get(text[-1:], 1)
    count = float(text if unit == 1 else text[:-1]) * unit
    if not 0 <= count < math.inf or count != int(count):
        raise ValueError(value)
    return int(count)


def _choice(*names: str) -> Check:
    return lambda value: names[names.index(value)]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _name(value: object) -> str:
    if not _text(value):
        raise ValueError(value)
    return _text(value)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return ("false", "true", "0", "1", "no", "yes", "off", "on").index(_text(value).lower()) % 2 == 1


def _names(value: object) -> tuple[str, ...]:
    """One text, or several."""
    if not isinstance(value, str | list | tuple):
        raise TypeError(value)
    return tuple(_name(item) for item in ((value,) if isinstance(value, str) else value))


def _origins(value: object) -> tuple[str, ...]:
    """Origins as a browser writes them: nothing stands behind the name and port."""
    found = _names(value)
    if not all(one in ("*", "null") or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", one) for one in found):
        raise ValueError(value)
    return found


def _listed(value: object) -> tuple[str, ...]:
    """Several texts, or one with commas between them."""
    return _names([part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value)


def duration(value: object) -> float:
    """Seconds: a number, or one with s, m or h after it; infinite if it is negative. ValueError if it is neither."""
    text = value.strip().lower() if isinstance(value, str) else value
    unit = _SECONDS.get(text[-1:]) if isinstance(text, str) else None
    seconds = _number(-math.inf, math.inf)(text[:-1] if isinstance(text, str) and unit else text)
    return math.inf if seconds < 0 else seconds * (unit or 1)  # type: ignore[operator]


def _thinking(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(_choice("on", "off", *EFFORTS)(value))


def _setting(default: Any, check: Check, expected: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"check": check, "expected": expected, "secret": secret})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting; :data:`EXPECTED` says what is expected of a value, and errors and documentation repeat it."""

    backend: str | None = _setting(None, _name, "the name of a backend plugin")
    device: str | None = _setting(None, _name, "the name of a device of the backend")
    threads: int | None = _setting(None, _whole(1, 1024), "a whole number from 1 to 1024")
    ctx_size: int | None = _setting(None, _whole(1), _TOKENS)
    kv_type: Literal["f16", "bf16", "f32"] = _setting("f16", _choice("f16", "bf16", "f32"), "f16, bf16 or f32")
    parallel: int = _setting(_SCHEDULER.parallel, _whole(1, 1024), "a whole number from 1 to 1024")
    queue: int | None = _setting(_SCHEDULER.queue, _whole(0), "a number of requests, 0 or more")
    step_tokens: int = _setting(_SCHEDULER.step_tokens, _whole(1), _TOKENS)
    chunk_tokens: int = _setting(_SCHEDULER.chunk_tokens, _whole(1), _TOKENS)
    busy_tokens: int = _setting(_SCHEDULER.busy_tokens, _whole(1), _TOKENS)
    saved_bytes: int = _setting(_SCHEDULER.saved_bytes, size, SIZE)
    saved_blocks: int = _setting(_SCHEDULER.saved_blocks, _whole(1), "a number of blocks, 1 or more")
    kv_codec: str | None = _setting(None, _name, "the name of a codec plugin")
    kv_ram: int = _setting(0, size, SIZE)
    kv_ssd: str | None = _setting(None, _name, "a folder, or DIR:SIZE with " + SIZE)
    checkpoints: str | None = _setting(None, _name, "a folder")
    checkpoint_store: str = _setting("file", _name, "the name of a checkpoint store plugin")
    max_tokens: int | None = _setting(_SAMPLING.max_tokens, _whole(1), _TOKENS)
    temp: float = _setting(_SAMPLING.temperature, _number(0, 100), "a number from 0 (always the likeliest token) to 100")
    top_k: int = _setting(_SAMPLING.top_k, _whole(0), "a whole number, 0 (off) or more")
    top_p: float = _setting(_SAMPLING.top_p, _number(0, 1, above=True), "a number above 0, at most 1 (off)")
    min_p: float = _setting(_SAMPLING.min_p, _number(0, 1), "a number from 0 (off) to 1")
    seed: int | None = _setting(_SAMPLING.seed, _whole(0, 2**63 - 1), "a whole number from 0 to 2^63-1")
    repeat_penalty: float = _setting(_SAMPLING.repeat_penalty, _number(0.01, 100), "a number from 0.01 to 100 (1 is off)")
    repeat_last_n: int = _setting(_SAMPLING.repeat_last_n, _whole(-1), "a number of tokens, -1 (all), 0 (off) or more")
    presence_penalty: float = _setting(_SAMPLING.presence_penalty, _number(-100, 100), "a number from -100 to 100, 0 is off")
    frequency_penalty: float = _setting(_SAMPLING.frequency_penalty, _number(-100, 100), "a number from -100 to 100, 0 is off")
    logprobs: int | None = _setting(_SAMPLING.logprobs, _whole(0, 20), "a number of alternatives for each token, 0 to 20")
    stop: tuple[str, ...] = _setting(_SAMPLING.stop, _names, "strings that are not empty")
    system: str | None = _setting(None, _text, "a text")
    history_ids: bool = _setting(False, _switch, "true or false")
    raw: bool = _setting(False, _switch, "true or false")
    think: str | None = _setting(None, _thinking, "on, off, minimal, low, medium, high, xhigh or max")
    offline: bool = _setting(False, _switch, "true or false")
    no_mmproj: bool = _setting(False, _switch, "true or false")
    composition_log: str | None = _setting(None, _name, "the path of a file to write")
    log_format: Literal["text", "json"] = _setting("text", _choice("text", "json"), "text or json")
    host: str = _setting("127.0.0.1", _name, "the name or address to listen on")
    port: int = _setting(8080, _whole(0, 65535), "a whole number from 0 (any free one) to 65535")
    api_key: tuple[str, ...] = _setting((), _names, "keys that are not empty", secret=True)
    api_key_file: str | None = _setting(None, _name, "a file with a key on each line, for its owner alone to read")
    cors: tuple[str, ...] = _setting((), _origins, "origins of web pages, such as https://example.org, or *")
    models_dir: str | None = _setting(None, _name, "a folder")
    max_models: int = _setting(1, _whole(1, 64), "a whole number from 1 to 64")
    keep_alive: float = _setting(300.0, duration, DURATION)
    timeout: float = _setting(3600.0, duration, DURATION)
    grace: float = _setting(10.0, duration, DURATION)
    max_body: int = _setting(32 << 20, size, SIZE)
    disable_plugins: tuple[str, ...] = _setting((), _listed, "names of plugins, as 'tensorsharp plugins' lists them")


CHECKS: Mapping[str, Check] = {f.name: f.metadata["check"] for f in fields(Settings)}
EXPECTED: Mapping[str, str] = {f.name: f.metadata["expected"] for f in fields(Settings)}
"""Name of every setting -> what a value may be, in words."""
SECRET = frozenset(f.name for f in fields(Settings) if f.metadata["secret"])
"""Settings that are not to be shown."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the source of each value: a flag, a variable, the file's path, or "default"."""

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None


def config_file() -> Path:
    """Where the file is looked for when none is named."""
    return config_folder() / "config.toml"


def config_folder() -> Path:
    """Where a person's settings are."""
    return user_config_path("tensorsharp")


def state_folder() -> Path:
    """Where TensorSharp keeps what it remembers between two runs: what was typed, saved conversations."""
    return user_state_path("tensorsharp")


def cache_folder() -> Path:
    """Where TensorSharp keeps what it can make again."""
    return user_cache_path("tensorsharp")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def resolve(
    flags: Mapping[str, object] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> Resolved:
    """Settle every setting. flags: those given by the user; None counts as not given. defaults: a command's own.

    config: the TOML file, which then must exist; else the one of TENSORSHARP_CONFIG, else :func:`config_file` if there.
    ConfigError names the file, variable or flag, the key, and what was expected.
    """
    config = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    path = config or config_file()
    layers: list[dict[str, tuple[object, str]]] = [{name: (value, "default") for name, value in defaults.items()}]
    found = config is not None or path.is_file()
    if found:
        layers.append({key: (value, str(path)) for key, value in _read(path).items()})
    variables = {name: PREFIX + name.upper() for name in EXPECTED}
    layers.append({name: (environ[v], v) for name, v in variables.items() if environ.get(v)})
    layers.append({name: (value, flag(name)) for name, value in (flags or {}).items() if value is not None})

    values: dict[str, tuple[object, str]] = {}
    for layer in layers:
        values.update(layer)
    good: dict[str, Any] = {name: checked(name, *given) for name, given in values.items()}
    sources = {name: values[name][1] if name in values else "default" for name in EXPECTED}
    return Resolved(Settings(**good), sources, path if found else None)


def checked(name: str, value: object, source: str) -> object:
    """The setting's value for what was written. source: where, for the sentence of a ConfigError."""
    if name not in CHECKS:
        raise _unknown_key(source, name)
    try:
        return CHECKS[name](value)
    except (ValueError, TypeError, OverflowError):
        where = source if source in (flag(name), PREFIX + name.upper()) else f"{source}: {name.replace('_', '-')}"
        shown = list(value) if isinstance(value, tuple) else value
        raise ConfigError(f"{where} is {shown!r}; expected {EXPECTED[name]}.") from None


def _unknown_key(source: str, name: str) -> ConfigError:
    keys = [key.replace("_", "-") for key in EXPECTED]
    hint = did_you_mean(name.replace("_", "-"), keys)
    return ConfigError(f"{source}: there is no setting '{name.replace('_', '-')}'; expected one of {', '.join(keys)}.", hint=hint)


def _read(path: Path) -> dict[str, Any]:
    """The file's keys as field names."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration file cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from error
    return {key.replace("-", "_"): value for key, value in data.items()}
