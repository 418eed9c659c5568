"""Dates and times that a schema lets through are those of the calendar."""

from __future__ import annotations

import re
from datetime import date, time

import pytest

from tensorsharp.text.dates import PATTERNS

YEARS = (0, 1, 4, 9, 10, 96, 100, 400, 1000, 1900, 1999, 2000, 2023, 2024, 2100, 2400, 4000, 9999)


def fits(format: str, text: str) -> bool:
    return re.fullmatch(PATTERNS[format], text) is not None


@pytest.mark.parametrize("year", YEARS)
def test_a_date_is_one_of_the_calendar(year: int) -> None:
    texts = [f"{year:04}-{month:02}-{day:02}" for month in range(14) for day in range(33)]
    assert [text for text in texts if fits("date", text)] == [text for text in texts if is_date(text)]


def is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def test_a_time_of_the_day_has_a_place_on_earth() -> None:
    for text in ("00:00:00Z", "23:59:59.25+23:59", "08:05:00-01:30"):
        assert fits("time", text)
        assert fits("date-time", f"2024-02-29T{text}")
        assert time.fromisoformat(text).tzinfo is not None
    for text in ("24:00:00Z", "00:60:00Z", "00:00:60Z", "00:00:00", "00:00Z", "00:00:00.Z", "00:00:00+24:00", "00:00:00+1:00"):
        assert not fits("time", text)
        assert not fits("date-time", f"2024-02-29T{text}")
    assert not fits("date-time", "2023-02-29T00:00:00Z")
