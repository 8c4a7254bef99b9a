"""Pages of two `callboard serve` processes with NATS and PostgreSQL: each shows the other's events."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest
from playwright.async_api import expect

from tests.harness.chromium import chromium, watched
from tests.harness.slow import IS_SLOW
from tests.system.web.conversing import APP_NAME, SPEC, WORDS

if TYPE_CHECKING:
    from tests.system.processes import Hosts

REMEMBER: Final = """() => {
  window.said = [];
  new MutationObserver(() => {
    const live = document.querySelector(".live .said");
    if (live?.textContent) window.said.push(live.textContent);
  }).observe(document.getElementById("path"), { subtree: true, childList: true });
}"""
"""Keeps all shown pieces of an answer: it may be complete before the test reads the page."""


@pytest.mark.skipif(not IS_SLOW, reason="starts processes and a browser: CALLBOARD_TEST_SLOW=1")
async def test_pages_of_two_processes_show_the_same(fleet: Hosts) -> None:
    """Pieces of an answer, an approval made on the other one, and later answers of the living one."""
    _, url = await fleet.web(SPEC)
    alone, other_url = await fleet.web("--no-agents", "--app", APP_NAME)
    async with (
        chromium() as browser,
        watched(browser, url) as first,
        watched(browser, other_url) as second,
    ):
        await first.page.goto(f"{url}/chat/{APP_NAME}")
        await first.page.click("[data-do=new]")
        await first.page.wait_for_selector("#composer")
        await second.page.goto(first.page.url.replace(url, other_url))
        await second.page.evaluate(REMEMBER)
        await first.page.fill("#text", "a long answer")
        await first.page.press("#text", "Enter")
        await expect(second.page.locator(".assistant:not(.now) .said")).to_contain_text(
            WORDS[-1].strip()
        )
        streamed_texts = await second.page.evaluate("window.said")
        assert any(text != "".join(WORDS) for text in streamed_texts), streamed_texts
        await second.page.fill("#text", "refund it")
        await second.page.press("#text", "Enter")
        await expect(first.page.locator(".approval.waiting")).to_be_visible()
        await second.page.locator("#scroll").focus()
        await second.page.keyboard.press("a")
        for page in (first.page, second.page):
            await expect(page.locator(".assistant .said").last).to_have_text("It is paid.")
            await expect(page.locator("#line button")).to_have_count(0)
        texts = [
            await page.locator(".cards").all_inner_texts() for page in (first.page, second.page)
        ]
        assert texts[0] == texts[1]
        second.is_cut = True
        alone.send(signal.SIGTERM)
        assert await alone.exit_code() == 0
        await expect(second.page.locator("#told")).to_contain_text("connection is lost")
