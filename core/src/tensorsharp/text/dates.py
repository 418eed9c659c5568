"""Dates and times of RFC 3339 as regular expressions: what the formats `date`, `time` and `date-time` of JSON schema let through.

llguidance's own forms of them know no leap years, and have the year 0 and the second 60 on every minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_YEAR: Final = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = f"{_CLOCK}:[0-5][0-9](\\.[0-9]+)?(Z|[+-]{_CLOCK})"

PATTERNS: Final[Mapping[str, str]] = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Format -> the whole of such a text. Seconds are 00 to 59: a leap second is one only on a day that nobody can know."""
