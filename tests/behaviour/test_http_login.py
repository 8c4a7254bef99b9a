"""Logins of browsers, and pages of other sites."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors.errors import ContractError
from compose._web.requests import checked_origins
from tests.behaviour.guarded import Guarded, guarded_on
from tests.behaviour.talks import Echo
from tests.behaviour.web import Answer, WebClient, create_session, run_message, web_on

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed

SHOP: Final = "https://shop.example"
HOST: Final = "api.example"


def cookies(answer: Answer) -> dict[str, Any]:
    """Return the cookies that an answer sets, by name."""
    jar = SimpleCookie()
    for text in answer.set_cookies:
        jar.load(text)
    return {**jar}


async def logged_in(guarded: Guarded, secret: str, **headers: str) -> tuple[WebClient, Any]:
    """Return a client with the cookies of a login, and the login's answer."""
    answer = await guarded.web("POST", "/v1/login", {"token": secret}, headers=headers)
    assert answer.status == 200, answer
    jar = "; ".join(f"{name}={cookie.value}" for name, cookie in cookies(answer).items())
    return WebClient(guarded.web._app, headers={"cookie": jar, **headers}), answer.data


async def test_a_login_sets_a_cookie_that_no_script_reads(bed: Bed) -> None:
    """It lasts 12 hours, is sent to this site only, and over TLS only except on this machine."""
    async with guarded_on(bed) as guarded:
        secret = await guarded.token("ada", "sessions:own")
        here = await guarded.web("POST", "/v1/login", {"token": secret})
        far = await guarded.web("POST", "/v1/login", {"token": secret}, host=HOST)
        identity = here.data
        assert identity["principal"] == f"ada-{guarded.app}"
        assert (identity["tenant"], identity["scopes"]) == ("default", ["sessions:own"])
        for answer, prefix, secure in ((here, "", ""), (far, "__Host-", True)):
            jar = cookies(answer)
            login, csrf = (jar[f"{prefix}callboard_{name}"] for name in ("login", "csrf"))
            assert (bool(login["httponly"]), bool(csrf["httponly"])) == (True, False)
            assert csrf.value == answer.data["csrf_token"]
            assert login.value.startswith("cbl_")
            for cookie in (login, csrf):
                assert (cookie["samesite"], cookie["path"], cookie["domain"]) == ("strict", "/", "")
                assert cookie["secure"] == secure
                assert int(cookie["max-age"]) in range(43_190, 43_201)
        assert secret not in str(here.set_cookies)
        web, _ = await logged_in(guarded, secret)
        assert (await web.get("/v1/login"))["principal"] == f"ada-{guarded.app}"
        assert (await web("GET", "/v1/sessions", host=HOST)).status == 401


async def test_a_change_by_cookie_needs_the_token_of_the_page(bed: Bed) -> None:
    """The token of that login, from a page of this origin; reads and bearer tokens need none."""
    async with guarded_on(bed, cors_origins=[SHOP]) as guarded:
        secret = await guarded.token("ada", "sessions:own")
        web, identity = await logged_in(guarded, secret)
        _, other = await logged_in(guarded, secret)
        body = {"session_id": "s"}
        for wrong in ({}, {"x-csrf-token": ""}, {"x-csrf-token": other["csrf_token"]}):
            answer = await web("POST", "/v1/sessions", body, headers=wrong)
            assert (answer.status, answer.data["code"]) == (403, "csrf")
        good = {"x-csrf-token": identity["csrf_token"]}
        elsewhere = await web("POST", "/v1/sessions", body, headers={**good, "origin": SHOP})
        assert (elsewhere.status, elsewhere.data["code"]) == (403, "csrf")
        foreign = await web("GET", "/v1/sessions", origin="https://evil.example")
        assert (foreign.status, foreign.data["code"]) == (403, "foreign_origin")
        assert (await web("GET", "/v1/sessions", origin=SHOP)).status == 403
        own = {**good, "origin": "http://127.0.0.1:8123"}
        assert (await web("POST", "/v1/sessions", body, headers=own)).status == 201
        assert (await web.get("/v1/sessions/s"))["session_id"] == "s"
        both = {"authorization": f"Bearer {secret}"}
        assert (await web("POST", "/v1/sessions", body, headers=both)).status == 200
        nobody = {"authorization": "Bearer cb_nothing", **good}
        assert (await web("POST", "/v1/sessions", body, headers=nobody)).status == 401


async def test_secrets_of_cookies_and_of_tokens_are_not_interchangeable(bed: Bed) -> None:
    """Each is refused at the other's place, also if the process has just accepted it at its own."""
    async with guarded_on(bed) as guarded:
        secret = await guarded.token("ada", "sessions:own")
        web, _ = await logged_in(guarded, secret)
        cookie = web.headers["cookie"].partition("callboard_login=")[2].partition(";")[0]
        await web.get("/v1/login")
        await guarded.with_token(secret).get("/v1/login")
        assert (await guarded.with_token(cookie)("GET", "/v1/login")).status == 401
        for value in (secret, "", "x", "\x00", "cbl_" + "x" * 43, "x" * 7_000):
            swapped = WebClient(guarded.web._app, headers={"cookie": f"callboard_login={value}"})
            assert (await swapped("GET", "/v1/login")).status == 401, value


async def test_a_login_ends_by_logout_or_with_its_token(bed: Bed) -> None:
    """Its streams end, too; the token itself stays valid after a logout."""
    async with guarded_on(bed) as guarded:
        name = f"token-{guarded.app}"
        secret = await guarded.token("ada", "sessions:own", called=name)
        (web, identity), (again, _) = [await logged_in(guarded, secret) for _ in range(2)]
        path = await create_session(guarded.with_token(secret))
        await run_message(guarded.with_token(secret), path, "hello")
        good = {"x-csrf-token": identity["csrf_token"]}
        async with web.stream(f"{path}/events") as first, again.stream(f"{path}/events") as second:
            for stream in (first, second):
                await stream.until("run_completed")
            assert (await web("POST", "/v1/logout")).status == 403
            out = await web("POST", "/v1/logout", headers=good)
            assert out.status == 204
            assert {cookie.value for cookie in cookies(out).values()} == {""}
            assert (await first.until())[-1]["data"]["code"] == "token_revoked"
            assert (await web("GET", "/v1/login")).data["code"] == "token_revoked"
            assert (await again("GET", "/v1/login")).status == 200
            await bed.runtime.store.data.tokens.revoke(name)
            assert (await second.until())[-1]["data"]["code"] == "token_revoked"
        assert (await guarded.web("POST", "/v1/login", {"token": secret})).status == 401
        program = await guarded.client("ada", "sessions:own")
        assert (await program("POST", "/v1/logout")).status == 204
        assert (await program("GET", "/v1/login")).status == 200


async def test_a_login_lasts_no_longer_than_its_token(bed: Bed) -> None:
    """And 12 hours at most."""
    if bed.backend != "memory":
        pytest.skip("hours")
    soon = bed.clock.now() + timedelta(minutes=10)
    async with guarded_on(bed) as guarded:
        short = await guarded.token("ada", "sessions:own", expires_at=soon)
        long = await guarded.token("ada", "sessions:own")
        (young, _), (old, _) = [await logged_in(guarded, token) for token in (short, long)]
        await asyncio.sleep(601)
        assert (await young("GET", "/v1/login")).data["code"] == "token_expired"
        assert (await old("GET", "/v1/login")).status == 200
        await asyncio.sleep(12 * 3_600 - 600)
        assert (await old("GET", "/v1/login")).data["code"] == "token_expired"
        assert (await guarded.with_token(long)("GET", "/v1/login")).status == 200


async def test_without_authentication_there_is_no_login(bed: Bed) -> None:
    """The page gets its principal: the local one."""
    async with web_on(bed, Echo().agent(), app_name=bed.name().type) as web:
        answer = await web("POST", "/v1/login", {"token": "x"})
        assert (answer.status, answer.data["code"]) == (404, "no_login")
        assert (await web.get("/v1/login"))["principal"] == "local"


async def test_only_pages_of_allowed_origins_get_answers(bed: Bed) -> None:
    """With a bearer token. They may read answers, problems included, and never with cookies."""
    async with guarded_on(bed, cors_origins=[SHOP]) as guarded:
        web = await guarded.client("ada", "sessions:own")
        preflight = {
            "access_control_request_method": "POST",
            "access_control_request_headers": "authorization,content-type,idempotency-key",
        }
        preflight_answer = await guarded.web(
            "OPTIONS", "/v1/sessions", headers=preflight, origin=SHOP
        )
        assert (preflight_answer.status, preflight_answer.body) == (204, b"")
        assert preflight_answer.headers["access-control-allow-origin"] == SHOP
        assert "Authorization" in preflight_answer.headers["access-control-allow-headers"]
        assert "csrf" not in preflight_answer.headers["access-control-allow-headers"].lower()
        for answer in (
            await web("GET", "/v1/sessions", origin=SHOP),
            await web("GET", "/v1/sessions/nowhere", origin=SHOP),
            await guarded.web("GET", "/v1/sessions", origin=SHOP),
        ):
            assert answer.headers["access-control-allow-origin"] == SHOP
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in answer.headers
        for origin in ("https://evil.example", "null", f"{SHOP}:444", f"{SHOP}.evil.example", "*"):
            refused = await web("OPTIONS", "/v1/sessions", headers=preflight, origin=origin)
            assert refused.status == 403
            assert "access-control-allow-origin" not in refused.headers
        assert (await web("OPTIONS", "/v1/sessions")).status == 405


def test_an_allowed_origin_must_have_the_form_of_browsers() -> None:
    """Wildcards, paths and upper case are refused."""
    good = ("https://shop.example", "http://localhost:3000", "http://[::1]:8080")
    assert checked_origins(good) == {*good}
    for bad in ("*", "null", "", "shop.example", "https://shop.example/", "https://*.example"):
        with pytest.raises(ContractError, match="--cors-origin"):
            checked_origins([bad])
