"""A server in a thread of this process, over a model whose behaviour a test directs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
from stage import PATIENCE_S, Director

from tensorsharp.weights.folder import ModelsFolder
from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.catalog import Catalog
from tensorsharp_app_server.host import ModelHost
from tensorsharp_app_server.program import Program, listen, run_program, url
from tensorsharp_app_server.settings import ServerSettings


def until(check: Callable[[], bool], within: float = PATIENCE_S) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.01)
    return False


class Served:
    """A running server. http: a client of it. llm: the model's library side, once it is loaded. thread: lives until its end."""

    def __init__(self, director: Director, catalog: Catalog, settings: ServerSettings, **how: Any) -> None:
        self.director = director
        self.url = ""
        self.host: ModelHost | None = None
        self._how = how
        self._catalog = catalog
        self._settings = settings
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self.thread.start()
        assert self._ready.wait(PATIENCE_S)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        self.ollama = ollama.Client(self.url, timeout=PATIENCE_S)

    async def _main(self) -> None:
        loading = {"parallel": 4, "queue": 8} | self._how.pop("loading", {})
        at_once = self._how.pop("at_once", False)
        grace = self._how.pop("grace_s", 1)
        self.host = ModelHost(self._catalog, lambda path: self.director.open(path, **loading), **self._how)
        app = create_app(self.host, self._settings)
        self.routes = app.routes
        self.program = Program(app, grace_s=grace)
        listening = listen("127.0.0.1", 0)
        self.url = url(listening)
        self.loop = asyncio.get_running_loop()

        async def start() -> None:
            if at_once:
                self.loop.call_later(0.05, self._ready.set)
                await self.host.start()
            self._ready.set()

        await run_program(self.program, listening, start, self.host.close)

    @property
    def llm(self) -> Any:
        assert self.host is not None
        return next(one.served.llm for one in self.host.loaded)

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of an answer with status 200."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def pass_time(self, seconds: float) -> None:
        """Let the server's timers find that so much more time has passed."""
        clock = self.loop.time
        self.loop.time = lambda: clock() + seconds  # type: ignore[method-assign]
        self.loop.call_soon_threadsafe(lambda: None)  # it looks at its timers again

    def close(self) -> None:
        self.director.pace.set()
        self.director.load_gate.set()
        self.http.close()
        self.openai.close()
        self.ollama.close()
        self.anthropic.close()
        self.program.should_exit = True
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@contextmanager
def serving(models: Path, director: Director) -> Iterator[Callable[..., Served]]:
    """Starts servers over the files of a folder; keywords go to the settings, those of a ModelHost to it. They end together."""
    with ExitStack() as stack:

        def start(catalog: Catalog | None = None, **how: Any) -> Served:
            fields = {name: how.pop(name) for name in list(how) if name in ServerSettings.__slots__}
            served = Served(director, catalog or ModelsFolder(models), ServerSettings(**fields), **how)
            stack.callback(served.close)
            return served

        yield start
