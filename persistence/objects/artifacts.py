"""Bytes of artifacts, each an object of a bucket or of a folder; references and pins are in a database."""

from __future__ import annotations

from collections.abc import AsyncIterable
from pathlib import Path

from typing_extensions import override

from actors.kernel.stores.artifacts import ArtifactBytes
from persistence.objects.bucket import Bucket, bucket_of, folder_of
from persistence.objects.naming import new_name_of_artifact
from persistence.objects.settings import S3Settings


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
