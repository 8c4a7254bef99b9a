"""The machine's Chromium, driven by playwright: one browser for a session of tests.

Nothing is downloaded except from the machine's own package source: as root, apt installs Chromium
if it is missing. Else the tests that need it are skipped, also in CI: `REMEDY` is the skip's text.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, ConsoleMessage, Page, Response

REMEDY: Final = (
    "there is no Chromium: apt-get install chromium, or name one in CALLBOARD_TEST_CHROMIUM"
)
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
_APT: Final = (
    "apt-get",
    "install",
    "-y",
    "--no-install-recommends",
    "chromium",
    "fonts-dejavu-core",
)
_APT_LIMIT_S: Final = 45


def find_chromium() -> str:
    """Return the path of Chromium; install it if it is missing, or skip the test."""
    path = _find_path()
    if path is None and os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        with (Path(tempfile.gettempdir()) / "callboard-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one worker installs
            if _find_path() is None:
                env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                with suppress(subprocess.TimeoutExpired):
                    for command in (("apt-get", "update"), _APT):
                        subprocess.run(
                            command, capture_output=True, check=False, env=env, timeout=_APT_LIMIT_S
                        )
        path = _find_path()
    if path is None:
        pytest.skip(REMEDY)
    return path


def _find_path() -> str | None:
    setting = os.environ.get("CALLBOARD_TEST_CHROMIUM")
    return setting or next((path for name in _NAMES if (path := shutil.which(name))), None)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Yield a browser without a window."""
    path = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*_FLAGS])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """A page whose errors are recorded.

    Attributes: page: The page. origin: All requests must go to it. wrong: Errors of scripts,
    refusals of the content policy, failed requests, and requests to another origin. is_cut: The
    test interrupts the connection: requests may fail.
    """

    page: Page
    origin: str
    wrong: list[str] = field(default_factory=list)
    is_cut: bool = False

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("requestfailed", self._on_failure)
        self.page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(message.text)

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"{response.status} {response.url}")

    def _note(self, text: str) -> None:
        if not self.is_cut:
            self.wrong.append(text)

    def _on_request(self, url: str) -> None:
        if not url.startswith((self.origin, "data:")):
            self.wrong.append(f"another origin: {url}")

    def _on_failure(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left, or has closed a stream
            self._note(f"{request.url}: {request.failure}")


@asynccontextmanager
async def watched(browser: Browser, origin: str, **options: Any) -> AsyncIterator[Watched]:
    """Yield a page in a context of its own; any error on it fails the test."""
    context = await browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.set_default_timeout(15_000)
    try:
        watched_page = Watched(await context.new_page(), origin)
        yield watched_page
        assert not watched_page.wrong, watched_page.wrong
    finally:
        await context.close()
