"""Scripts and styles of the pages. They are read once; their URLs have a version that changes with them."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_YEAR_S: Final = 31_536_000


@dataclass(frozen=True, slots=True)
class Assets:
    """The files of scripts and styles.

    Attributes:
        version: A digest of all files.
        files: The compressed bytes by file name.
    """

    version: str
    files: dict[str, bytes]

    @classmethod
    @cache
    def load(cls) -> Assets:
        """Return the files of the package."""
        found = {
            file.name: file.read_bytes()
            for file in sorted(FOLDER.iterdir())
            if file.suffix in _TYPES
        }
        digest = hashlib.sha256()
        for name, data in found.items():
            digest.update(name.encode() + b"\0" + data)
        files = {name: gzip.compress(data, mtime=0) for name, data in found.items()}
        return cls(digest.hexdigest()[:16], files)

    def response(self, request: Request, version: str, name: str) -> Response | None:
        """Return a file; None if no file has this name.

        If the URL has another version, because another process wrote it, this process's file is sent as not
        cacheable.
        """
        data = self.files.get(name)
        if data is None:
            return None
        kept = f"public, max-age={_YEAR_S}, immutable" if version == self.version else "no-store"
        headers = {
            "content-type": _TYPES[Path(name).suffix],
            "cache-control": kept,
            "x-content-type-options": "nosniff",
            "vary": "accept-encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(data, headers={**headers, "content-encoding": "gzip"})
        return Response(gzip.decompress(data), headers=headers)
