"""A folder that confines file access: nothing outside of it can be opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from actors.errors import ActorsError, ContractError, Facts

MAX_DEPTH: Final = 32
"""Maximum number of parts of a path."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_FOLDER: Final = _FLAGS | getattr(os, "O_DIRECTORY", 0)
_FILE: Final = _FLAGS | getattr(os, "O_NONBLOCK", 0)
"""Non-blocking, because opening a pipe would wait for the pipe's other end."""
_LINKS: Final = frozenset({errno.ELOOP, errno.ENOTDIR})
"""Errors of opening a symbolic link: as a file, and as a folder."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class PathRefusedError(Facts, ActorsError):
    """A path does not name a file or folder in the root folder.

    Attributes:
        path: The path as given.
        problem: The problem with the path.
    """

    text = "path {path!r}: {problem}"
    path: str
    problem: str


class ConfinedFolder:
    """A root folder and its files.

    Each part of a path is opened relative to the descriptor of the previous part, and never through a symbolic
    link. Therefore no link, no ``..``, and no replacement of a part between a check and its use leads outside,
    because no check is separate from the use. The root is the folder that had the name at
    construction, even if it is renamed later.

    Args:
        root: The folder.

    Raises:
        ContractError: `root` is not a folder, or the system cannot open relative to a descriptor.
    """

    def __init__(self, root: Path) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ContractError("files of a folder cannot be served safely on this system")
        try:
            # The root itself may be a link: its user has named it.
            self._root = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        except OSError as exc:
            problem = f"--root {root}: {exc.strerror or exc}"
            raise ContractError(f"{problem}; name an existing folder") from exc
        self.path: Path = root.resolve()

    def close(self) -> None:
        """Close the root's descriptor."""
        os.close(self._root)

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Yield the descriptor of a folder.

        Raises:
            PathRefusedError: The path leads out of the root or through a link, or is not a folder.
        """
        with self._folder(path, _parts(path)) as descriptor:
            yield descriptor

    def read(self, path: str, offset: int, size: int) -> tuple[bytes, int]:
        """Return at most `size` bytes of a regular file, and the file's size.

        Raises:
            PathRefusedError: The path leads out of the root or through a link, or is not a regular file.
        """
        *folder_parts, name = _parts(path) or ["."]
        with self._folder(path, folder_parts) as folder, _refusing(path):
            return read_file_of(folder, name, offset, size)

    def write(self, path: str, data: bytes) -> None:
        """Replace a file, or create it and the folders above it.

        A concurrent reader, and a reader after a crash, gets either the old content or the new content. A link
        or a pipe of that name is replaced, not written through.

        Raises:
            PathRefusedError: The path leads out of the root or through a link, or a folder has that name.
        """
        parts = _parts(path)
        if not parts:
            raise PathRefusedError(path, "this is the root: name a file")
        with self._folder(path, parts[:-1], make=True) as folder, _refusing(path):
            partial_name = f".{token_hex(8)}.part"
            descriptor = os.open(partial_name, _NEW, 0o666, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    # Synced before the rename, else the file may be empty after a crash of the machine.
                    os.fsync(file.fileno())
                os.replace(partial_name, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            # Also an interrupt: a partial file would stay in the folder that the model sees.
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial_name, dir_fd=folder)
                raise

    @contextmanager
    def _folder(self, path: str, parts: list[str], *, make: bool = False) -> Iterator[int]:
        with ExitStack() as stack:
            descriptor = self._root
            for part in parts:
                with _refusing(path):
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(part, dir_fd=descriptor)
                    descriptor = os.open(part, _FOLDER, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
            yield descriptor


def read_file_of(folder: int, name: str, offset: int = 0, size: int = -1) -> tuple[bytes, int]:
    """Return bytes of a regular file in a folder, and the file's size.

    Raises:
        OSError: There is no such file, or it is a link or another kind of file.
    """
    with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        file.seek(offset)
        return file.read(size), status.st_size


def walk(
    folder: int, *, depth: int = MAX_DEPTH, path_prefix: str = ""
) -> Iterator[tuple[str, int, str]]:
    """Yield each regular file below a folder, sorted: its path, its folder's descriptor, its name."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield f"{path_prefix}{entry.name}", folder, entry.name
        elif entry.is_dir(follow_symlinks=False) and depth > 0:
            try:
                subfolder = os.open(entry.name, _FOLDER, dir_fd=folder)
            except OSError:
                continue  # deleted meanwhile, or not readable
            try:
                yield from walk(
                    subfolder, depth=depth - 1, path_prefix=f"{path_prefix}{entry.name}/"
                )
            finally:
                os.close(subfolder)


def _parts(path: str) -> list[str]:
    if path.startswith("/") or "\x00" in path or "\\" in path:
        raise PathRefusedError(path, "give it relative to the root, with / between its parts")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise PathRefusedError(path, "it contains ..: give it relative to the root")
    if len(parts) > MAX_DEPTH:
        raise PathRefusedError(path, f"it has more than {MAX_DEPTH} parts")
    return parts


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as exc:
        problem = getattr(exc, "strerror", None) or str(exc)
        is_link = isinstance(exc, OSError) and exc.errno in _LINKS
        problem = "a part of it is a symbolic link or not a folder" if is_link else problem
        raise PathRefusedError(path, problem) from exc
