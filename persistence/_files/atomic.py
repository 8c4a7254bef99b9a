"""Files that are written as a whole or not at all, and files to which lines are appended."""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

from actors._kernel.workflow.durable import row_text
from actors._kernel.workflow.errors import GraphError, LedgerBrokenError
from actors._kernel.workflow.stores import Fault, no_fault

_APPENDING: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_NAME: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,200}")


def file_name(prefix: str, name: str, suffix: str) -> str:
    """Return the name of a file of this id.

    Raises:
        GraphError: The id could be a path.
    """
    if _NAME.fullmatch(name) is None or ".." in name:
        raise GraphError(
            f"id {name!r}", "it cannot be the name of a file: use letters, digits, '_', '-'"
        )
    return f"{prefix}{name}{suffix}"


def write_whole(
    path: Path, content: bytes, *, fault: Fault = no_fault, create_only: bool = False
) -> bool:
    """Replace a file; it is on the disk when this returns.

    Args:
        path: The file.
        content: The file's new content.
        fault: A hook of tests.
        create_only: True: if the file exists, leave it unchanged and return False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # noqa: TID251 - no value of a run
    try:
        with temp_path.open("xb") as file:
            file.write(content)
            fault("file written")
            # Synced before it gets its name: else a loss of power may leave the name with none of the bytes.
            file.flush()
            os.fsync(file.fileno())
        fault("file synced")
        if create_only:
            try:
                # A link fails if another process has made the file first; a rename would replace that file.
                os.link(temp_path, path)
            except FileExistsError:
                return False
        else:
            temp_path.replace(path)
        fault("file renamed")
    finally:
        with suppress(FileNotFoundError):
            temp_path.unlink()
    sync_folder(path.parent)
    return True


def remove_file(path: Path) -> bool:
    """Remove a file; return True if it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that names of files in it survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def appending(path: Path) -> Iterator[FileIO]:
    """Open a file of lines for reading and appending, while no other process does; its position is the end.

    If a process died during a write, the bytes after the last whole line are removed.
    """
    while True:
        is_new = False
        try:
            descriptor = os.open(path, _APPENDING)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, _APPENDING | os.O_CREAT, 0o666)
            is_new = True
        with FileIO(descriptor, "a+") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have replaced or removed the file while this one waited for the lock: a line
            # that is written to the old file is lost.
            if not _is_at(descriptor, path):
                continue
            if is_new:
                sync_folder(path.parent)
            mend(file)
            yield file
            return


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if an open file is still the file at `path`: it was not replaced or removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(file: FileIO, content: bytes) -> None:
    """Write all bytes. A file without a buffer may take a part of them."""
    while content:
        content = content[file.write(content) :]


def append_lines(
    file: FileIO, rows: list[Any], *, fault: Fault = no_fault, synced: bool = True
) -> None:
    """Append a line for each value; on the disk when this returns, unless it is not to be `synced`."""
    content = "".join(f"{row_text(row)}\n" for row in rows).encode()
    half = len(content) // 2
    # In two writes for tests only: a process that dies between them leaves half a line.
    if fault is not no_fault:
        _write(file, content[:half])
        fault("half a line written")
        content = content[half:]
    _write(file, content)
    fault("line written")
    if synced:
        os.fsync(file.fileno())
        fault("line synced")


def mend(file: FileIO) -> None:
    """Cut off the bytes after the last end of a line. If they are a whole record, end its line instead."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    start = _last_line(file, end)
    file.seek(start)
    partial_line = file.read()
    if _values(partial_line) is not None:
        file.seek(0, os.SEEK_END)
        _write(file, b"\n")
    else:
        file.truncate(start)
    os.fsync(file.fileno())
    file.seek(0, os.SEEK_END)


def cut_hole(file: FileIO, synced_count: int) -> int:
    """Cut off a file of lines at the first line with a NUL; return the number of bytes cut off.

    A loss of power leaves NULs in place of blocks that were not synced, and may leave later blocks. No value
    has a NUL. The first `synced_count` values are synced: a NUL in them is other damage; nothing is cut off.
    """
    file.seek(0)
    content = file.read()
    hole = content.find(b"\0")
    start = content.rfind(b"\n", 0, hole) + 1
    if (
        hole < 0
        or sum(len(_values(line) or ()) for line in content[:start].split(b"\n")) < synced_count
    ):
        return 0
    file.truncate(start)
    os.fsync(file.fileno())
    return len(content) - start


def last_value(file: FileIO, name: str) -> Any:
    """Return the last value of a file of whole lines, or None if it has no line. No other line is read.

    Args:
        file: The file, as `appending` yields it.
        name: Its name in errors.

    Raises:
        LedgerBrokenError: The last line has no JSON value.
    """
    end = file.seek(0, os.SEEK_END)
    if not end:
        return None
    file.seek(_last_line(file, end - 1))
    values = _values(file.read())
    if not values:
        raise LedgerBrokenError(name, "its last line is not JSON")
    return values[-1]


def read_lines(path: Path, offset: int = 0) -> tuple[list[Any], int, bool]:
    """Return the values of whole lines from `offset` on, the next offset, and whether two values share a line.

    Text after the last end of a line is left out, unless it is a whole value.

    Raises:
        LedgerBrokenError: A line has no JSON value.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset, False
    lines = content.split(b"\n")
    partial_line = lines.pop()
    rows: list[Any] = []
    is_line_shared = False
    for number, line in enumerate(lines, 1):
        values = _values(line)
        if values is None:
            problem = f"line {number} after byte {offset} is not JSON"
            raise LedgerBrokenError(str(path), problem)
        is_line_shared = is_line_shared or len(values) > 1
        rows += values
    if partial_line and (last := _values(partial_line)) is not None:
        return rows + last, offset + len(content), is_line_shared
    return rows, offset + len(content) - len(partial_line), is_line_shared


def _values(line: bytes) -> list[Any] | None:
    """Return the values on a line: more than one where a writer died between a record and its line end."""
    decoder, values, offset = json.JSONDecoder(), [], 0
    try:
        text = line.decode()
        while text[offset:].strip():
            offset += len(text[offset:]) - len(text[offset:].lstrip())
            value, offset = decoder.raw_decode(text, offset)
            values.append(value)
    except ValueError:
        return None
    return values


def _last_line(file: FileIO, end: int) -> int:
    """Return where the line begins that ends at `end`."""
    offset = end
    while offset:
        step = min(offset, 65_536)
        file.seek(offset - step)
        newline = file.read(step).rfind(b"\n")
        if newline >= 0:
            return offset - step + newline + 1
        offset -= step
    return 0
