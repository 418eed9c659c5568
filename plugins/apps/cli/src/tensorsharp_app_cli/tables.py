"""Facts for people: sizes, lines that a terminal can take, columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Bytes for people: 98.5 MiB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{count} B"


def printable(text: str) -> str:
    """A foreign text on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Lines in columns as wide as their widest cell; `right`: columns of numbers."""
    lines = [header, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    for row in lines:
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()
