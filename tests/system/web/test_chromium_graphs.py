"""Journeys of operators through the pages of flows in a real Chromium."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import expect

from actors._inmemory.administration import BEARER, digest_of, new_secret
from actors._kernel.stores.administration import NewToken
from actors._runtime.replay.verdict import row_of
from actors._workflow.hosted.starting import keep_snapshot
from actors.workflow import Snapshot
from compose._web.process import serve_web
from compose.web import app
from tests.harness.chromium import chromium, watched
from tests.harness.slow import IS_SLOW
from tests.system.web.refunds import EVIL, flows_served
from tests.system.web.test_chromium import check_access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, Route

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from actors._workflow.hosted.runs import FlowRuns

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES: Final = [
    ("light", 1440),
    ("dark", 360),
    *([("light", 360), ("dark", 1440)] if IS_SLOW else []),
]


class Counter:
    """A browser, and the address of the flows' pages."""

    def __init__(self, browser: Browser, url: str, runs: FlowRuns, runtime: Runtime) -> None:
        self.browser, self.url, self.runs, self.runtime = browser, url, runs, runtime

    async def started(self, flow: str, **variables: Any) -> RunId:
        """Start a run."""
        return await self.runs.start(flow, vars=variables)

    def page_of(self, run: RunId) -> str:
        """Return the address of a run's page."""
        return f"{self.url}/graph-runs/{run}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counter() -> AsyncIterator[Counter]:
    """Yield one browser, and one app of flows in memory, for all tests here."""
    async with chromium() as browser, flows_served() as (url, runs, runtime):
        yield Counter(browser, url, runs, runtime)


def node(page: Page, name: str) -> Any:
    """Return a node of the drawing, by its name."""
    return page.locator("svg.graph .node").filter(has=page.locator("title", has_text=name)).first


async def places_of_nodes(page: Page) -> Any:
    """Return the positions of all boxes and lines of the drawing."""
    script = "all => all.map((one) => [one.getAttribute('x'), one.getAttribute('y'), one.getAttribute('d')])"
    return await page.locator("svg.graph rect, svg.graph .edge[id]").evaluate_all(script)


@pytest.mark.costly
async def test_an_operator_answers_a_flows_question_and_sees_its_end(counter: Counter) -> None:
    """States change on the open page and the drawing stays in place; a link leads to the sub-run."""
    run = await counter.started("refund", order=7)
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        await page.goto(f"{counter.url}/flows")
        await page.get_by_role("link", name="refund").click()
        await page.locator("#runs a").first.click()
        await expect(page).to_have_url(counter.page_of(run))
        await expect(node(page, "ask")).to_have_class("node waiting")
        await expect(page.locator("#waits .plain")).to_have_text("Refund 40 EUR?")
        before = await places_of_nodes(page)
        await check_access(page)
        await page.get_by_role("button", name="yes").click()
        await expect(node(page, "mail")).to_have_class("node done")
        await expect(node(page, "book")).to_have_class("node waiting")
        await expect(page.locator("#states")).to_contain_text("book waiting")
        assert await places_of_nodes(page) == before
        await page.locator("#waits a").click()
        await page.locator("#waits textarea").fill('{"by": "ada"}')
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("#head .status")).to_have_text("completed")
        await expect(page.locator("#chain")).to_have_text("chain of hashes is whole")
        await page.locator("#head a", has_text="run ").click()
        await expect(page.locator("#head .status")).to_have_text("completed")
        await expect(page.locator("#output")).to_contain_text('"order": 7')
        await expect(node(page, "end")).to_have_class("node done")
        assert await places_of_nodes(page) == before
        await check_access(page)


@pytest.mark.costly
async def test_a_sub_run_opens_in_the_page_and_leads_back_by_keyboard(counter: Counter) -> None:
    """From its node in the drawing, without a new document; Escape and the browser's button lead back."""
    run = await counter.started("refund", order=11)
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        await page.goto(counter.page_of(run))
        await page.evaluate("window.isSame = true")
        await expect(page.locator("svg.graph a[href]")).to_have_count(0)
        await page.get_by_role("button", name="yes").click()
        link = node(page, "book").locator("a[href]")
        await expect(link).to_have_count(1)
        await check_access(page)
        await link.focus()
        await page.keyboard.press("Enter")
        await expect(node(page, "enter")).to_have_class("node waiting")
        await expect(page.locator(".crumbs")).to_contain_text("books")
        await expect(page.locator("[rel=up]")).to_be_focused()
        await expect(page.locator("[rel=up]")).to_contain_text("Back to refund")
        child = page.url
        await check_access(page)
        await page.keyboard.press("Escape")
        await expect(page).to_have_url(counter.page_of(run))
        back = page.locator(f"#states a[href='{child.removeprefix(counter.url)}']")
        await expect(back).to_be_focused()
        await expect(node(page, "book")).to_have_class("node waiting")
        await page.go_back()
        await expect(node(page, "enter")).to_have_class("node waiting")
        await page.locator("#waits textarea").fill('{"by": "ada"}')
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("#head .status")).to_have_text("completed")
        await page.keyboard.press("Escape")
        await expect(page.locator("#head .status")).to_have_text("completed")
        await expect(page.locator("#output")).to_contain_text('"order": 11')
        assert await page.evaluate("window.isSame")


@pytest.mark.costly
async def test_a_snapshot_is_kept_restored_and_deleted_on_the_page(counter: Counter) -> None:
    """The new run opens, at the wait that the snapshot has. An ended run keeps its snapshots."""
    run = await counter.started("refund", order=12)
    await when_it_waits(counter, run)
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        await page.goto(counter.page_of(run))
        await expect(page.locator("#snapshots")).to_contain_text("None is kept")
        await page.fill("#snapshot-name", f"before {EVIL}"[:200])
        await page.keyboard.press("Enter")
        await expect(page.locator("#snapshots strong")).to_have_text(f"before {EVIL}")
        await expect(page.locator("#snapshot-name")).to_have_value("")
        await check_access(page)
        await page.get_by_role("button", name="no").click()
        await expect(page.locator("#head .status")).to_have_text("completed")
        await expect(page.locator("#snapshot-name")).to_have_count(0)
        await page.get_by_role("button", name="Restore").click()
        await expect(node(page, "ask")).to_have_class("node waiting")
        assert counter.page_of(run) not in page.url
        await page.get_by_role("button", name="no").click()
        await expect(page.locator("#head .status")).to_have_text("completed")
        await page.goto(counter.page_of(run))
        for answer, count in (("Keep it", 1), ("Delete it", 0)):
            await page.get_by_role("button", name="Delete before").click()
            await expect(page.locator("#delete .reason")).to_have_text(f"before {EVIL}")
            await check_access(page)
            await page.get_by_role("button", name=answer).click()
            await expect(page.locator("#delete")).to_be_hidden()
            await expect(page.locator("#snapshots strong")).to_have_count(count)
        await expect(page.locator("#snapshots")).to_contain_text("None is kept")


@pytest.mark.costly
async def test_a_snapshot_of_another_version_is_restored_if_the_operator_insists(
    counter: Counter,
) -> None:
    """The refusal is shown, with the choice; without it no run begins."""
    run = await counter.started("refund", order=13)
    await when_it_waits(counter, run)
    row = await row_of(counter.runtime.store, run)
    snapshot = await counter.runs.snapshot(run, "of last year", keep=False)
    rows = counter.runtime.store.data.run_snapshots
    await keep_snapshot(rows, replace(snapshot, spec_hash="0" * 32), row, seq=1, by="ada")
    before = len(await counter.runtime.store.lists.runs(limit=1000))
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        await page.goto(counter.page_of(run))
        await expect(page.locator("#snapshots")).to_contain_text("of another version of the flow")
        seen.is_cut = True  # the refusal is a failed request
        for answer in ("Leave it", "Restore anyway"):
            await page.get_by_role("button", name="Restore of last year").click()
            await expect(page.locator("#force")).to_contain_text("was made with graph 000")
            await check_access(page)
            assert len(await counter.runtime.store.lists.runs(limit=1000)) == before
            await page.get_by_role("button", name=answer).click()
            await expect(page.locator("#force")).to_be_hidden()
        await expect(node(page, "ask")).to_have_class("node waiting")
        assert counter.page_of(run) not in page.url
    assert len(await counter.runtime.store.lists.runs(limit=1000)) == before + 1


async def when_it_waits(counter: Counter, run: RunId) -> None:
    """Wait until a run waits."""
    while not await counter.runs.waits(run):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def only_once_opened(route: Route) -> None:
    """Let a page be opened, and not fetched again by its script."""
    if route.request.is_navigation_request():
        await route.continue_()
    else:
        await route.abort()


@pytest.mark.costly
async def test_an_answer_from_an_outdated_page_changes_nothing(counter: Counter) -> None:
    """The page shows that, and the current state."""
    run = await counter.started("refund", order=9)
    await when_it_waits(counter, run)
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        seen.is_cut = True  # the page gets no events, nor its next state
        await page.route("**/ledger*", lambda route: route.abort())
        await page.route(counter.page_of(run), only_once_opened)
        await page.goto(counter.page_of(run))
        await expect(page.get_by_role("button", name="no")).to_be_visible()
        await counter.runs.resume(run, "ok/1", {"response": "yes"})
        async with page.expect_request(lambda request: request.method == "POST"):
            await page.get_by_role("button", name="no").click()
        await page.unroute(counter.page_of(run))
        await expect(page.locator("#told")).to_contain_text(
            "Your answer changed nothing", ignore_case=True
        )
        await expect(node(page, "pay")).to_have_class("node done")
        await expect(page.locator("#waits")).not_to_contain_text("Refund 40 EUR?")
    assert (await counter.runs.state(run)).vars["answer"] == {"response": "yes"}


@pytest.mark.costly
async def test_a_page_of_a_run_reconnects_after_a_crash_of_its_server(counter: Counter) -> None:
    """It shows the outage, and then what happened meanwhile: an end of which the ledger has no record."""
    run = await counter.started("refund", order=5)
    application = app(counter.runtime, is_loopback=True)
    stop = application.end_streams
    async with watched(counter.browser, "http://127.0.0.1") as seen:
        page = seen.page
        async with serve_web("127.0.0.1:0", application, before_stop=stop) as url:
            await page.goto(f"{url}/graph-runs/{run}")
            await expect(node(page, "ask")).to_have_class("node waiting")
            seen.is_cut = True
        await expect(page.locator("#told")).to_contain_text("connection is lost")
        await counter.runs.cancel(run, reason="closed for today")
        await counter.runtime.wait(run)
        again = app(counter.runtime, is_loopback=True)
        address = url.removeprefix("http://")
        async with serve_web(address, again, before_stop=again.end_streams):
            await expect(page.locator("#head .status")).to_have_text("cancelled")
            await expect(page.locator("#head .note")).to_contain_text("closed for today")
            await expect(page.locator("#told")).to_be_hidden()


@pytest.mark.costly
async def test_a_failed_node_is_found_and_the_vars_before_it_are_read(counter: Counter) -> None:
    """By the scrubber, with an undeclared move as a dashed line; by links, slider and ledger."""
    run = await counter.started("charges", order=1, next="charge")
    async with watched(counter.browser, counter.url, color_scheme="dark") as seen:
        page = seen.page
        await page.goto(counter.page_of(run))
        await expect(page.locator("#head .status")).to_have_text("failed")
        await expect(page.locator("#head .note")).to_contain_text("the bank is closed")
        await expect(node(page, "charge")).to_have_class("node failed")
        await expect(node(page, "count").locator(".note")).to_have_text("done \u00d73")
        await expect(page.locator("#seen .edge")).to_have_count(
            2
        )  # count -> count, count -> charge
        await expect(page.locator("#vars")).to_contain_text('"n": 3')
        await page.get_by_role("link", name="First", exact=True).click()
        await expect(page.locator("#vars")).to_have_text('{"order": 1, "next": "charge"}')
        await expect(node(page, "charge")).to_have_class("node not-reached")
        await page.get_by_role("link", name="On", exact=True).click()
        await expect(page.locator(".changes")).to_have_text("n1")
        await page.locator("#scrub").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("#step-head")).to_contain_text("step 3 of")
        await expect(page.locator(".changes del")).to_have_text("1")
        await expect(page.locator(".changes ins")).to_have_text("2")
        await page.locator(".ledger a").filter(has_text="failed").click()
        await expect(page.locator("#step .failed.plain")).to_contain_text("the bank is closed")
        await check_access(page)


@pytest.mark.costly
async def test_a_run_is_paused_messaged_and_cancelled_by_an_operator(counter: Counter) -> None:
    """After a login, with its CSRF token.

    Without the operator scope the buttons are missing. A snapshot is a file.
    """
    async with (
        flows_served(is_guarded=True) as (url, runs, runtime),
        watched(counter.browser, url) as seen,
    ):
        page, run = seen.page, await runs.start("refund", vars={"order": 7})
        for scopes in (("flows:run",), ("flows:run", "flows:operate")):
            secret = new_secret(BEARER)
            new = NewToken(
                id=f"t{len(scopes)}",
                digest=digest_of(secret),
                name=f"laptop {len(scopes)}",
                tenant="default",
                principal="ada",
                scopes=scopes,
                expires_at=None,
            )
            await runtime.store.data.tokens.create(new)
            await page.goto(f"{url}/graph-runs/{run}")
            await page.fill("#token", secret)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("button", name="yes")).to_be_visible()
            if len(scopes) == 1:
                await expect(page.locator("[data-do=pause]")).to_have_count(0)
                await page.click("#leave")
                await expect(page.locator("#token")).to_be_visible()
        await page.click("[data-do=pause]")
        await expect(page.locator("#head")).to_contain_text("paused")
        await page.fill("#message", "Only of this year")
        await page.keyboard.press("Enter")
        await page.locator("#runtime-vars summary").click()
        await expect(page.locator("#runtime-vars")).to_contain_text("Only of this year")
        await page.get_by_role("button", name="yes").click()
        await expect(page.locator("#waits [data-unsettled]")).to_contain_text("it is paused")
        await page.click("[data-do=resume]")
        await expect(node(page, "pay")).to_have_class("node done")
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Snapshot").click()
        saved = Snapshot(**json.loads((await (await download.value).path()).read_text()))
        assert saved.run_state["vars"]["answer"] == {"response": "yes"}
        await page.click("[data-do=cancel]")
        await expect(page.locator("#head .status").first).to_have_text("cancelled")
        await expect(page.locator("[data-do=cancel]")).to_have_count(0)
        assert (await runs.state(run)).error == "cancelled on its page"


@pytest.mark.costly
async def test_hostile_text_in_every_field_stays_text(counter: Counter) -> None:
    """Of flow, node, prompt, choice, key, vars, message and error."""
    await counter.started(EVIL, x=EVIL)
    async with watched(counter.browser, counter.url) as seen:
        page = seen.page
        await page.goto(f"{counter.url}/flows")
        await page.locator("#main a").filter(has_text="onerror").click()
        await page.locator("#runs a").click()
        await expect(page.locator("#waits .plain")).to_have_text(EVIL)
        await page.fill("#message", EVIL)
        await page.keyboard.press("Enter")
        await page.locator("#waits button[name=response]").click()
        await expect(page.locator("#head .status")).to_have_text("failed")
        await expect(page.locator("#head .note .plain")).to_contain_text(EVIL)
        for address in await page.locator(".ledger a").evaluate_all("a => a.map((b) => b.href)"):
            await page.goto(address)
            await expect(page.locator("#vars")).to_contain_text("onerror")
            assert await page.locator("img").count() == 0
        assert "evil" not in (await page.title()).replace(EVIL, "")
        await check_access(page)


@pytest.mark.costly
@pytest.mark.slow  # the gate plays one of them
@pytest.mark.parametrize(("scheme", "width"), SIZES)
async def test_reading_works_with_javascript_off(counter: Counter, scheme: Any, width: int) -> None:
    """All pages, at any step; nothing is wider than the screen, and all pages are accessible."""
    run = await counter.started("charges", order=1, next="charge")
    waiting = await counter.started("refund", order=7)
    await counter.runtime.wait(run)
    size = {"width": width, "height": 800}
    options = {"viewport": size, "color_scheme": scheme}
    async with watched(counter.browser, counter.url, java_script_enabled=False, **options) as seen:
        page = seen.page
        await page.goto(counter.page_of(run))
        await page.get_by_role("link", name="Back", exact=True).click()
        await expect(page.locator("#step .failed.plain")).to_contain_text("the bank is closed")
        await page.get_by_role("link", name="First", exact=True).click()
        await expect(page.locator("#vars")).to_have_text('{"order": 1, "next": "charge"}')
        await page.goto(counter.page_of(waiting))
        await expect(page.locator("#waits .plain")).to_have_text("Refund 40 EUR?")
        await expect(page.locator("#waits form")).to_be_hidden()
        await expect(page.locator("#states li").first).to_contain_text("ask waiting")
    async with watched(counter.browser, counter.url, **options) as seen:
        for path in ("flows", "flows/billing/refund", f"graph-runs/{run}", f"graph-runs/{waiting}"):
            await seen.page.goto(f"{counter.url}/{path}")
            await check_access(seen.page)
            wide = await seen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width
