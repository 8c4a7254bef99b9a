"""Artifacts whose bytes are objects of a bucket or a folder, with references and pins on PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest
from typing_extensions import override

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.stores.administration import EraseRequest
from actors._kernel.stores.runs import agent_scope
from actors._sessions.artifacts import artifacts_of
from actors.agents import ReActAgent
from actors.errors import ConflictError, ContractError
from actors.sessions import AgentRuntime, SessionArtifacts
from actors.testing import FunctionModel
from compose._assembly.runtime import artifact_bytes, build_postgres_runtime
from compose._assembly.settings import Settings
from persistence._objects.files import PART_BYTES, folder_of
from persistence.errors import BytesElsewhereError
from persistence.objects import ObjectArtifactBytes
from persistence.postgres import StoreSettings, open_store
from tests.harness import servers
from tests.integration.persistence.hosts import sql
from tests.integration.persistence.test_erase_plans import erase

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.postgres
ROWS: Final = "select upload, chunk_bytes from artifacts"
GARBAGE: Final = "select upload from artifact_uploads where starts_with(upload, 'object:')"
COLLECTING: Final = 6
"""The first moment of a collection: what it has taken is removed whatever its age."""
DESK: Final = AgentId("desk", "s", "acme")


@pytest.fixture
def settings(postgres_dsn: str, schema: str) -> StoreSettings:
    """Of a store on the test's schema."""
    return StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=schema)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
async def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A place for bytes, as settings name it; no other test has it."""
    if request.param == "folder":
        return str(tmp_path)
    bucket = await servers.new_bucket(request.getfixturevalue("s3_server"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.access_key or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret_key or "")
    return f"s3://{bucket.bucket}/of/test?endpoint={quote(bucket.endpoint or '')}"


async def pieces() -> AsyncIterator[bytes]:
    """A little more than one request carries."""
    for n in range(9):
        yield bytes([n]) * (PART_BYTES // 8)


async def whole(artifacts: SessionArtifacts, name: str) -> bytes:
    """The bytes of an artifact."""
    return b"".join([piece async for piece in artifacts.read(name)])


def files_in(folder: Path) -> list[Path]:
    """The files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def count_in(folder: Path) -> int:
    """Their number."""
    return len(files_in(folder))


@pytest.mark.costly
@pytest.mark.item(311, 353, 382)
async def test_artifacts_of_sessions_are_objects(settings: StoreSettings, location: str) -> None:
    """Written whole and in pieces, read in parts, and gone with their session; its turns are rows."""
    model = FunctionModel(lambda messages, _: f"You said {messages[-1].text}" * 2)
    runtime_settings = Settings(db_schema=settings.schema, artifacts=location)
    async with (
        build_postgres_runtime(settings.url, settings=runtime_settings) as runtime,
        AgentRuntime(agents=ReActAgent("echo", model=model), runtime=runtime, app="talk") as talks,
    ):
        run = await talks.start("a whale " * 25_000, session_id="s")
        await run.result()
        own, other = talks.artifacts("s"), talks.artifacts("t")
        for artifacts in (own, other):
            await artifacts.put("report", b"first", run_id=run.run_id)
        await own.put("large", pieces(), kind="debug")
        assert await whole(own, "large") == b"".join([piece async for piece in pieces()])
        assert await whole(own, "report") == b"first"
        rows = await sql(settings.url, settings.schema, ROWS)
        assert sorted(row["chunk_bytes"] for row in rows) == [0, 0, 0, 262_144]

        await talks.delete_session("s")
        rows_left = await sql(settings.url, settings.schema, ROWS)
        while await runtime.store.data.artifacts.collect(grace_s=0.0):
            pass
        assert await own.list() == []
        assert await whole(other, "report") == b"first"

    objects = artifact_bytes(location)
    assert objects is not None
    assert [row["chunk_bytes"] for row in rows_left] == [0]
    for row in {*map(tuple, rows)} - {*map(tuple, rows_left)}:
        with pytest.raises(KeyError):
            await objects.read(row[0].removeprefix("object:"), offset=0, limit=1)
    assert await sql(settings.url, settings.schema, GARBAGE) == []


class Dying(ObjectArtifactBytes):
    """Its process dies at the n-th moment: before or after each put and each delete."""

    def __init__(self, folder: Path, nth: int) -> None:
        super().__init__(folder_of(folder))
        self.left = nth

    def _moment(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError("the process is gone")

    @override
    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        self._moment()
        await super().put(name, pieces)
        self._moment()

    @override
    async def delete(self, name: str) -> None:
        self._moment()
        await super().delete(name)
        self._moment()


@pytest.mark.item(311, 353)
@pytest.mark.parametrize("nth", range(9))
async def test_a_crash_leaves_garbage_and_no_dangling_reference(
    settings: StoreSettings, tmp_path: Path, nth: int
) -> None:
    """At each call: names have their earlier bytes or the new ones, and a later collection takes the rest."""
    dying, folder = Dying(tmp_path, nth), ObjectArtifactBytes.in_folder(tmp_path)
    async with open_store(settings, artifact_bytes=dying) as store:
        own = artifacts_of(store, DESK)
        with suppress(asyncio.CancelledError):
            await own.put("a", b"first")
            await own.put("a", b"second")
            await own.put("b", pieces())
            await own.delete("b")
            await store.data.artifacts.collect(grace_s=0.0)
    async with open_store(settings, artifact_bytes=folder) as store:
        own = artifacts_of(store, DESK)
        contents = {artifact.name: await whole(own, artifact.name) for artifact in await own.list()}
        assert contents.get("a") == (None if nth < 2 else b"first" if nth < 4 else b"second")
        assert await store.data.artifacts.collect(grace_s=3600.0) == 0 or nth >= COLLECTING
        while await store.data.artifacts.collect(grace_s=0.0):
            pass
        assert {
            artifact.name: await whole(own, artifact.name) for artifact in await own.list()
        } == contents
        assert count_in(tmp_path) == len(contents)
        for name, data in contents.items():
            await own.put(name, data)
        assert count_in(tmp_path) == len(contents)
    assert await sql(settings.url, settings.schema, GARBAGE) == []


class Lingering(ObjectArtifactBytes):
    """Its deletes begin, and wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder_of(folder))
        self.begun, self.release = asyncio.Event(), asyncio.Event()

    @override
    async def delete(self, name: str) -> None:
        self.begun.set()
        await self.release.wait()
        await super().delete(name)


@pytest.mark.item(311)
async def test_an_upload_that_a_collector_took_for_dead_is_refused(
    settings: StoreSettings, tmp_path: Path
) -> None:
    """Whether its object is gone by then or not: no reference to it is written."""
    folder = Lingering(tmp_path)
    async with open_store(settings, artifact_bytes=folder) as store:
        own = store.data.artifacts.of("acme", agent_scope(DESK))
        collecting: list[asyncio.Task[int]] = []

        async def slowly() -> AsyncIterator[bytes]:
            yield b"x"
            collecting.append(asyncio.create_task(store.data.artifacts.collect(grace_s=0.0)))
            await folder.begun.wait()

        with pytest.raises(ConflictError, match="took so long that it was collected"):
            await own.store_pieces(slowly())
        folder.release.set()
        assert await collecting[0] == 1
        assert await sql(settings.url, settings.schema, ROWS) == []
        assert count_in(tmp_path) == 0


@pytest.mark.item(310, 311)
async def test_equal_bytes_at_once_leave_one_object(
    settings: StoreSettings, tmp_path: Path
) -> None:
    """Those of the slower writers are removed at once; what is discarded leaves none."""
    folder = ObjectArtifactBytes.in_folder(tmp_path)
    async with open_store(settings, artifact_bytes=folder) as store:
        own = store.data.artifacts.of("acme", agent_scope(DESK))
        refs = await asyncio.gather(*(own.store(b"equal") for _ in range(5)))
        await store.data.artifacts.collect(grace_s=3600.0)
        assert count_in(tmp_path) == 1
        assert await own.resolve(refs[0]) == b"equal"
        await own.discard(refs[0].id)
        await store.data.artifacts.collect(grace_s=3600.0)
        assert count_in(tmp_path) == 0


@pytest.mark.item(311)
async def test_an_erase_removes_objects(settings: StoreSettings, tmp_path: Path) -> None:
    """Of its scope, with their pins; a process without the place leaves them to one that has it."""
    folder = ObjectArtifactBytes.in_folder(tmp_path)
    what = EraseRequest(tenant="acme", agent=DESK)
    async with open_store(settings, artifact_bytes=folder) as store, open_store(settings) as bare:
        own = artifacts_of(store, DESK)
        for n in range(3):
            await own.put(f"{n}", f"canary {n}".encode())
        await artifacts_of(store, AgentId("desk", "t", "acme")).put("0", b"stays")
        with pytest.raises(BytesElsewhereError, match="CALLBOARD_ARTIFACTS"):
            await whole(artifacts_of(bare, DESK), "0")
        await erase(bare, what)
        assert await own.list() == []
        assert count_in(tmp_path) == 4
        await erase(store, what)
        assert count_in(tmp_path) == 1
    assert await sql(settings.url, settings.schema, GARBAGE) == []


@pytest.mark.item(311)
async def test_a_file_that_lost_its_end_is_no_artifact(
    settings: StoreSettings, tmp_path: Path
) -> None:
    """As a folder may have it when the power failed: when it is discarded it can be stored again."""
    async with open_store(
        settings, artifact_bytes=ObjectArtifactBytes.in_folder(tmp_path)
    ) as store:
        own = store.data.artifacts.of("acme", agent_scope(DESK))
        ref = await own.store(b"0123456789")
        [file] = files_in(tmp_path)
        file.write_bytes(b"01234")
        with pytest.raises(KeyError):
            await own.resolve(ref)
        assert await own.read(ref.id, limit=5) == b"01234"
        await own.discard(ref.id)
        assert await own.resolve(await own.store(b"0123456789")) == b"0123456789"


@pytest.mark.parametrize(
    "location", ["folder", "s3://b?key=x", "s3://k:s@bucket", "s3://", "http://h/b", ""]
)
def test_a_place_that_cannot_be_is_refused(location: str) -> None:
    """With how to write one, and without what may be a key."""
    with pytest.raises(ContractError) as exc_info:
        artifact_bytes(location)
    assert "k:s" not in str(exc_info.value)
