"""Files in one process, by key."""

from __future__ import annotations

from typing_extensions import override

from actors.kernel.basics import check_expiry_s
from actors.kernel.stores.artifacts import FileStore
from actors.kernel.text import check_file_key, check_name_of


class InMemoryFileStore(FileStore):
    """A `FileStore` in one process, whose files are lost with it.

    Its URLs begin with ``memory://`` and cannot be fetched. Use `download`.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, str]] = {}

    @override
    async def connect(self) -> None:
        """Do nothing, since there is no server."""

    @override
    async def disconnect(self) -> None:
        """Do nothing. The files stay."""

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        check_file_key(key)
        check_name_of("media type of a file", content_type)
        self._kept[key] = bytes(data), content_type

    @override
    async def download(self, key: str) -> bytes:
        check_file_key(key)
        data, _ = self._kept[key]
        return data

    @override
    async def delete(self, key: str) -> None:
        check_file_key(key)
        self._kept.pop(key, None)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        check_file_key(key)
        check_expiry_s(expires_s)
        return f"memory://{key}"
