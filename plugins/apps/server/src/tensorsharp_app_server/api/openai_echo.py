"""Prompts that are given back before their continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorsharp.engine.evaluation import PromptLogprobs
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.api.openai_logprobs import TextLogprobs
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.internal import evaluated


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as text, and its tokens if log-probabilities were asked for; the first one has none."""

    text: str
    tokens: tuple[TokenEvent, ...] = ()

    def columns(self, served: Served) -> dict[str, Any] | None:
        """As `logprobs` of a completion."""
        return TextLogprobs(served).entries(self.tokens) if self.tokens else None


NOTHING = Echo("")


async def echoed(
    served: Served, prompts: Sequence[str | Sequence[int]], ids: Sequence[Sequence[int]], logprobs: int | None
) -> list[Echo]:
    """Every prompt, text or ids, with its ids. logprobs: how many alternatives for each token; None: none at all."""
    llm = served.llm
    texts = [p if isinstance(p, str) else llm.detokenize(i, special=True) for p, i in zip(prompts, ids, strict=True)]
    if logprobs is None:
        return [Echo(text) for text in texts]
    scores = [PromptLogprobs(one, logprobs) for one in ids]
    await evaluated(llm, list(zip(ids, scores, strict=True)), "prompt")
    firsts = [TokenEvent(one[0], 0) for one in ids]
    return [Echo(text, (first, *score.events)) for text, first, score in zip(texts, firsts, scores, strict=True)]
