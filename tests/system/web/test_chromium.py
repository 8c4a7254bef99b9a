"""Journeys of users through the pages in a real Chromium."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from actors._inmemory.administration import BEARER, digest_of, new_secret
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.stores.administration import NewToken
from actors._kernel.stores.conversations import SessionLabel
from actors.sessions import AgentRuntime
from compose._web.process import serve_web
from compose.web import app
from tests.harness.chromium import chromium, watched
from tests.harness.slow import IS_SLOW
from tests.system.web.desk import APP_NAME, Desk, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="module")

PHONE: Final = {"width": 360, "height": 740}
MANY: Final = 2_000
expect.set_options(timeout=15_000)


class Site:
    """A browser, and the address of a desk's pages."""

    def __init__(self, browser: Browser, url: str, talks: AgentRuntime, desk: Desk) -> None:
        self.browser, self.url, self.talks, self.desk = browser, url, talks, desk

    async def session(self, name: str) -> str:
        """Make a session, and return the address of its page."""
        agent = self.talks.agent_id(name)
        await self.talks.runtime.store.data.directory.create(agent, SessionLabel(title=name))
        return f"{self.url}/chat/{APP_NAME}/{name}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    """Yield one browser, and one desk in memory, for all tests here."""
    desk = Desk()
    async with chromium() as browser, served(desk) as (url, talks):
        yield Site(browser, url, talks, desk)


async def say(page: Page, text: str) -> None:
    """Type a message, and send it by the keyboard."""
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def check_access(page: Page) -> None:
    """Check that all of the page can be used by a screen reader and without a mouse."""
    violations = (await Axe().run(page)).response["violations"]
    bad = [
        (violation["id"], [node["html"] for node in violation["nodes"]]) for violation in violations
    ]
    assert not [
        fault for fault, rule in zip(bad, violations, strict=True) if rule["impact"] in HARD
    ], bad


HARD: Final = ("serious", "critical")


async def choose(page: Page, name: str) -> None:
    """Open the menu of the conversation, and select an entry of it, by the keyboard alone."""
    await page.locator(".menu summary").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    if name == "Delete":
        await page.keyboard.press("Tab")
    await expect(page.locator(".menu button:focus")).to_have_text(name)
    await page.keyboard.press("Enter")


@pytest.mark.costly
@pytest.mark.slow  # the gate plays one of them
@pytest.mark.parametrize("width", [1280, PHONE["width"]])
async def test_a_conversation_is_renamed_and_deleted_by_keyboard(site: Site, width: int) -> None:
    """Each after a confirmation.

    With an open run it is not deleted; the dialog stays and has the reason.
    """
    gate = site.desk.hold(f"manage{width} whales")
    size = {"width": width, "height": 760}
    async with watched(site.browser, site.url, viewport=size) as seen:
        page, (name, other) = seen.page, (f"manage-{width}", f"<b>Other</b> {width}")
        await page.goto(await site.session(name))
        await choose(page, "Rename")
        await expect(page.locator("#rename input")).to_have_value(name)
        await check_access(page)
        await page.keyboard.press("Control+A")
        await page.keyboard.type(other)
        await page.keyboard.press("Enter")
        await expect(page.locator("#rename")).to_be_hidden()
        await expect(page).to_have_title(f"{other} · helpdesk")
        await page.reload()
        await expect(page.locator(".crumbs [aria-current]")).to_have_text(other)
        await say(page, f"manage{width} whales")
        await expect(page.locator("#line .stop")).to_have_count(1)
        seen.is_cut = True  # the refusal is one of HTTP
        await choose(page, "Delete")
        await expect(page.locator("#remove button:focus")).to_have_text("Keep it")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("#remove [role=alert]")).to_contain_text("cancel its open runs")
        await check_access(page)
        await page.keyboard.press("Escape")
        seen.is_cut = False
        gate.set()
        await expect(page.locator("#line .stop")).to_have_count(0)
        await choose(page, "Delete")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.url}/chat/{APP_NAME}")
        await expect(page.locator("#sessions")).not_to_contain_text(other)
        answer = await page.request.get(f"{site.url}/v1/sessions/{name}?app={APP_NAME}")
        assert answer.status == 410


@pytest.mark.costly
@pytest.mark.item(349, 351, 362, 364, 371)
async def test_a_reload_in_the_middle_of_an_answer_shows_the_same(site: Site) -> None:
    """A second reader gets the same.

    The answer's end comes to both, as HTML. A queued message is cancelled.
    """
    gate = site.desk.hold("reload whales")
    async with watched(site.browser, site.url) as seen, watched(site.browser, site.url) as other:
        page = seen.page
        await page.goto(site.url)
        await page.click("text=helpdesk")
        await page.click("[data-do=new]")
        await say(page, "reload whales")
        live = page.locator(".live .said")
        await expect(live).to_have_text("Whales live in ")
        await expect(page.locator(".message.user .said")).to_have_text("reload whales")
        await other.page.goto(page.url)
        await expect(other.page.locator(".live .said")).to_have_text("Whales live in ")
        await page.reload()
        await expect(live).to_have_text("Whales live in ")
        await expect(page).to_have_title("reload whales · helpdesk")
        await say(page, "never mind")
        for reader in (page, other.page):
            await expect(reader.locator("#queue li .plain")).to_have_text("never mind")
        await other.page.click("#queue button")
        await expect(page.locator("#queue li")).to_have_count(0)
        gate.set()
        for reader in (page, other.page):
            await expect(reader.locator(".said table td").first).to_have_text("Blue whale")
            await expect(reader.locator(".live > *")).to_have_count(0)
            await expect(reader.locator("article.message")).to_have_count(2)
            await expect(reader.locator("#line button")).to_have_count(0)
        await check_access(page)


@pytest.mark.costly
@pytest.mark.item(369, 376)
async def test_an_approval_is_given_and_refused_by_keyboard_alone(site: Site) -> None:
    """With a reason. Tools, and the file of one, are cards in place, after a reload too."""
    async with watched(site.browser, site.url, color_scheme="dark") as seen:
        page = seen.page
        await page.goto(await site.session("keys"))
        await page.keyboard.type("please refund")
        await page.keyboard.press("Enter")
        waiting = page.locator(".approval.waiting")
        await expect(waiting).to_have_count(1)
        await check_access(page)
        await page.locator("#scroll").focus()
        await page.keyboard.press("d")
        await page.keyboard.type("too much")
        await page.keyboard.press("Enter")
        await expect(page.locator(".approval.denied .plain")).to_have_text("too much")
        await expect(waiting).to_have_count(0)
        await page.locator("#scroll").focus()
        await page.keyboard.press("/")
        await page.keyboard.type("another refund")
        await page.keyboard.press("Enter")
        await expect(waiting).to_have_count(1)
        await page.locator("#scroll").focus()
        await page.keyboard.press("a")
        await expect(page.locator(".cards .file a")).to_have_text("receipt-7.txt")
        await expect(page.locator(".cards > *")).to_have_count(12)  # the last answer has come, too
        cards = await page.locator(".cards > *").evaluate_all("all => all.map((one) => one.id)")
        await page.reload()
        assert cards == await page.locator(".cards > *").evaluate_all("a => a.map((b) => b.id)")
        async with page.expect_download() as download:
            await page.locator(".cards .file a").click()
        assert (await (await download.value).path()).read_text() == "order 7: 40 EUR\n"


@pytest.mark.costly
@pytest.mark.item(357)
async def test_an_edited_message_is_a_branch_on_a_phone(site: Site) -> None:
    """Arrows lead to the earlier version, and back; nothing is wider than the screen."""
    async with watched(site.browser, site.url, viewport=PHONE) as seen:
        page = seen.page
        await page.goto(await site.session("branches"))
        for text in ("whales first", "second"):
            await say(page, text)
            await expect(page.locator(".message.assistant:not(.now)").last).to_be_visible()
            await expect(page.locator("#line button")).to_have_count(0)
        await page.locator(".edit").first.click()
        await page.keyboard.type("No, dragons: ")
        await page.locator("article form").get_by_text("Send as a branch").click()
        users, fork = page.locator(".message.user .said"), page.locator(".fork")
        await expect(users).to_have_count(1)
        await expect(users).to_contain_text("dragons")
        await expect(fork).to_contain_text("2/2")
        await page.get_by_label("The branch before").click()
        await expect(users).to_have_text(["whales first", "second"])
        await page.get_by_label("The next branch").click()
        await expect(users).to_have_count(1)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"]


@pytest.mark.costly
@pytest.mark.item(370)
async def test_a_specialist_is_opened_beside_the_chat_while_it_answers(site: Site) -> None:
    """With its text so far, then the rest; the conversation continues, and a run is stopped."""
    gate = site.desk.hold("specialist of beside")
    async with watched(site.browser, site.url) as seen:
        page = seen.page
        await page.goto(await site.session("beside"))
        await say(page, "ask the specialist of beside")
        await page.locator("[data-do=beside]").click()
        beside = page.locator("#beside")
        await expect(beside.locator(".live .said")).to_have_text("You said ask th"[:15])
        gate.set()
        await expect(beside.locator(".assistant:not(.now) .said")).to_contain_text("of beside")
        await expect(beside.locator("header .status").first).to_have_text("completed")
        await page.keyboard.press("Escape")
        await expect(beside).to_be_hidden()
        await say(page, "let the specialist refund it")
        await expect(page.locator(".child .status.waiting")).to_contain_text("for a decision")
        await page.locator("[data-do=beside]").last.click()
        await beside.get_by_text("Approve").click()
        await expect(beside.locator("header .status").first).to_have_text("completed")
        await page.keyboard.press("Escape")
        await expect(page.locator("#path .approval.waiting")).to_be_visible()
        await page.locator("#scroll").focus()
        await page.keyboard.press("a")
        await expect(page.locator("#line button")).to_have_count(0)
        site.desk.hold("for ever")
        await say(page, "speak for ever")
        await page.locator("#line .stop").click()
        await expect(page.locator(".note.cancelled")).to_contain_text("Stopped")
        await expect(page.locator(".live > *")).to_have_count(0)


@pytest.mark.costly
async def test_a_page_reconnects_after_a_crash_of_its_server(site: Site) -> None:
    """It shows the outage, and misses neither stored events nor the middle of an answer."""
    gate = site.desk.hold("restart whales")
    application = app(site.talks, is_loopback=True)
    async with watched(site.browser, "http://127.0.0.1") as seen:
        page = seen.page
        address = await site.session("restart")
        async with serve_web(
            "127.0.0.1:0", application, before_stop=application.end_streams
        ) as url:
            await page.goto(address.replace(site.url, url))
            await expect(page.locator("#told")).to_be_hidden()
            await say(page, "restart whales")
            await expect(page.locator(".live .said")).to_have_text("Whales live in ")
            seen.is_cut = True
        await expect(page.locator("#told")).to_contain_text("connection is lost")
        behind = await site.talks.start("said meanwhile", session_id="restart")
        again = app(site.talks, is_loopback=True)
        async with serve_web(url.removeprefix("http://"), again, before_stop=again.end_streams):
            await expect(page.locator("#queue .plain")).to_have_text("said meanwhile")
            await expect(page.locator(".live .said")).to_have_text("Whales live in ")
            await expect(page.locator(".live .reasoning .plain")).to_have_text("They ask about it.")
            await expect(page.locator("#told")).to_be_hidden()
            seen.is_cut = False
            gate.set()
            await behind.wait()
            await expect(page.locator(".said table")).to_be_visible()
            await expect(page.locator("article.message")).to_have_count(4)
            seen.is_cut = True


@pytest.mark.costly
async def test_a_person_signs_in_and_out(site: Site) -> None:
    """With a token. Each other page redirects to the login, and the login back."""
    secret = new_secret(BEARER)
    async with (
        served(site.desk, is_guarded=True) as (url, talks),
        watched(site.browser, url) as seen,
    ):
        page, tokens = seen.page, talks.runtime.store.data.tokens
        new = NewToken(
            id="t1",
            digest=digest_of(secret),
            name="laptop",
            tenant="default",
            principal="ada",
            scopes=("sessions:own",),
            expires_at=None,
        )
        await tokens.create(new)
        await page.goto(f"{url}/chat/{APP_NAME}")
        await expect(page).to_have_url(f"{url}/login?next=/chat/{APP_NAME}")
        await check_access(page)
        seen.is_cut = True
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await expect(page.locator("#told")).to_be_visible()
        seen.is_cut = False
        await page.fill("#token", secret)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{url}/chat/{APP_NAME}")
        await page.click("[data-do=new]")
        await page.wait_for_selector("#composer")
        await say(page, "signed in")
        await expect(page.locator(".assistant:not(.now) .said")).to_have_text("You said signed in")
        await page.click("#leave")
        await expect(page.locator("#token")).to_be_visible()
        await page.goto(f"{url}/login?next=//elsewhere.example/")
        await page.fill("#token", secret)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{url}/")


@pytest.mark.costly
async def test_two_thousand_messages_are_scrolled_to_the_first(site: Site) -> None:
    """Each exists once, in order, and the reader's scroll position stays."""
    address = await site.session("many")
    agent, transcripts = site.talks.agent_id("many"), site.talks.runtime.store.data.transcripts
    for n in range(0, MANY, 2):
        pair = [
            NewTurn("many", f"n{n}", ChatMessage.of("user", f"message {n}")),
            NewTurn(
                "many", f"n{n + 1}", ChatMessage.of("assistant", f"message {n + 1}\n\n- a\n- b")
            ),
        ]
        await transcripts.append(agent, pair, run_id=f"r{n}")
    async with watched(site.browser, site.url) as seen:
        page = seen.page
        await page.goto(address)
        while await page.locator("#more").count():
            await page.evaluate("document.getElementById('scroll').scrollTop = 0")
            await page.wait_for_timeout(20)
        texts = await page.locator("article .said").all_text_contents()
        assert [re.findall(r"message (\d+)", text)[0] for text in texts] == [
            str(n) for n in range(MANY)
        ]


@pytest.mark.skipif(not IS_SLOW, reason="both themes, both widths: CALLBOARD_TEST_SLOW=1")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
async def test_every_page_is_accessible(site: Site, scheme: Any, width: int) -> None:
    """By screen readers, in both themes, at both widths; without scripts, too."""
    name = f"read-{scheme}-{width}"
    address = await site.session(name)
    run = await site.talks.start("ask the specialist about whales", session_id=name)
    await run.wait()
    [child] = await run.children()
    await (await site.talks.start("please refund", session_id=name)).refresh()
    size = {"width": width, "height": 800}
    async with watched(site.browser, site.url, color_scheme=scheme, viewport=size) as seen:
        for path in (
            site.url,
            f"{site.url}/chat/{APP_NAME}",
            address,
            f"{address}/runs/{run.run_id}",
            f"{address}/runs/{run.run_id}/children/{child}",
        ):
            await seen.page.goto(path)
            await check_access(seen.page)
            wide = await seen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width
    plain = {"java_script_enabled": False, "viewport": size}
    async with watched(site.browser, site.url, **plain) as seen:
        await seen.page.goto(address)
        await expect(seen.page.locator(".said table")).to_be_visible()
        await expect(seen.page.locator("#composer")).to_be_hidden()
        await expect(seen.page.locator("noscript p")).to_be_visible()
