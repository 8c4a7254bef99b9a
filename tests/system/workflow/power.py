"""What a loss of power leaves of the files of a store, by the syncs that its process made.

A sync keeps the content of its file, or the names in its folder. Of what was written since then, all may be
lost, all may be left, and of the end of a file a part, or later blocks with NULs in the place of earlier ones.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

Content = dict[str, bytes]
"""The files of a folder by name."""


class Disk(Protocol):
    """A folder, of which one knows what is synced."""

    def cuts(self) -> Iterator[Content]:
        """Yield what may be left of the folder if the power is lost now."""


class FilesDisk:
    """The folder of the stores of JSON files, in this process. Its syncs are noted, not made."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._synced_bytes: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._descriptors: list[int] = []
        self.syncs = 0
        patch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        self.syncs += 1
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            if info.st_ino == self._folder.stat().st_ino:
                self._names = {entry.name: entry.inode() for entry in self._files()}
            return
        own_descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        self._descriptors.append(own_descriptor)  # no other file gets its number
        self._synced_bytes[info.st_ino] = os.pread(own_descriptor, info.st_size, 0)

    def cuts(self) -> Iterator[Content]:
        """See `Disk.cuts`."""
        synced = {name: self._synced_bytes.get(inode, b"") for name, inode in self._names.items()}
        yield synced
        files = self._files()
        now = {file.name: (self._folder / file.name).read_bytes() for file in files}
        yield now
        for file in files:
            before, whole = self._synced_bytes.get(file.inode(), b""), now[file.name]
            if len(whole) > len(before) and whole.startswith(before) and file.name in self._names:
                half = (len(whole) - len(before)) // 2
                yield synced | {file.name: whole[: len(before) + half]}
                yield synced | {file.name: before + bytes(half) + whole[len(before) + half :]}

    def _files(self) -> list[os.DirEntry[str]]:
        return [entry for entry in os.scandir(self._folder) if entry.is_file()]

    def close(self) -> None:
        """Close the files that were synced."""
        for descriptor in self._descriptors:
            os.close(descriptor)


class SqliteDisk:
    """The folder of an SQLite file, which one connection of this process writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: Content = {}
        self.database: Any = None

    def committed(self) -> None:
        """Note that a transaction was committed: it is synced if the connection does that now."""
        [level] = self.database.connection().execute("pragma synchronous").fetchone()
        if level >= 2:
            self._synced = self._now()

    def _now(self) -> Content:
        names = ("graphs.db", "graphs.db-wal")
        return {
            name: (self._folder / name).read_bytes()
            for name in names
            if (self._folder / name).exists()
        }

    def cuts(self) -> Iterator[Content]:
        """See `Disk.cuts`."""
        yield self._synced
        now = self._now()
        yield now
        name = "graphs.db-wal"
        before, whole = self._synced.get(name, b""), now.get(name, b"")
        if len(whole) > len(before) and whole.startswith(before):
            half = (len(whole) - len(before)) // 2
            yield self._synced | {name: whole[: len(before) + half]}
            yield self._synced | {name: before + bytes(half) + whole[len(before) + half :]}
