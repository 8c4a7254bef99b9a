"""The contract of every `ArtifactStore`: immutable bytes by content, separate per tenant and scope."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from typing_extensions import override

from actors._inmemory.artifacts import ComposedBlobStore, InMemoryArtifacts, InMemoryFileStore
from actors.errors import ContractError, InvalidTextError
from persistence._postgres.data.artifacts import CHUNK_BYTES, PostgresArtifacts
from persistence.objects import ObjectArtifactBytes
from tests.conformance.clock import ManualClock
from tests.conformance.stores.stored import lent_links
from tests.harness import servers
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Artifacts: TypeAlias = "InMemoryArtifacts | PostgresArtifacts"
HOUR_S = 3600.0
only_slow = pytest.mark.skipif(
    not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays it in a folder"
)
LARGE = bytes(range(256)) * 2048 + b"the end"  # two chunks and a bit


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """Return artifacts of this process."""
    del request
    yield InMemoryArtifacts(ManualClock().now)


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """Artifacts of a schema."""
    async with lent_links(request) as links:
        yield PostgresArtifacts(links)


@asynccontextmanager
async def in_folder(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """Artifacts of a schema whose bytes are in a folder."""
    async with lent_links(request) as links:
        folder = request.getfixturevalue("tmp_path")
        yield PostgresArtifacts(links, ObjectArtifactBytes.in_folder(folder))


@asynccontextmanager
async def in_s3(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """Artifacts of a schema whose bytes are in a bucket."""
    async with lent_links(request) as links:
        bucket = await servers.new_bucket(request.getfixturevalue("s3_server"))
        yield PostgresArtifacts(links, ObjectArtifactBytes.in_s3(bucket))


class ComposedArtifacts(InMemoryArtifacts):
    """Artifacts of this process behind stores that keep files, too."""

    @override
    def of(self, tenant: str, scope: str) -> Any:
        return ComposedBlobStore(InMemoryFileStore(), super().of(tenant, scope))


@asynccontextmanager
async def in_blob_stores(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """The same artifacts through the blob store interface."""
    del request
    yield ComposedArtifacts(ManualClock().now)


@pytest.fixture(
    params=[
        in_memory,
        in_blob_stores,
        pytest.param(in_postgres, marks=pytest.mark.postgres),
        pytest.param(in_folder, marks=pytest.mark.postgres),
        pytest.param(in_s3, marks=[pytest.mark.postgres, pytest.mark.s3, only_slow]),
    ]
)
async def artifacts(request: pytest.FixtureRequest) -> AsyncIterator[Artifacts]:
    """No artifacts on each backend."""
    async with request.param(request) as opened:
        yield opened


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    """Yield the bytes in small chunks."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.item(310)
@pytest.mark.parametrize("data", [b"", b"\x00\xff", LARGE], ids=["empty", "small", "large"])
async def test_bytes_come_back_as_they_were(artifacts: Artifacts, data: bytes) -> None:
    """The id is the SHA-256 of the content: any division into chunks gives the same artifact."""
    store = artifacts.of("acme", "desk/1")
    ref = await store.store(data, content_type="text/plain")
    again = await store.store_pieces(in_pieces(data, 100_000), content_type="image/png")

    assert (ref.id, ref.size_bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert again == ref == await store.stat(ref.id)
    assert await store.resolve(ref) == data


@pytest.mark.item(310)
async def test_parts_are_read_where_they_are(artifacts: Artifacts) -> None:
    """Ranges within a chunk, over two chunks, up to the end, and after it."""
    store = artifacts.of("acme", "desk/1")
    ref = await store.store_pieces(in_pieces(LARGE, 1_000_000))

    for offset in (0, 5, CHUNK_BYTES - 3, CHUNK_BYTES, len(LARGE) - 4, len(LARGE) + 9):
        for limit in (0, 7, CHUNK_BYTES + 1):
            part = await store.read(ref.id, offset=offset, limit=limit)
            assert part == LARGE[offset : offset + limit]
    for offset, limit in ((-1, 5), (0, -1)):
        with pytest.raises(ContractError, match="not negative"):
            await store.read(ref.id, offset=offset, limit=limit)


@pytest.mark.item(310)
async def test_a_tenant_reads_its_own_artifacts_alone(artifacts: Artifacts) -> None:
    """Equal bytes of two tenants, or of two scopes, are two artifacts."""
    acme = artifacts.of("acme", "desk/1")
    others = [artifacts.of("bolt", "desk/1"), artifacts.of("acme", "desk/2")]
    ref = await acme.store(LARGE)

    for other in others:
        assert await other.stat(ref.id) is None
        for reading in (other.resolve(ref), other.read(ref.id, limit=5), other.pin(ref, owner="r")):
            with pytest.raises(KeyError):
                await reading
        assert await other.store(LARGE) == ref
        await other.discard(ref.id)
    assert await acme.resolve(ref) == LARGE


@pytest.mark.item(310)
async def test_a_store_that_fails_midway_leaves_nothing(artifacts: Artifacts) -> None:
    """The bytes sent so far are invisible, and the same artifact can be stored."""
    store = artifacts.of("acme", "desk/1")

    async def cut() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionError("the sender went away")

    with pytest.raises(ConnectionError):
        await store.store_pieces(cut())
    assert await store.stat(hashlib.sha256(LARGE).hexdigest()) is None
    await artifacts.collect(grace_s=0)
    assert await artifacts.collect(grace_s=0) == 0
    assert await store.resolve(await store.store(LARGE)) == LARGE


@pytest.mark.item(310)
async def test_what_nobody_pins_is_collected_after_its_grace(artifacts: Artifacts) -> None:
    """Artifacts stay within the grace time and while an owner pins them."""
    store = artifacts.of("acme", "desk/1")
    pinned, loose = await store.store(LARGE), await store.store(b"loose")
    for owner in ("run-1", "run-1", "run-2"):
        await store.pin(pinned, owner=owner)

    assert await artifacts.collect(grace_s=HOUR_S) == 0
    assert await artifacts.collect(grace_s=0) == 1
    assert await store.stat(loose.id) is None
    await store.unpin(pinned, owner="run-1")
    assert await artifacts.collect(grace_s=0) == 0
    assert await store.resolve(pinned) == LARGE
    await store.unpin(pinned, owner="run-2")
    assert await artifacts.collect(grace_s=0) == 1
    with pytest.raises(KeyError):
        await store.resolve(pinned)


@pytest.mark.item(310)
async def test_owners_that_pin_and_unpin_at_once_are_counted_right(artifacts: Artifacts) -> None:
    """The artifact may be collected only after the last owner unpinned it."""
    store = artifacts.of("acme", "desk/1")
    ref, owners = await store.store(b"of many"), [f"run-{n}" for n in range(5)]
    await asyncio.gather(*(store.pin(ref, owner=owner) for owner in owners))

    await asyncio.gather(*(store.unpin(ref, owner=owner) for owner in owners[1:]))
    assert await artifacts.collect(grace_s=0) == 0
    await asyncio.gather(store.pin(ref, owner="last"), store.unpin(ref, owner=owners[0]))
    assert await artifacts.collect(grace_s=0) == 0
    await store.unpin(ref, owner="last")
    assert await artifacts.collect(grace_s=0) == 1


@pytest.mark.item(310)
async def test_what_is_discarded_is_gone_with_its_pins(artifacts: Artifacts) -> None:
    """Stored again it has no pins. Discarding an unknown artifact changes nothing."""
    store = artifacts.of("acme", "desk/1")
    ref = await store.store(LARGE)
    await store.pin(ref, owner="run-1")

    await store.discard(ref.id)
    await store.discard(ref.id)
    assert await store.stat(ref.id) is None
    assert await store.store(LARGE) == ref
    assert await artifacts.collect(grace_s=0) == 1


@pytest.mark.item(310)
async def test_equal_bytes_stored_at_once_are_one_artifact(artifacts: Artifacts) -> None:
    """Each caller gets the reference, and the bytes are stored."""
    store = artifacts.of("acme", "desk/1")
    refs = await asyncio.gather(*(store.store(LARGE) for _ in range(5)))

    assert len({*refs}) == 1
    assert await store.resolve(refs[0]) == LARGE
    assert await artifacts.collect(grace_s=0) == 1


@pytest.mark.item(310)
async def test_texts_that_no_database_takes_are_refused(artifacts: Artifacts) -> None:
    """The caller gets the error, and nothing is stored."""
    store = artifacts.of("acme", "desk/1")
    with pytest.raises(InvalidTextError, match="media type"):
        await store.store(b"x", content_type="text\x00")
    ref = await store.store(b"x")

    with pytest.raises(InvalidTextError, match="owner"):
        await store.pin(ref, owner="\ud800")


@pytest.mark.item(310)
async def test_pins_are_listed_by_their_owners_names(artifacts: Artifacts) -> None:
    """Of one scope, by artifact and owner, in pages. Each has its size and the time of its last pin."""
    store, other = artifacts.of("acme", "desk/1"), artifacts.of("acme", "desk/2")
    small, large = await store.store(b"x", content_type="text/plain"), await store.store(LARGE)
    for ref in (small, large):
        for owner in ("run:1", "run:12", "run%1", "session:a"):
            await store.pin(ref, owner=owner)
    await other.pin(await other.store(b"x"), owner="run:1")
    await store.unpin(large, owner="run:12")

    whole = await store.pins()
    assert len(whole) == 7
    assert whole == sorted(whole, key=lambda pin: (pin.ref.id, pin.owner))
    runs = await store.pins(prefix="run:1")
    assert [(pin.ref, pin.owner) for pin in runs] == sorted(
        [(small, "run:1"), (small, "run:12"), (large, "run:1")], key=lambda key: (key[0].id, key[1])
    )
    pages, after = [], None
    while page := await store.pins(prefix="run:1", after=after, limit=2):
        pages.append(page)
        after = page[-1]
    assert [pin for page in pages for pin in page] == runs
    assert [len(page) for page in pages] == [2, 1]

    await store.pin(small, owner="run:1")
    again = {pin.owner: pin for pin in await store.pins() if pin.ref == small}
    assert max(again.values(), key=lambda pin: pin.at).owner == "run:1"
    assert await other.pins(prefix="session:") == []
