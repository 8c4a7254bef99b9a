"""Authorisation: each endpoint and page with each scope, for an owner, another principal and another tenant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from starlette.responses import Response

from actors._kernel.runtime.ids import AgentId
from actors.sessions import AgentRuntime
from compose._web.agui.endpoint import endpoint as agui
from compose._web.application import ENDPOINTS
from compose._web.endpoint import Endpoints, WebCall, WebEndpoint
from compose._web.pages.routes import PAGES
from tests.behaviour.guarded import Guarded, guarded_on
from tests.behaviour.talks import Echo, parent_on
from tests.behaviour.test_http_graphs import flows_at, run_of, started, waiting_at
from tests.behaviour.web import Answer, WebClient, create_session, run_message

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

EVERY: Final[tuple[WebEndpoint, ...]] = (*ENDPOINTS, *agui, *PAGES)
SCOPES: Final = (
    *((), ("sessions:own",), ("sessions:all",), ("operate",), ("cleanup",)),
    *(("sessions:own", "operate"), ("sessions:all", "cleanup")),
    *(("flows:run",), ("flows:operate",), ("flows:install",)),
)
FLOW: Final = (
    b'{"flow": 1, "id": "refund", "version": "0", "start": "e", "nodes": {"e": {"end": 1}}}'
)
INSTALLS: Final = ("POST /v1/flows", "DELETE /v1/flows/{flow}")
OF_INSTALLED: Final = ("GET /v1/flows/{flow}", "GET /v1/flows/{flow}/bundle", INSTALLS[1])
EVIDENCE: Final = "GET /graph-runs/{graph_run}/evidence/{evidence}/{text}"
"""The run of these tests has none. `test_graph_pages.py` reads some."""
REQUESTS: Final[dict[str, tuple[str, Any]]] = {
    "POST /v1/sessions": ("", {"session_id": "s"}),
    "PATCH /v1/sessions/{session}": ("", {"title": "t"}),
    "PUT /v1/sessions/{session}/active-node": ("", {"node_id": "root"}),
    "POST /v1/sessions/{session}/runs": ("", {"text": "x", "message_id": "again"}),
    "POST /v1/approvals/{approval}": ("", {"approve": True}),
    "POST /v1/artifacts": ("?session_id=s&name=a", b"bytes"),
    "GET /v1/artifacts": ("?session_id=s", None),
    "GET /v1/artifacts/{artifact}": ("?session_id=s", None),
    "DELETE /v1/artifacts/{artifact}": ("?session_id=s", None),
    "POST /v1/cleanup/artifacts": ("", {"session_id": "s", "include_all": True, "dry_run": False}),
    "POST /v1/cleanup/tasks": ("", {"project": "none", "dry_run": False}),
    "POST /v1/agents/{type}/{key}/messages": ("", {"payload": 1, "starts_run": False}),
    "POST /v1/login": ("", {"token": "x"}),
    "POST /v1/graph-runs/{graph_run}/waits/{wait}": ("", {"payload": 1}),
    "POST /v1/graph-runs/{graph_run}/steer": ("", {"message": "x"}),
    "POST /v1/graph-runs/{graph_run}/limits": ("", {"updates": {}}),
    "POST /v1/graph-runs/{graph_run}/snapshots": ("", {"name": "x"}),
    "POST /v1/events": ("", {"name": "x"}),
    "POST /v1/flows": ("", FLOW),
    "POST /agui/{app}": (
        "?mode=echo",
        {"threadId": "s", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "x"}]},
    ),
}
"""Query and body of requests that need more than a path."""
OF_SESSION: Final = ("{session}", "{approval}", "/v1/artifacts", "/v1/cleanup/artifacts")
LAST: Final = (
    *("POST /v1/approvals", "PUT", "DELETE /v1/artifacts", "POST /v1/cleanup/artifacts"),
    *("DELETE", "POST /v1/graph-runs/{graph_run}/waits", "POST /v1/graph-runs/{graph_run}/cancel"),
)
"""Requests that delete are sent last, by clients that may."""


def name_of(endpoint: WebEndpoint) -> str:
    """Return an endpoint's name in the table."""
    return f"{endpoint.method} {endpoint.path}"


def rank(endpoint: WebEndpoint) -> int:
    """Return an endpoint's place among requests of authorised clients."""
    return next((n for n, begin in enumerate(LAST, 1) if name_of(endpoint).startswith(begin)), 0)


async def ask(web: WebClient, endpoint: WebEndpoint, names: dict[str, str]) -> Answer:
    """Send a request that is valid but for its sender."""
    query, body = REQUESTS.get(name_of(endpoint), ("", {} if endpoint.body is not None else None))
    path = re.sub(r"{(\w+)}", lambda match: names[match[1]], endpoint.path)
    if body is not None and isinstance(body, dict) and "message_id" in body:
        body = {**body, "mode": "echo"}
    return await web(endpoint.method, path + query, body)


def expected_status(endpoint: WebEndpoint, scopes: tuple[str, ...], who: str) -> int:
    """Return the expected status, or 2 for any success."""
    access, has = endpoint.scope, {*scopes}
    if access in ("public", "signed in"):
        return 401 if name_of(endpoint) == "POST /v1/login" else 2
    if "sessions:all" in has:
        has.add("sessions:own")
    if access not in has:
        return 403
    is_of_run = any(part in endpoint.path for part in ("{run}", "{graph_run}", "{snapshot}"))
    if name_of(endpoint) == EVIDENCE or (who == "stranger" and is_of_run):
        return 404
    if who == "stranger" and name_of(endpoint) in OF_INSTALLED:
        return 404
    is_of_session = any(part in endpoint.path for part in OF_SESSION)
    sees = who == "owner" or (who == "other" and "sessions:all" in scopes)
    if name_of(endpoint) in ("POST /v1/sessions", "POST /agui/{app}"):
        return 404 if who == "other" and not sees else 2
    return 404 if is_of_session and not sees else 2


async def prepared(bed: Bed, guarded: Guarded) -> dict[str, str]:
    """Create a session `s` of ada: an ended run with a child, a run that waits, an artifact, a flow."""
    ada = await guarded.client("ada", "sessions:own")
    await ada.post("/v1/sessions", {"session_id": "s"})
    path = "/v1/sessions/s"
    run = (await run_message(ada, path, "go"))["run_id"]
    [child] = (await ada.get(f"{path}/runs/{run}/children"))["runs"]
    waiting = (await ada.post(f"{path}/runs", {"text": "?", "mode": "ask"}))["run_id"]
    await bed.seen(waiting, "ask.sent")
    [approval] = (await ada.get("/v1/approvals"))["approvals"]
    await ada.post("/v1/artifacts?session_id=s&name=a", b"bytes")
    app = bed.name().type
    await flows_at(app).register(bed.runtime)
    await (await guarded.client("ada", "flows:install")).post("/v1/flows", FLOW)
    far = await guarded.client("ada", "flows:install", tenant="acme")
    await far("DELETE", "/v1/flows/refund")  # of an earlier test in this schema
    starter = await guarded.client("ada", "flows:run")
    flow = await started(starter)
    await waiting_at(starter, flow)
    operator = await guarded.client("ada", "flows:operate")
    snapshot = await operator.post(f"{flow}/snapshots", {"name": "x"})
    if bed.drops:
        await bed.seen(run_of(flow), "run.suspended")
    return {
        "flow": "refund",
        "flow_app": app,
        "graph_run": run_of(flow),
        "snapshot": snapshot["snapshot"],
        "evidence": "none",
        "text": "none",
        "wait": "ok%2F1",
        "app": guarded.app,
        "session": "s",
        "run": run,
        "child": child["run_id"],
        "approval": approval["id"],
        "artifact": "a",
        "type": child["agent"].partition("/")[0],
        "key": child["agent"].partition("/")[2],
    }


async def crew(bed: Bed) -> dict[str, Any]:
    """Agents by mode: one spawns a child, one asks a person, one repeats its message."""
    parent = await parent_on(bed, Echo("child"))

    class Asker:
        id = parent.id

        async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
            return (await ctx.approval("pay", {"amount": 5})).is_approved

    return {"normal": parent, "ask": Asker(), "echo": Echo().agent()}


async def _handle(call: WebCall) -> Response:
    raise NotImplementedError


def test_the_table_has_exactly_the_endpoints() -> None:
    """Endpoints outside of sessions are for operators.

    With a new route and no entry the application is not built.
    """
    scopes = {name_of(endpoint): endpoint.scope for endpoint in EVERY}
    assert len(scopes) == len(EVERY)
    assert set(REQUESTS) <= set(scopes)
    for name, access in scopes.items():
        if name in ("POST /v1/login", "GET /login"):
            assert access == "public"
        elif name in ("GET /v1/login", "POST /v1/logout"):
            assert access == "signed in"
        elif "/v1/runs/" in name or "/v1/agents/" in name or name == "GET /v1/audit":
            assert access == "operate", "these are not only of sessions"
        elif "/v1/cleanup/" in name:
            assert access == "cleanup"
        elif re.search("/(flows|graph-runs|graph-snapshots|v1/events)", name):
            verbs = ("cancel", "pause", "resume", "steer", "limits", "snapshots", "restore")
            changes = name.startswith("POST /v1/graph-") and name.endswith(verbs)
            changes |= name == "DELETE /v1/graph-snapshots/{snapshot}"
            expected_access = "flows:operate" if changes else "flows:run"
            assert access == ("flows:install" if name in INSTALLS else expected_access), name
        else:
            assert access == "sessions:own", name
    with pytest.raises(TypeError, match="scope"):
        Endpoints().get("/v1/odd")(_handle)  # type: ignore[call-arg]


async def audited(guarded: Guarded) -> list[tuple[str, str]]:
    """Action and outcome of each audit row of both tenants."""
    rows: list[tuple[str, str]] = []
    for tenant in ("default", "acme"):
        web, after = await guarded.client("eve", "operate", tenant=tenant), ""
        while True:
            page = await web.get(f"/v1/audit?limit=500{after}")
            rows += [(change["action"], change["outcome"]) for change in page["changes"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
    return rows


def test_each_endpoint_that_changes_something_has_an_action() -> None:
    """Or the table says that it writes no row. A new route without an entry: there is no application."""
    without_row = {
        name_of(endpoint)
        for endpoint in EVERY
        if endpoint.method != "GET" and endpoint.action is None
    }
    assert without_row == {
        "POST /v1/login",
        "POST /v1/logout",
        "POST /v1/sessions/{session}/runs",
        "POST /v1/agents/{type}/{key}/messages",
        "POST /v1/flows/{flow}/runs",
        "POST /v1/events",
    }
    with pytest.raises(TypeError, match="action"):
        Endpoints().put("/v1/odd", scope="operate")(_handle)  # type: ignore[call-arg]


@pytest.mark.costly
async def test_each_endpoint_accepts_exactly_the_authorised_clients(bed: Bed) -> None:
    """An unauthorised client changes nothing and reads nothing; an authorised one succeeds."""
    async with guarded_on(bed, await crew(bed)) as guarded:
        names = await prepared(bed, guarded)
        whos = (
            ("owner", "ada", "default"),
            ("other", "bob", "default"),
            ("stranger", "ada", "acme"),
        )
        cases = [
            (endpoint, scopes, who, await guarded.client(name, *scopes, tenant=tenant))
            for who, name, tenant in whos
            for scopes in SCOPES
            for endpoint in EVERY
        ]
        owner = await guarded.client("ada", "sessions:own", "flows:run")
        read_paths = ("/v1/sessions/s", f"/v1/graph-runs/{names['graph_run']}", "/v1/graph-runs")
        before = [await owner.get(path) for path in read_paths]
        audit_rows = await audited(guarded)
        wrong = []
        for endpoint, scopes, who, web in cases:
            status = expected_status(endpoint, scopes, who)
            if status >= 400:
                answer = await ask(web, endpoint, names)
                if answer.status != status:
                    wrong.append((name_of(endpoint), scopes, who, status, answer))
        assert wrong == []
        assert [await owner.get(path) for path in read_paths] == before
        assert await audited(guarded) == audit_rows
        assert (await owner("GET", "/v1/artifacts/a?session_id=s")).body == b"bytes"
        operator = await guarded.client("ada", "flows:run", "flows:operate")
        open_run = await started(operator)
        await waiting_at(operator, open_run)
        await operator.post(
            f"{open_run}/cancel", {}
        )  # the runs below may have ended when they are cancelled
        missed = []
        done: set[str] = set()
        for endpoint, scopes, who, web in sorted(cases, key=lambda case: rank(case[0])):
            if expected_status(endpoint, scopes, who) < 400:
                answer = await ask(web, endpoint, names)
                is_again = rank(endpoint) > 0 and name_of(endpoint) in done
                if answer.status >= 400 and not (is_again and answer.status in (404, 409, 410)):
                    missed.append((name_of(endpoint), scopes, who, answer))
                done.add(name_of(endpoint))
                if name_of(endpoint) == "POST /v1/approvals/{approval}":
                    for run in (await owner.get("/v1/sessions/s/runs"))["runs"]:
                        await bed.result(run["run_id"])
        assert missed == []
        assert done == {name_of(endpoint) for endpoint in EVERY} - {"POST /v1/login", EVIDENCE}
        assert {action for action, outcome in await audited(guarded) if outcome == "done"} == {
            endpoint.action for endpoint in EVERY if endpoint.action is not None
        }


async def test_lists_show_only_the_principals_own_entries(bed: Bed) -> None:
    """Sessions, approvals, clean-up and apps of the principal and its tenant, and of no other one."""
    async with guarded_on(bed, await crew(bed), apps=["more"]) as guarded:
        names = await prepared(bed, guarded)
        ada = await guarded.client("ada", "sessions:own", "cleanup")
        bob = await guarded.client("bob", "sessions:own", "cleanup")
        boss = await guarded.client("eve", "sessions:all", "cleanup", "operate")
        far = await guarded.client("ada", "sessions:all", "cleanup", tenant="acme")
        await bob.post("/v1/sessions", {"session_id": "b"})
        await bed.runtime.submit(AgentId(guarded.app, "nobodys"), {"text": "x"})
        sessions, approvals, candidates = [], [], []
        for web in (ada, bob, boss, far):
            entries = (await web.get("/v1/sessions"))["sessions"]
            sessions.append({session["session_id"]: session["owner"] for session in entries})
            entries = (await web.get("/v1/approvals?limit=500"))["approvals"]
            approvals.append(names["approval"] in [approval["id"] for approval in entries])
            preview = await web.post("/v1/cleanup/artifacts", {"include_all": True})
            candidates.append([candidate["session_id"] for candidate in preview["candidates"]])
        owners = {"s": f"ada-{guarded.app}", "b": f"bob-{guarded.app}"}

        assert sessions[0] == {"s": owners["s"]}
        assert sessions[1] == {"b": owners["b"]}
        assert {key: sessions[2][key] for key in owners} == owners
        assert sessions[2].get("nobodys") is None
        assert sessions[3] == {}
        assert approvals == [True, False, True, False]
        assert candidates == [["s"], [], ["s"], []]
        another = bed.name().type
        await bed.runtime.register_type(another, lambda _: Echo().agent())
        assert another in {app["app"] for app in (await boss.get("/v1/apps"))["apps"]}
        assert {app["app"] for app in (await bob.get("/v1/apps"))["apps"]} == {guarded.app, "more"}


async def test_urgent_runs_need_the_operator_scope(bed: Bed) -> None:
    """A steady stream of runs below 5 would delay those of the tenant's other principals for ever."""
    async with guarded_on(bed) as guarded:
        statuses = []
        for scopes in (("sessions:own",), ("sessions:all",), ("sessions:own", "operate")):
            web = await guarded.client("ada", *scopes)
            path = f"{await create_session(web, '-'.join(scopes))}/runs"
            answers = [
                await web("POST", path, {"text": "x", "priority": priority})
                for priority in (4, 5, 6)
            ]
            statuses += [answer.status for answer in answers]
            await bed.result(answers[-1].data["run_id"])

        assert statuses == [403, 202, 202] * 2 + [202] * 3


async def test_sessions_without_an_owner_need_a_scope_for_all_sessions(bed: Bed) -> None:
    """For example sessions that a program started; no principal takes them over by their id."""
    async with guarded_on(bed) as guarded:
        program = AgentRuntime(runtime=bed.runtime, app=guarded.app)
        async with program:
            await (await program.start("hello", session_id="p")).result()
        bob = await guarded.client("bob", "sessions:own")
        boss = await guarded.client("eve", "sessions:all")
        assert (await bob("GET", "/v1/sessions/p")).status == 404
        answer = await bob("POST", "/v1/sessions", {"session_id": "p"})
        assert (answer.status, answer.data["code"]) == (404, "unknown_session")
        session = await boss.get("/v1/sessions/p")
        assert (session["owner"], (await bob.get("/v1/sessions"))["sessions"]) == (None, [])


@pytest.mark.item(382)
async def test_the_id_of_a_deleted_session_is_reserved_for_its_owner(bed: Bed) -> None:
    """410 for the owner, 404 for others, who cannot create it again and get its readers' messages."""
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "sessions:own")
        bob = await guarded.client("bob", "sessions:own")
        boss = await guarded.client("eve", "sessions:all")
        await run_message(ada, await create_session(ada), "1")
        async with ada.stream("/v1/sessions/s/events") as reader:
            await reader.until("run_completed")
            assert (await ada("DELETE", "/v1/sessions/s")).status == 200
            statuses = [
                (await client("GET", "/v1/sessions/s")).status for client in (ada, bob, boss)
            ]
            assert statuses == [410, 404, 410]
            assert (await bob("DELETE", "/v1/sessions/s")).status == 404
            again = await bob("POST", "/v1/sessions", {"session_id": "s"})
            assert (again.status, again.data["code"]) == (404, "unknown_session")
            assert (await ada("GET", "/v1/sessions/s")).status == 410
        assert (await boss.post("/v1/sessions", {"session_id": "s"}))["owner"].startswith("ada-")
        assert (await ada.get("/v1/sessions/s"))["status"] == "idle"
        assert (await bob("GET", "/v1/sessions/s")).status == 404


REFUSED_RUNS: Final[tuple[dict[str, Any], ...]] = (
    {"text": "x"},
    {"text": "x", "message_id": "known"},
    {"text": "x", "mode": "solo"},
    {"text": "x", "parent_node": "nothing"},
    {"text": "x" * 300_000},
    *({"text": "x", "on_conflict": mode} for mode in ("reject", "join", "interrupt")),
)
"""Runs of which some would be refused in a session of the principal, too."""


@pytest.mark.item(382)
async def test_a_run_is_refused_as_its_session_is(bed: Bed) -> None:
    """With 404 or 410, whatever else is wrong with it, as JSON and as a stream. Nothing is written."""
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "sessions:own")
        boss = await guarded.client("eve", "sessions:all")
        others = [await guarded.client("bob", "sessions:own")]
        others.append(await guarded.client("ada", "sessions:all", tenant="acme"))
        for session in ("s", "gone"):
            path = await create_session(ada, session)
            await ada.post(f"{path}/runs", {"text": "x"}, idempotency_key="known", prefer="wait=20")
        assert (await ada("DELETE", "/v1/sessions/gone")).status == 200
        before = await boss.get("/v1/sessions/s")

        deleted_session, unknown = (410, "session_deleted"), (404, "unknown_session")
        cases = [
            (ada, "gone", deleted_session),
            (boss, "gone", deleted_session),
            (ada, "nowhere", unknown),
        ]
        cases += [(web, session, unknown) for web in others for session in ("s", "gone", "nowhere")]
        for web, session, refusal in cases:
            for accept in ("application/json", "text/event-stream"):
                for body in REFUSED_RUNS:
                    path = f"/v1/sessions/{session}/runs"
                    answer = await web("POST", path, body, accept=accept)
                    assert (answer.status, answer.data["code"]) == refusal, (session, body)
        assert await boss.get("/v1/sessions/s") == before
        assert [
            session["session_id"] for session in (await boss.get("/v1/sessions"))["sessions"]
        ] == ["s"]
        refusals = [await ada("POST", "/v1/sessions/s/runs", body) for body in REFUSED_RUNS[2:5]]
        assert [answer.status for answer in refusals] == [422, 404, 413]


async def test_an_agent_without_an_app_needs_the_operator_scope(bed: Bed) -> None:
    """A session of its type would start runs of it, and show those of others."""
    async with guarded_on(bed, await crew(bed)) as guarded:
        names = await prepared(bed, guarded)
        boss = await guarded.client("eve", "sessions:all")
        for web in (boss, await guarded.client("ada", "sessions:own")):
            answer = await web("POST", "/v1/sessions", {"app": names["type"], "session_id": "x"})
            assert (answer.status, answer.data["code"]) == (404, "unknown_app")
            session_answer = await web("GET", f"/v1/sessions/{names['key']}?app={names['type']}")
            assert session_answer.status == 404
        admin = await guarded.client("eve", "sessions:own", "operate")
        await admin.post("/v1/sessions", {"app": names["type"], "session_id": "x"})
