"""The token ids that llama.cpp gives for the test texts under tiny vocabularies of every kind.

`python -m core.tests.text.goldens` from the repository's root asks it again and rewrites goldens.json; that needs
`xllamacpp` and `gguf`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorsharp.text.pretokenizers import PRETOKENIZERS

from .corpus import TEXTS
from .llamacpp import LlamaCppTokenizer
from .tiny import byte_level, marked, write_gguf

PATH = Path(__file__).with_name("goldens.json")
PLAIN = tuple(re.sub("[\ud800-\udfff]", "\ufffd", text) for text in TEXTS)
SPECIAL = (
    "<USER>",
    "a<USER> b",
    "<CONTROL>x",
    " <BOS> <EOS> ",
    "<USER><USER>\n",
    "<CONTROL>  <USER>  a",
    "x<unk>y",
    "<US<USER>ER>",
    "<s> a</s> b<|end|> \n <|endoftext|> \n c",
)
OURS_ALONE = frozenset({"o200k"})
"""Names that llama.cpp does not know."""


def vocabularies() -> dict[str, dict[str, Any]]:
    """Name of a case -> metadata of its tokenizer."""
    cases = {pre: byte_level(PLAIN, pre) for pre, recipe in PRETOKENIZERS.items() if not recipe.raw and pre not in OURS_ALONE}
    cases["llama"] = marked(PLAIN, "llama")
    cases["llama, no space in front"] = marked(PLAIN, "llama", **{"tokenizer.ggml.add_space_prefix": False})
    cases["llama, end of text"] = marked(
        PLAIN, "llama", **{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    )
    cases["gemma4"] = marked(PLAIN, "gemma4")
    cases["sarvam-moe"] = marked(PLAIN, "gpt2", **{"tokenizer.ggml.pre": "sarvam-moe"})
    phi3: dict[str, Any] = {"general.name": "Phi-3 mini", "tokenizer.ggml.add_space_prefix": False}
    cases["phi-3"] = marked(PLAIN, "llama", "<s>", "</s>", "<|endoftext|>", "<|end|>", **phi3)
    return cases


def questions() -> Iterator[tuple[str, bool]]:
    """Texts, and whether control tokens in them are read."""
    for text in PLAIN:
        yield text, False
    for text in SPECIAL:
        yield text, True
        yield text, False


Encode = Callable[[str, bool], list[int]]


def ask(encode: Encode) -> list[list[int]]:
    """One tokenizer's ids for all questions."""
    return [encode(text, special) for text, special in questions()]


def ask_llamacpp(metadata: Mapping[str, Any]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = LlamaCppTokenizer(write_gguf(Path(folder) / "tiny.gguf", metadata))
        try:
            return ask(lambda text, special: tokenizer.encode(text.encode(), special=special))
        finally:
            tokenizer.close()


def load() -> dict[str, list[list[int]]]:
    """Case -> llama.cpp's ids for each question."""
    stored = json.loads(PATH.read_text("ascii"))
    answers: dict[str, list[list[int]]] = {name: [] for cases in stored["kinds"] for name in cases}
    for variants in stored["answers"]:
        for kinds, ids in variants:
            for kind in kinds:
                for name in stored["kinds"][kind]:
                    answers[name].append(ids)
    return answers


def store(answers: Mapping[str, list[list[int]]]) -> None:
    """Cases that agree on everything are one kind; kinds that agree on a question share its ids; a line a question."""
    kinds: dict[str, list[str]] = {}
    for name, ids in answers.items():
        kinds.setdefault(json.dumps(ids), []).append(name)
    lines = []
    for question in range(len(list(questions()))):
        variants: dict[str, list[int]] = {}
        for kind, names in enumerate(kinds.values()):
            variants.setdefault(json.dumps(answers[names[0]][question], separators=(",", ":")), []).append(kind)
        lines.append(",".join(f"[{json.dumps(found, separators=(',', ':'))},{ids}]" for ids, found in variants.items()))
    head = json.dumps(list(kinds.values()))
    PATH.write_text('{"kinds":' + head + ',\n"answers":[\n' + ",\n".join(f"[{line}]" for line in lines) + "\n]}\n", "ascii")


def record() -> None:
    """Ask llama.cpp everything and write its answers."""
    store({name: ask_llamacpp(metadata) for name, metadata in vocabularies().items()})


if __name__ == "__main__":
    record()
