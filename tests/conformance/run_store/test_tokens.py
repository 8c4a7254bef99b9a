"""Tokens of the API: lookup by the hash of their secret, lists, revocation, expiry."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.administration import digest_of, new_secret
from actors._kernel.stores.administration import NewToken
from actors._kernel.stores.errors import TokenExistsError
from actors.errors import InvalidNameError, InvalidTextError
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from tests.conformance.bed import Bed


def token(name: str = "ci", *, id_: str = "", **more: Any) -> NewToken:
    """Return a token whose secret is its id."""
    token_id = id_ or name
    scopes = ("sessions:own", "operate")
    facts = {"tenant": "default", "principal": "ada", "scopes": scopes, **more}
    return NewToken(id=token_id, digest=digest_of(token_id), name=name, **facts)


def login(id_: str, parent: str | None, **more: Any) -> NewToken:
    """Return the cookie of a browser."""
    return token("", id_=id_, is_login=True, parent=parent, **more)


async def test_a_token_is_found_by_the_hash_of_its_secret_alone(bed: Bed) -> None:
    """With all its fields. Its name and id do not find it."""
    tokens = bed.store.data.tokens
    created_token = await tokens.create(token(tenant="acme"))
    row = await tokens.find(digest_of("ci"))

    assert row is not None
    assert (row.id, row.name, row.tenant, row.principal) == ("ci", "ci", "acme", "ada")
    assert (row.scopes, row.state) == (("sessions:own", "operate"), "valid")
    assert (row.is_login, row.expires_at, row.revoked_at) == (False, None, None)
    assert row.created_at == created_token.created_at
    assert [
        await tokens.find(digest) for digest in ("ci", "", digest_of("other"), "x" * 3_000)
    ] == [None] * 4
    secret = new_secret("cb_")
    assert (len(secret), len({new_secret("cb_") for _ in range(100)})) == (46, 100)


async def test_one_token_at_a_time_has_a_name(bed: Bed) -> None:
    """Of several concurrent calls one creates it. The name is free again when its token was revoked."""
    tokens = bed.store.data.tokens
    outcomes = await asyncio.gather(
        *(tokens.create(token(id_=f"t{n}")) for n in range(3)), return_exceptions=True
    )
    assert sorted(type(x).__name__ for x in outcomes) == ["ApiToken"] + ["TokenExistsError"] * 2
    revoked = await tokens.revoke("ci")
    assert revoked is not None
    assert revoked.state == "revoked"
    await tokens.create(token(id_="new"))
    with pytest.raises(TokenExistsError, match="tokens revoke"):
        await tokens.create(token(id_="newer"))

    assert [(row.id, row.state) for row in await tokens.list()] == [
        (revoked.id, "revoked"),
        ("new", "valid"),
    ]


async def test_a_revoked_token_stays_so_with_the_logins_made_from_it(bed: Bed) -> None:
    """By name or id, once or twice. Other tokens stay valid, and an unknown token counts as revoked."""
    tokens = bed.store.data.tokens
    for new_token in (
        token("a"),
        token("b"),
        login("la", "a"),
        login("lb", "b"),
        login("jwt", None),
    ):
        await tokens.create(new_token)
    assert await tokens.over(["a", "b", "la", "lb", "jwt"]) == {}
    first, again = await tokens.revoke("a"), await tokens.revoke("a")
    assert first is not None
    assert again == first
    assert await tokens.revoke("nobody") is None
    over = await tokens.over(["a", "b", "la", "lb", "jwt", "nobody"])

    assert over == {"a": "revoked", "la": "revoked", "nobody": "revoked"}
    states = [await tokens.find(digest_of(name)) for name in ("a", "la", "b", "lb")]
    assert [row and row.state for row in states] == ["revoked", "revoked", "valid", "valid"]
    assert [row.id for row in await tokens.list()] == ["a", "b"]
    await tokens.revoke("lb")
    assert await tokens.over(["b", "lb"]) == {"lb": "revoked"}


async def test_a_token_expires_and_logins_that_did_are_forgotten(bed: Bed) -> None:
    """An expired token is still listed. The next token of its principal deletes expired logins."""
    tokens, now = bed.store.data.tokens, bed.clock.now()
    past, soon = now - timedelta(minutes=5), now + timedelta(days=1)
    for new_token in (token("old", expires_at=past), token("young", expires_at=soon)):
        await tokens.create(new_token)
    await tokens.create(login("gone", "young", expires_at=past))
    expired_token = await tokens.find(digest_of("gone"))
    assert expired_token is not None
    assert (expired_token.state, await tokens.over(["gone"])) == ("expired", {"gone": "expired"})
    await tokens.create(login("other", "young", expires_at=soon, principal="bob"))
    assert await tokens.find(digest_of("gone")) is not None
    await tokens.create(login("kept", "young", expires_at=soon))

    assert await tokens.find(digest_of("gone")) is None
    assert await tokens.over(["old", "young", "kept"]) == {"old": "expired"}
    assert [(row.id, row.state) for row in await tokens.list()] == [
        ("old", "expired"),
        ("young", "valid"),
    ]


async def test_the_use_of_a_token_is_written_once_a_minute(bed: Bed) -> None:
    """Reads by operators do not count as use."""
    tokens = bed.store.data.tokens

    async def used() -> Any:
        return [row.last_used_at for row in await tokens.list()]

    await tokens.create(token())
    await tokens.over(["ci"])
    assert await used() == [None]
    await tokens.find(digest_of("ci"))
    first = await used()
    await tokens.find(digest_of("ci"))
    assert await used() == first != [None]
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(61)
        await tokens.find(digest_of("ci"))
        assert await used() == [bed.clock.now()]


def test_what_no_database_takes_is_refused() -> None:
    """The check comes before any query."""
    for bad in ("", "a b", "x" * 300):
        with pytest.raises(InvalidNameError):
            token(tenant=bad)
    for bad in ("a\x00b", "\ud800", "x" * 1_025):
        with pytest.raises(InvalidTextError):
            token(bad)
        with pytest.raises(InvalidTextError):
            token(principal=bad)
