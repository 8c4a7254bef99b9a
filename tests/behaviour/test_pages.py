"""Pages over HTTP: they show what the API returns, and execute no client input."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest
from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Risk, Tool, ToolCall
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.ids import AgentId
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply
from compose._web.pages import conversation
from compose._web.pages.conversation import WINDOW
from compose._web.pages.html import POLICY
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import LOCAL, Principal
from compose.web import app as api_of
from tests.behaviour.agents import Acting
from tests.behaviour.bed import FAST
from tests.behaviour.guarded import guarded_on
from tests.behaviour.talks import Echo
from tests.behaviour.web import Answer, WebClient, create_session, run_message, web_on
from tests.harness.elements import Elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed

EVIL: Final = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{1337*1337}}"
HTML: Final = "text/html"


def read(answer: Answer, status: int = 200) -> Elements:
    """Return a page, and check that it has no script, style, handler or image but our own."""
    assert answer.status == status, answer
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["content-type"].startswith(HTML)
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Elements(answer.body.decode())
    assert not page.all("img") + page.all("style") + page.all("iframe")
    for element in (*page.all("script"), *page.all("link")):
        assert str(element.get("src") or element.get("href")).startswith("/static/"), element
    for _, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert "1787569" not in page.text
    return page


async def page_of(web: WebClient, path: str, status: int = 200) -> Elements:
    """Return the page at a path."""
    return read(await web("GET", path, accept=HTML), status)


async def test_a_page_of_a_session_that_never_rests_misses_no_event(
    bed: Bed, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run begins and ends after each read of the open runs: its events are behind the page's cursor."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path, runs = await create_session(web), list[str]()
        await run_message(web, path, "first")
        read_runs = conversation.open_runs

        async def read_before_a_run(runtime: Runtime, agent: AgentId) -> conversation.OpenRuns:
            open_runs = await read_runs(runtime, agent)
            runs.append((await run_message(web, path, "next"))["run_id"])
            return open_runs

        monkeypatch.setattr(conversation, "open_runs", read_before_a_run)
        [main] = (await page_of(web, f"/chat/{app}/s")).all("main")
        events = (await web.get(f"{path}/events?after={main['data-cursor']}"))["events"]

        assert len(runs) > 2
        assert {event["run_id"] for event in events} == {runs[-1]}
        assert [event["type"] for event in events][-1] == "run_completed"


class EvilDesk(ReActAgent):
    """An agent whose texts are all markup: of its model, its tools, its specialist and its errors."""

    def __init__(self, specialist: AgentId) -> None:
        async def pay(**arguments: Any) -> Any:
            return {EVIL: EVIL}

        schema = {"type": "object", "properties": {EVIL: {"type": "string"}}}
        tool = Tool("pay", EVIL, pay, parameters=schema, risk=Risk.HIGH)
        super().__init__("desk", model=FunctionModel(self._answer), tools=[tool])
        self._specialist = specialist

    def _answer(self, messages: Sequence[ChatMessage], options: Any) -> ModelReply:
        del options
        if messages[-1].role == "tool" or messages[-1].text == "go on":
            return ModelReply(text=EVIL, reasoning=EVIL)
        if "fail" in messages[-1].text:
            return ModelReply(pieces=(), error=ValueError(EVIL))
        calls = [ToolCall(id=EVIL, name="pay", arguments={EVIL: EVIL})]
        return ModelReply(text=EVIL, calls=calls)

    @override
    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Ask a specialist, then answer."""
        await ctx.join(await ctx.spawn(self._specialist, {"text": EVIL}))
        return await super().run(ctx, inbox)


@pytest.mark.item(364, 369, 387)
async def test_pages_execute_no_client_input(bed: Bed, app: str) -> None:
    """Ids, titles, messages, answers, tools, approvals, files, specialists, errors, and request paths."""

    async def helps(ctx: RunContext, inbox: list[Message]) -> Any:
        return {EVIL: inbox[0].payload}

    helper = Acting(bed.name(EVIL), helps)
    bed.agents[helper.id] = helper
    await bed.runtime.register(helper)
    async with web_on(bed, EvilDesk(helper.id), app_name=app, retry=FAST) as web:
        session, path = EVIL, f"/v1/sessions/{quote(EVIL, safe='')}"
        label = {"session_id": session, "title": EVIL, "metadata": {EVIL: EVIL}, "project": EVIL}
        await web.post("/v1/sessions", label)
        run = (await web.post(f"{path}/runs", {"text": EVIL}))["run_id"]
        here = f"/chat/{app}/{quote(session, safe='')}"
        await bed.seen(run, "ask.sent")
        waiting = await page_of(web, here)
        [approval] = (await web.get(f"/v1/approvals?run_id={run}"))["approvals"]
        assert [article["data-approval"] for article in waiting.all("article", "approval")] == [
            approval["id"]
        ]
        await web.post(f"/v1/approvals/{approval['id']}", {"approve": True, "comment": EVIL})
        await web.post(f"{path}/runs", {"text": f"fail {EVIL}", "message_id": "f"})
        name = quote(EVIL, safe="")
        upload = f"/v1/artifacts?session_id={name}&name={name}"
        await web("POST", upload, b"x", content_type=EVIL.replace("\n", ""))
        assert (await run_message(web, path, "go on"))["status"] == "completed"
        pages = [
            await page_of(web, url)
            for url in (
                "/",
                f"/chat/{app}",
                f"/chat/{app}?title={quote('<script>')}",
                here,
                f"{here}?before=1",
                f"{here}/runs/{run}",
            )
        ]
        whole = pages[3]
        assert whole.text.count(EVIL) >= 10
        [child] = [link for link in whole.links() if f"/runs/{run}/children/" in link]
        assert EVIL in (await page_of(web, child)).text
        [file] = {link for link in whole.links() if link.startswith("/v1/artifacts/")}
        assert (await web("GET", file)).body == b"x"
        for status, lost in (
            (404, f"/chat/{app}/{quote('no ' + EVIL, safe='')}"),
            (404, f"{here}/runs/{quote(EVIL, safe='')}"),
            (404, f"{here}/runs/{run}/children/{quote(EVIL, safe='')}"),
            (422, f"{here}?{quote(EVIL)}=1"),
            (422, f"/chat/{quote(EVIL, safe='')}"),
            (400, f"/chat/{app}?after={quote(EVIL)}"),
        ):
            await page_of(web, lost, status)


async def test_a_conversation_is_read_without_scripts(bed: Bed, app: str) -> None:
    """Apps link to sessions, these to conversations; answers are formatted, instants exact."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web, "a/b")
        await web("PATCH", path.replace("a/b", "a%2Fb"), {"title": "Large whales"})
        await run_message(web, "/v1/sessions/a%2Fb", "where are **whales**?")
        apps = await page_of(web, "/")
        assert f"/chat/{app}" in apps.links()
        list_page = await page_of(web, f"/chat/{app}?title=WHALE")
        assert [link for link in list_page.links() if link.endswith("/a%2Fb")] == [
            f"/chat/{app}/a%2Fb"
        ]
        assert "/a%2Fb" not in str((await page_of(web, f"/chat/{app}?title=dragon")).links())
        page = await page_of(web, f"/chat/{app}/a%2Fb")
        assert "where are **whales**?" in page.text
        assert (
            len(page.all("strong")) - len(page.all("article", "message")) == 2
        )  # title, **whales**
        assert all(len(str(element["datetime"])) > 18 for element in page.all("time"))
        assert " UTC" in page.text


@pytest.mark.item(356)
async def test_a_page_has_the_end_of_a_conversation_and_links_to_the_rest(
    bed: Bed, app: str
) -> None:
    """Each node once, in a conversation of any length."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        await run_message(web, path, "first")
        agent = web.talks.agent_id("s") if web.talks else AgentId(app, "s")
        more = [NewTurn("s", f"n{n}", ChatMessage.of("assistant", f"turn {n}")) for n in range(95)]
        await bed.runtime.store.data.transcripts.append(agent, more)
        nodes = [node["node_id"] for node in (await web.get(f"{path}/nodes"))["nodes"]]
        listed_nodes: list[str] = []
        here, links = f"/chat/{app}/s", [f"/chat/{app}/s"]
        while links:
            page = await page_of(web, links[0])
            page_nodes = [str(article["data-node"]) for article in page.all("article", "message")]
            assert len(page_nodes) <= WINDOW
            listed_nodes = page_nodes + listed_nodes
            links = [link for link in page.links() if link.startswith(f"{here}?before=")]
        assert listed_nodes == nodes


@pytest.mark.item(357)
async def test_branches_are_numbered_and_link_to_their_ends(bed: Bed, app: str) -> None:
    """An edited message has arrows to the newest end of the branches before and after it."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        for text in ("one", "two"):
            await run_message(web, path, text)
        nodes = (await web.get(f"{path}/nodes"))["nodes"]
        await run_message(web, path, "zwei")
        await web.post(
            f"{path}/runs", {"text": "deux", "parent_node": nodes[1]["node_id"]}, prefer="wait=20"
        )
        page = await page_of(web, f"/chat/{app}/s")
        ends = [
            str(button["data-to"])
            for button in page.all("button")
            if button.get("data-do") == "switch"
        ]
        assert len(ends) == 2
        assert ends[1] == ""
        await web("PUT", f"{path}/active-node", {"node_id": ends[0]})
        back = await page_of(web, f"/chat/{app}/s")
        assert ("zwei" in back.text, "deux" in back.text) == (True, False)
        run = nodes[2]["run_id"]
        part = await page_of(web, f"/chat/{app}/s/runs/{run}")
        assert [button for button in part.all("button") if button.get("data-do") == "switch"] == [
            button for button in back.all("button") if button.get("data-do") == "switch"
        ]


@pytest.mark.item(362, 364)
async def test_a_page_shows_executing_and_queued_messages(bed: Bed, app: str) -> None:
    """The message of the open run before its answer, the queued messages, and the cursor for events."""
    echo = Echo()
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        gate = echo.hold("slow")
        first = (await web.post(f"{path}/runs", {"text": "slow"}))["run_id"]
        second = (await web.post(f"{path}/runs", {"text": "queued one"}))["run_id"]
        await bed.seen(first, "run.started")
        page = await page_of(web, f"/chat/{app}/s")
        [state] = [element for element in page.all("div") if element.get("id") == "state"]
        assert state["data-active"] == first
        assert [item["id"] for item in page.all("li") if "id" in item] == [f"queued-{second}"]
        assert page.text.count("queued one") == 1
        assert "slow" in page.text
        [main] = page.all("main")
        gate.set()
        async with web.stream(f"{path}/events", last_event_id=str(main["data-cursor"])) as stream:
            await stream.until("run_completed")
            behind = await stream.until("run_completed")
        assert {event["data"]["run_id"] for event in behind} == {second}


async def test_a_page_shows_only_its_readers_sessions(bed: Bed, app: str) -> None:
    """Another tenant finds nothing.

    A client without a principal is redirected to the login, or gets a 401.
    """
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        run = await run_message(web, path, "secret")

        async def stranger(_: Request) -> Principal:
            return Principal("other", "eve", LOCAL.scopes)

        async def nobody(_: Request) -> Principal:
            raise ProblemError(HttpProblem(401, "unauthorized", "say who you are"))

        here = f"/chat/{app}/s"
        theirs = WebClient(api_of(bed.runtime, default_app=app, authenticate=stranger))
        for url in (here, f"{here}/runs/{run['run_id']}", f"{here}?before=1"):
            assert "secret" not in (await page_of(theirs, url, 404)).text
        assert not [
            link for link in (await page_of(theirs, f"/chat/{app}")).links() if link.endswith("/s")
        ]
        unknown = WebClient(api_of(bed.runtime, default_app=app, authenticate=nobody))
        await page_of(unknown, here, 401)


async def test_a_page_redirects_an_unknown_client_to_the_login(bed: Bed) -> None:
    """And back. Another principal's sessions are neither pages nor listed; scopes are those of the API."""
    async with guarded_on(bed) as guarded:
        ada, bob = [await guarded.client(name, "sessions:own") for name in ("ada", "bob")]
        await create_session(ada, "s")
        here = f"/chat/{guarded.app}/s"
        answer = await guarded.web("GET", here, accept=HTML)
        assert (answer.status, answer.headers["location"]) == (303, f"/login?next={here}")
        form = (await page_of(guarded.web, answer.headers["location"])).all("form")
        assert [element["data-next"] for element in form] == [here]
        await page_of(ada, here)
        await page_of(bob, here, 404)
        lists = [await page_of(client, f"/chat/{guarded.app}") for client in (ada, bob)]
        assert [here in page.links() for page in lists] == [True, False]
        await page_of(await guarded.client("eve", "cleanup"), "/", 403)


async def test_the_page_of_a_deleted_session_is_410(bed: Bed, app: str) -> None:
    """410, with a link."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        await web("DELETE", path)
        page = await page_of(web, f"/chat/{app}/s", 410)
        assert "/" in page.links()


async def test_browsers_cache_files_of_pages_by_their_digest(bed: Bed, app: str) -> None:
    """Their name has a digest. A name of another version of the process is not cached."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        page = await page_of(web, "/")
        [script] = [str(script["src"]) for script in page.all("script")]
        answer = await web("GET", script, accept_encoding="gzip")
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
        old = await web("GET", "/static/old/page.js")
        assert old.headers["cache-control"] == "no-store"
        assert b"import" in old.body
        for lost in ("/static/x/nothing.js", "/static/x/..%2Fhtml.py", "/static/x/page.html"):
            assert (await web("GET", lost)).status == 404


async def test_without_its_extra_the_page_names_the_package_to_install(
    bed: Bed, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other endpoints of the API exist."""
    for name in [module for module in sys.modules if module.startswith("compose._web.pages.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        answer = await web("GET", "/")
        assert (answer.status, answer.data["code"]) == (501, "no_pages")
        assert "callboard[web]" in answer.data["remedy"]
        assert (await web.get("/v1/apps"))["apps"]
