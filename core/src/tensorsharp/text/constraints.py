"""From what a caller asks of a reply to a grammar that the engine can follow."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final, NoReturn

from tensorsharp.errors import RequestError
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.gate import Gate
from tensorsharp.text.gbnf_lark import gbnf_to_lark
from tensorsharp.text.masks import GuidedGrammar, TokenTrie, quoted, regular
from tensorsharp.text.nesting import check_lark
from tensorsharp.text.schemas import Schema, children, read_schema, remainders
from tensorsharp.types import Constraint

MAX_SOURCE: Final = 1 << 18
"""Most characters of a constraint: compiling takes time and memory in proportion."""
_KEPT: Final = 64
_KEPT_WEIGHT: Final = 1 << 17
"""A character of a constraint becomes 30 to 300 bytes, 800 at most; so does a remainder of a step."""
GAP: Final = r"/\n{1,2}/? "
"""Between the end of reasoning and the reply many models write empty lines; they are no part of the content."""
JSON_KINDS: Final = ("json_object", "json_schema")
TEXT_KINDS: Final = ("regex", "choice")
_TRIES: Final = 100
"""Most parts of a refused schema that are tried alone, to find the one at fault."""
_OPTIONS: Final = re.compile(r"^\s*[a-z_]\w*\[[^\]\n]*\b(max_tokens|stop|stop_capture|temperature)\b", re.MULTILINE)
_SCHEMA: Final = re.compile(r"%json\s*")
"""What a schema within a grammar stands directly behind."""
_READER: Final = json.JSONDecoder(parse_int=float)  # which takes any number of digits
_PREFIX: Final = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
WHITESPACE: Final = r" |\n[ \t]{0,20}"
"""What may stand once wherever JSON allows white space between two of its tokens: a space, or a line break and an indent."""


class Constraints:
    """Compiles constraints for one tokenizer and keeps the latest. Thread-safe; each call works on its caller's thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._trie: TokenTrie | None = None
        self._kept: OrderedDict[Constraint, tuple[Grammar, int]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Grammar:
        """RequestError, which says what is wrong and where, for a constraint that cannot be followed to the letter."""
        if not isinstance(constraint, Constraint):
            _refuse(f"constraint is {constraint!r:.100}; expected a Constraint.")
        with self._lock:
            if constraint in self._kept:
                self._kept.move_to_end(constraint)
                return self._kept[constraint][0]
            trie = self._ready()
        grammar, weight = self._compile(constraint, trie), _weight(constraint)
        with self._lock:
            self._kept[constraint] = grammar, weight
            while len(self._kept) > 1 and (len(self._kept) > _KEPT or sum(w for _, w in self._kept.values()) > _KEPT_WEIGHT):
                self._kept.popitem(last=False)
        return grammar

    def prepare(self) -> None:
        """Read the vocabulary, as the first constraint does otherwise. UnsupportedError: see :class:`TokenTrie`."""
        with self._lock:
            self._ready()

    def _ready(self) -> TokenTrie:
        if self._trie is None:
            self._trie = TokenTrie(self._tokenizer)
        return self._trie

    def _compile(self, constraint: Constraint, trie: TokenTrie) -> Grammar:
        grammar = compile_constraint(constraint, trie)
        return Gate(grammar, trie, constraint.after, constraint.opening) if constraint.after else grammar


def compile_constraint(constraint: Constraint, trie: TokenTrie) -> GuidedGrammar:
    """The grammar of what stands behind `after`. RequestError for a constraint that cannot be followed to the letter."""
    kind, source = constraint.kind, constraint.source
    if len(source) > MAX_SOURCE:
        _refuse(f"The constraint has {len(source):,} characters; expected at most {MAX_SOURCE:,}.")
    if not source and kind != "json_object":
        _refuse(f"The {kind} is empty; expected its text.")
    gap = GAP if constraint.after else ""
    if kind in JSON_KINDS:
        return _compile_schema(schema_of(constraint), gap, trie)
    if kind in TEXT_KINDS:
        return trie.compile(f"start: {gap}TEXT\nTEXT: {terminal_of(constraint)}")
    if kind == "grammar":
        source = gbnf_to_lark(source)
    else:
        _refuse_options(source)
        remainders(_schemas(source))
    check_lark(source)
    return trie.compile(source)


def _weight(constraint: Constraint) -> int:
    """What a compiled constraint takes of memory, in characters."""
    schemas = _schemas(constraint.source) if constraint.kind == "lark" else []
    if constraint.kind == "json_schema":
        schemas = [schema_of(constraint)]
    return len(constraint.source) + remainders(schemas)


def _schemas(lark: str) -> list[Any]:
    """The schemas within a grammar; what is no JSON is none, in a text or a comment."""
    found = []
    for word in _SCHEMA.finditer(lark):
        with suppress(ValueError, RecursionError):
            found.append(_READER.raw_decode(lark, word.end())[0])
    return found


def schema_of(constraint: Constraint) -> Schema:
    """What a reply of one of `JSON_KINDS` fits. RequestError: see :func:`~tensorsharp.text.schemas.read_schema`."""
    return read_schema(constraint.source) if constraint.kind == "json_schema" else {"type": "object"}


def terminal_of(constraint: Constraint) -> str:
    """A constraint of one of `TEXT_KINDS` as the body of a terminal of a Lark grammar."""
    if constraint.kind == "regex":
        return regular(constraint.source)
    return " | ".join(map(quoted, _choices(constraint.source)))


def _compile_schema(schema: Schema, gap: str, trie: TokenTrie) -> GuidedGrammar:
    try:
        return trie.compile(f"start: {gap}{json_rule(schema)}")
    except RequestError:
        path, complaint = _locate(schema, trie)
        if not complaint:
            raise
        hint = None
        if complaint.startswith("oneOf"):
            complaint, hint = "oneOf is supported only where it is certain that no value fits two alternatives", "Use anyOf."
        raise RequestError(f"{path}: {complaint}.", param="constraint", code="unsupported_schema", hint=hint) from None


def _locate(schema: Schema, trie: TokenTrie) -> tuple[str, str]:
    """The innermost schema that is refused for what the whole one is, as a path, and the words."""
    shared: dict[str, Any] = {}
    if isinstance(schema, dict):
        shared |= {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    complaint, path, tries = _complaint(schema, trie), "#", _TRIES
    inside = list(children(schema))
    while inside and tries:
        place, child = inside.pop(0)
        tries -= 1
        if _complaint({**child, **shared} if isinstance(child, dict) else child, trie) == complaint:
            path, inside = f"{path}/{place}", list(children(child))
    return path, complaint


def _complaint(schema: Schema, trie: TokenTrie) -> str:
    return _PREFIX.sub("", trie.refusal(f"start: {json_rule(schema)}"))


def json_rule(schema: Schema) -> str:
    """A schema that `read_schema` or `check_schema` let through as part of a Lark grammar, with white space bounded."""
    whole: dict[str, Any] = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    if isinstance(schema, dict):
        whole |= schema
    return f"%json {json.dumps(whole)}"


def _refuse_options(lark: str) -> None:
    """What a rule may ask of llguidance that cannot be rolled back, or that sampling would have to know of."""
    for found in _OPTIONS.finditer(lark):
        line = lark.count("\n", 0, found.start()) + 1
        _refuse(f"The grammar is refused: line {line}: the option '{found[1]}' of a rule is not supported.")


def _choices(source: str) -> list[str]:
    try:
        texts = json.loads(source)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        _refuse(f"The choices are {source!r:.100}; expected a JSON list of strings, none of them empty.")
    return texts


def _refuse(message: str) -> NoReturn:
    raise RequestError(message, param="constraint", code="invalid_value")
