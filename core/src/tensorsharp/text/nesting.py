"""How deep a compiler may have to go that follows every reference: llguidance 1.9 does it by calling itself, and ends the process
where its thread's stack ends. In 8 MB go 2,500 rules, or 1,000 references between schemas, one behind another.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from tensorsharp.errors import RequestError

MAX_LEVELS: Final = 1000
"""Most rules with their groups, and most levels of what the references of a schema lead to."""
_TEXTS: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*')
"""What may hold the signs of the notation without their meaning: texts, patterns, comments."""
_LEVELS: Final = re.compile(r"^[ \t]*[?!]?\w+(?=[^:\n]*:)|[(\[{]", re.MULTILINE)
_REFERENCES: Final = re.compile(r"\$ref|\\u00", re.IGNORECASE)
"""Of schemas within a grammar; their letters may be written as escapes."""


def check_lark(source: str) -> None:
    """RequestError for a grammar in Lark that may go too deep."""
    levels = len(_LEVELS.findall(_TEXTS.sub("", source))) + len(_REFERENCES.findall(source))
    if levels > MAX_LEVELS:
        refuse_levels("grammar", f"{levels:,} rules and groups", "invalid_grammar")


def refuse_levels(what: str, found: str, code: str) -> NoReturn:
    raise RequestError(f"The {what} has {found}; expected at most {MAX_LEVELS:,}.", param="constraint", code=code)
