"""Text to token ids and back, and what a conversation becomes, under the names that llama.cpp's server gave it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.llm import LLM
from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import openai, openai_chat
from tensorsharp_app_server.api.shared_fields import CONVERSATION, MESSAGES, MODEL, REASONING, TOOLS
from tensorsharp_app_server.describe import FLAG, TEXT, Field, Operation, listed, whole
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import are_ids
from tensorsharp_app_server.internal import rendered
from tensorsharp_app_server.reasoning import option_names
from tensorsharp_app_server.service import Service

TOKENIZE: Final = Operation(
    "The token ids of a text, or of a conversation.",
    (
        MODEL,
        Field("content", TEXT, "Hallo?"),
        Field("prompt", TEXT, "Hallo?"),
        replace(MESSAGES, needed=False),
        *TOOLS,
        *REASONING,
        Field("add_special", FLAG, True),
        Field("add_special_tokens", FLAG, True),
        Field("parse_special", FLAG, True),
        Field("with_pieces", FLAG, True),
    ),
)
DETOKENIZE: Final = Operation("The text of token ids.", (MODEL, Field("tokens", listed(whole(0)), [5, 6], needed=True)))
APPLY: Final = Operation("The text that a conversation becomes.", (MODEL, *CONVERSATION))


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/tokenize", tokenize, openai.WIRE, operation=TOKENIZE),
        route(service, "/detokenize", detokenize, openai.WIRE, operation=DETOKENIZE),
        route(service, "/apply-template", apply_template, openai.WIRE, operation=APPLY),
    ]


async def tokenize(call: Call) -> Body:
    """The token ids of a text (`content` or `prompt`) or of a conversation (`messages`)."""
    body = call.body
    content, prompt = body.text("content"), body.text("prompt")
    text = prompt if content is None else content
    messages = openai_chat.read_messages(body) if "messages" in body else None
    if text is None and messages is None:
        raise body.refuse("content", "a string, or messages")
    bos = None if body.flag("add_special", body.flag("add_special_tokens")) else False
    special, pieces = body.flag("parse_special", True), body.flag("with_pieces")
    options, names = openai_chat.read_options(body), option_names(body)

    def ids_of(llm: LLM) -> list[int]:
        if messages is not None:
            return llm.tokenize_prompt(rendered(llm, messages, options, names))
        return llm.tokenize(text or "", special=special, bos=bos)

    async with call.service.host.use(body.text("model")) as served:
        llm = served.llm
        ids = await asyncio.to_thread(ids_of, llm)
        tokens = [{"id": token, "piece": llm.tokenizer.piece(token)} for token in ids] if pieces else ids
        return json_body({"tokens": tokens, "count": len(ids), "max_model_len": llm.engine.limit})


async def detokenize(call: Call) -> Body:
    """The text of token ids."""
    ids: Any = call.body.data.get("tokens")
    if ids != [] and not are_ids(ids):
        raise call.body.refuse("tokens", "a list of token ids")
    async with call.service.host.use(call.body.text("model")) as served:
        size = served.llm.tokenizer.vocab_size
        if any(not 0 <= token < size for token in ids):
            raise call.body.refuse("tokens", f"token ids between 0 and {size - 1}", code="invalid_token")
        text = await asyncio.to_thread(served.llm.detokenize, ids, special=True)
    return json_body({"content": text, "prompt": text})


async def apply_template(call: Call) -> Body:
    """The text that a conversation becomes, ready for the reply."""
    body = call.body
    messages, options, names = openai_chat.read_messages(body), openai_chat.read_options(body), option_names(body)
    async with call.service.host.use(body.text("model")) as served:
        return json_body({"prompt": await asyncio.to_thread(rendered, served.llm, messages, options, names)})
