"""Which tokens open a text, end it or end a reply: what the file says, and what llama.cpp reads out of the texts.

Files name their end tokens incompletely, so well-known texts count too, in the same order and with the same exceptions
as in llama.cpp's src/llama-vocab.cpp (`special_eog_ids`). Differences, both where a file says nothing: a byte-level
vocabulary without `bos_token_id` or `eos_token_id` has none (llama.cpp assumes token 11, for GPT-2 a comma), and of
several texts for the same role the lowest id counts (llama.cpp takes the one its hash table lists first).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorsharp.text.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary

END_TEXTS: Final = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
]
EOM_TEXTS: Final = ("<|eom_id|>",)
FILL_TEXTS: Final = {
    "fim_pre": [
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    "fim_suf": [
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    "fim_mid": [
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
    "fim_pad": ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    "fim_rep": ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    "fim_sep": ["<|file_sep|>"],
}
"""Fill-in-the-middle role -> its known texts."""
OLD_FILL_KEYS: Final = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
_ENDING_FILLS: Final = ("fim_pad", "fim_rep", "fim_sep")
_ALWAYS_SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class Roles:
    """Ids, or None where the vocabulary has no such token."""

    bos: int | None
    eos: int | None
    unknown: int | None
    end_tokens: frozenset[int]


def read_roles(vocabulary: Vocabulary, metadata: Mapping[str, Any], defaults: Mapping[str, int]) -> Roles:
    """Roles of the tokens. Corrects `vocabulary.flags` where a well-known token has the wrong kind.

    defaults: role (bos, eos, unknown) -> id where the file says nothing.
    """
    reader = _Reader(vocabulary, metadata)
    bos, eos, unknown = (reader.declared(role, defaults.get(role)) for role in ("bos", "eos", "unknown"))
    ends = {token for role in ("eot", "eom") if (token := reader.declared(role, None)) is not None}
    if reader.declared("eom", None) is None:
        ends |= reader.control_tokens(EOM_TEXTS)
    for role, texts in FILL_TEXTS.items():
        token = reader.declared(role, None)
        if token is None:
            found = reader.control_tokens(texts, only_first=True)
            token = next(iter(found), None)
        if token is not None and role in _ENDING_FILLS:
            ends.add(token)
    ends |= reader.control_tokens(END_TEXTS)
    for text in _ALWAYS_SHOWN:
        reader.set_flag(text, USER_DEFINED)
    if eos is not None:
        ends.add(eos)
    reader.except_harmony(ends)
    reader.except_plain_end(ends)
    return Roles(bos, eos, unknown, frozenset(ends))


class _Reader:
    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self.vocabulary = vocabulary
        self.metadata = metadata

    def find(self, text: str) -> int | None:
        return self.vocabulary.ids.get(text.encode())

    def declared(self, role: str, default: int | None) -> int | None:
        """The id under the role's metadata key; an impossible one is reported and counts as absent."""
        if default is not None and default >= self.vocabulary.size:
            default = None
        for name in (OLD_FILL_KEYS.get(role), role):
            key = f"tokenizer.ggml.{name}_token_id"
            token = self.metadata.get(key) if name else None
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocabulary.size:
                logging.getLogger("tensorsharp.text").warning(
                    "%s: '%s' is %r; expected a token id below %d, so it is ignored.",
                    self.vocabulary.path,
                    key,
                    token,
                    self.vocabulary.size,
                )
                continue
            return int(token)
        return default

    def control_tokens(self, texts: list[str] | tuple[str, ...], *, only_first: bool = False) -> set[int]:
        found = sorted(token for text in texts if (token := self.find(text)) is not None)
        if only_first:
            found = found[:1]
        for token in found:
            self.vocabulary.flags[token] |= CONTROL
        return set(found)

    def set_flag(self, text: str, flag: int) -> None:
        token = self.find(text)
        if token is not None:
            self.vocabulary.flags[token] = flag

    def except_harmony(self, ends: set[int]) -> None:
        """In gpt-oss and Solar `<|end|>` closes a channel, not the reply: their own end tokens tell them apart."""
        return_, call, calls, flush = (self.find(text) in ends for text in ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>"))
        end = self.find("<|end|>")
        if end in ends and (call or calls) and (return_ or flush):
            ends.discard(end)
            self.set_flag("<|end|>", USER_DEFINED)

    def except_plain_end(self, ends: set[int]) -> None:
        """Gemma 4 has `</s>` as an ordinary HTML tag."""
        if self.find("<|tool_response>") in ends and self.find("</s>") in ends:
            ends.discard(self.find("</s>"))
            self.set_flag("</s>", NORMAL)
