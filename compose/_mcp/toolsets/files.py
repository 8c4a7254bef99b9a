"""The toolset `files`: reads, writes, lists and searches files in one folder."""

from __future__ import annotations

import os
import stat
from typing import Any, Final

from actors._kernel.agent.tools import Risk, Tool
from compose._mcp.toolsets.folder import ConfinedFolder, PathRefusedError, read_file_of, walk

MAX_READ_BYTES: Final = 64 * 1024
"""Maximum number of bytes of one result of `read_file`."""
MAX_WRITE_BYTES: Final = 1024 * 1024
MAX_ENTRIES: Final = 1_000
"""Maximum number of entries of one result of `list_files`."""
MAX_MATCHES: Final = 100
"""Maximum number of lines of one result of `search_files`."""
MAX_SEARCHED: Final = 10_000
"""Maximum number of files that one search opens."""
MAX_SEARCHED_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of one file that are searched, from its start."""
_MAX_LINE: Final = 500
_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def file_tools(folder: ConfinedFolder) -> list[Tool]:
    """Return the tools of a folder."""
    files = _Files(folder)
    return [
        Tool(
            "list_files",
            "List the files and folders in a folder below the root.",
            files.list_files,
            idempotent=True,
            thread=True,
        ),
        Tool(
            "read_file",
            f"Read text of a file: {MAX_READ_BYTES} bytes from `offset` on; go on at `next_offset`.",
            files.read_file,
            idempotent=True,
            thread=True,
        ),
        Tool(
            "search_files",
            "Find lines with a text, exactly as given, in all files below a folder.",
            files.search_files,
            idempotent=True,
            thread=True,
        ),
        Tool(
            "write_file",
            "Replace the content of a file, or make the file and the folders above it.",
            files.write_file,
            risk=Risk.HIGH,
            idempotent=True,
            thread=True,
        ),
    ]


class _Files:
    """The functions of the tools. They block, and raise `PathRefusedError` for a path outside the folder."""

    def __init__(self, folder: ConfinedFolder) -> None:
        self._folder = folder

    def list_files(self, path: str = ".") -> dict[str, Any]:
        """Return at most `MAX_ENTRIES` entries of a folder, by name."""
        with self._folder.opened(path) as folder:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries)
            entry_facts = [_entry(folder, name) for name in names[:MAX_ENTRIES]]
        return {
            "entries": [entry for entry in entry_facts if entry],
            "is_cut": len(names) > MAX_ENTRIES,
        }

    def read_file(self, path: str, offset: int = 0) -> dict[str, Any]:
        """Return text, the file's size, and the offset of the next part, which is None at the end."""
        if offset < 0:
            raise PathRefusedError(path, "offset is less than 0: give 0 for the start")
        data, size = self._folder.read(path, offset, MAX_READ_BYTES)
        text, used_bytes = _text_of(path, data, is_end=offset + len(data) >= size)
        end = offset + used_bytes
        return {
            "text": text,
            "size_bytes": size,
            "next_offset": end if used_bytes and end < size else None,
        }

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        """Replace or create a file; return its size."""
        data = content.encode()
        if len(data) > MAX_WRITE_BYTES:
            raise PathRefusedError(
                path, f"the content has more than {MAX_WRITE_BYTES} bytes: write less"
            )
        self._folder.write(path, data)
        return {"path": path, "size_bytes": len(data)}

    def search_files(self, text: str, path: str = ".") -> dict[str, Any]:
        """Return lines that contain the text, each with path and number. Binary files are skipped."""
        if not text:
            raise PathRefusedError(path, "the text to search for is empty: give a text")
        matches: list[dict[str, Any]] = []
        with self._folder.opened(path) as folder:
            for n, (file_path, file_folder, name) in enumerate(walk(folder)):
                if n >= MAX_SEARCHED or len(matches) > MAX_MATCHES:
                    return {"matches": matches[:MAX_MATCHES], "is_cut": True}
                matches += _matches(file_folder, name, file_path, text)
        return {"matches": matches[:MAX_MATCHES], "is_cut": len(matches) > MAX_MATCHES}


def _entry(folder: int, name: str) -> dict[str, Any] | None:
    try:
        status = os.lstat(name, dir_fd=folder)
    except OSError:
        return None  # deleted meanwhile
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    size = {"size_bytes": status.st_size} if kind == "file" else {}
    return {"name": _name_text(name), "kind": kind, **size}


def _name_text(name: str) -> str:
    """Return a name as text. Bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def _text_of(path: str, data: bytes, *, is_end: bool) -> tuple[str, int]:
    """Return the text and the bytes that it used. A character cut at the end is left for the next part."""
    try:
        return data.decode(), len(data)
    except UnicodeDecodeError as exc:
        if not is_end and exc.start and exc.reason == "unexpected end of data":
            return data[: exc.start].decode(), exc.start
        problem = f"the file is not UTF-8 text (byte {exc.start} of this part)"
        raise PathRefusedError(path, problem) from exc


def _matches(folder: int, name: str, path: str, text: str) -> list[dict[str, Any]]:
    try:
        data, _ = read_file_of(folder, name, 0, MAX_SEARCHED_BYTES)
    except OSError:
        return []  # deleted meanwhile, or not readable
    if b"\x00" in data or (searched := text.encode()) not in data:
        return []
    matches = [
        {
            "path": _name_text(path),
            "line": number,
            "text": line.decode(errors="replace")[:_MAX_LINE],
        }
        for number, line in enumerate(data.split(b"\n"), 1)
        if searched in line
    ]
    return matches[: MAX_MATCHES + 1]
