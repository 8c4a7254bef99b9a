"""The files of a bundle, read from a zip file or a folder, within limits."""

from __future__ import annotations

import io
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from actors.workflow.bundles.manifest import WorkflowBundleError

MOST_FILES: Final = 5000
LARGEST: Final = 256 * 2**20
"""Maximum size of all files of a bundle, unpacked, in bytes."""
HIGHEST_RATIO: Final = 200
"""Maximum number of unpacked bytes for each packed byte."""
_FREE: Final = 2**20
"""Size in bytes up to which a file may have any ratio."""
_UNREADABLE: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError),
    *(
        NotImplementedError,
        RuntimeError,
        ValueError,
    ),  # text that is not UTF-8, and encrypted files, raise these, too
)
_SPLIT: Final = "Divide it into several bundles"
_AGAIN: Final = "Pack it again with `callboard flows pack`"


def read_files(source: Path | bytes, name: str, *, only: str | None = None) -> dict[str, bytes]:
    """Return the files of a bundle by their paths.

    Args:
        source: A folder, a zip file, or the bytes of one.
        name: The bundle's name in errors.
        only: The path of the only file to read from a zip file. None: all files are read.

    Raises:
        WorkflowBundleError: The source is not a bundle, exceeds a limit, or has a path that leads out of it.
    """
    if isinstance(source, Path) and source.is_dir():
        return _checked(_of_folder(source, name), name)
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as packed:
            _check_sizes(packed, name)
            return _checked(_of_zip(packed, name, only), name)
    except WorkflowBundleError:
        raise
    except _UNREADABLE as exc:
        raise WorkflowBundleError(name, f"it is not a readable zip file: {exc}", _AGAIN) from None
    except OSError as exc:
        problem = f"it cannot be read: {exc.strerror or exc}"
        raise WorkflowBundleError(name, problem, "Name a .flow file or a folder") from None


def _check_sizes(packed: zipfile.ZipFile, name: str) -> None:
    entries = packed.infolist()
    if len(entries) > MOST_FILES:
        raise WorkflowBundleError(
            name, f"it has {len(entries)} files, more than {MOST_FILES}", _SPLIT
        )
    size = sum(one.file_size for one in entries)
    if size > LARGEST:
        problem = f"it has {size} bytes unpacked, more than {LARGEST}"
        raise WorkflowBundleError(name, problem, _SPLIT)
    for one in entries:
        if one.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            problem = f"{one.filename!r} has an unsupported compression"
            raise WorkflowBundleError(name, problem, _AGAIN)
        if one.file_size > _FREE and one.file_size > HIGHEST_RATIO * max(one.compress_size, 1):
            problem = f"{one.filename!r} would be {one.file_size} bytes out of {one.compress_size}"
            raise WorkflowBundleError(name, problem, "Store it unpacked")


def _of_zip(packed: zipfile.ZipFile, name: str, only: str | None) -> Iterator[tuple[str, bytes]]:
    for one in packed.infolist():
        if one.is_dir() or only not in {None, one.filename}:
            continue
        if stat.S_ISLNK(one.external_attr >> 16):
            problem = f"{one.filename!r} is a symbolic link"
            raise WorkflowBundleError(name, problem, "Put the file itself into the bundle")
        with packed.open(one) as stream:
            yield (
                one.filename,
                _read(stream.read(one.file_size + 1), one.file_size, one.filename, name),
            )


def _read(data: bytes, size: int, path: str, name: str) -> bytes:
    if len(data) > size:
        raise WorkflowBundleError(name, f"{path!r} is larger than the zip directory says", _AGAIN)
    return data


def _of_folder(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    left = LARGEST
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_symlink():
            problem = f"{path.relative_to(folder).as_posix()!r} is a symbolic link"
            raise WorkflowBundleError(name, problem, "Put the file itself into the bundle")
        if not path.is_file():
            continue
        left -= path.stat().st_size
        if left < 0:
            raise WorkflowBundleError(name, f"it has more than {LARGEST} bytes", _SPLIT)
        yield path.relative_to(folder).as_posix(), path.read_bytes()


def _checked(files: Iterator[tuple[str, bytes]], name: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    folded: set[str] = set()
    for path, data in files:
        if not is_safe(path):
            problem = f"{path!r} leads out of it, or is no path"
            raise WorkflowBundleError(name, problem, "Use relative paths with slashes")
        # Some file systems take two spellings of an accent for the same name, as they do with case.
        key = unicodedata.normalize("NFC", path).casefold()
        if key in folded:
            problem = (
                f"{path!r} is there twice, or differs from another path in case or spelling only"
            )
            raise WorkflowBundleError(name, problem, "Give each file a name of its own")
        folded.add(key)
        found[path] = data
        if len(found) > MOST_FILES:
            raise WorkflowBundleError(name, f"it has more than {MOST_FILES} files", _SPLIT)
    return found


def is_safe(path: str) -> bool:
    """Return True if a path stays below its folder on every operating system."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and path == "/".join(parts)
        and not path.startswith("/")
        and ".." not in parts
        and not any(char in '\\:*?"<>|' or char < " " for char in path)
    )
