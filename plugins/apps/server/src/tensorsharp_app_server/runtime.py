"""Facts about a reply that every protocol reports beside it: how fast it was, and what it takes to get the same one again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorsharp.generation import Reply
from tensorsharp_app_server.host import Served


def token_hash(ids: Iterable[int]) -> str:
    """SHA-256 of token ids, each as four bytes, the lowest first; hexadecimal."""
    return hashlib.sha256(np.fromiter(ids, "<u4").tobytes()).hexdigest()


def runtime(served: Served, replies: Iterable[tuple[int, Reply]]) -> dict[str, Any]:
    """The block `tensorsharp` of an answer: (index, reply) of each choice that it tells of."""
    told = list(replies)
    found = {
        "bitwise": served.bitwise,
        "arithmetic_id": served.arithmetic_id,
        "replies": [{"index": i, "seed": r.seed, "token_ids_sha256": token_hash(r.token_ids)} for i, r in told],
    }
    history = next((r.history for _, r in told if r.history is not None), None)
    if history is not None:
        found["history"] = {"replies": history.replies, "prompt_ids_sha256": history.sha256}
    return found


def timings(reply: Reply) -> dict[str, Any]:
    """Counts and milliseconds under the names that llama.cpp's server gives them."""
    t, read, written = reply.timings, reply.timings.prefill_tokens, reply.timings.decode_tokens
    return {
        "cache_n": reply.usage.cached,
        "prompt_n": read,
        "prompt_ms": t.prefill_s * 1e3,
        "prompt_per_token_ms": t.prefill_s * 1e3 / read if read else 0.0,
        "prompt_per_second": t.prefill_tps,
        "predicted_n": reply.usage.completion,
        "predicted_ms": t.decode_s * 1e3,
        "predicted_per_token_ms": t.decode_s * 1e3 / written if written else 0.0,
        "predicted_per_second": t.decode_tps,
        "draft_n": t.drafted,
        "draft_n_accepted": t.accepted,
    }
