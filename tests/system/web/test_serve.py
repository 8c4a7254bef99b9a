"""`callboard serve` with NATS and PostgreSQL: processes with agents and without, and hostile connections."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from compose._commands.output import Exit
from tests.system.web.conversing import APP_NAME, SPEC, WITH_FLOWS, client_of, done, raw

if TYPE_CHECKING:
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

WAIT = {"prefer": "wait=20"}


@pytest.mark.costly
@pytest.mark.item(349, 356, 361, 364, 366, 372, 378)
async def test_any_api_process_serves_any_session(fleet: Hosts) -> None:
    """One executes the agents, the other one has none. Both show the same, and both accept messages."""
    serving, url = await fleet.web(SPEC)
    alone, other_url = await fleet.web("--no-agents", "--app", APP_NAME)
    async with client_of(url) as first, client_of(other_url) as second:
        assert (
            await first.post("/v1/sessions", json={"session_id": "s/1", "title": "t"})
        ).status_code == 201
        path = "/v1/sessions/s%2F1"
        message = {"text": "hello", "message_id": "m-1"}
        run = await done(await second.post(f"{path}/runs", json=message, headers=WAIT))
        assert run["output"] == "You said hello."
        again = await done(await first.post(f"{path}/runs", json=message, headers=WAIT))
        assert again == run
        loud = {"text": "more", "mode": "loud"}
        await done(await first.post(f"{path}/runs", json=loud, headers=WAIT))
        node_pages = [await done(await client.get(f"{path}/nodes")) for client in (first, second)]
        assert node_pages[0] == node_pages[1]
        assert [node["text"] for node in node_pages[0]["nodes"]][-1] == "You said more."
        refund = await done(await second.post(f"{path}/runs", json={"text": "refund"}))
        approvals: list[Any] = []
        while not approvals:
            page = await done(await second.get(f"/v1/approvals?run_id={refund['run_id']}"))
            approvals = page["approvals"]
        await done(await second.post(f"/v1/approvals/{approvals[0]['id']}", json={"approve": True}))
        refund["status"] = "running"
        while refund["status"] == "running":
            refund = await done(await first.get(f"{path}/runs/{refund['run_id']}"))
        assert refund["output"] == "It is paid."
        data = b"0123456789" * 300_000
        await done(await first.post("/v1/artifacts?session_id=s/1&name=a/b", content=data))
        assert (await second.get("/v1/artifacts/a%2Fb?session_id=s/1")).content == data
        assert (await second.request("DELETE", path)).status_code == 200
        assert (await first.get(path)).status_code == 410
    for process in (serving, alone):
        process.send(signal.SIGTERM)
        assert await process.exit_code() == 0


@pytest.mark.costly
@pytest.mark.item(416, 418, 459)
async def test_a_process_without_agents_starts_and_answers_runs_of_flows(fleet: Hosts) -> None:
    """It registers the flows and executes none; it streams the ledger up to the run's end."""
    _, url = await fleet.web(WITH_FLOWS)
    _, other_url = await fleet.web(WITH_FLOWS, "--no-agents")
    async with client_of(url) as first, client_of(other_url) as second:
        assert await done(await first.get("/v1/flows")) == await done(await second.get("/v1/flows"))
        body = {"vars": {"order": 7}, "session_id": "s1"}
        started = await second.post(
            "/v1/flows/refund/runs", json=body, headers={"idempotency-key": "r-7"}
        )
        path = started.headers["location"]
        event = {"name": "paid", "scope": "session", "key": "s1"}
        for reason, where, answer in (
            ("user", f"{path}/waits/ok", {"payload": "yes"}),
            ("event", "/v1/events", event),
        ):
            view: Any = {}
            while (view.get("wait") or {}).get("reason") != reason:
                view = await done(await second.get(path))
            await done(await second.post(where, json=answer))
        ledger = await second.get(f"{path}/ledger", headers={"accept": "text/event-stream"})
        assert ledger.text.rstrip().splitlines()[-2] == "event: end"
        assert (await done(await first.get(path)))["output"] == "order 7 is paid"


async def test_hostile_connections_are_ended(fleet: Hosts) -> None:
    """Heads without end, hidden second requests, bodies that are too large, and bytes that are no request."""
    _, url = await fleet.web("--no-agents", "--app", APP_NAME)
    line = b"POST /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    hidden = b"GET /v1/apps HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

    endless = await raw(url, line, b"a: " + b"x" * 20_000, *[b"x" * 20_000] * 5)
    many = await raw(url, line, *[b"a: b\r\n" * 1_000] * 10, b"connection: close\r\n\r\n")
    both = await raw(
        url, line + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden
    )
    large = await raw(url, line + b"content-length: 104857600\r\n\r\n" + b"x" * 100_000)
    grown = await raw(
        url,
        line + b"transfer-encoding: chunked\r\n\r\n",
        *[b"10000\r\n" + b"x" * 65_536 + b"\r\n"] * 20,
    )
    odd = await raw(
        url, b"GET /v1/\xff\xfe HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    )
    nonsense = await raw(url, b"\x00\x01\x02\r\n\r\n")
    upgrade = await raw(
        url,
        b"GET /v1/apps HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade, close\r\n"
        b"upgrade: websocket\r\n\r\n",
    )

    assert endless.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert many.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert both.startswith(b"HTTP/1.1 400")
    assert both.count(b"HTTP/1.1") == 1
    assert b" 413 " in large.splitlines()[0]
    assert not grown or b" 413 " in grown.splitlines()[0], "it may be cut off while it still sends"
    for answer in (odd, nonsense):
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
    assert b" 500 " not in upgrade
    async with client_of(url) as client:
        assert (await client.get("/v1/apps")).status_code == 200
        assert (await client.get("/v1/apps", headers={"host": "evil.example"})).status_code == 403


async def test_a_public_address_is_refused_without_authentication(cli: Cli) -> None:
    """Before anything is started, with the remedy; so is a process that would serve nothing."""
    for address in ("0.0.0.0:8123", "[::]:8123", "192.0.2.1:8123", "example.org:80", ":8123"):
        output = await cli.call("serve", SPEC, "--listen", address)
        assert (output.code, "--auth none needs no login" in output.err) == (Exit.USAGE, True), (
            output
        )
    nothing = await cli.call("serve", "--listen", "127.0.0.1:0")
    assert "name MODULE:APP, or say --no-agents" in nothing.err
    odd = await cli.call("serve", SPEC, "--listen", "nowhere")
    assert "--listen nowhere: it is not an address" in odd.err
