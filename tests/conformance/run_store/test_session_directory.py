"""The list of sessions: titles, metadata, pages, and ids of deleted sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import SessionFilter, SessionLabel, SessionPlace
from actors._kernel.stores.errors import SessionDeletingError
from actors.errors import InvalidTextError, NotSerializableError
from tests.conformance.run_store.test_sessions import CHAT, HOSTILE, begin, kinds, said

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

DESK: Final = SessionFilter(tenant="default", app="desk")


async def titled(bed: Bed, key: str, title: str = "") -> AgentId:
    """Create a session without a run."""
    agent = AgentId("desk", key)
    assert await bed.store.data.directory.create(agent, SessionLabel(title=title))
    return agent


async def find_keys(bed: Bed, among: SessionFilter = DESK, limit: int = 100) -> list[str]:
    """Return the ids of listed sessions."""
    return [
        row.agent_id.key for row in (await bed.store.data.directory.find(among, limit=limit)).rows
    ]


async def test_a_session_may_be_made_before_its_first_run(bed: Bed) -> None:
    """Of several concurrent calls one creates it. Later runs belong to it, and it keeps its label."""
    store, label = bed.store.data.directory, SessionLabel(title="Wale", metadata={"a": [1, None]})
    answers = await asyncio.gather(*(store.create(CHAT, label, project="p") for _ in range(3)))
    row = await bed.store.data.sessions.get(CHAT)

    assert sorted(answers) == [False, False, True]
    assert row is not None
    assert (row.title, dict(row.metadata), row.project) == ("Wale", {"a": [1, None]}, "p")
    assert (row.open_runs, row.head, row.last_fact, row.created_at <= row.last_at) == (
        0,
        None,
        0,
        True,
    )
    await said(bed, "a")
    after = await bed.store.data.sessions.get(CHAT)
    assert after is not None
    assert (after.title, after.project, after.created_at) == ("Wale", "p", row.created_at)
    assert await kinds(bed) == ["queued", "started", "ended"]
    assert not await store.create(CHAT, SessionLabel(title="other"))


async def test_title_and_metadata_are_replaced_one_by_one(bed: Bed) -> None:
    """None leaves a value unchanged. An unknown session has none."""
    store = bed.store.data.directory
    assert not await store.relabel(CHAT, title="t")
    await said(bed, "a")
    assert await store.relabel(CHAT, title="t")
    assert await store.relabel(CHAT, metadata={"k": "ü"})
    assert await store.relabel(CHAT)

    row = await bed.store.data.sessions.get(CHAT)
    assert row is not None
    assert (row.title, dict(row.metadata)) == ("t", {"k": "ü"})
    for bad in ("x" * 1_025, "a\x00b", "\ud800"):
        with pytest.raises(InvalidTextError):
            await store.relabel(CHAT, title=bad)
    with pytest.raises(NotSerializableError):
        await store.relabel(CHAT, metadata={"k": "x" * 70_000})


async def test_sessions_are_found_by_state_and_by_a_part_of_the_title(bed: Bed) -> None:
    """In upper or lower case of any script. No character of the search is a wildcard."""
    for key, title in (("1", "Straße 50 %"), ("2", "STRASSE_x"), ("3", "ΜΈΛΙ"), ("4", "")):
        await titled(bed, key, title)
    await begin(bed, AgentId("desk", "4"))

    async def with_title(text: str) -> list[str]:
        return sorted(await find_keys(bed, SessionFilter(tenant="default", app="desk", title=text)))

    assert await with_title("strasse") == ["1", "2"]
    assert await with_title("μέλι") == ["3"]
    assert await with_title("50 %") == ["1"]
    assert await with_title("_") == ["2"]
    assert await with_title("") == ["1", "2", "3", "4"]
    assert await find_keys(bed, SessionFilter(tenant="default", app="desk", is_active=True)) == [
        "4"
    ]
    idle = await find_keys(bed, SessionFilter(tenant="default", app="desk", is_active=False))
    assert sorted(idle) == ["1", "2", "3"]
    assert await find_keys(bed, SessionFilter(tenant="acme", app="desk")) == []
    assert await find_keys(bed, SessionFilter(tenant="default", app="shop")) == []


async def test_pages_follow_each_other_without_a_gap(bed: Bed) -> None:
    """Each page starts after the last session of the page before, for any id."""
    for key in HOSTILE:
        await titled(bed, key)
    whole = await find_keys(bed)
    paged: list[str] = []
    among = DESK
    while page := (await bed.store.data.directory.find(among, limit=2)).rows:
        paged += [row.agent_id.key for row in page]
        after = SessionPlace(page[-1].last_at, page[-1].agent_id)
        among = SessionFilter(tenant="default", app="desk", after=after)

    assert sorted(whole) == sorted(HOSTILE)
    assert paged == whole


@pytest.mark.parametrize("owner", [None, "ada"])
async def test_a_search_reads_a_bounded_number_of_sessions(bed: Bed, owner: str | None) -> None:
    """A page may have fewer than match and returns where the next one starts. All pages together have all."""
    for n in range(9):
        label = SessionLabel(title="whale" if n in (1, 2, 7) else "fish")
        await bed.store.data.directory.create(AgentId("desk", f"{n}"), label, owner=owner)
    await begin(bed, AgentId("desk", "7"))
    whole = await find_keys(bed)

    async def pages(among: SessionFilter, limit: int) -> list[list[str]]:
        among, read = replace(among, owner=owner), []
        while True:
            page = await bed.store.data.directory.find(among, limit=limit, most_read=3)
            read.append([row.agent_id.key for row in page.rows])
            if page.read_until is None:
                return read
            assert str(page.read_until.agent_id.key) in whole
            among = replace(among, after=page.read_until)

    def parts(*keys: str) -> list[list[str]]:
        cut = [whole[n : n + 3] for n in range(0, 9, 3)]
        return [*([key for key in part if key in keys] for part in cut), []]

    assert await pages(replace(DESK, title="Whale"), 5) == parts("1", "2", "7")
    assert await pages(replace(DESK, title="shark"), 5) == parts()
    assert await pages(replace(DESK, is_active=True), 5) == parts("7")
    assert await pages(DESK, 3) == [whole[:3]]


@pytest.mark.item(382, 385)
async def test_a_deleted_session_is_known_as_such_and_keeps_no_label(bed: Bed) -> None:
    """It may be created again, but not while it is being deleted."""
    store, sessions = bed.store.data.directory, bed.store.data.sessions
    assert not await store.is_deleted(CHAT)
    await store.create(CHAT, SessionLabel(title="t", metadata={"k": 1}))
    assert not await store.is_deleted(CHAT)
    assert await sessions.begin_delete(CHAT)
    assert await store.is_deleted(CHAT)
    assert (await find_keys(bed), await store.relabel(CHAT, title="u")) == ([], False)
    with pytest.raises(SessionDeletingError):
        await store.create(CHAT, SessionLabel())
    assert await sessions.finish_delete(CHAT) == 1
    assert await store.is_deleted(CHAT)
    await said(bed, "a")
    row = await sessions.get(CHAT)
    assert row is not None
    assert (row.title, dict(row.metadata), await store.is_deleted(CHAT)) == ("", {}, False)


async def test_a_session_is_its_owners_also_after_its_end(bed: Bed) -> None:
    """No other owner can create it again. Without an owner it is created for its former owner."""
    store, sessions = bed.store.data.directory, bed.store.data.sessions

    async def owner() -> str | None:
        row = await sessions.get(CHAT)
        return None if row is None else row.owner

    async def delete() -> None:
        assert await sessions.begin_delete(CHAT)
        await sessions.finish_delete(CHAT)

    assert await store.create(CHAT, SessionLabel(), owner="ada")
    assert not await store.create(CHAT, SessionLabel(), owner="bob")
    assert await owner() == "ada"
    await said(bed, "a")
    assert await owner() == "ada"
    await delete()
    assert [await store.is_deleted(CHAT, owner=name) for name in ("ada", "bob", None)] == [
        True,
        False,
        True,
    ]
    assert not await store.create(CHAT, SessionLabel(), owner="bob")
    assert await store.is_deleted(CHAT)
    assert await store.create(CHAT, SessionLabel(), owner="ada")
    await delete()
    assert await store.create(CHAT, SessionLabel())
    assert await owner() == "ada"
    await delete()
    await said(bed, "b")
    assert await owner() == "ada"


async def test_an_id_that_was_nobodys_is_its_new_owners(bed: Bed) -> None:
    """While the session exists it stays without an owner."""
    store, sessions = bed.store.data.directory, bed.store.data.sessions
    await said(bed, "a")
    assert not await store.create(CHAT, SessionLabel(), owner="ada")
    row = await sessions.get(CHAT)
    assert row is not None
    assert row.owner is None
    await sessions.begin_delete(CHAT)
    await sessions.finish_delete(CHAT)
    assert not await store.is_deleted(CHAT, owner="ada")
    assert await store.create(CHAT, SessionLabel(), owner="ada")
    row = await sessions.get(CHAT)

    assert row is not None
    assert row.owner == "ada"


async def test_lists_pages_and_runs_of_an_owner_are_its_own(bed: Bed) -> None:
    """Sessions of other owners, of other tenants and without an owner are not listed."""
    store = bed.store.data.directory
    for agent, owner in (
        (AgentId("desk", "1"), "ada"),
        (AgentId("desk", "2"), "bob"),
        (AgentId("desk", "3"), None),
        (AgentId("desk", "4", "acme"), "ada"),
    ):
        await store.create(agent, SessionLabel(), owner=owner)
    ada = SessionFilter(tenant="default", app="desk", owner="ada")
    pages = [
        await bed.store.data.sessions.page("default", "desk", owner=owner)
        for owner in ("ada", "bob", None)
    ]

    assert await find_keys(bed, ada) == ["1"]
    assert [[row.key for row in page] for page in pages] == [["1"], ["2"], ["1", "2", "3"]]
