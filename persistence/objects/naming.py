"""Names of objects, which differ by tenant and scope for any bytes in names and keys.

A bucket takes 1,024 bytes as a name. A folder takes 255 of each part, and may take no difference between
upper and lower case. Some servers, and every folder, refuse ``a/b`` beside ``a``. So each part is a digest,
followed by the readable characters of its text.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

_READABLE_CHARS: Final = 60
_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_CHARS: Final = 32


def name_of_file(tenant: str, scope: str, key: str) -> str:
    """Return ``tenant/scope/files/digest.readable end of the key``; no other three have it."""
    stem, dot, suffix = key.rpartition("/")[2].rpartition(".")
    end = f"{_readable(stem)}.{_readable(suffix)}" if dot and stem else _readable(suffix)
    return f"{_part(tenant)}/{_part(scope)}/files/{_digest(key)}.{end}"


def new_name_of_artifact(tenant: str, scope: str) -> str:
    """Return ``tenant/scope/artifacts/random digits``; no other call has it."""
    return f"{_part(tenant)}/{_part(scope)}/artifacts/{secrets.token_hex(16)}"


def _part(text: str) -> str:
    return f"{_readable(text)}.{_digest(text)}"


def _readable(text: str) -> str:
    return _UNREADABLE.sub("-", text[:_READABLE_CHARS]) or "-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
