"""Files on a real S3: large ones, several writers, networks that fail, and settings that are wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors.errors import ConflictError
from persistence._objects.files import PART_BYTES
from persistence.objects import BucketRefusedError, BucketUnreachableError, S3FileStore
from tests.harness import servers
from tests.harness.proxy import FaultProxy
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from persistence.objects import S3Settings
    from tests.harness.servers import TestServer

only_slow = pytest.mark.skipif(not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays one on S3")
KEY = "reports/may.bin"


@pytest.fixture
async def bucket(s3_server: TestServer) -> S3Settings:
    """A bucket of this test."""
    return await servers.new_bucket(s3_server)


def large(first: int) -> bytes:
    """Two parts and a bit."""
    return bytes([first]) * (2 * PART_BYTES) + b"the end"


@pytest.mark.s3
@pytest.mark.item(311)
async def test_settings_that_a_server_refuses_are_named(bucket: S3Settings) -> None:
    """With the remedy, by each call; a bucket that is not there is not a missing file."""
    wrong = [
        (replace(bucket, secret_key="other"), BucketRefusedError, "SignatureDoesNotMatch"),
        (replace(bucket, access_key="other"), BucketRefusedError, "access_key and secret_key"),
        (replace(bucket, bucket="not-there"), BucketRefusedError, "Create the bucket"),
        (
            replace(bucket, endpoint="http://127.0.0.1:1", retries=0),
            BucketUnreachableError,
            "Check that the server runs",
        ),
    ]
    for settings, error, words in wrong:
        store = S3FileStore(settings, tenant="acme")
        for call in (store.connect(), store.download(KEY), store.delete(KEY)):
            with pytest.raises(error, match=words) as exc_info:
                await call
            assert bucket.secret_key is not None
            assert bucket.secret_key not in str(exc_info.value)
        await store.disconnect()


@only_slow
@pytest.mark.s3
@pytest.mark.item(311)
async def test_an_upload_that_is_cut_leaves_the_earlier_file(bucket: S3Settings) -> None:
    """As a whole, however large it is; the next upload replaces it."""
    assert bucket.endpoint is not None
    direct = S3FileStore(bucket, tenant="acme")
    await direct.upload(KEY, b"earlier")
    async with FaultProxy.to(bucket.endpoint) as proxy:
        through = replace(bucket, endpoint=proxy.through(bucket.endpoint), retries=0)
        for body, part in ((b"SECOND", b"SECOND"), (large(7), b"the end"), (b"x" * 99_999, b"xx")):
            loss = proxy.lose_request(request_has=part)
            store = S3FileStore(through, tenant="acme")
            with pytest.raises(BucketUnreachableError, match="may be sent again"):
                await store.upload(KEY, body)
            assert loss.happened.is_set()
            assert await direct.download(KEY) == b"earlier"

        retrying = S3FileStore(replace(through, retries=2), tenant="acme")
        loss = proxy.lose_response(request_has=b"SECOND", response_ends=b"")
        await retrying.upload(KEY, b"SECOND")
    assert loss.happened.is_set()
    assert await direct.download(KEY) == b"SECOND"


@only_slow
@pytest.mark.s3
@pytest.mark.item(311)
async def test_a_server_that_does_not_answer_is_given_up(bucket: S3Settings) -> None:
    """After the time of a request, and as many tries as the settings say; later it serves again."""
    assert bucket.endpoint is not None
    async with FaultProxy.to(bucket.endpoint) as proxy:
        settings = replace(
            bucket, endpoint=proxy.through(bucket.endpoint), request_s=0.3, retries=1
        )
        store = S3FileStore(settings, tenant="acme")
        proxy.cut()
        for call in (store.download(KEY), store.upload(KEY, b"x"), store.connect()):
            with pytest.raises(BucketUnreachableError):
                await call

        proxy.heal()
        await S3FileStore(replace(settings, request_s=20.0), tenant="acme").connect()


@only_slow
@pytest.mark.s3
@pytest.mark.item(311)
async def test_a_reader_never_sees_two_files_in_one(bucket: S3Settings) -> None:
    """A large file that is replaced while it is read comes from one upload, or is a conflict."""
    store = S3FileStore(bucket, tenant="acme")
    bodies = [large(n) for n in range(3)]
    await store.upload(KEY, bodies[0])

    async def read() -> bool:
        try:
            return await store.download(KEY) in bodies
        except ConflictError:
            return True

    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(store.upload(KEY, body)) for body in bodies]
        readers = [tasks.create_task(read()) for _ in range(4)]
    assert all(task.done() for task in writers)
    assert all(task.result() for task in readers)
    assert await store.download(KEY) in bodies
