"""Bearer tokens over HTTP: missing, expired and revoked ones, and the streams that they end."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from compose._web.identity import authentication
from tests.behaviour.guarded import guarded_on
from tests.behaviour.talks import Echo
from tests.behaviour.web import WebClient, create_session, run_message

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed

BAD: Final = {
    "no header": (None, "unauthenticated"),
    "empty": ("", "unauthenticated"),
    "another scheme": ("Basic YTpi", "unauthenticated"),
    "no token": ("Bearer", "bad_token"),
    "spaces": ("Bearer    ", "bad_token"),
    "two": ("Bearer a b", "bad_token"),
    "a list": ("Bearer a, Bearer b", "bad_token"),
    "unknown": ("Bearer cb_unknown", "bad_token"),
    "NUL": ("Bearer a\x00b", "bad_token"),
    "not ASCII": ("Bearer ü", "bad_token"),
    "quoted": ('Bearer "x"', "bad_token"),
    "huge": ("Bearer " + "x" * 8_200, "bad_token"),
    "SQL": ("Bearer ' or 1=1 --", "bad_token"),
}


async def refused(web: WebClient, **headers: str) -> tuple[int, str]:
    """Return status and code of the answer to this request; each 401 has the scheme to use."""
    answer = await web("GET", "/v1/sessions", headers=headers)
    if answer.status == 401:
        assert answer.headers["www-authenticate"].startswith('Bearer realm="callboard"')
        assert answer.data["remedy"]
    return answer.status, answer.data["code"]


async def test_requests_without_a_token_are_401(bed: Bed) -> None:
    """On each endpoint, with any other Authorization header; the API document is public."""
    async with guarded_on(bed) as guarded:
        for what, (header, code) in BAD.items():
            headers = {} if header is None else {"authorization": header}
            assert await refused(guarded.web, **headers) == (401, code), what
        secret = await guarded.token("ada", "sessions:own")
        for good in (f"Bearer {secret}", f"bearer  {secret} "):
            assert (await guarded.web("GET", "/v1/sessions", authorization=good)).status == 200
        twice = {"authorization": f"Bearer {secret}", "Authorization": f"Bearer {secret}"}
        assert (await guarded.web("GET", "/v1/sessions", headers=twice)).status == 400
        for wrong in (secret[:-1], secret + "a", secret.swapcase(), secret.removeprefix("cb_")):
            assert await refused(guarded.with_token(wrong)) == (401, "bad_token")
        assert (await guarded.web("GET", "/v1/openapi.json")).status == 200


async def test_the_answer_names_an_expired_or_revoked_token(bed: Bed) -> None:
    """A revoked token may work two seconds longer where it was just used; an expired one not at all."""
    now, store = bed.clock.now(), bed.runtime.store.data.tokens
    async with guarded_on(bed) as guarded:
        past = await guarded.token("ada", "sessions:own", expires_at=now - timedelta(seconds=1))
        assert await refused(guarded.with_token(past)) == (401, "token_expired")
        name = f"token-{guarded.app}"
        web = guarded.with_token(await guarded.token("ada", "sessions:own", called=name))
        assert await refused(guarded.with_token(name)) == (401, "bad_token")
        await store.revoke(name)
        assert await refused(web) == (401, "token_revoked")
        if bed.backend == "memory":
            soon = now + timedelta(seconds=1)
            short = await guarded.token("ada", "sessions:own", expires_at=soon)
            assert (await guarded.with_token(short)("GET", "/v1/sessions")).status == 200
            await asyncio.sleep(1.1)
            assert await refused(guarded.with_token(short)) == (401, "token_expired")
            revoked = guarded.with_token(await guarded.token("ada", "sessions:own", called="used"))
            await revoked.get("/v1/sessions")
            await store.revoke("used")
            await asyncio.sleep(authentication.FRESH_S + 0.1)
            assert await refused(revoked) == (401, "token_revoked")


async def test_the_cache_of_tokens_is_bounded(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache stays bounded with any number of tokens; evicted ones are read again."""
    monkeypatch.setattr(authentication, "MOST_KNOWN", 2)
    async with guarded_on(bed) as guarded:
        webs = [await guarded.client(f"p{n}", "sessions:own") for n in range(5)]
        for web in (*webs, *webs):
            await web.get("/v1/sessions")
            assert len(guarded.authentication._cache) <= 2
        assert len(webs) == 5


async def test_a_token_that_is_revoked_ends_its_streams_and_no_others(bed: Bed) -> None:
    """Each stream ends with an event that names the reason.

    The run goes on, also if a disconnect would cancel it.
    """
    echo = Echo()
    async with guarded_on(bed, echo.agent()) as guarded:
        name = f"token-{guarded.app}"
        web = guarded.with_token(await guarded.token("ada", "sessions:own", called=name))
        other = await guarded.client("ada", "sessions:own")
        path = await create_session(web)
        gate = echo.hold("go")
        url, cancels = f"{path}/events", f"{path}/runs?on_disconnect=cancel"
        async with (
            web.stream(cancels, {"text": "go"}) as mine,
            web.stream(url) as watching,
            other.stream(url) as staying,
        ):
            for stream in (mine, watching, staying):
                await stream.until("loop_started")
            await bed.runtime.store.data.tokens.revoke(name)
            ends: list[Any] = [(await stream.until())[-1] for stream in (mine, watching)]
            assert [end["event"] for end in ends] == ["problem", "problem"]
            assert {end["data"]["code"] for end in ends} == {"token_revoked"}
            assert {end["data"]["status"] for end in ends} == {401}
            gate.set()
            assert (await staying.until("run_completed"))[-1]["event"] == "run_completed"
        assert (await run_message(other, path, "next"))["status"] == "completed"
        runs = (await other.get(f"{path}/runs"))["runs"]
        assert [run["status"] for run in runs] == ["completed", "completed"]


async def test_a_token_that_expires_ends_its_streams(bed: Bed) -> None:
    """At most two seconds later."""
    soon = bed.clock.now() + timedelta(seconds=1)
    async with guarded_on(bed) as guarded:
        web = guarded.with_token(await guarded.token("ada", "sessions:own", expires_at=soon))
        path = await create_session(web)
        async with web.stream(f"{path}/events") as stream:
            events = await stream.until()
        assert (events[-1]["event"], events[-1]["data"]["code"]) == ("problem", "token_expired")


async def test_no_secret_is_logged_or_answered(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with the request."""
    caplog.set_level(logging.DEBUG)
    async with guarded_on(bed) as guarded:
        secret = await guarded.token("ada", "sessions:own", "operate")
        web = guarded.with_token(secret)
        answers = [
            await web("GET", "/v1/sessions"),
            await web("GET", "/v1/nowhere"),
            await web("POST", "/v1/sessions", b"{"),
            await guarded.with_token(secret + "x")("GET", "/v1/sessions"),
            await guarded.web("GET", "/v1/sessions", authorization=f"Basic {secret}"),
            await guarded.web("POST", "/v1/login", {"token": secret + "y"}),
            await guarded.web("POST", "/v1/login", {"token": [secret]}),
            await guarded.web("POST", "/v1/login", {"odd": secret}),
        ]
        text = caplog.text + "".join(f"{answer.headers}{answer.body!r}" for answer in answers)
        assert secret not in text
        assert secret[3:40] not in text
        rows = repr(await bed.runtime.store.data.tokens.list())
        assert secret[3:] not in rows
