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
    _, here = await fleet.web(SPEC)
    alone, there = await fleet.web("--no-agents", "--app", APP_NAME)
    async with chromium() as browser, watched(browser, here) as one, watched(browser, there) as two:
        await one.page.goto(f"{here}/chat/{APP_NAME}")
        await one.page.click("[data-do=new]")
        await one.page.wait_for_selector("#composer")
        await two.page.goto(one.page.url.replace(here, there))
        await two.page.evaluate(REMEMBER)
        await one.page.fill("#text", "a long answer")
        await one.page.press("#text", "Enter")
        await expect(two.page.locator(".assistant:not(.now) .said")).to_contain_text(
            WORDS[-1].strip()
        )
        said = await two.page.evaluate("window.said")
        assert any(text != "".join(WORDS) for text in said), said
        await two.page.fill("#text", "refund it")
        await two.page.press("#text", "Enter")
        await expect(one.page.locator(".approval.waiting")).to_be_visible()
        await two.page.locator("#scroll").focus()
        await two.page.keyboard.press("a")
        for page in (one.page, two.page):
            await expect(page.locator(".assistant .said").last).to_have_text("It is paid.")
            await expect(page.locator("#line button")).to_have_count(0)
        texts = [await page.locator(".cards").all_inner_texts() for page in (one.page, two.page)]
        assert texts[0] == texts[1]
        two.is_cut = True
        alone.send(signal.SIGTERM)
        assert await alone.exit_code() == 0
        await expect(two.page.locator("#told")).to_contain_text("connection is lost")
