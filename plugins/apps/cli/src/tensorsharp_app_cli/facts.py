"""A finished reply and the run behind it, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorsharp.generation import Reply

if TYPE_CHECKING:
    from tensorsharp.chat import ChatReply
    from tensorsharp.llm import LLM
    from tensorsharp.types import TokenEvent


def as_data(llm: LLM, finished: Reply | ChatReply) -> dict[str, Any]:
    """The object that `--json` prints. Times are seconds."""
    reply = tokens_of(finished)
    timings, usage = reply.timings, reply.usage
    data: dict[str, Any] = {
        "text": content_of(finished),
        "reasoning": "" if isinstance(finished, Reply) else finished.reasoning,
        "token_ids": list(reply.token_ids),
        "finish_reason": reply.finish_reason,
        "seed": reply.seed,
        "usage": {"prompt": usage.prompt, "cached": usage.cached, "completion": usage.completion},
        "timings": {
            "load_s": llm.load_s,
            "prefill_s": timings.prefill_s,
            "prefill_tps": timings.prefill_tps,
            "decode_s": timings.decode_s,
            "decode_tps": timings.decode_tps,
            "drafted": timings.drafted,
            "accepted": timings.accepted,
        },
    }
    if reply.logprobs is not None:
        data["logprobs"] = [_logprob(llm, event) for event in reply.logprobs]
    return data


def _logprob(llm: LLM, event: TokenEvent) -> dict[str, Any]:
    piece = llm.tokenizer.piece
    top = [{"token": t.token, "piece": piece(t.token), "logprob": t.logprob} for t in event.top]
    return {"token": event.token, "piece": piece(event.token), "logprob": event.logprob, "top": top}


def tokens_of(finished: Reply | ChatReply) -> Reply:
    """The reply as tokens, whether or not it was read as part of a conversation."""
    return finished if isinstance(finished, Reply) else finished.reply


def content_of(finished: Reply | ChatReply) -> str:
    """The answer, without reasoning."""
    return finished.text if isinstance(finished, Reply) else finished.content


def speeds(finished: Reply | ChatReply) -> str:
    """One line: how much was read and written, how fast, and why it ended."""
    reply = tokens_of(finished)
    timings, usage = reply.timings, reply.usage
    cached = f" ({usage.cached} cached)" if usage.cached else ""
    read = f"prompt {usage.prompt} tokens{cached}, {timings.prefill_tps:.1f} tok/s"
    written = f"reply {usage.completion} tokens, {timings.decode_tps:.1f} tok/s"
    return f"{read}; {written}; {reply.finish_reason}"


def run_lines(report: Mapping[str, Any]) -> list[str]:
    """A run's report (:meth:`tensorsharp.llm.LLM.report`) as lines."""
    bitwise = report["bitwise"]
    fallbacks = ", ".join(f"{name} {count}" for name, count in sorted(report["fallbacks"].items()))
    values = {
        "model": f"{report['model']} ({report['architecture']}, context {report['context']})",
        "backend": f"{report['backend']} on {report['device']}, {report['threads']} threads",
        **report["facts"],
        "arithmetic": report["arithmetic_id"],
        "bitwise": "holds" if bitwise["holds"] else f"does not hold: {bitwise['reason']}",
        "fallbacks": fallbacks or "none",
        "loaded in": f"{report['load_s']:.2f} s",
    }
    return [f"{name:<17} {value}" for name, value in values.items()]
