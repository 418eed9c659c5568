"""Settings, and where each one comes from: flag > environment > TOML file > default.

A setting has one name everywhere: ``--ctx-size`` on the command line, ``TENSORSHARP_CTX_SIZE`` in the environment and
``ctx-size`` in the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_cache_path, user_config_path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tensorsharp.errors import ConfigError
from tensorsharp.types import SamplingParams

PREFIX = "TENSORSHARP_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
_SAMPLING = SamplingParams()


def _one(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class Settings(BaseModel):
    """Every setting. A field's description says what is expected of a value; errors and documentation repeat it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: str | None = Field(None, min_length=1, description="the name of a backend plugin")
    device: str | None = Field(None, min_length=1, description="the name of a device of the backend")
    threads: int | None = Field(None, ge=1, le=1024, description="a whole number from 1 to 1024")
    ctx_size: int | None = Field(None, ge=1, description="a number of tokens, 1 or more")
    kv_type: Literal["f16", "bf16", "f32"] = Field("f16", description="f16, bf16 or f32")
    parallel: int = Field(1, ge=1, le=1024, description="a whole number from 1 to 1024")
    max_tokens: int | None = Field(_SAMPLING.max_tokens, ge=1, description="a number of tokens, 1 or more")
    temp: float = Field(_SAMPLING.temperature, ge=0, le=100, description="a number from 0 (always the likeliest token) to 100")
    top_k: int = Field(_SAMPLING.top_k, ge=0, description="a whole number, 0 (off) or more")
    top_p: float = Field(_SAMPLING.top_p, gt=0, le=1, description="a number above 0, at most 1 (off)")
    min_p: float = Field(_SAMPLING.min_p, ge=0, le=1, description="a number from 0 (off) to 1")
    seed: int | None = Field(_SAMPLING.seed, ge=0, lt=2**63, description="a whole number from 0 to 2^63-1")
    repeat_penalty: float = Field(_SAMPLING.repeat_penalty, gt=0, le=100, description="a number above 0 (1 is off), at most 100")
    repeat_last_n: int = Field(_SAMPLING.repeat_last_n, ge=-1, description="a number of tokens, -1 (all), 0 (off) or more")
    presence_penalty: float = Field(
        _SAMPLING.presence_penalty, ge=-100, le=100, description="a number from -100 to 100, 0 is off"
    )
    frequency_penalty: float = Field(
        _SAMPLING.frequency_penalty, ge=-100, le=100, description="a number from -100 to 100, 0 is off"
    )
    logprobs: int | None = Field(_SAMPLING.logprobs, ge=0, le=20, description="a number of alternatives for each token, 0 to 20")
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one)] = Field(
        _SAMPLING.stop, description="strings that are not empty"
    )
    system: str | None = Field(None, description="a text")
    raw: bool = Field(False, description="true or false")
    ggml_lib: str | None = Field(None, min_length=1, description="a folder with another build of ggml's libraries")
    disable_plugins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="names of plugins, as 'tensorsharp plugins' lists them"
    )


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the source of each value: a flag, a variable, the file's path, or "default"."""

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None


def config_file() -> Path:
    """Where the file is looked for when none is named."""
    return user_config_path("tensorsharp") / "config.toml"


def cache_folder() -> Path:
    """Where TensorSharp keeps what it can make again."""
    return user_cache_path("tensorsharp")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def resolve(
    flags: Mapping[str, object] | None = None, *, config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Resolved:
    """Settle every setting. flags: those given by the user; None counts as not given.

    config: the TOML file, which then must exist; else the one of TENSORSHARP_CONFIG, else :func:`config_file` if there.
    ConfigError names the file, variable or flag, the key, and what was expected.
    """
    config = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    path = config or config_file()
    layers: list[dict[str, tuple[object, str]]] = []
    found = config is not None or path.is_file()
    if found:
        layers.append({key: (value, str(path)) for key, value in _read(path).items()})
    variables = {name: PREFIX + name.upper() for name in Settings.model_fields}
    layers.append({name: (environ[v], v) for name, v in variables.items() if environ.get(v)})
    layers.append({name: (value, flag(name)) for name, value in (flags or {}).items() if value is not None})

    values: dict[str, tuple[object, str]] = {}
    for layer in layers:
        values.update(layer)
    settings = _validate(
        {name: value for name, (value, _) in values.items()}, {name: source for name, (_, source) in values.items()}
    )
    sources = {name: values[name][1] if name in values else "default" for name in Settings.model_fields}
    return Resolved(settings, sources, path if found else None)


def _validate(values: dict[str, object], sources: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        source = sources[name]
        if name not in Settings.model_fields:
            raise _unknown_key(source, name) from None
        where = source if source in (flag(name), PREFIX + name.upper()) else f"{source}: {name.replace('_', '-')}"
        expected = Settings.model_fields[name].description
        raise ConfigError(f"{where} is {values[name]!r}; expected {expected}.") from None


def _unknown_key(source: str, name: str) -> ConfigError:
    from difflib import get_close_matches

    keys = [field.replace("_", "-") for field in Settings.model_fields]
    close = get_close_matches(name.replace("_", "-"), keys, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else None
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
