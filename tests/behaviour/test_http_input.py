"""Invalid input to every endpoint: it is refused with a problem, never with a server error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from compose._web.agui.endpoint import endpoint as agui
from compose._web.application import ENDPOINTS, app
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import LOCAL, MAX_BODY_BYTES, MAX_HEAD_BYTES, Principal
from tests.behaviour.talks import Echo
from tests.behaviour.test_http_graphs import flows_at
from tests.behaviour.web import Answer, WebClient, create_session, run_message, web_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from tests.behaviour.bed import Bed

EVERY: Final = (*ENDPOINTS, *agui)
IDS: Final = {
    "slash": "a%2Fb",
    "tilde": "~x",
    "percent": "%25",
    "half": "%",
    "nul": "a%00b",
    "long": "x" * 300,
    "not utf-8": "%ff%fe",
    "surrogate": "%ED%A0%80",
    "control": "%0A",
    "dots": "..",
    "script": "%3Cscript%3E",
    "colon": "acme:x",
}
QUERIES: Final = (
    *("nonsense=1", "app=", "app=a%2Fb", "app=%00", "app=%ff", "app=a&app=b", "limit=0", "limit=x"),
    *(
        "limit=501",
        "after=",
        "after=%00",
        "after=%ff",
        "after=x",
        "after=eHg",
        "status=odd",
        "path=up",
    ),
    *(
        "from_seq=-1",
        "from_seq=99999999999999999999",
        "session_id=nowhere",
        "title=%00",
        "&&&",
        "=" * 99,
    ),
)
BODIES: Final[tuple[bytes, ...]] = (
    *(b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"NaN", b'{"a": 1}', b'{"text": null}'),
    *(
        b'{"text": 7}',
        b'{"text": "\\u0000"}',
        b'{"text": "\\ud800"}',
        b"[" * 200_000,
        b'{"payload": NaN}',
    ),
    b'{"payload": ' + b"[" * 70 + b"]" * 70 + b"}",
    b'{"payload": ' + b"9" * 5_000 + b', "text": "x"}',
    b'{"text": "x", "priority": 99999999999}',
    b'{"text": "x", "content": [], "mode": {}}',
    b'{"content": [{"no": "type"}]}',
    b'{"session_id": "a\\nb", "title": 5}',
    b'{"session_id": "' + b"x" * 300 + b'"}',
    b'{"app": "/", "metadata": []}',
    b'{"title": "' + b"x" * 2_000 + b'"}',
    b'{"metadata": {"k": "' + b"x" * 70_000 + b'"}}',
    b'{"text": "' + b"x" * 300_000 + b'"}',
    b'{"approve": "perhaps"}',
    b'{"node_id": "' + b"x" * 5_000 + b'"}',
    b'{"project": "x", "older_than_s": 1e400}',
    b'{"project": "x", "older_than_s": -1}',
    b'{"reason": "' + b"x" * 70_000 + b'"}',
    b'{"text": "x", "message_id": "' + b"x" * 3_000 + b'"}',
    b'{"vars": []}',
    b'{"vars": {"a": "\\u0000", "\\ud800": [1e400]}}',
    b'{"vars": {"a": "\\ud800"}, "session_id": "\\u0000"}',
    b'{"vars": {"a": "' + b"x" * 300_000 + b'"}}',
    b'{"vars": {"_limits": 7, "context": [], "_runtime": null}, "actor_id": "'
    + b"x" * 3_000
    + b'"}',
    b'{"name": "x", "scope": "session", "key": "a\\nb", "id": "' + b"x" * 3_000 + b'"}',
    b'{"name": "' + b"x" * 3_000 + b'", "payload": "\\u0000"}',
    b'{"name": "x", "payload": "' + b"x" * 300_000 + b'"}',
    b'{"threadId": "a/b", "runId": "", "messages": []}',
    b'{"threadId": "t", "runId": "r", "messages": [{"id": 1, "role": "user", "content": 7}]}',
    b'{"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "king", "content": "x"}]}',
    b'{"threadId": "t", "runId": "r", "messages": {}, "tools": {}, "resume": "x"}',
    b'{"threadId": "t", "runId": "r", "messages": [], "tools": [{"name": 7}]}',
    b'{"threadId": "t", "runId": "r", "messages": [], "resume": [{"interruptId": "i", "status": "yes"}]}',
    b'{"threadId": "t", "runId": "' + b"x" * 3_000 + b'", "messages": []}',
    b'{"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "tool", "toolCallId": "x"}]}',
    b'{"threadId": "' + b"x" * 3_000 + b'", "runId": "r", "messages": []}',
)


@pytest.fixture
def app_name(bed: Bed) -> str:
    """Return a type that no other test has."""
    return bed.name().type


@pytest.fixture
async def web(bed: Bed, app_name: str) -> AsyncIterator[WebClient]:
    """Yield the API, with a session `s` that has an ended run, and the flow `refund`."""
    await flows_at(bed.name().type).register(bed.runtime)
    async with web_on(bed, Echo().agent(), app_name=app_name) as client:
        await run_message(client, await create_session(client), "1")
        yield client


def is_refused(answer: Answer) -> bool:
    """Return whether an answer is a problem with a remedy, or a success."""
    if answer.status < 400:
        return True
    problem = answer.data
    assert answer.headers["content-type"] == "application/problem+json", answer
    assert problem["status"] == answer.status
    assert problem["code"]
    assert problem["remedy"]
    assert len(answer.body) < 20_000
    return answer.status < 500


def path_of(path: str, **names: str) -> str:
    """Return a path with these parts; the other parts are those of an existing session."""
    defaults = {
        "session": "s",
        "run": "r",
        "child": "c",
        "artifact": "a",
        "type": "t",
        "key": "k",
        "app": "t",
        "flow": "refund",
        "graph_run": "g",
        "snapshot": "s",
        "wait": "ok",
    }
    return re.sub(r"{(\w+)}", lambda match: {**defaults, "approval": "p", **names}[match[1]], path)


async def test_no_id_causes_a_server_error(web: WebClient) -> None:
    """Any text in each part of each path."""
    for endpoint in EVERY:
        for name in re.findall(r"{(\w+)}", endpoint.path):
            for what, id_ in IDS.items():
                answer = await web(
                    endpoint.method, path_of(endpoint.path, **{name: id_}) + "?session_id=s", {}
                )
                assert is_refused(answer), (endpoint.method, endpoint.path, name, what, answer)
                assert answer.status >= 400, (endpoint.method, endpoint.path, name, what, answer)


async def test_no_query_causes_a_server_error(web: WebClient) -> None:
    """Unknown fields and invalid values are refused."""
    for endpoint in EVERY:
        if endpoint.method == "DELETE":
            continue
        for query in QUERIES:
            body = {"text": "x"} if endpoint.body is not None else None
            answer = await web(endpoint.method, f"{path_of(endpoint.path)}?{query}", body)
            assert is_refused(answer), (endpoint.method, endpoint.path, query, answer)
        answer = await web(endpoint.method, f"{path_of(endpoint.path)}?nonsense=1", {})
        assert answer.status == 422, (endpoint.method, endpoint.path, answer)


async def test_no_body_causes_a_server_error(web: WebClient) -> None:
    """Of a wrong type, too deep, too large, no JSON, or text that no store accepts."""
    for endpoint in EVERY:
        for body in BODIES if endpoint.body is not None else ():
            answer = await web(endpoint.method, path_of(endpoint.path), body)
            assert is_refused(answer), (endpoint.method, endpoint.path, body[:60], answer)
        if endpoint.body is not None:
            for body in (b"{", b"[]", b"\xff"):
                assert (await web(endpoint.method, path_of(endpoint.path), body)).status in (
                    400,
                    422,
                )


async def test_what_only_models_and_tools_say_is_not_taken_from_a_user(
    web: WebClient, app_name: str
) -> None:
    """Nor is a blank message: no provider takes it, and it would stay in the conversation."""
    call = {"id": "zz", "name": "pay", "arguments": {}}
    for body in (
        {"text": " \n"},
        {"content": [{"type": "text", "text": ""}, {"type": "text"}]},
        *({"content": [{"type": kind, **call}]} for kind in ("tool_call", "tool_result")),
        {"content": [{"type": "text", "text": "x"}, {"type": "reasoning", "text": "y"}]},
        {"content": [{"type": "provider_part", "part": {}}]},
    ):
        answer = await web("POST", "/v1/sessions/s/runs", body)
        assert (answer.status, is_refused(answer)) == (422, True), body
    blank = {"id": "u", "role": "user", "content": [{"type": "text", "text": " "}]}
    run_input = {"threadId": "t", "runId": "r", "messages": [blank]}
    assert (await web("POST", f"/agui/{app_name}", run_input)).status == 422
    odd = {"content": [{"type": "hologram", "x": 1}]}
    assert (await web("POST", "/v1/sessions/s/runs", odd)).status == 202


async def test_no_idempotency_key_causes_a_server_error(web: WebClient) -> None:
    """A key that cannot be an id of a run is refused; any other key is one."""
    for key, status in (("x" * 3_000, 422), ("a\x01b", 422), ("a/b:c", 201), ("a/b:c", 200)):
        answer = await web("POST", "/v1/flows/refund/runs", {}, idempotency_key=key)
        assert is_refused(answer)
        assert answer.status == status, (key[:9], answer)


async def test_no_variables_make_a_run_that_cannot_be_shown(bed: Bed, web: WebClient) -> None:
    """Also if a flow's own names have odd values: the run fails, or continues."""
    for variables in (
        {"_limits": 7, "context": [], "scratchpad": 1},
        {"_limits": {"max_tokens": "x", "max_iterations": [], "current_iteration": {"a": 1}}},
        {"_limits": {"max_tokens": 1, "estimated_tokens_used": 1e308}},
        {"a": {"$artifact": 7}, "": {"": ""}},
    ):
        run = await web.post("/v1/flows/refund/runs", {"vars": variables})
        path = f"/v1/graph-runs/{run['run']}"
        async with web.stream(f"{path}/ledger") as stream:
            assert (await stream.next()) is not None
        answer = await web("GET", path)
        assert answer.status == 200, (variables, answer)
        assert (await web("GET", f"{path}/ledger")).status == 200
    for name in ("_runtime", "_temp", "_x"):
        refused = await web("POST", "/v1/flows/refund/runs", {"vars": {name: {}}})
        assert (refused.status, f"{name} is the runtime's" in refused.data["detail"]) == (422, True)


async def test_a_problem_names_field_value_and_remedy(web: WebClient) -> None:
    """The problem names the field, the value and the remedy."""
    wrong = await web("POST", "/v1/sessions/s/runs", {"text": 7, "mode": 7, "odd": 1})
    error_fields = {error["where"] for error in wrong.data["errors"]}
    assert error_fields == {"body.text", "body.mode", "body.odd"}
    both = await web(
        "POST", "/v1/sessions/s/runs", {"text": "a", "message_id": "x"}, idempotency_key="y"
    )
    assert "differ" in both.data["detail"]
    large = await web("POST", "/v1/sessions/s/runs", {"text": "x" * 300_000})
    assert (large.status, large.data["code"]) == (413, "too_large")
    run = await web("GET", "/v1/sessions/s/runs/nothing")
    assert (run.status, run.data["code"], run.data["name"]) == (404, "unknown_run", "nothing")
    method = await web("PUT", "/v1/sessions")
    assert (method.status, method.data["code"]) == (405, "method_not_allowed")
    nowhere = await web("GET", "/v1/nowhere")
    assert (nowhere.status, nowhere.data["code"]) == (404, "not_found")


async def test_large_and_ambiguous_requests_are_refused(web: WebClient) -> None:
    """By their declared length, and by the received one; then the connection is closed."""
    path = "/v1/sessions"
    too_long = await web("POST", path, b"x", content_length=str(100 * MAX_BODY_BYTES))
    grown = await web("POST", path, pieces=[b"x" * 65_536] * 17)
    odd = await web("POST", path, b"x", content_length="x")
    assert [answer.status for answer in (too_long, grown, odd)] == [413] * 3
    assert too_long.headers["connection"] == "close"
    many = {f"x_{n}": "y" for n in range(10_000)}
    head = await web("GET", path, headers=many)
    long = await web("GET", path + "?title=" + "x" * MAX_HEAD_BYTES)
    assert (head.status, long.status) == (431, 431)
    both = await web("POST", path, b"{}", content_length="2", transfer_encoding="chunked")
    assert (both.status, both.data["code"]) == (400, "ambiguous_length")


async def test_an_incomplete_body_times_out(bed: Bed, web: WebClient) -> None:
    """In virtual time: half a minute after the last piece of an artifact, or the start of a body."""
    if bed.backend != "memory":
        pytest.skip("half a minute")
    for path in ("/v1/sessions", "/v1/artifacts?session_id=s&name=slow"):
        slow = await web("POST", path, pieces=[b"{"], is_whole=False)
        assert (slow.status, slow.data["code"]) == (408, "too_slow")
    assert (await web.get("/v1/artifacts?session_id=s"))["artifacts"] == []


async def test_requests_of_pages_of_other_sites_are_refused(
    bed: Bed, app_name: str, web: WebClient
) -> None:
    """Also if the page uses a host name of its own that resolves to this machine."""
    page = await web("POST", "/v1/sessions", {}, origin="http://evil.example")
    odd = await web("POST", "/v1/sessions", {}, origin="http://[")
    own = await web("GET", "/v1/sessions", origin="http://127.0.0.1:8123")
    foreign_host = await web("GET", "/v1/sessions", host="evil.example:8123")
    local = await web("GET", "/v1/sessions", host="localhost:1")
    assert [answer.status for answer in (page, odd, own, foreign_host, local)] == [
        403,
        403,
        200,
        403,
        200,
    ]
    assert (page.data["code"], foreign_host.data["code"]) == ("foreign_origin", "foreign_host")


@pytest.mark.item(382)
async def test_another_tenants_resources_are_not_found(bed: Bed, app_name: str) -> None:
    """The hook returns the principal: sessions, runs, approvals and artifacts of others are unknown."""

    async def authenticate(request: Request) -> Principal:
        name = request.headers.get("authorization")
        if name is None:
            problem = HttpProblem(401, "unauthenticated", "who are you?", "send a token")
            raise ProblemError(problem)
        tenant, _, scope = name.partition(":")
        scopes: Any = frozenset({scope}) if scope else LOCAL.scopes
        return Principal(tenant, "me", scopes)

    async with web_on(bed, Echo().agent(), app_name=app_name) as mine:
        path = await create_session(mine)
        run = (await run_message(mine, path, "1"))["run_id"]
        await mine.post("/v1/artifacts?session_id=s&name=a", b"x")
        web = WebClient(app(bed.runtime, default_app=app_name, authenticate=authenticate))
        for endpoint in EVERY:
            if endpoint.scope != "public":
                assert (await web(endpoint.method, path_of(endpoint.path), {})).status == 401
        acme = {"authorization": "acme"}
        for url in (
            path,
            f"{path}/runs",
            f"{path}/runs/{run}",
            f"/v1/runs/{run}",
            f"/v1/runs/{run}/events",
        ):
            assert (await web("GET", url, headers=acme)).status == 404
        assert (await web("GET", "/v1/artifacts/a?session_id=s", headers=acme)).status == 404
        assert (await web.get("/v1/sessions", **acme))["sessions"] == []
        assert (await web.get("/v1/sessions", authorization="default:sessions:all"))[
            "sessions"
        ] != []
        narrow = await web(
            "POST", "/v1/cleanup/artifacts", {}, authorization="default:sessions:own"
        )
        assert (narrow.status, narrow.data["code"]) == (403, "forbidden")
