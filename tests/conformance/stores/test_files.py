"""The contract of every `FileStore` and `BlobStore`: bytes by key, beside artifacts by content."""

from __future__ import annotations

import asyncio
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.artifacts import ComposedBlobStore, InMemoryArtifacts, InMemoryFileStore
from actors._kernel.stores.artifacts import BlobStore, FileStore
from actors.errors import ContractError, InvalidTextError
from persistence._postgres.data.artifacts import PostgresArtifacts, PostgresFiles
from persistence.objects import FolderFileStore, S3FileStore
from tests.conformance.clock import ManualClock
from tests.conformance.stores.stored import lent_links
from tests.harness import servers
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from actors._kernel.stores.artifacts import ArtifactRetention

LARGE = bytes(range(256)) * 2048 + b"the end"
ODD_KEYS = ("", "/a", "a/../b", "..", "a\x00", "\ud800", "x" * 1_025)


class Blobs:
    """Blob stores of several tenants on one backend, and the collection of their bytes."""

    def __init__(
        self, of: Callable[[str], ComposedBlobStore], retention: ArtifactRetention
    ) -> None:
        self.of, self.collect = of, retention.collect


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[Blobs]:
    """Stores of this process."""
    del request
    artifacts, files = InMemoryArtifacts(ManualClock().now), dict[str, FileStore]()

    def of(tenant: str) -> ComposedBlobStore:
        own = files.setdefault(tenant, InMemoryFileStore())
        return ComposedBlobStore(own, artifacts.of(tenant, "s"))

    yield Blobs(of, artifacts)


@asynccontextmanager
async def in_folder(request: pytest.FixtureRequest) -> AsyncIterator[Blobs]:
    """Files in a folder, beside artifacts of this process."""
    # It outlives the test: a cancelled upload may still write.
    folder: Path = request.getfixturevalue("tmp_path")
    artifacts = InMemoryArtifacts(ManualClock().now)
    yield Blobs(
        lambda tenant: ComposedBlobStore(
            FolderFileStore(folder / "not/yet", tenant=tenant), artifacts.of(tenant, "s")
        ),
        artifacts,
    )


@asynccontextmanager
async def in_s3(request: pytest.FixtureRequest) -> AsyncIterator[Blobs]:
    """Files in a bucket, beside artifacts of this process."""
    bucket = await servers.new_bucket(request.getfixturevalue("s3_server"))
    artifacts = InMemoryArtifacts(ManualClock().now)
    yield Blobs(
        lambda tenant: ComposedBlobStore(
            S3FileStore(bucket, tenant=tenant), artifacts.of(tenant, "s")
        ),
        artifacts,
    )


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[Blobs]:
    """Stores of a schema."""
    async with lent_links(request) as links:
        artifacts, files = PostgresArtifacts(links), PostgresFiles(links)
        yield Blobs(
            lambda tenant: ComposedBlobStore(files.of(tenant, "s"), artifacts.of(tenant, "s")),
            artifacts,
        )


IN_PROCESS: list[Any] = [in_memory, in_folder]
ON_SERVERS = [
    pytest.param(in_postgres, marks=pytest.mark.postgres),
    pytest.param(in_s3, marks=pytest.mark.s3),
]
"""The gate plays one test on S3: see `GATE`."""
GATE = IN_PROCESS + (ON_SERVERS if IS_SLOW else ON_SERVERS[:1])


@pytest.fixture(params=GATE)
async def blobs(request: pytest.FixtureRequest) -> AsyncIterator[Blobs]:
    """No blobs on each backend."""
    async with request.param(request) as opened:
        yield opened


@pytest.mark.item(307, 308, 309, 311)
@pytest.mark.parametrize("blobs", IN_PROCESS + ON_SERVERS, indirect=True)
async def test_a_file_comes_back_until_it_is_deleted(blobs: Blobs) -> None:
    """A later upload replaces it. Deleting an unknown file and connecting twice change nothing."""
    store, other = blobs.of("acme"), blobs.of("bolt")
    assert isinstance(store, BlobStore)
    assert isinstance(store, FileStore)
    for _ in range(2):
        await store.connect()

    for data in (b"", b"\x00\xff", LARGE, LARGE, b"last"):
        await store.upload("a/b ü.txt", data, content_type="text/plain")
        assert await store.download("a/b ü.txt") == data
    await store.upload("a/b ü.txt", b"last", content_type="text/plain")
    await other.upload("a/b ü.txt", b"of another tenant")
    await check_url(store, "a/b ü.txt", b"last")
    assert await store.download("a/b ü.txt") == b"last"
    for _ in range(2):
        await store.delete("a/b ü.txt")
    with pytest.raises(KeyError):
        await store.download("a/b ü.txt")
    assert await other.download("a/b ü.txt") == b"of another tenant"
    for _ in range(2):
        await store.disconnect()


@pytest.mark.item(307, 308, 311)
async def test_keys_that_name_no_file_are_refused(blobs: Blobs) -> None:
    """Each call refuses them, and invalid media types and URLs that are valid for no time."""
    store = blobs.of("acme")
    for key in ODD_KEYS:
        for call in (store.upload(key, b"x"), store.download(key), store.delete(key)):
            with pytest.raises(ContractError):
                await call
        with pytest.raises(ContractError):
            await store.presign_url(key)
    with pytest.raises(InvalidTextError, match="media type"):
        await store.upload("k", b"x", content_type="\x00")
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ContractError):
            await store.presign_url("k", expires_s=seconds)
    with pytest.raises(KeyError):
        await store.download("k")


@pytest.mark.item(310, 311)
async def test_files_and_artifacts_of_equal_bytes_keep_apart(blobs: Blobs) -> None:
    """Discarding the artifact keeps the file and the reverse. Neither is collected."""
    store = blobs.of("acme")
    ref = await store.store(LARGE, content_type="text/plain")
    await store.upload(ref.id, LARGE)
    await store.upload("again", LARGE)
    await store.pin(ref, owner="run")

    await store.delete("again")
    await blobs.collect(grace_s=0)
    assert await store.resolve(ref) == await store.download(ref.id) == LARGE
    await store.discard(ref.id)
    await blobs.collect(grace_s=0)
    assert await store.download(ref.id) == LARGE
    await store.delete(ref.id)
    await blobs.collect(grace_s=0)
    assert await blobs.collect(grace_s=0) == 0


@pytest.mark.item(310, 311)
async def test_the_last_of_many_uploads_stays(blobs: Blobs) -> None:
    """Of concurrent uploads and deletions one whole file is left, or none. Other bytes are collected."""
    store, bodies = blobs.of("acme"), [bytes([n]) * 1_000 for n in range(12)]
    for _ in range(3):
        await asyncio.gather(
            *(store.upload("k", body) for body in bodies), *(store.delete("k") for _ in range(3))
        )
    await store.upload("k", bodies[3])

    assert await store.download("k") == bodies[3]
    await blobs.collect(grace_s=0)
    assert await store.download("k") == bodies[3]
    await store.delete("k")
    assert await blobs.collect(grace_s=0) <= 1
    assert await blobs.collect(grace_s=0) == 0


@pytest.mark.item(307, 309, 311)
async def test_an_upload_that_is_cancelled_leaves_a_whole_file(blobs: Blobs) -> None:
    """Either the earlier file or the new one. The store stays usable."""
    store = blobs.of("acme")
    await store.upload("k", b"earlier")
    for pauses in (0, 1, 2, 5, 20):
        uploading = asyncio.ensure_future(store.upload("k", LARGE))
        for _ in range(pauses):
            await asyncio.sleep(0)
        uploading.cancel()
        await asyncio.wait([uploading])

        assert await store.download("k") in {b"earlier", LARGE}


@pytest.mark.item(307, 310, 311)
async def test_any_calls_leave_the_files_that_a_mapping_has(blobs: Blobs) -> None:
    """Random calls of two tenants, with equal bytes under several keys."""
    draw, files = Random(5), dict[tuple[str, str], bytes]()
    for _ in range(80):
        tenant, key = draw.choice(["acme", "bolt"]), draw.choice(["a", "b/c", "d"])
        store, verb = blobs.of(tenant), draw.choice(["upload", "upload", "delete", "collect"])
        if verb == "upload":
            files[tenant, key] = draw.choice([b"one", b"two"])
            await store.upload(key, files[tenant, key])
        elif verb == "delete":
            files.pop((tenant, key), None)
            await store.delete(key)
        else:
            await blobs.collect(grace_s=0)

        assert await download_or_none(store, key) == files.get((tenant, key))


async def check_url(store: FileStore, key: str, expected: bytes) -> None:
    """Read a URL of the web; other URLs cannot be fetched."""
    url = await store.presign_url(key, expires_s=59.5)
    if url.startswith("http"):
        assert await asyncio.to_thread(read_url, url) == ("text/plain", expected)
    assert url.startswith(("http", "memory:", "callboard:"))


def read_url(url: str) -> tuple[str, bytes]:
    """Return media type and content, read without credentials."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read()


async def download_or_none(store: FileStore, key: str) -> Any:
    """Return the file, or None."""
    try:
        return await store.download(key)
    except KeyError:
        return None


@pytest.mark.item(308)
async def test_a_file_in_memory_says_so_by_its_url() -> None:
    """The URL contains the key unchanged."""
    assert await InMemoryFileStore().presign_url("a/b.txt") == "memory://a/b.txt"
