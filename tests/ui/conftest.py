"""A served model and a browser: Debian's Chromium, or the one that CHROMIUM names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.realmodels import REAL_MODELS, needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
"""As root, and in containers with little shared memory, Chromium does not start without."""
DESKTOP = {"width": 1200, "height": 820}
PATIENCE_MS = 60_000
"""What a reply of a small model may take on a busy machine."""


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SmolLM2 behind `tensorsharp serve`, one request at a time, so that a second one waits."""
    model = needs(REAL_MODELS["smollm2"])
    command = [sys.executable, "-m", "tensorsharp", "serve", str(model), "--port", "0", "--parallel", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path_factory.mktemp("server"))
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found, "the server did not start"
    yield found[0]
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium; install Debian's package chromium, or name one in CHROMIUM")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The chat page, fresh: no conversations, no settings. Errors of scripts and refusals of the policy fail the test."""
    context = browser.new_context(viewport=DESKTOP, permissions=["clipboard-read", "clipboard-write"])
    made = context.new_page()
    made.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    made.goto(address)
    wait_until(lambda: bool(made.evaluate("document.querySelector('#model').options.length > 0")), "the list of models")
    yield made
    context.close()
    assert wrong == []


@pytest.fixture
def shot(page: Page) -> Callable[[str], None]:
    """Write what the page looks like into the folder SCREENSHOTS, if that is set, and look for accessibility faults."""
    folder = os.environ.get("SCREENSHOTS")

    def take(name: str) -> None:
        from axe_playwright_python.sync_playwright import Axe

        if folder:
            page.screenshot(path=str(Path(folder) / f"{name}.png"))
        faults = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        assert faults == [], [(v["id"], [n["html"] for n in v["nodes"]]) for v in faults]

    return take


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)
