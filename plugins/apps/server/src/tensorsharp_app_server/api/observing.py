"""How the server is: /health, /props, /stats, and /metrics for Prometheus."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.routing import Route

from tensorsharp import __version__
from tensorsharp.engine.stats import EngineStats
from tensorsharp.llm import LLM
from tensorsharp.types import SamplingParams
from tensorsharp_app_server.answers import Body, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.api.shared_fields import MODEL
from tensorsharp_app_server.describe import Operation
from tensorsharp_app_server.endpoint import Call, Handler, route
from tensorsharp_app_server.errors import LOADING_RETRY_S, RefusedError
from tensorsharp_app_server.host import Loaded
from tensorsharp_app_server.metrics import Collector
from tensorsharp_app_server.service import Service

HEALTH: Final = Operation("Whether requests are taken.")
PROPS: Final = Operation("Facts about a model.", (MODEL,))
STATS: Final = Operation("What engines count and hold.")
METRICS: Final = Operation("The same numbers for Prometheus.", media="text/plain")


def routes(service: Service) -> list[Route]:
    registry = CollectorRegistry()
    registry.register(Collector(service.host))
    get = ("GET",)
    return [
        route(service, "/health", health, openai.WIRE, methods=get, open=True, operation=HEALTH),
        route(service, "/v1/health", health, openai.WIRE, methods=get, open=True),
        route(service, "/props", props, openai.WIRE, methods=get, operation=PROPS),
        route(service, "/stats", stats, openai.WIRE, methods=get, operation=STATS),
        route(service, "/metrics", _metrics(registry), openai.WIRE, methods=get, operation=METRICS),
    ]


async def health(call: Call) -> Body:
    """200 once requests are taken, 503 before."""
    if call.service.host.starting:
        raise RefusedError(503, "The model is being loaded.", code="loading", retry_after=LOADING_RETRY_S)
    return json_body({"status": "ok"})


def _metrics(registry: CollectorRegistry) -> Handler:
    async def metrics(call: Call) -> Body:
        return Body(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)

    return metrics


async def props(call: Call) -> Body:
    """Facts about a model, and the parameters of a request that names none."""
    async with call.service.host.use(call.body.text("model")) as served:
        llm = served.llm
        report = llm.report()
        facts = {name: fact for name, fact in report["facts"].items() if not Path(fact).is_absolute()}  # no client's business
        return json_body(
            {
                "model": served.name,
                "model_path": served.entry.path.name,
                "total_slots": llm.engine.parallel,
                "chat_template": llm.template.source if llm.has_template else None,
                "bos_token": _piece(llm, llm.tokenizer.bos),
                "eos_token": _piece(llm, llm.tokenizer.eos),
                "default_generation_settings": {"n_ctx": llm.engine.limit, "params": asdict(SamplingParams())},
                "build_info": f"tensorsharp {__version__}",
                "runtime": report | {"model": served.entry.path.name, "facts": facts},
            }
        )


async def stats(call: Call) -> Body:
    """What the engines of the models in memory count and hold; times are seconds."""
    host = call.service.host
    return json_body(
        {
            "version": __version__,
            "uptime_s": time.time() - call.service.started,
            "status": "loading" if host.starting else "ok",
            "models": [_loaded(one) for one in host.loaded],
        }
    )


def _loaded(one: Loaded) -> dict[str, Any]:
    llm = one.served.llm
    running, waiting = llm.engine.requests()
    return {
        "name": one.served.name,
        "users": one.users,
        "expires": one.expires,
        "parallel": llm.engine.parallel,
        "running": running,
        "waiting": waiting,
        "context": llm.engine.limit,
        "backend": llm.backend.name,
        "device": llm.backend.device,
        "bitwise": one.served.bitwise,
        "engine": _counted(llm.stats()),
    }


def _counted(stats: EngineStats) -> dict[str, Any]:
    """A block group is called by the window of its layers, `all` where they read all tokens: JSON's keys are texts."""
    named = {
        field: {"all" if g is None else str(g): n for g, n in getattr(stats, field).items()} for field in ("blocks", "cached")
    }
    return asdict(stats) | named


def _piece(llm: LLM, token: int | None) -> str | None:
    return None if token is None else llm.tokenizer.piece(token)
