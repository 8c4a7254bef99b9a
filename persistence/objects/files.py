"""Files by key, each an object of a bucket or of a folder.

Bytes of artifacts, each an object of a bucket or of a folder; references and pins are in a database.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from actors.errors import ContractError, InvalidTextError
from actors.kernel.basics import check_expiry_s
from actors.kernel.runtime.ids import check_name
from actors.kernel.stores.artifacts import ArtifactBytes, FileStore
from actors.kernel.text import check_file_key, check_name_of, check_text_of
from persistence.objects.bucket import Bucket, bucket_of, folder_of
from persistence.objects.settings import S3Settings, name_of_file, new_name_of_artifact

MAX_SCOPE_BYTES: Final = 1_000
"""The same as on Postgres."""
MAX_EXPIRY_S: Final = 7 * 86_400.0
"""The longest that S3 lets a signature be valid."""
_MEDIA_TYPE: Final = "media type of a file"


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
