"""What to install for a name that nobody here serves: the table ``known.toml``, generated from this repository's plugins."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources


@cache
def table() -> dict[str, dict[str, str]]:
    """Kind -> entry-point name -> distribution."""
    text = resources.files("tensorsharp").joinpath("known.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def names(kind: str) -> frozenset[str]:
    """Names of that kind that some distribution is known to provide."""
    return frozenset(table().get(kind, ()))


def distribution(kind: str, name: str) -> str | None:
    """The distribution that provides `name`, or None."""
    return table().get(kind, {}).get(name)
