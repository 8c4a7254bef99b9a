"""Approvals, artifacts, clean-up, and agents that are no sessions, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import Risk, Tool, ToolCall
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.talks import Echo
from tests.behaviour.test_session_cleanup import boss_on
from tests.behaviour.web import WebClient, create_session, run_message, web_elsewhere, web_on

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.item(369)
async def test_a_person_decides_over_http_once(bed: Bed, app: str) -> None:
    """By the whole id of a request, in any process."""
    calls: list[int] = []

    async def refund(amount: int) -> str:
        calls.append(amount)
        return "done"

    def reply(messages: Any, options: Any = None) -> ModelReply:
        last = messages[-1]
        if last.role == "tool":
            return ModelReply(text="ok")
        arguments = {"amount": int(last.text)}
        return ModelReply(calls=[ToolCall(id="c1", name="refund", arguments=arguments)])

    tool = Tool("refund", "Pays money back.", refund, risk=Risk.CRITICAL)
    agent = ReActAgent("desk", model=FunctionModel(reply), tools=[tool])
    async with web_on(bed, agent, app_name=app) as web, web_elsewhere(bed, app_name=app) as other:
        runs = []
        for session, amount in (("s", "5"), ("t", "50")):
            path = await create_session(web, session)
            runs.append((await web.post(f"{path}/runs", {"text": amount}))["run_id"])
            await bed.seen(runs[-1], "ask.sent")
        mine = [await web.get(f"/v1/approvals?run_id={run}") for run in runs]
        [first], [second] = [page["approvals"] for page in mine]
        assert (first["what"], first["args"]["arguments"]) == ("tool refund", {"amount": 5})
        page = await other.get("/v1/approvals?limit=1")
        behind = await other.get(f"/v1/approvals?after={page['next']}")
        bad = await other("GET", f"/v1/approvals?after={first['id']}")
        assert (bad.status, bad.data["code"]) == (400, "bad_cursor")
        ids = [approval["id"] for approval in (*page["approvals"], *behind["approvals"])]
        assert {first["id"], second["id"]} <= {*ids}
        short = await web("POST", f"/v1/approvals/{first['id'][:12]}", {"approve": True})
        assert (short.status, short.data["code"]) == (404, "unknown_approval")
        done = await other.post(
            f"/v1/approvals/{first['id']}", {"approve": True, "comment": "fine"}
        )
        assert done["run_id"] == runs[0]
        await web.post(f"/v1/approvals/{second['id']}", {"approve": False})
        for run in runs:
            await bed.result(run)
        assert calls == [5]
        again = await web("POST", f"/v1/approvals/{first['id']}", {"approve": False})
        assert again.status == 404
        log = await web.get(f"/v1/runs/{runs[0]}/events")
        decided = [entry["payload"] for entry in log["entries"] if entry["kind"] == "ask.replied"]
        assert decided[0]["result"] == {"by": "local", "comment": "fine"}


@pytest.mark.item(353, 382)
async def test_an_artifact_is_uploaded_in_pieces_and_never_rendered(bed: Bed, app: str) -> None:
    """Whatever its name and type, a browser downloads it and does not render it."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        await create_session(web)
        pieces = [b"<script>", b"x" * 3_000_000, b"</script>"]
        query = "session_id=s&name=a%2Fr%20%22%0D%0A.html&kind=debug"
        upload = await web(
            "POST", f"/v1/artifacts?{query}", pieces=pieces, content_type="text/html; charset=utf-8"
        )
        assert upload.status == 201
        assert (upload.data["size_bytes"], upload.data["kind"]) == (3_000_017, "debug")
        listing = await web.get("/v1/artifacts?session_id=s")
        assert listing == {"artifacts": [upload.data]}
        path = "/v1/artifacts/a%2Fr%20%22%0D%0A.html?session_id=s"
        loaded = await web("GET", path)
        assert loaded.body == b"".join(pieces)
        assert (
            loaded.headers["content-disposition"]
            == "attachment; filename*=UTF-8''r%20%22%0D%0A.html"
        )
        assert loaded.headers["x-content-type-options"] == "nosniff"
        assert loaded.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert loaded.headers["content-type"] == "text/html; charset=utf-8"
        assert loaded.headers["content-length"] == "3000017"
        odd = await web("POST", "/v1/artifacts?session_id=s&name=odd", b"x", content_type="a\tb")
        assert odd.data["content_type"] == "application/octet-stream"
        assert (await web("DELETE", path)).status == 204
        for method in ("GET", "DELETE"):
            answer = await web(method, path)
            assert (answer.status, answer.data["code"]) == (404, "unknown_artifact")
        for session in ("nowhere", "%00"):
            assert (await web("POST", f"/v1/artifacts?session_id={session}&name=a")).status in (
                400,
                404,
            )


@pytest.mark.item(384, 388, 389, 390)
async def test_clean_up_of_artifacts_shows_before_it_removes(bed: Bed, app: str) -> None:
    """Of one session or of all; kind, age and bytes narrow the selection."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        await _artifacts(web, "s")
        await _artifacts(web, "t")

        async def cleaned(**body: Any) -> Any:
            return await web.post("/v1/cleanup/artifacts", body)

        preview = await cleaned(session_id="s")
        assert [
            (candidate["session_id"], candidate["name"]) for candidate in preview["candidates"]
        ] == [("s", "trace")]
        assert (preview["dry_run"], preview["size_bytes"]) == (True, 5)
        assert len((await cleaned(include_all=True))["candidates"]) == 4
        assert (await cleaned(include_all=True, older_than_s=86_400))["candidates"] == []
        assert (await cleaned(max_bytes=10))["candidates"] == []
        removal = await cleaned(session_id="s", dry_run=False)
        assert removal["candidates"] == preview["candidates"]
        remaining = await web.get("/v1/artifacts?session_id=s")
        assert [artifact["name"] for artifact in remaining["artifacts"]] == ["report"]


async def _artifacts(web: WebClient, session: str) -> None:
    await create_session(web, session)
    for name, kind in (("trace", "debug"), ("report", "ordinary")):
        await web.post(
            f"/v1/artifacts?session_id={session}&name={name}&kind={kind}", name[:5].encode()
        )


@pytest.mark.item(383, 386, 387, 389)
async def test_clean_up_of_tasks_goes_by_the_label_of_the_project(bed: Bed, app: str) -> None:
    """The project is a label, not a folder of the server."""
    boss = await boss_on(bed)
    async with web_on(bed, {"normal": boss}, app_name=app) as web:
        await web.post("/v1/sessions", {"session_id": "s", "project": "~nobody/p"})
        run = await run_message(web, "/v1/sessions/s", "done")
        assert run["status"] == "completed"
        assert (await web.post("/v1/cleanup/tasks", {"project": "other"}))["candidates"] == []
        preview = await web.post("/v1/cleanup/tasks", {"project": "~nobody/p"})
        [task] = preview["candidates"]
        assert (task["task"], task["status"], task["session_id"]) == ("card done", "COMPLETED", "s")
        removal = await web.post("/v1/cleanup/tasks", {"project": "~nobody/p", "dry_run": False})
        assert removal["candidates"] == preview["candidates"]
        assert (await bed.row(task["run_id"])).swept


@pytest.mark.item(115)
async def test_any_agent_takes_messages_and_any_run_shows_its_log(bed: Bed, app: str) -> None:
    """A plain message wakes an agent that waits for it; the log comes in pages."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        more = await ctx.receive()
        assert more is not None
        return [inbox[0].payload, more.payload]

    agent = await bed.serve(act)
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = f"/v1/agents/{agent.type}/{agent.key}/messages"
        sent = await web("POST", path, {"payload": {"n": 1}}, idempotency_key="k")
        again = await web.post(path, {"payload": {"n": 1}}, idempotency_key="k")
        run = sent.data["run_id"]
        assert (sent.status, sent.headers["location"], again["run_id"]) == (
            202,
            f"/v1/runs/{run}",
            run,
        )
        await bed.seen(run, "run.suspended" if bed.drops else "run.started")
        mail = {"payload": [2], "starts_run": False, "message_id": "m"}
        assert await web.post(path, mail) == {"message_id": "m", "run_id": None, "is_new": True}
        assert (await web.post(path, mail))["is_new"] is False
        assert await bed.result(run) == [{"n": 1}, [2]]
        view = await web.get(f"/v1/runs/{run}")
        assert (view["status"], view["output"], view["session_id"]) == (
            "completed",
            [{"n": 1}, [2]],
            None,
        )
        kinds, begin = list[str](), 0
        while begin is not None:
            page = await web.get(f"/v1/runs/{run}/events?limit=2&from_seq={begin}")
            kinds += [entry["kind"] for entry in page["entries"]]
            begin = page["next"]
        assert kinds == [entry.kind for entry in await bed.log(run)]
        unserved = await web("POST", "/v1/agents/nobody/1/messages", {"payload": 1})
        assert (unserved.status, unserved.data["code"]) == (404, "unserved")


async def test_the_document_describes_each_endpoint(bed: Bed, app: str) -> None:
    """With the models that validate requests; every reference resolves."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        document = await web.get("/v1/openapi.json")
    text = str(document)
    schemas = document["components"]["schemas"]

    assert (
        document["paths"]["/v1/sessions/{session}/runs"]["post"]["requestBody"]["required"] is False
    )
    assert "NewRunJson" in schemas
    needed_schemas = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert needed_schemas == schemas.keys()
