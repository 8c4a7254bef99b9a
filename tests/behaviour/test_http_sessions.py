"""Sessions and runs over HTTP: each endpoint calls the session's method, and maps the outcome to a status."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.stores.conversations import MOST_READ, SessionLabel
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.talks import Echo, failing, parent_on
from tests.behaviour.web import create_session, pages_of, run_message, texts, web_elsewhere, web_on

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed

NO_RETRY = RetryPolicy(max_retries=0)


async def test_a_session_is_made_found_named_and_deleted(bed: Bed, app: str) -> None:
    """The same id again is the same session. A deleted session is 410, an unknown one 404."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        new = {"session_id": "s/1", "title": "Wale", "metadata": {"k": [1]}, "app": app}
        first = await web("POST", "/v1/sessions", new)
        again = await web("POST", "/v1/sessions", {**new, "title": "other"})
        other = await web.post("/v1/sessions")
        assert (first.status, again.status) == (201, 200)
        assert first.data == again.data == await web.get("/v1/sessions/s%2F1")
        assert first.data["title"] == "Wale"
        assert first.data["metadata"] == {"k": [1]}
        assert (first.data["status"], first.data["queue"], first.data["active_node"]) == (
            "idle",
            [],
            None,
        )
        assert len(other["session_id"]) == 32

        changed = await web("PATCH", "/v1/sessions/s%2F1", {"title": "Fische"})
        assert (changed.status, changed.data["title"], changed.data["metadata"]) == (
            200,
            "Fische",
            {"k": [1]},
        )
        assert (await web("DELETE", "/v1/sessions/s%2F1")).data["counts"]["sessions"] == {"rows": 1}
        for method, path in (
            ("GET", ""),
            ("PATCH", ""),
            ("DELETE", ""),
            ("GET", "/runs"),
            ("GET", "/nodes"),
        ):
            answer = await web(method, f"/v1/sessions/s%2F1{path}", {})
            assert (answer.status, answer.data["code"], answer.data["name"]) == (
                410,
                "session_deleted",
                "s/1",
            )
            unknown = await web(method, f"/v1/sessions/nowhere{path}", {})
            assert (unknown.status, unknown.data["code"]) == (404, "unknown_session")
        assert (await web("POST", "/v1/sessions", new)).status == 201


async def test_sessions_are_listed_in_pages_by_state_and_title(bed: Bed, app: str) -> None:
    """Each page has the cursor of the next one."""
    echo = Echo()
    echo.hold("wait")
    async with web_on(bed, echo.agent(), app_name=app) as web:
        for n in range(5):
            await web.post("/v1/sessions", {"session_id": f"{n}", "title": f"Talk {n % 2}"})
        await web.post("/v1/sessions/3/runs", {"text": "wait"})
        pages = await pages_of(web, "/v1/sessions?limit=2")
        ids = [session["session_id"] for page in pages for session in page["sessions"]]
        active = await web.get("/v1/sessions?status=active")
        by_title = await web.get("/v1/sessions?title=TALK%201&status=idle")

        whole = (await web.get("/v1/sessions"))["sessions"]
        assert ids == [session["session_id"] for session in whole]
        assert sorted(ids) == ["0", "1", "2", "3", "4"]
        assert [session["session_id"] for session in active["sessions"]] == ["3"]
        assert [session["session_id"] for session in by_title["sessions"]] == ["1"]
        assert (await web.get("/v1/sessions?app=other"))["sessions"] == []


async def test_a_search_goes_on_behind_a_page_that_found_nothing(bed: Bed, app: str) -> None:
    """A page reads a bounded number of sessions; the page in the browser shows the same."""
    if bed.backend != "memory":
        pytest.skip("more than ten thousand sessions; tests/conformance has the bound on servers")
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        directory = bed.runtime.store.data.directory
        await directory.create(AgentId(app, "old"), SessionLabel(title="Whales"))
        for n in range(MOST_READ):
            await directory.create(AgentId(app, f"{n}"), SessionLabel(title="Fish"))
        first, *more = await pages_of(web, "/v1/sessions?title=whale")
        ids = [session["session_id"] for page in more for session in page["sessions"]]
        html = (await web("GET", f"/chat/{app}?title=whale")).body.decode()

    assert (first["sessions"], ids) == ([], ["old"])
    assert "No conversation in this part of the list has such a title." in html
    assert "Older ones" in html


@pytest.mark.item(348, 349, 351, 355, 361, 362, 364, 378)
async def test_a_message_starts_a_run_which_can_be_waited_for(bed: Bed, app: str) -> None:
    """It is durable when accepted. The same key is the same run; blocks arrive unchanged."""
    echo = Echo()
    gate = echo.hold("hello")
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        accepted = await web("POST", f"{path}/runs", {"text": "hello"}, idempotency_key="m-1")
        run = accepted.data
        assert (accepted.status, run["session_id"]) == (202, "s")
        assert run["status"] in ("queued", "running")
        assert accepted.headers["location"] == f"{path}/runs/{run['run_id']}"
        late = await web(
            "POST", f"{path}/runs", {"text": "hello"}, idempotency_key="m-1", prefer="wait=1"
        )
        assert (late.status, late.data["run_id"]) == (202, run["run_id"])
        assert late.headers["preference-applied"] == "wait=1"
        gate.set()
        whole = await web(
            "POST",
            f"{path}/runs",
            {"text": "hello", "message_id": "m-1"},
            prefer="respond-async, wait=20",
        )
        assert (whole.status, whole.data["status"], whole.data["output"]) == (
            200,
            "completed",
            "echo: hello",
        )
        view = await web.get(f"{path}/runs/{run['run_id']}")
        assert view == whole.data
        blocks = {"content": [{"type": "text", "text": "look"}, {"type": "hologram", "depth": 3}]}
        await web.post(f"{path}/runs", blocks, prefer="wait=20")
        nodes = (await web.get(f"{path}/nodes"))["nodes"]
        assert [node["text"] for node in nodes] == ["hello", "echo: hello", "look", "echo: look"]
        assert nodes[2]["content"] == blocks["content"]
        page = await web.get(f"{path}/runs?limit=1")
        older = await web.get(f"{path}/runs?limit=1&after={page['next']}")
        assert older == {"runs": [view], "next": None}
        assert (await web.get(f"{path}/runs?status=failed"))["runs"] == []
        assert len((await web.get(f"{path}/runs?status=completed"))["runs"]) == 2


@pytest.mark.item(350, 361, 363)
async def test_each_run_has_the_agent_of_its_mode_over_http(bed: Bed, app: str) -> None:
    """An unknown mode is refused with the list of existing ones."""
    modes = {"normal": Echo("main").agent(), "orchestrator": Echo("boss").agent()}
    async with web_on(bed, modes, app_name=app) as web:
        path = await create_session(web)
        run = {"text": "a", "mode": "orchestrator"}
        assert (await web.post(f"{path}/runs", run, prefer="wait=20"))["output"] == "boss: a"
        assert (await run_message(web, path, "b"))["output"] == "main: b"
        refused = await web("POST", f"{path}/runs", {"text": "c", "mode": "solo"})
        assert (refused.status, refused.data["code"], refused.data["name"]) == (
            422,
            "unknown_mode",
            "solo",
        )
        assert "normal, orchestrator" in refused.data["detail"]
        apps = (await web.get("/v1/apps"))["apps"]
        mine = {
            "app": app,
            "is_default": True,
            "is_served": True,
            "modes": ["normal", "orchestrator"],
        }
        assert mine in apps


@pytest.mark.item(367)
async def test_sessions_execute_at_the_same_time_over_http(bed: Bed, app: str) -> None:
    """Each waits for the start of the other."""
    began = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def reply(messages: Any, options: Any = None) -> ModelReply:
        mine = messages[-1].text
        began[mine].set()
        return ModelReply(text=mine, before=began["b" if mine == "a" else "a"].wait)

    async with web_on(bed, ReActAgent("two", model=FunctionModel(reply)), app_name=app) as web:
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(run_message(web, await create_session(web, session), session))
                for session in ("a", "b")
            ]
        assert [run.result()["output"] for run in runs] == ["a", "b"]


@pytest.mark.item(352, 365, 366, 368, 370, 377, 379, 385)
async def test_a_session_is_renamed_while_it_gets_messages(bed: Bed, app: str) -> None:
    """Neither waits for the other's outcome, and nothing of either is lost."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        await web.post("/v1/sessions", {"session_id": "s", "metadata": {"k": 1}})
        posts = [web("POST", "/v1/sessions/s/runs", {"text": f"{n}"}) for n in range(10)]
        names = [web("PATCH", "/v1/sessions/s", {"title": f"name {n}"}) for n in range(10)]
        mixed = [call for pair in zip(posts, names, strict=True) for call in pair]

        answers = await asyncio.gather(*mixed)

        assert {answer.status for answer in answers} == {200, 202}
        runs = [answer.data["run_id"] for answer in answers[::2]]
        for run in runs:
            await bed.result(run)
        session = await web.get("/v1/sessions/s")
        assert session["title"] in {f"name {n}" for n in range(10)}
        assert (session["metadata"], session["queue"]) == ({"k": 1}, [])
        assert {run["run_id"] for run in (await web.get("/v1/sessions/s/runs"))["runs"]} == {*runs}


async def test_queued_runs_start_in_order_and_can_be_cancelled(bed: Bed, app: str) -> None:
    """The session shows its queue. While runs are open it is neither switched nor deleted."""
    echo = Echo()
    gate = echo.hold("1")
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        ids = [(await web.post(f"{path}/runs", {"text": f"{n}"}))["run_id"] for n in (1, 2, 3)]
        session = await web.get(path)
        queue = [(run["run_id"], run["status"]) for run in session["queue"]]
        assert [run_id for run_id, _ in queue] == ids
        assert (session["status"], session["open_runs"], queue[1][1]) == ("active", 3, "queued")
        stopped = await web.post(
            f"{path}/runs/{ids[1]}/cancel", {"reason": "not needed"}, prefer="wait=20"
        )
        assert (stopped["status"], stopped["error"]) == ("cancelled", {"message": "not needed"})
        for refused in (
            await web("DELETE", path),
            await web("PUT", f"{path}/active-node", {"node_id": "root"}),
            await web("POST", f"{path}/runs", {"text": "4", "on_conflict": "reject"}),
        ):
            assert refused.status == 409
        assert refused.data["code"] == "run_conflict"
        gate.set()
        for id_ in (ids[0], ids[2]):
            await bed.result(id_)
        assert [window[-1] for window in echo.asked] == ["1", "3"]
        ended = await web("POST", f"{path}/runs/{ids[0]}/cancel")
        assert (ended.status, ended.data["status"]) == (202, "completed")
        assert (await web.get(path))["queue"] == []
        echo.hold("stop me")
        run = await web.post(f"{path}/runs", {"text": "stop me"})
        await bed.until(lambda: echo.asked[-1][-1] == "stop me")
        await web.post(f"{path}/runs/{run['run_id']}/cancel", prefer="wait=20")
        assert (await texts(web, path))[-1] == "stop me"


@pytest.mark.item(381, 382)
async def test_a_conversation_can_branch_from_any_node(bed: Bed, app: str) -> None:
    """Nodes come in pages, of the active path or all, each with its parent."""
    echo = Echo()
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        await run_message(web, path, "1")
        first = (await web.get(path))["active_node"]
        await run_message(web, path, "2")
        edited = {"text": "2b", "parent_node": first}
        await web.post(f"{path}/runs", edited, prefer="wait=20")
        assert await texts(web, path) == ["1", "echo: 1", "2b", "echo: 2b"]
        whole = await web.get(f"{path}/nodes?path=all")
        parents = {node["text"]: node["parent"] for node in whole["nodes"]}
        assert (parents["1"], parents["2"], parents["2b"]) == (None, first, first)
        for kind in ("all", "active"):
            pages = await pages_of(web, f"{path}/nodes?path={kind}&limit=3")
            nodes = [node for page in pages for node in page["nodes"]]
            assert nodes == (await web.get(f"{path}/nodes?path={kind}"))["nodes"]
        assert (await web("PUT", f"{path}/active-node", {"node_id": first})).status == 204
        await run_message(web, path, "3")
        assert await texts(web, path) == ["1", "echo: 1", "3", "echo: 3"]
        assert (await web("PUT", f"{path}/active-node", {"node_id": "root"})).status == 204
        assert await texts(web, path) == []
        await run_message(web, await create_session(web, "other"), "x")
        for body in (
            {"text": "y", "parent_node": "nothing"},
            {"text": "y", "parent_node": "x\x01"},
        ):
            unknown = await web("POST", f"{path}/runs", body)
            assert (unknown.status, unknown.data["code"]) == (404, "unknown_node")
        foreign = (await web.get("/v1/sessions/other"))["active_node"]
        assert (await web("PUT", f"{path}/active-node", {"node_id": foreign})).status == 404
        assert (await web("GET", f"{path}/nodes?after={foreign}")).status == 404


@pytest.mark.item(353, 354, 380)
async def test_a_child_can_be_inspected_over_http(bed: Bed, app: str) -> None:
    """Below the run that spawned it, and below no other."""
    parent = await parent_on(bed, Echo("child"))
    async with web_on(bed, {"normal": parent}, app_name=app) as web:
        path = await create_session(web)
        run = await run_message(web, path, "go")
        children = f"{path}/runs/{run['run_id']}/children"
        [child] = (await web.get(children))["runs"]
        assert (child["status"], child["parent"]) == ("completed", run["run_id"])
        view = await web.get(f"{children}/{child['run_id']}")
        assert [node["text"] for node in view["nodes"]] == ["look into it", "child: look into it"]
        assert view["run"] == child
        other = await run_message(web, await create_session(web, "t"), "go")
        wrong = await web(
            "GET", f"/v1/sessions/t/runs/{other['run_id']}/children/{child['run_id']}"
        )
        assert (wrong.status, wrong.data["code"]) == (404, "unknown_child")
        assert (await web("GET", f"/v1/sessions/t/runs/{run['run_id']}")).status == 404


@pytest.mark.item(356, 366, 372, 376)
async def test_another_process_shows_the_same(bed: Bed, app: str) -> None:
    """A failed run leaves the message as the active node; a queue survives the process."""
    async with web_on(bed, failing(), app_name=app, retry=NO_RETRY) as web:
        path = await create_session(web)
        await run_message(web, path, "good")
        failed = await run_message(web, path, "bad")
        assert (failed["status"], failed["error"]["message"]) == ("failed", "no")
        async with web_elsewhere(bed, app_name=app) as other:
            assert await other.get(path) == await web.get(path)
            assert await texts(other, path) == ["good", "ok", "bad"]
            assert (await run_message(other, path, "better"))["output"] == "ok"
        assert (await texts(web, path))[-2:] == ["better", "ok"]
