"""Talk to `examples/helpdesk` in a browser, and keep what the pages looked like.

python docs/screens/pages.py              write docs/screens/*.png of the pages
python docs/screens/pages.py --check      do the same, and write nothing

It runs in memory, in the machine's own Chromium, from the root of the checkout.
"""

# ruff: noqa: INP001, T201

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.async_api import expect

from actors import Runtime
from actors.sessions import AgentRuntime
from compose.web import app, serve_web
from examples.helpdesk import helpdesk
from tests.harness.chromium import chromium
from tests.system.web.refunds import flows_served

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

HERE: Final = Path(__file__).parent
MOST_BYTES: Final = 150 * 1024
WIDE: Final = {"width": 1280, "height": 760}
PHONE: Final = {"width": 360, "height": 720}


async def say(page: Page, text: str, mode: str = "normal") -> None:
    """Send a message."""
    await page.select_option("#mode", mode)
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def talk(page: Page) -> None:
    """Have a conversation with an answer, two specialists and an approval that waits."""
    said = page.locator(".assistant:not(.now) .said")
    await page.click("[data-do=new]")
    await say(page, "Where is order 8?")
    await expect(said.last).to_contain_text("due on Friday")
    await say(page, "Something is wrong with order 7.", "orchestrator")
    await expect(page.locator(".approval.waiting")).to_be_visible()
    await say(page, "And what about order 8?")
    await expect(page.locator("#queue li")).to_have_count(1)


async def shoot(browser: Browser, url: str, name: str, **options: Any) -> bytes:
    """Return a picture of a page, as a reader sees it who comes now."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    await page.goto(url)
    await expect(page.locator("#line .stop")).to_be_visible()
    picture = await page.screenshot()
    await context.close()
    assert len(picture) <= MOST_BYTES, (name, len(picture))
    return picture


async def flow_run(browser: Browser) -> bytes:
    """Return a picture of a run of a flow that waits, behind its first branch."""
    async with flows_served() as (url, runs, _):
        run = await runs.start("refund", vars={"order": 7}, id="order-7")
        page = await browser.new_page(viewport=WIDE)
        await page.goto(f"{url}/graph-runs/{run}")
        await page.get_by_role("button", name="yes").click()
        await expect(page.locator("#states")).to_contain_text("book waiting")
        await expect(page.locator("#states")).to_contain_text("mail done")
        picture = await page.screenshot()
        await page.close()
        return picture


async def main(*, writes: bool) -> None:
    """Serve the help desk, talk to it, and make the pictures."""
    async with Runtime() as runtime:
        await helpdesk.app(runtime)
        async with AgentRuntime(runtime=runtime, app="helpdesk") as talks, chromium() as browser:
            application = app(talks, modes=tuple(helpdesk.MODES), is_loopback=True)
            stop = application.end_streams
            async with serve_web("127.0.0.1:0", application, before_stop=stop) as url:
                page = await browser.new_page(viewport=WIDE)
                await page.goto(f"{url}/chat/helpdesk")
                await talk(page)
                pictures = {
                    "chat": await shoot(browser, page.url, "chat", viewport=WIDE),
                    "chat-dark": await shoot(
                        browser, page.url, "chat-dark", viewport=WIDE, color_scheme="dark"
                    ),
                    "chat-phone": await shoot(browser, page.url, "chat-phone", viewport=PHONE),
                }
                await page.close()
                pictures["flow-run"] = await flow_run(browser)
    for name, picture in pictures.items():
        print(name, len(picture), "bytes")
        if writes:
            (HERE / f"{name}.png").write_bytes(picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    asyncio.run(main(writes=not parser.parse_args().check))
