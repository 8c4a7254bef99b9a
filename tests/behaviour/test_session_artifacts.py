"""Artifacts of sessions: bytes by name, kept by the session and by the run that made them."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.runs import agent_scope
from actors.errors import ContractError, InvalidTextError
from actors.sessions import SessionArtifacts, UnknownArtifactError, session_artifacts
from tests.behaviour.talks import Echo, sessions_on
from tests.harness.faulty_store import Faults, FaultyStore, Manner
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

MIB = 1024 * 1024
PIECE = bytes(range(256)) * 1024


async def pieces(count: int) -> AsyncIterator[bytes]:
    """Return this many different pieces."""
    for n in range(count):
        yield n.to_bytes(8) + PIECE[8:]


async def whole(artifacts: SessionArtifacts, name: str) -> bytes:
    """Return the bytes of an artifact."""
    return b"".join([piece async for piece in artifacts.read(name)])


async def test_an_artifact_is_read_as_it_was_put(bed: Bed, app: str) -> None:
    """From bytes and from pieces.

    A name has one kind and its last content; another session does not have it.
    """
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        own, other = talks.artifacts("s"), talks.artifacts("t")
        ref = await own.put("a:raw:b", b"first", content_type="text/plain")
        await own.put("large", pieces(9), kind="debug")
        assert await whole(own, "a:raw:b") == b"first"
        large = await whole(own, "large")
        assert hashlib.sha256(large).hexdigest() == (await own.find("large")).ref.id
        assert len(large) == 9 * len(PIECE)

        await own.put("a:raw:b", b"second", kind="raw")
        await own.put("a:raw:b", b"first", kind="raw")
        artifacts = await own.list()
        assert [(artifact.name, artifact.kind, artifact.run_id) for artifact in artifacts] == [
            ("a:raw:b", "raw", None),
            ("large", "debug", None),
        ]
        assert artifacts[0].ref == ref
        assert len(await own.pins()) == 2
        assert await other.list() == []
        with pytest.raises(UnknownArtifactError, match=r"'large'"):
            await whole(other, "large")
        assert await own.delete("large")
        assert not await own.delete("large")
        assert [artifact.name for artifact in await own.list()] == ["a:raw:b"]


async def test_invalid_names_and_kinds_are_refused(bed: Bed, app: str) -> None:
    """Nothing is stored."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        own = talks.artifacts("s")
        for name, error in (
            ("", ContractError),
            ("x" * 901, InvalidTextError),
            ("\0", ContractError),
        ):
            with pytest.raises(error):
                await own.put(name, b"x")
        odd: Any = "secret"
        with pytest.raises(ContractError, match="ordinary, debug, raw"):
            await own.put("x", b"x", kind=odd)
        await own.put("ä" * 450, b"x", run_id=(await talks.start("1", session_id="s")).run_id)
        assert [artifact.name for artifact in await own.list()] == ["ä" * 450]


@pytest.mark.item(353, 382)
async def test_runs_of_a_session_share_its_names(bed: Bed, app: str) -> None:
    """A child's artifacts are the session's, listed by the child, and are deleted with the session."""
    child = bed.name("c")

    class Child:
        id = child

        async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
            async def put() -> str:
                mine = session_artifacts()
                await mine.put("found.txt", b"a whale", content_type="text/plain")
                await mine.put("trace", b"model said", kind="debug")
                return (await mine.find("found.txt")).ref.id

            return await ctx.step("put", put)

    class Boss:
        id = child

        async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
            handle = await ctx.spawn(child, "look into it")
            await ctx.join(handle)

            async def read() -> str:
                return (await whole(session_artifacts(), "found.txt")).decode()

            return await ctx.step("read", read)

    agent = Child()
    bed.agents[child] = agent
    await bed.runtime.register(agent)
    async with sessions_on(bed, {"normal": Boss()}, app=app) as talks:
        runs = [await talks.start("go", session_id=key) for key in ("s", "t")]
        assert [await bed.result(run.run_id) for run in runs] == ["a whale", "a whale"]
        [spawned] = await runs[0].children()
        assert (await runs[0].inspect_child(spawned)).artifacts == ["found.txt", "trace"]
        own = talks.artifacts("s")
        assert {artifact.run_id for artifact in await own.list()} == {spawned}
        assert await own.list(run_id=runs[0].run_id) == []

        await own.put("found.txt", b"a dragon")
        assert [artifact.ref.size_bytes for artifact in await own.list(run_id=spawned)] == [7, 10]
        store = talks.runtime.store.data.artifacts.of(
            talks.tenant, agent_scope(talks.agent_id("s"))
        )
        ids = {pin.ref.id for pin in await store.pins()}
        deletion = await talks.delete_session("s")
        assert deletion["artifacts"]["artifacts"] == len(ids) == 3
        assert await store.pins() == []
        assert [await store.stat(id_) for id_ in ids] == [None] * 3
        assert await whole(talks.artifacts("t"), "found.txt") == b"a whale"


@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER], ids=["before", "after"])
async def test_a_crash_at_any_call_of_a_put_leaves_no_partial_content(
    bed: Bed, app: str, manner: Manner
) -> None:
    """The name has the earlier bytes or the new ones, never none; the repeated put completes it.

    Bytes that were stored and not pinned are garbage, and are collected.
    """
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        own = talks.artifacts("s")
        store = talks.runtime.store.data.artifacts.of(
            talks.tenant, agent_scope(talks.agent_id("s"))
        )
        run_id = RunId("f" * 32)
        contents, faults = set(), Faults(nth=-1, manner=manner)
        for nth in range(20):
            old, new = f"old {nth}".encode(), f"new {nth}".encode()
            await own.put("report", old, run_id=run_id)
            died = asyncio.Event()
            faults = Faults(nth=nth, manner=manner)
            faulty: Any = FaultyStore(cast("Any", store), faults, died.set)
            putting = asyncio.create_task(
                SessionArtifacts(faulty).put("report", new, run_id=run_id)
            )
            dying = asyncio.create_task(died.wait())
            await asyncio.wait({dying, putting}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            putting.cancel()
            await talks.runtime.store.data.artifacts.collect(grace_s=0)
            contents.add(name := await whole(own, "report"))
            assert name in {old, new}
            assert all([await store.stat(pin.ref.id) for pin in await store.pins()])
            if not died.is_set():
                break
            await own.put("report", new, run_id=run_id)
            assert await whole(own, "report") == new
            assert len(await own.pins()) == 2
        assert nth == 7, faults.calls
        assert {*faults.calls} == {"store", "pin", "pins", "unpin"}
        assert {text.split()[0] for text in contents} == {b"old", b"new"}


async def test_two_concurrent_puts_of_a_name_leave_one(bed: Bed, app: str) -> None:
    """One of the two contents stays; nothing of the other is kept."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        own = talks.artifacts("s")
        await asyncio.gather(*(own.put("n", f"{n}".encode()) for n in range(8)))
        assert len(await own.list()) == len(await own.pins()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not IS_SLOW, reason="moves 512 MB")
@pytest.mark.timeout(300)
async def test_a_large_stream_takes_little_memory(bed: Bed, app: str) -> None:
    """256 MB up and down on a server: this process holds a few pieces at a time."""
    if bed.backend != "postgres":
        pytest.skip("in memory the bytes are in memory")
    count = 256 * MIB // len(PIECE)
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        own = talks.artifacts("s")
        tracemalloc.start()
        try:
            ref = await own.put("large", pieces(count))
            digest = hashlib.sha256()
            async for piece in own.read("large"):
                digest.update(piece)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (ref.size_bytes, digest.hexdigest()) == (256 * MIB, ref.id)
        assert peak < 32 * MIB
        assert await own.delete("large")
