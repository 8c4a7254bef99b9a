"""Tokens over sockets: two API processes and the command line on one PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from typing import TYPE_CHECKING

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from compose._commands.output import Exit
from tests.system.web.conversing import APP_NAME, SPEC, client_of, done, raw
from tests.system.web.test_streams import reading, until_end

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

WAIT = {"prefer": "wait=20"}


async def token_of(cli: Cli, name: str, *words: str) -> dict[str, str]:
    """Make a token by the command line, and return the header with it."""
    output = await cli.call("tokens", "create", name, *words, "--json")
    return {"authorization": f"Bearer {output.data['token']}"}


async def refusal(client: httpx2.AsyncClient, **headers: str) -> str:
    """Return the error code of a request, or an empty text for a success."""
    answer = await client.get("/v1/sessions", headers=headers)
    return "" if answer.status_code == 200 else str(answer.json()["code"])


@pytest.mark.costly
async def test_a_token_is_valid_on_each_process_until_it_is_revoked(fleet: Hosts, cli: Cli) -> None:
    """Its principal has its sessions on both. A revoked token is refused, and its streams end."""
    serving, first_url = await fleet.web(SPEC, "--auth", "tokens")
    alone, other_url = await fleet.web("--no-agents", "--app", APP_NAME, "--auth", "tokens")
    ada, bob = [await token_of(cli, name) for name in ("ada", "bob")]
    far = await token_of(cli, "far", "--tenant", "acme", "--principal", "ada")
    async with client_of(first_url) as first, client_of(other_url) as second:
        assert [await refusal(c) for c in (first, second)] == ["unauthenticated"] * 2
        await done(await first.post("/v1/sessions", json={"session_id": "s"}, headers=ada))
        run = {"text": "hello", "message_id": "m-1"}
        run_answer = await second.post("/v1/sessions/s/runs", json=run, headers={**ada, **WAIT})
        assert run_answer.json()["output"] == "You said hello."
        for client in (first, second):
            for other in (bob, far):
                for path in ("", "/runs", "/nodes", f"/runs/{run_answer.json()['run_id']}/events"):
                    answer = await client.get(f"/v1/sessions/s{path}", headers=other)
                    assert answer.status_code == 404
                assert (await client.get("/v1/sessions", headers=other)).json()["sessions"] == []
            assert [await refusal(client, **headers) for headers in (ada, bob, far)] == [""] * 3
        await done(await second.post("/v1/sessions", json={"session_id": "s"}, headers=far))
        url = "/v1/sessions/s/events"
        async with (
            asyncio.timeout(30),
            reading(first, "GET", url, headers=ada) as first_events,
            reading(second, "GET", url, headers=ada) as second_events,
            reading(second, "GET", url, headers=far) as stays,
        ):
            for stream in (first_events, second_events):
                await until_end(stream)
            assert (await cli.call("tokens", "revoke", "ada")).code == Exit.OK
            ends = [
                [event async for event in stream][-1] for stream in (first_events, second_events)
            ]
            assert [end["event"] for end in ends] == ["problem"] * 2
            assert [end["data"]["code"] for end in ends] == ["token_revoked"] * 2
            assert [await refusal(client, **ada) for client in (first, second)] == [
                "token_revoked"
            ] * 2
            more = {"text": "more"}
            ran = await done(
                await first.post("/v1/sessions/s/runs", json=more, headers={**far, **WAIT})
            )
            assert ran["output"] == "You said more."
            assert (await until_end(stays))[-1]["event"] == "run_completed"
        tokens = (await cli.call("tokens", "list", "--json")).data
        assert None not in [token["last_used_at"] for token in tokens]
    secrets = [headers["authorization"].removeprefix("Bearer ") for headers in (ada, bob, far)]
    for process in (serving, alone):
        process.send(signal.SIGTERM)
        assert await process.exit_code() == 0
        logged = await asyncio.to_thread(process.log.read_text)
        assert [secret for secret in secrets if secret in logged] == []


@pytest.mark.costly
async def test_a_login_is_valid_on_each_process(fleet: Hosts, cli: Cli) -> None:
    """By its cookies, as a browser keeps them; a logout at one process ends it at the other."""
    _, url = await fleet.web("--no-agents", "--app", APP_NAME, "--auth", "tokens")
    _, other_url = await fleet.web("--no-agents", "--app", APP_NAME, "--auth", "tokens")
    secret = (await token_of(cli, "ada"))["authorization"].removeprefix("Bearer ")
    async with client_of(url) as first, client_of(other_url) as second:
        login = await done(await first.post("/v1/login", json={"token": secret}))
        cookies = "; ".join(f"{name}={value}" for name, value in first.cookies.items())
        by_cookie = {"cookie": cookies}
        csrf = {**by_cookie, "x-csrf-token": login["csrf_token"]}
        assert await refusal(second, **by_cookie) == ""
        body = {"session_id": "s"}
        answer = await second.post("/v1/sessions", json=body, headers=by_cookie)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
        await done(await second.post("/v1/sessions", json=body, headers=csrf))
        assert (await first.post("/v1/logout", headers=csrf)).status_code == 204
        async with asyncio.timeout(30):
            while await refusal(second, **by_cookie) == "":
                pass
        assert await refusal(second, **by_cookie) == "token_revoked"


async def test_tokens_of_another_system_are_accepted_by_its_keys(
    fleet: Hosts, cli: Cli, tmp_path: Path
) -> None:
    """With the settings of the environment; without them no request is served."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [{**public, "kid": "k", "use": "sig"}]}))
    nothing = await cli.call("serve", SPEC, "--auth", "jwt", "--listen", "127.0.0.1:0")
    assert (nothing.code, "CALLBOARD_JWT_JWKS" in nothing.err) == (Exit.USAGE, True)
    names = {"jwt_jwks": file, "jwt_issuer": "https://id.example", "jwt_tenant_claim": "org"}
    words = "--no-agents", "--app", APP_NAME, "--auth", "jwt", "--cors-origin", "https://a.example"
    _, url = await fleet.web(*words, **names)
    claims = {"iss": "https://id.example", "sub": "ada", "org": "acme", "scope": "sessions:own"}
    async with client_of(url) as client:
        for end, code in ((600, ""), (-600, "token_expired")):
            facts = {**claims, "exp": int(time.time()) + end}
            token = jwt.encode(facts, key, algorithm="ES256", headers={"kid": "k"})
            assert await refusal(client, authorization=f"Bearer {token}") == code
        assert await refusal(client, authorization="Bearer cb_x") == "bad_token"


async def test_invalid_authorization_headers_are_refused(fleet: Hosts, cli: Cli) -> None:
    """Two of them, one with a NUL, one that is too large, one in pieces: before the token is looked up."""
    _, url = await fleet.web("--no-agents", "--app", APP_NAME, "--auth", "tokens")
    good = (await token_of(cli, "ada"))["authorization"].encode()
    head = b"GET /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    right = await raw(url, head + b"authorization: " + good + b"\r\n\r\n")
    assert b" 200 " in right.splitlines()[0]
    for odd in (
        b"authorization: " + good + b"\r\nauthorization: " + good,
        b"authorization: " + good + b"\x00",
        b"authorization: Bearer " + b"x" * 20_000,
        b"authorization: " + good[:-3] + b"\r\n\t" + good[-3:],
    ):
        answer = await raw(url, head + odd + b"\r\n\r\n")
        first = (answer.splitlines() or [b""])[0]
        assert any(status in first for status in (b" 400 ", b" 401 ", b" 431 ")), (odd[:40], answer)
    with contextlib.suppress(OSError):
        assert b" 401 " in (await raw(url, head + b"\r\n")).splitlines()[0]
