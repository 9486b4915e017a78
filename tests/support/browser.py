"""A real browser, and pages whose complaints are remembered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a sandbox, because tests may run as root in a container; without whatever would call home.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 60_000
"""How long anything may take on a busy machine."""


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    """Messages of errors on its console, failed scripts, and requests to other hosts than the first one."""


class Pages:
    """Opens pages in windows of their own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []

    def open(self, address: str, **options: Any) -> Watched:
        """A page at an address.

        Parameters
        ----------
        options: of the window, such as its size or who is logged in.
        """
        context = self._browser.new_context(viewport={"width": 1500, "height": 1000}, **options)
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        # MLflow's assistant opens beside the page when it is shown for the first time.
        context.add_init_script(
            "localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');"
            "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
        )
        watched = Watched(context.new_page())
        host = urlsplit(address).netloc
        watched.page.on("console", lambda said: _note(watched, said))
        watched.page.on("pageerror", lambda error: watched.problems.append(f"script: {error}"))
        watched.page.on("request", lambda sent: _note_request(watched, sent.url, host))
        watched.page.goto(address)
        return watched

    def close(self) -> None:
        """Close all windows."""
        for context in self._contexts:
            context.close()


def _note(watched: Watched, said: Any) -> None:
    if said.type == "error":
        watched.problems.append(f"console: {said.text}")


def _note_request(watched: Watched, url: str, host: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and parts.netloc != host:
        watched.problems.append(f"request: {url}")


_OPENED: pytest.StashKey[Browser] = pytest.StashKey()


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Browser:
    """Chromium, where one is installed: one in a process, for tests of the core and of plugins."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed (none of {', '.join(NAMES)}): apt-get install chromium")
    config = request.config
    if _OPENED not in config.stash:
        started = driver.sync_playwright().start()
        config.add_cleanup(started.stop)
        config.stash[_OPENED] = started.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        config.add_cleanup(config.stash[_OPENED].close)
    return config.stash[_OPENED]


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    found = Pages(browser)
    yield found
    found.close()
