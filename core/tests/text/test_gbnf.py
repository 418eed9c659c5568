"""GBNF grammars allow what they describe, also where one lexeme could take too much."""

from __future__ import annotations

import random
import re

import pytest

from tensorsharp.errors import RequestError
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.constraints import Constraints
from tensorsharp.text.gbnf import Chars, Choice, Node, Repeat, Rule, Sequence, read_gbnf
from tensorsharp.text.gbnf_lark import gbnf_to_lark
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.types import Constraint

from .tiny import MetadataFile

JSON = r"""
root  ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws   # comment with "quotes" and ::=
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def constraints() -> Constraints:
    return Constraints(load_tokenizer(MetadataFile(byte_vocabulary(300))))


def fits(grammar: Grammar, text: str) -> bool:
    matcher = grammar.start()
    for byte in text.encode():
        mask = matcher.mask()
        if mask is None or not mask[byte]:
            return False
        matcher.accept(byte)
    return matcher.accepting


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (
            JSON,
            ['{"a": [1, -2.5e3, "x\\u00e9\\n"], "é": {}}', "[]", "true", '{\n\t"k":null}'],
            ["{,}", "[1,]", '"\t"', "01", "tru"],
        ),
        ('root ::= [a-z]+ "b"', ["ab", "abb", "bb"], ["b", "a", ""]),
        ('root ::= ("ab" | "abc") "c"', ["abc", "abcc"], ["ab", "abccc"]),
        ('root ::= (a | b)\na ::= "(" [a-z]* ")"\nb ::= "(" "x" "y" "]"', ["(xy)", "(xy]", "()"], ["(xz]", "(xy"]),
        ('root ::= expr\nexpr ::= expr "+" term | term\nterm ::= [0-9]+ | "(" expr ")"', ["1+(2+34)", "7"], ["1+", "()"]),
        ('root ::= ("- " item)+\nitem ::= [^\\n]+ "\\n"', ["- one\n- zwölf – 3\n"], ["- one", "- \n"]),
        ("root ::= [ぁ-ゟァ-ヿ]+ [。、]?", ["ひらがな。", "カナ"], ["abc", "。"]),
        ("root ::= . [\\u00e9\\U0001F600\\x41] [^é]", ["x😀e", "\néé"[:2] + "e", "zAz"], ["xBe", "xAé"]),
        ('root ::= "a"{2} "b"{2,} "c"{0,2} ("d" | "e"){1,3}', ["aabbd", "aabbbbccded"], ["abbd", "aabd", "aabbcccd", "aabbdddd"]),
        ('root ::= "x"\n  | "y" |\n  "z"', ["x", "y", "z"], ["xy"]),
        ('root ::= "" | [a]\n', ["a", ""], ["aa"]),
        ('root ::= "a" (endless | "b") endless?\nendless ::= "a" endless', ["ab"], ["aa"]),
        ('root ::= move (" " move)*\nmove ::= [a-h] [1-8] ([x-]? [a-h] [1-8])?', ["e2-e4 e5", "a1xb2"], ["e9", "e2-"]),
        ('a-b_C ::= "\\"]"\nroot ::= a-b_C [\\]^-]', ['"]]', '"]^', '"]-'], ['"]a']),
    ],
    ids=lambda value: value.strip()[:30] if isinstance(value, str) else "",
)
def test_what_a_grammar_allows(constraints: Constraints, source: str, good: list[str], bad: list[str]) -> None:
    grammar = constraints.compile(Constraint("grammar", source))
    assert [fits(grammar, text) for text in good] == [True] * len(good)
    assert [fits(grammar, text) for text in bad] == [False] * len(bad)


def test_a_class_is_one_lexeme_only_where_nothing_else_begins_like_it() -> None:
    assert "]+/" in gbnf_to_lark('root ::= "<" [a-z]* ">"')
    assert "]+/" in gbnf_to_lark(JSON).partition("rule4:")[2].partition("\n")[0]
    for source in ('root ::= [a-z]* "b"', 'root ::= "<" ([a-z]* ">" | "x")', 'root ::= [é]* "è"', 'root ::= "a"{0,9} "a"'):
        assert "]+/" not in gbnf_to_lark(source)


def test_tokens_are_named_by_text_or_id(constraints: Constraints) -> None:
    grammar = constraints.compile(Constraint("grammar", 'root ::= "a" <|im_start|> !<[98]> <[99]>'))
    matcher = grammar.start()
    matcher.accept(ord("a"))
    mask = matcher.mask()
    assert mask is not None
    (only,) = mask.nonzero()[0]
    matcher.accept(int(only))
    mask = matcher.mask()
    assert mask is not None
    assert not mask[98]
    assert mask[[0, 97, 99, 272]].all()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("root = x", "line 1, column 6: expected ::="),
        ('top ::= "a"', "there is no rule 'root'"),
        ("root ::= a\n\nb ::= [x]", "line 1, column 10: there is no rule 'a'"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is there twice"),
        ('root ::= "a', 'line 1, column 12: expected "'),
        ("root ::= [a", "expected ]"),
        ("root ::= []", "the brackets hold no character"),
        ("root ::= [z-a]", "the range ends below"),
        ('root ::= "\\q"', "expected an escape"),
        ('root ::= "\\uD800"', "U+D800 is no character"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a"{3,2}', "the repetition ends below"),
        ('root ::= "a"{x}', "expected a repetition"),
        ('root ::= "a"**', "expected the end of the rule"),
        ("root ::= !<x>", "expected a token"),
        ("root ::= " + "(" * 70 + ")" * 70, "nested deeper than 64"),
        ("root ::= <nothing>", "unknown special token"),
        ('root ::= "a" root', "no text that 'root' describes has an end"),
        ("", "empty"),
    ],
)
def test_what_is_no_grammar_is_refused(constraints: Constraints, source: str, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        constraints.compile(Constraint("grammar", source))


# random grammars ------------------------------------------------------------------------------------------------------


def allows(rules: dict[str, Node], text: str) -> bool:
    """Whether a grammar describes a text, from the definition: ends of every rule at every place, until none is added."""
    ends: dict[tuple[str, int], set[int]] = {(name, at): set() for name in rules for at in range(len(text) + 1)}

    def match(node: Node, at: int) -> set[int]:
        if isinstance(node, Chars):
            return {at + 1} if at < len(text) and any(a <= ord(text[at]) <= z for a, z in node.ranges) else set()
        if isinstance(node, Rule):
            return ends[node.name, at]
        if isinstance(node, Choice):
            return {end for option in node.options for end in match(option, at)}
        if isinstance(node, Sequence):
            here = {at}
            for item in node.items:
                here = {end for start in here for end in match(item, start)}
            return here
        assert isinstance(node, Repeat)
        found, here = ({at} if node.least == 0 else set()), {at}
        for count in range(1, min(node.most or 99, len(text) + node.least) + 1):
            here = {end for start in here for end in match(node.item, start)}
            found |= here if count >= node.least else set()
        return found

    while True:
        more = {key: match(rules[key[0]], key[1]) for key in ends}
        if more == ends:
            return len(text) in ends["root", 0]
        ends = more


SHORT = [a + b + c for a in "abcéè" for b in ("", *"abcéè") for c in ("", *"abcéè")]


def random_grammar(rng: random.Random) -> str:
    def part(depth: int) -> str:
        kind = rng.randrange(10 if depth else 5)
        if kind < 2:
            return '"' + "".join(rng.choice("abé") for _ in range(rng.randint(1, 3))) + '"'
        if kind < 5:
            chars = rng.choice(["[ab]", "[a-c]", "[^a]", "[éè]", "[^b-z]", ".", "[c]"])
            return chars + rng.choice(["", "*", "+", "?", "{2}", "{0,2}", "{1,}"])
        if kind < 7:
            return rng.choice(["one", "two"]) + rng.choice(["", "*", "?"])
        inside = f" {rng.choice('||  ')} ".join(part(depth - 1) for _ in range(rng.randint(1, 3)))
        return f"({inside}){rng.choice(['', '*', '+', '?'])}"

    bodies = [" ".join(part(2) for _ in range(rng.randint(1, 3))) for _ in range(3)]
    return "root ::= {}\none ::= {}\ntwo ::= {}".format(*bodies)


def check_random(constraints: Constraints, count: int) -> tuple[int, int]:
    """How many texts were compared, and how many of them fit."""
    rng, compared, fitting = random.Random(3), 0, 0
    for _ in range(count):
        source = random_grammar(rng)
        try:
            rules = read_gbnf(source)
        except RequestError as error:
            if "has an end" in str(error):
                continue
            raise
        if not any(allows(rules, text) for text in SHORT):
            continue  # it may allow nothing but the empty text, which is refused
        grammar = constraints.compile(Constraint("grammar", source))
        for _ in range(25):
            text = "".join(rng.choice("aabbcéè") for _ in range(rng.randrange(7)))
            truth = allows(rules, text)
            assert fits(grammar, text) == truth, (source, text)
            compared, fitting = compared + 1, fitting + truth
    return compared, fitting


def test_random_grammars_allow_what_they_describe(constraints: Constraints) -> None:
    compared, fitting = check_random(constraints, 60)
    assert compared > 1000
    assert 0.1 < fitting / compared < 0.9


@pytest.mark.heavy
def test_a_thousand_random_grammars_allow_what_they_describe(constraints: Constraints) -> None:
    check_random(constraints, 1000)
