"""Files by key, each an object of a bucket or of a folder."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from actors.errors import ContractError, InvalidTextError
from actors.kernel.runtime.ids import check_name
from actors.kernel.seconds import check_expiry_s
from actors.kernel.storage.blob import FileStore
from actors.kernel.text import check_file_key, check_name_of, check_text_of
from persistence.objects.bucket import Bucket, bucket_of, folder_of
from persistence.objects.naming import name_of_file
from persistence.objects.settings import S3Settings

MAX_SCOPE_BYTES: Final = 1_000
"""The same as on Postgres."""
MAX_EXPIRY_S: Final = 7 * 86_400.0
"""The longest that S3 lets a signature be valid."""
_MEDIA_TYPE: Final = "media type of a file"


class S3FileStore(FileStore):
    """A `FileStore` of one tenant and scope on S3, or on a server that speaks its protocol.

    A file is as durable as the bucket when `upload` returns. An upload that dies leaves the earlier file. The
    parts of one over 8 MiB that died stay in the bucket, unseen, until a rule of its life cycle removes them.
    Requests are sent again after errors of the server or of the network, as often as the settings say.

    Args:
        settings: Of the bucket, which has to exist.
        tenant: Owner of the files.
        scope: A name within the tenant, for example of an application; 1,000 bytes at most.

    Raises:
        ContractError: Tenant or scope cannot be a name.
    """

    def __init__(self, settings: S3Settings, *, tenant: str, scope: str = "main") -> None:
        self._files, self._bucket = _Named(tenant, scope), bucket_of(settings)

    @override
    async def connect(self) -> None:
        """Ask the bucket whether these settings can be used. The other calls need no `connect`.

        Raises:
            BucketRefusedError: There is no such bucket, or it refuses the keys.
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
        await _upload(self._bucket, self._files.name(key), data, content_type)

    @override
    async def download(self, key: str) -> bytes:
        return await _download(self._bucket, self._files.name(key), key)

    @override
    async def delete(self, key: str) -> None:
        await self._bucket.delete(self._files.name(key))

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        """Return a URL that reads the file for so many seconds, rounded up; 7 days at most.

        Whoever has the URL reads the file. Keys that expire, as those of a machine's role do, end it earlier.
        """
        name = self._files.name(key)
        check_expiry_s(expires_s)
        if expires_s > MAX_EXPIRY_S:
            msg = f"S3 signs a URL for {MAX_EXPIRY_S:g} s (7 days) at most, not for {expires_s:g} s"
            raise ContractError(msg)
        return await self._bucket.sign(name, timedelta(seconds=math.ceil(expires_s)))


class FolderFileStore(FileStore):
    """A `FileStore` of one tenant and scope in a folder, for one machine or a shared disk.

    An upload that dies leaves the earlier file, and what it had written beside it under a name that ends
    with ``#`` and a number. A power cut may lose the last uploads. Media types are not kept. URLs cannot be
    fetched: use `download`.

    Args:
        folder: Made, with its parents, when it is used.
        tenant: Owner of the files.
        scope: A name within the tenant, for example of an application; 1,000 bytes at most.

    Raises:
        ContractError: Tenant or scope cannot be a name.
    """

    def __init__(self, folder: Path, *, tenant: str, scope: str = "main") -> None:
        self._files, self._bucket = _Named(tenant, scope), folder_of(folder)

    @override
    async def connect(self) -> None:
        """Make the folder.

        Raises:
            BucketRefusedError: It cannot be made or read.
        """
        await self._bucket.probe()

    @override
    async def disconnect(self) -> None:
        self._bucket.close()

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        await _upload(self._bucket, self._files.name(key), data, content_type)

    @override
    async def download(self, key: str) -> bytes:
        return await _download(self._bucket, self._files.name(key), key)

    @override
    async def delete(self, key: str) -> None:
        await self._bucket.delete(self._files.name(key))

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        self._files.name(key)
        check_expiry_s(expires_s)
        return f"callboard://{quote(key)}"


class _Named:
    """Names of the objects of one tenant and scope."""

    def __init__(self, tenant: str, scope: str) -> None:
        check_name("tenant", tenant)
        check_text_of("scope of files", scope, limit_bytes=MAX_SCOPE_BYTES)
        self._tenant, self._scope = tenant, scope

    def name(self, key: str) -> str:
        check_file_key(key)
        return name_of_file(self._tenant, self._scope, key)


async def _upload(bucket: Bucket, name: str, data: bytes, content_type: str) -> None:
    check_name_of(_MEDIA_TYPE, content_type)
    if not (content_type.isascii() and content_type.isprintable()):
        raise InvalidTextError(
            _MEDIA_TYPE, "has characters other than printable ASCII: leave them out"
        )
    await bucket.put(name, bytes(data), content_type)


async def _download(bucket: Bucket, name: str, key: str) -> bytes:
    try:
        return await bucket.get(name)
    except KeyError:
        raise KeyError(key) from None
