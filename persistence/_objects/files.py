"""Files by key and bytes of artifacts, each an object of one bucket, or of a folder instead.

References and pins of artifacts are in a database. Requests have limits, and errors are ours.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import obstore
from obstore.exceptions import PreconditionError
from obstore.store import LocalStore, S3Store
from typing_extensions import override

from actors._kernel.basics import check_expiry_s
from actors._kernel.runtime.ids import check_name
from actors._kernel.stores.artifacts import ArtifactBytes, FileStore
from actors._kernel.text import check_file_key, check_name_of, check_text_of
from actors.errors import ConflictError, ContractError, InvalidTextError, PersistenceError
from persistence._objects.errors import (
    CLIENT_ERRORS,
    is_missing_object,
    translate_folder,
    translate_objects,
)
from persistence._objects.settings import S3Settings, name_of_file, new_name_of_artifact

if TYPE_CHECKING:  # the client has these names for readers of types only
    from obstore import GetOptions
    from obstore.store import RetryConfig, S3Config

MAX_SCOPE_BYTES: Final = 1_000
"""The same as on Postgres."""
MAX_EXPIRY_S: Final = 7 * 86_400.0
"""The longest that S3 lets a signature be valid."""
_MEDIA_TYPE: Final = "media type of a file"
PART_BYTES: Final = 8 << 20
"""The most that one request carries, either way. A larger object takes several."""
PARTS_AT_ONCE: Final = 4
READ_TRIES: Final = 3
"""Number of times that an object is read from its beginning when it is replaced meanwhile."""
CONNECT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_PROBE: Final = "callboard.probe"


class _ObjectFiles(FileStore):
    """A `FileStore` of one tenant and scope, each file an object of a bucket."""

    def __init__(self, bucket: Bucket, tenant: str, scope: str) -> None:
        check_name("tenant", tenant)
        check_text_of("scope of files", scope, limit_bytes=MAX_SCOPE_BYTES)
        self._bucket, self._tenant, self._scope = bucket, tenant, scope

    @override
    async def connect(self) -> None:
        """Try whether the bucket can be used; a folder is made. The other calls need no `connect`.

        Raises:
            BucketRefusedError: There is no such bucket, it refuses the keys, or the folder cannot be made.
            BucketUnreachableError: The server gives no answer.
        """
        await self._bucket.probe()

    @override
    async def disconnect(self) -> None:
        self._bucket.close()

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        name = self._name(key)
        check_name_of(_MEDIA_TYPE, content_type)
        if not (content_type.isascii() and content_type.isprintable()):
            problem = "has characters other than printable ASCII: leave them out"
            raise InvalidTextError(_MEDIA_TYPE, problem)
        await self._bucket.put(name, bytes(data), content_type)

    @override
    async def download(self, key: str) -> bytes:
        try:
            return await self._bucket.get(self._name(key))
        except KeyError:
            raise KeyError(key) from None

    @override
    async def delete(self, key: str) -> None:
        await self._bucket.delete(self._name(key))

    def _name(self, key: str) -> str:
        """Return the object's name in the bucket for a file's key.

        Raises:
            ContractError: The key is not valid.
        """
        check_file_key(key)
        return name_of_file(self._tenant, self._scope, key)


class S3FileStore(_ObjectFiles):
    """A `FileStore` of one tenant and scope on S3, or on a server that speaks its protocol.

    A file is as durable as the bucket when `upload` returns. An upload that dies leaves the earlier file. The
    parts of one over 8 MiB that died stay in the bucket, unseen, until a lifecycle rule removes them.
    Requests are sent again after errors of the server or of the network, as often as the settings say.

    Args:
        settings: The settings of the bucket, which has to exist.
        tenant: Owner of the files.
        scope: A name within the tenant, for example of an application; 1,000 bytes at most.

    Raises:
        ContractError: Tenant or scope cannot be a name.
    """

    def __init__(self, settings: S3Settings, *, tenant: str, scope: str = "main") -> None:
        super().__init__(bucket_of(settings), tenant, scope)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        """Return a URL that reads the file for so many seconds, rounded up; 7 days at most.

        Everyone with the URL can read the file. Keys that expire, as those of a role do, end it earlier.
        """
        name = self._name(key)
        check_expiry_s(expires_s)
        if expires_s > MAX_EXPIRY_S:
            msg = f"S3 signs a URL for {MAX_EXPIRY_S:g} s (7 days) at most, not for {expires_s:g} s"
            raise ContractError(msg)
        return await self._bucket.sign(name, timedelta(seconds=math.ceil(expires_s)))


class FolderFileStore(_ObjectFiles):
    """A `FileStore` of one tenant and scope in a folder, for one machine or a shared disk.

    An upload that dies leaves the earlier file, and what it had written beside it under a name that ends
    with ``#`` and a number. One that is cancelled leaves the earlier file or, later, the new one: a thread may
    finish it after the cancellation, also after an upload that began later. A power cut may lose the last
    uploads. Media types are not kept. URLs cannot be fetched: use `download`.

    Args:
        folder: The folder; the first use makes it, with its parents.
        tenant: Owner of the files.
        scope: A name within the tenant, for example of an application; 1,000 bytes at most.

    Raises:
        ContractError: Tenant or scope cannot be a name.
    """

    def __init__(self, folder: Path, *, tenant: str, scope: str = "main") -> None:
        super().__init__(folder_of(folder), tenant, scope)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        self._name(key)
        check_expiry_s(expires_s)
        return f"callboard://{quote(key)}"


class ObjectArtifactBytes(ArtifactBytes):
    """Bytes of artifacts in a bucket or a folder, of all tenants of a deployment.

    Each object is written once, under a name of its own, and never replaced. One whose writer died is seen by
    nobody: the database has its name from before it was begun, and hosts remove it a day later. Calls raise
    `BucketRefusedError` and `BucketUnreachableError`.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @classmethod
    def in_s3(cls, settings: S3Settings) -> ObjectArtifactBytes:
        """Return those of a bucket, which has to exist. No request is made."""
        return cls(bucket_of(settings))

    @classmethod
    def in_folder(cls, folder: Path) -> ObjectArtifactBytes:
        """Return the bytes of artifacts in a folder that all hosts share. The first write makes the folder."""
        return cls(folder_of(folder))

    @override
    def new_name(self, tenant: str, scope: str) -> str:
        return new_name_of_artifact(tenant, scope)

    @override
    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        await self._bucket.put_pieces(name, pieces)

    @override
    async def read(self, name: str, *, offset: int, limit: int) -> bytes:
        return await self._bucket.read(name, offset=offset, limit=limit)

    @override
    async def delete(self, name: str) -> None:
        await self._bucket.delete(name)

    @override
    async def probe(self) -> None:
        await self._bucket.probe()


class Bucket:
    """Objects by name, of a bucket or a folder. Its client is made when it is needed.

    Calls raise `BucketRefusedError` and `BucketUnreachableError`. Cancelling a call that changes an object
    leaves it as it was, or changed as a whole, at once or a moment later: the request may be on its way.

    Args:
        make: Makes a client; it opens no connection yet.
        where: Address for people.
        translate: Function that returns the error to raise for an error of the client.
    """

    def __init__(
        self,
        make: Callable[[], S3Store | LocalStore],
        where: str,
        translate: Callable[[Exception, str, str], PersistenceError],
    ) -> None:
        self._make, self._where, self._translate = make, where, translate
        self._client: S3Store | LocalStore | None = None

    async def probe(self) -> None:
        """Ask for an object that is not there, so that a wrong setting is seen now."""
        with suppress(KeyError), self._doing("connecting", _PROBE) as client:
            await obstore.get_async(client, _PROBE)  # HEAD would not say that it is the bucket

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Keep an object. It replaces an earlier one, which stays if this fails."""
        with self._doing("uploading", name) as client:
            # A folder keeps no media types.
            types = {"Content-Type": content_type} if isinstance(client, S3Store) else None
            await obstore.put_async(
                client,
                name,
                data,
                attributes=types,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    async def put_pieces(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        """Keep the joined pieces as a new object; a few are held in memory. Their own error comes out."""
        failures: list[Exception] = []

        async def forward_pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield piece
            # Any error of the caller's pieces: it is raised below, in place of the client's error about it.
            except Exception as exc:
                failures.append(exc)  # the client has errors of its own for it
                raise

        try:
            with self._doing("uploading", name) as client:
                await obstore.put_async(
                    client,
                    name,
                    forward_pieces(),
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        # The client raises an error of its own in place of one of `pieces`: the caller gets the original.
        except Exception:
            if failures:
                raise failures[0] from None
            raise

    async def read(self, name: str, *, offset: int, limit: int) -> bytes:
        """Return so many bytes of an object that is never replaced.

        Raises:
            KeyError: There is no object, or it ends before them: a folder lost its last bytes with the power.
        """
        data = bytearray()
        while len(data) < limit:
            start, length = offset + len(data), min(limit - len(data), PART_BYTES)
            with self._doing("downloading", name) as client:
                part = await obstore.get_range_async(client, name, start=start, length=length)
            if len(part) != length:
                raise KeyError(name)
            data += part
        return bytes(data)

    async def get(self, name: str) -> bytes:
        """Return an object.

        Raises:
            KeyError: There is no object of this name.
            ConflictError: It was replaced each time while it was read.
        """
        for _ in range(READ_TRIES):
            with suppress(PreconditionError):
                return await self._get(name)
        msg = f"{name} was replaced {READ_TRIES} times while it was read: read it again"
        raise ConflictError(msg)

    async def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with suppress(KeyError), self._doing("deleting", name) as client:
            await obstore.delete_async(client, name)

    async def sign(self, name: str, expires: timedelta) -> str:
        """Return a URL of an object in a bucket, which any client may read for so long."""
        with self._doing("signing a URL", name) as client:
            assert isinstance(client, S3Store)
            return await obstore.sign_async(client, "GET", name, expires)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._client = None

    async def _get(self, name: str) -> bytes:
        with self._doing("downloading", name) as client:
            response = await obstore.get_async(client, name)
            size, etag = response.meta["size"], response.meta["e_tag"]
            if size <= PART_BYTES:
                return bytes(await response.bytes_async())
            del response  # what it has not read yet
            data = bytearray()
            while len(data) < size:
                part = (len(data), min(len(data) + PART_BYTES, size))
                # Of this version only: parts of two versions are a file that nobody uploaded.
                options: GetOptions = {"range": part, "if_match": etag}
                data += await (await obstore.get_async(client, name, options=options)).bytes_async()
            return bytes(data)

    @contextmanager
    def _doing(self, verb: str, name: str) -> Iterator[S3Store | LocalStore]:
        doing = f"{verb} {name}"
        try:
            if self._client is None:
                self._client = self._make()
            yield self._client
        except PreconditionError:
            raise
        except CLIENT_ERRORS as exc:
            if is_missing_object(exc):
                raise KeyError(name) from exc
            raise self._translate(exc, doing, self._where) from exc


def bucket_of(settings: S3Settings) -> Bucket:
    """Return the bucket that the settings name. No request is made."""
    pauses = timedelta(seconds=FIRST_PAUSE_S), timedelta(seconds=LONGEST_PAUSE_S)
    retry: RetryConfig = {
        "max_retries": settings.retries,
        "retry_timeout": timedelta(seconds=settings.retry_s),
        "backoff": {"init_backoff": pauses[0], "max_backoff": pauses[1], "base": 2},
    }
    config: S3Config = {"bucket": settings.bucket, "region": settings.region}
    if settings.endpoint is not None:
        config |= {"endpoint": settings.endpoint.rstrip("/"), "virtual_hosted_style_request": False}
    if settings.access_key is not None and settings.secret_key is not None:
        config |= {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key}

    def make() -> S3Store:
        return S3Store(
            config=config,
            prefix=settings.prefix or None,
            retry_config=retry,
            client_options={
                "allow_http": (settings.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=settings.request_s),
            },
        )

    return Bucket(make, settings.where, translate_objects)


def folder_of(path: Path) -> Bucket:
    """Return a folder that is used as a bucket. It is made, with its parents, when it is used."""

    def make() -> LocalStore:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the host's user alone
        return LocalStore(path)

    return Bucket(make, str(path), translate_folder)
