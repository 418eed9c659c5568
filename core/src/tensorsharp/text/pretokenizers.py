"""How byte-level BPE cuts a text into words before it merges: one recipe for each name that `tokenizer.ggml.pre` knows.

A recipe is a list of stages. Each cuts every piece that the stages before left into the matches of its expression and
what lies between them; look-ahead ends where the piece ends. The expressions are those of the models' own
`tokenizer.json`, with the changes that llama.cpp made to them (src/llama-vocab.cpp, src/unicode.cpp), because its
token ids are the reference: for example it knows no upper and lower case outside ASCII.

Most stages see the *folded* text (:mod:`tensorsharp.text.unicode_classes`), in which one character class of a few
letters covers a Unicode category, so Python's `re` needs no Unicode tables and splits by 15.1 under every version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

from tensorsharp.text import unicode_classes

Fold = Literal["kinds", "han", "spaces"]
Cutter = Callable[[str, int, int], Iterable[tuple[int, int]]]
"""(subject, start, end) -> spans of matches, ascending, within start .. end."""

_FOLDS: Final[dict[Fold, Callable[[str], str]]] = {
    "kinds": unicode_classes.fold,
    "han": unicode_classes.fold_han,
    "spaces": unicode_classes.fold_spaces,
}

# Members of a character class, over folded text.
_S: Final = r"\t-\r "
_HAN: Final = unicode_classes.HAN + unicode_classes.HAN_OTHER
_L: Final = "A-Za-z" + unicode_classes.LETTER
_N: Final = "0-9" + unicode_classes.NUMBER
_M: Final = unicode_classes.MARK
_P: Final = r"!-#%-*,-/:;?@\[-\]_{}" + unicode_classes.PUNCTUATION
_Y: Final = r"$+<=>\^`|~" + unicode_classes.SYMBOL
_UPPER: Final = "A-Z" + unicode_classes.LETTER
_LOWER: Final = "a-z" + unicode_classes.LETTER
_ASCII_PUNCTUATION: Final = r"!-/:-@\[-`{-~"

_CONTRACTION: Final = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_BLANKS: Final = rf"[{_S}]+(?![^{_S}])|[{_S}]+"
_LINES_AND_BLANKS: Final = rf"[{_S}]*[\r\n]+|{_BLANKS}"
_OTHERS: Final = rf" ?[^{_S}{_L}{_N}]+"
_WORD: Final = rf"[^\r\n{_L}{_N}]?[{_L}]+"


@dataclass(frozen=True)
class Stage:
    """One cut. pattern: over the text folded as `fold` says. cutter: instead of it, where `re` would take quadratic time."""

    pattern: str
    fold: Fold = "kinds"
    cutter: Cutter | None = None

    @cached_property
    def find(self) -> Cutter:
        if self.cutter is not None:
            return self.cutter
        expression = re.compile(self.pattern)
        return lambda subject, start, end: (match.span() for match in expression.finditer(subject, start, end))


def _digit_groups(subject: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Numbers in groups of three counted from the right; the first group keeps what stands before the number."""
    begin = start
    for run in re.compile(f"[{_N}]+").finditer(subject, start, end):
        first = run.start() + ((run.end() - run.start()) % 3 or 3)
        yield begin, first
        for begin in range(first, run.end(), 3):
            yield begin, begin + 3
        begin = run.end()


def _threes(subject: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Empty spans that cut ASCII numbers into groups of three counted from the right."""
    for run in re.compile("[0-9]+").finditer(subject, start, end):
        for begin in range(run.start() + (run.end() - run.start()) % 3, run.end(), 3):
            yield begin, begin


def _llama3(numbers: str, word: str = _WORD, others: str = _OTHERS + r"[\r\n]*", blanks: str = _LINES_AND_BLANKS) -> Stage:
    return Stage(f"{_CONTRACTION}|{word}|{numbers}|{others}|{blanks}")


def _cased(marks: str, numbers: str, ending: str) -> Stage:
    """Words with their capitals in front, as GPT-4o has them."""
    upper, lower = f"{_UPPER}{marks}", f"{_LOWER}{marks}"
    lead = rf"[^\r\n{_L}{_N}]?"
    words = f"{lead}[{upper}]*[{lower}]+{ending}|{lead}[{upper}]+[{lower}]*{ending}"
    return Stage(rf"{words}|{numbers}|{_OTHERS}[\r\n/]*|{_LINES_AND_BLANKS}")


def _any_case(numbers: str) -> Stage:
    """The same where llama.cpp reads every letter as of both cases."""
    lead = rf"[^\r\n{_L}{_N}]?"
    words = f"{lead}[{_L}{_M}]+(?:{_CONTRACTION})?"
    return Stage(rf"{words}|{numbers}|{_OTHERS}[\r\n/]*|{_LINES_AND_BLANKS}")


_GPT2: Final = Stage(rf"'(?:[stmd]|re|ve|ll)| ?[{_L}]+| ?[{_N}]+|{_OTHERS}|{_BLANKS}")
_LLAMA3: Final = _llama3(f"[{_N}]{{1,3}}")
_QWEN2: Final = _llama3(f"[{_N}]")
_LINE_RUNS: Final = Stage(r"[^\n]+|\n+", "spaces")
_ONE_NUMBER: Final = Stage(f"[{_N}]")
_THREE_NUMBERS: Final = Stage(f"[{_N}]{{1,3}}")
_THREE_DIGITS: Final = Stage("[0-9][0-9][0-9]", "spaces")
_GROUPED_NUMBERS: Final = Stage("", cutter=_digit_groups)
_CJK: Final = Stage(r"[\u4e00-\u9fa5\u3040-\u30ff]+", "spaces")
_DEEPSEEK_HEAD: Final = rf"[{_ASCII_PUNCTUATION}][A-Za-z]+|[^\r\n{_L}{_P}{_Y}]?[{_L}{_M}]+| ?[{_P}{_Y}]+"
_DEEPSEEK_MAIN: Final = Stage(rf"{_DEEPSEEK_HEAD}[\r\n]*|{_LINES_AND_BLANKS}")
_BLOOM: Final = Stage(rf" ?[^({_S}|.,!?…。，、।۔،)]+", "spaces")
_CJK_AND_HANGUL: Final = Stage(r"[\u0800-\u9fa5\uac00-\ud7ff]+", "spaces")
# The cased letters that DeepSeek LLM's tokenizer.json lists one by one.
_DEEPSEEK_LETTERS: Final = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    r"\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    r"\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    r"\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    r"\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    r"\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    r"\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    r"\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_YOUTU_SCRIPTS: Final = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    r"|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u30ff]+"
)
_AFMOE_SCRIPTS: Final = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    r"\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


@dataclass(frozen=True)
class Pretokenizer:
    """A recipe, and what llama.cpp ties to its name.

    ignore_merges: a word that is in the vocabulary as a whole is taken without merging. add_bos: the default where the
    file does not say. raw: pieces are UTF-8 with U+2581 for spaces, as in SentencePiece, not byte-level letters.
    newline_runs: a run of newlines that is in the vocabulary is taken whole.
    """

    stages: tuple[Stage, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    raw: bool = False
    newline_runs: bool = False

    def split(self, text: str) -> list[str]:
        """The words of `text`; joined they are the text."""
        subjects: dict[Fold, str] = {}
        cuts = [0, len(text)] if text else [0]
        for stage in self.stages:
            subject = subjects.get(stage.fold)
            if subject is None:
                subject = subjects[stage.fold] = _FOLDS[stage.fold](text)
            cuts = _cut(stage.find, subject, cuts)
        return [text[start:end] for start, end in pairwise(cuts)]


def _cut(find: Cutter, subject: str, cuts: list[int]) -> list[int]:
    finer = [0]
    last = 0
    for start, end in pairwise(cuts):
        for begin, stop in find(subject, start, end):
            if begin > last:
                finer.append(begin)
            if stop > begin:
                finer.append(stop)
            last = stop
        if end > last:
            finer.append(end)
            last = end
    return finer


_RECIPES: Final[tuple[tuple[str, Pretokenizer], ...]] = (
    (
        "default",
        Pretokenizer((Stage(rf"[{_P}$+<=>\^~|]+"), _GPT2, Stage(f"[{_N}]+"), _THREE_DIGITS)),
    ),
    (
        (
            "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum"
            " modern-bert mpt olmo jais trillion granite-docling exaone4"
        ),
        Pretokenizer((_GPT2,)),
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", Pretokenizer((_ONE_NUMBER, _GPT2))),
    ("falcon", Pretokenizer((Stage(rf"[{_P}$+<=>\^~|`]+"), _GPT2, _THREE_DIGITS))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Pretokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", Pretokenizer((_LLAMA3,))),
    ("glm4 glm5", Pretokenizer((_LLAMA3,), ignore_merges=True)),
    (
        "jais-2",
        Pretokenizer(
            (
                _llama3(
                    f"[{_N}]{{1,3}}",
                    blanks=rf"[{_S}]*[\r\n]+|"
                    + "|".join(rf"[{_S}]{{{n}}}(?![^{_S}])" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
                    + f"|[{_S}]",
                ),
            )
        ),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        Pretokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        Pretokenizer(
            (
                _llama3(
                    f"[{_N}]",
                    word=rf"[^\r\n{_L}{_N}]?[{_L}{_M}]+",
                    others=rf" ?[^{_S}{_L}{_M}{_N}]+[\r\n]*",
                ),
            )
        ),
    ),
    ("laguna", Pretokenizer((_LINE_RUNS, _QWEN2))),
    (
        "ufakzeka",
        Pretokenizer((Stage(rf"{_WORD}|[{_N}]|{_OTHERS}[\r\n]*|{_LINES_AND_BLANKS}"),)),
    ),
    ("seed-coder", Pretokenizer((_llama3(f"[{_N}]", others=rf" ?[^{_S}{_L}{_N}\r\n]+"),))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Pretokenizer((_llama3(f"[{_N}]", blanks=rf"[{_S}]*[\r\n]|{_BLANKS}"),)),
    ),
    (
        "exaone-moe",
        Pretokenizer(
            (
                _llama3(
                    f"[{_N}]",
                    word=rf"[^\r\n{_L}{_N}]?(?:[{_L}][{_M}]*(?: [{_L}][{_M}]*)*)+",
                    others=_OTHERS + r"[\r\n/]?",
                    blanks=rf"[{_S}]*[\r\n]|{_BLANKS}",
                ),
            )
        ),
    ),
    ("minicpm5", Pretokenizer((_THREE_NUMBERS, _llama3(f"[{_N}]+")), ignore_merges=True)),
    ("tekken", Pretokenizer((_cased("", f"[{_N}]", ""),), ignore_merges=True, add_bos=True)),
    (
        "gpt-4o o200k llama4 kanana2 talkie minimax-m2",
        Pretokenizer((_cased("", f"[{_N}]{{1,3}}", f"(?:{_CONTRACTION})?"),)),
    ),
    (
        "granite-embed-multi-97m",
        Pretokenizer((_cased(_M, f"[{_N}]{{1,3}}", f"(?:{_CONTRACTION})?"),), ignore_merges=True),
    ),
    ("tiny_aya cohere2moe", Pretokenizer((_GROUPED_NUMBERS, _any_case(f"[{_N}]{{1,3}}")))),
    ("youtu", Pretokenizer((Stage(_YOUTU_SCRIPTS, "spaces"), _any_case(f"[{_N}]")), ignore_merges=True)),
    (
        "kimi-k2",
        Pretokenizer(
            (
                Stage(
                    rf"[{_HAN}]+|[^\r\n{_L}{_N}{unicode_classes.HAN}]?[{_L}]+(?:{_CONTRACTION})?|[{_N}]{{1,3}}"
                    rf"| ?[^{_S}{_L}{_N}{unicode_classes.HAN}]+[\r\n]*|{_LINES_AND_BLANKS}",
                    "han",
                ),
            )
        ),
    ),
    (
        "deepseek-llm",
        Pretokenizer(
            (
                Stage(r"[\r\n]"),
                Stage(rf"[{_S}]?[{_DEEPSEEK_LETTERS}]+", "spaces"),
                Stage(rf"[{_S}]?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "spaces"),
                Stage(rf"[{_S}]+\Z"),
                _CJK_AND_HANGUL,
                Stage(f"[{_N}]+"),
            )
        ),
    ),
    (
        "deepseek-coder",
        Pretokenizer((Stage(r"[\r\n]"), Stage(rf"[{_S}]?[{_L}]+"), Stage(rf"[{_S}]?[{_P}]+"), _CJK_AND_HANGUL, _ONE_NUMBER)),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Pretokenizer((_THREE_NUMBERS, _CJK, _DEEPSEEK_MAIN))),
    (
        "spark2_5",
        Pretokenizer((_THREE_NUMBERS, _CJK, Stage(rf"{_DEEPSEEK_HEAD}|[\r\n]|{_BLANKS}"), _ONE_NUMBER)),
    ),
    ("superbpe", Pretokenizer((Stage(f"[{_N}]+"), Stage("", "spaces", _threes)))),
    ("afmoe", Pretokenizer((_GROUPED_NUMBERS, Stage(_AFMOE_SCRIPTS, "spaces"), _DEEPSEEK_MAIN))),
    ("bloom poro-chat gpt3-finnish", Pretokenizer((_BLOOM,))),
    ("viking", Pretokenizer((_BLOOM, _ONE_NUMBER))),
    (
        "chameleon",
        Pretokenizer(
            (
                Stage("<sentinel:[0-9]+>", "spaces"),
                Stage("IMGIMG[A-I]{1,4}Z", "spaces"),
                Stage(r"[\t\n]|    |  ", "spaces"),
                _ONE_NUMBER,
                Stage(rf"[{_P}{_ASCII_PUNCTUATION}]"),
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", Pretokenizer((_LINE_RUNS,), add_bos=True, raw=True, newline_runs=True)),
    ("sarvam-moe", Pretokenizer((_LINE_RUNS,), raw=True)),
)

PRETOKENIZERS: Final = {name: recipe for names, recipe in _RECIPES for name in names.split()}
"""Name in `tokenizer.ggml.pre` -> recipe."""


def pretokenizer(name: str | None, where: str) -> Pretokenizer:
    """The recipe of that name. An unknown or missing one is reported once a file and gets `default`."""
    found = PRETOKENIZERS.get(name) if name else None
    if found is None:
        what = f"'tokenizer.ggml.pre' is {name!r}, which is not known" if name else "'tokenizer.ggml.pre' is missing"
        logging.getLogger("tensorsharp.text").warning(
            "%s: %s; using 'default', so the model may see other token ids than it was trained with.", where, what
        )
        return PRETOKENIZERS["default"]
    return found
