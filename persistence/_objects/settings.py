"""Settings of a bucket, and the names of objects in it.

Names differ by tenant and scope for any bytes in names and keys. A bucket takes 1,024 bytes as a name. A folder
takes 255 of each part, and may take no difference between upper and lower case. Some servers, and every folder,
refuse ``a/b`` beside ``a``. So each part is a digest, followed by the readable characters of its text.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from actors._kernel.text import check_file_key
from actors.errors import ContractError

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_ENDPOINT: Final = re.compile(
    r"https?://(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?/?"
)
_LAST_PORT: Final = 65_535
_PREFIX: Final = re.compile(r"[A-Za-z0-9_./-]{1,200}")
LONGEST_WAIT_S: Final = 300.0
"""Largest time limit of one request: its signature, which its retries use too, is valid for 15 minutes."""

MOST_RETRIES: Final = 10


class BucketSettingsError(ContractError):
    """A bucket cannot be used as the settings say; waiting does not help. It never shows a key."""

    what: str
    problem: str
    remedy: str

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        super().__init__(what, problem, remedy)
        self.what, self.problem, self.remedy = what, problem, remedy

    @override
    def __str__(self) -> str:
        return f"{self.what}: {self.problem}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Everything that a client of S3 needs to know. `repr` leaves both keys out.

    Attributes:
        bucket: Its name; 3 to 63 of ``a-z 0-9 . -``. It has to exist.
        endpoint: ``https://host:port`` of a server that speaks S3; None for Amazon's, by region.
        access_key: The user's id; None for that of the process's environment (``AWS_ACCESS_KEY_ID``,
            or the role of its container or machine).
        secret_key: The user's secret; given if and only if `access_key` is.
        region: The bucket's region; servers other than Amazon's mostly ignore it.
        prefix: A folder within the bucket, for example ``callboard/prod``.
        request_s: Time limit of a request, with a body of 8 MiB at most.
        retries: Maximum number of retries of a request after an error of the server or of the network.
        retry_s: Seconds after a request's first try in which it may be sent again.
    """

    bucket: str
    endpoint: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    region: str = "us-east-1"
    prefix: str = ""
    request_s: float = 30.0
    retries: int = 3
    retry_s: float = 60.0

    def __post_init__(self) -> None:
        if _BUCKET.fullmatch(self.bucket) is None:
            self._refuse(f"bucket {self.bucket!r}", "3 to 63 of a-z, 0-9, '.' and '-' are a name")
        if _REGION.fullmatch(self.region) is None:
            self._refuse(f"region {self.region!r}", "write one as us-east-1")
        if self.prefix:
            check_file_key(self.prefix)
            if _PREFIX.fullmatch(self.prefix) is None or "" in self.prefix.split("/"):
                self._refuse(
                    f"prefix {self.prefix!r}", "use letters, digits, '_', '.', '-' and '/'"
                )
        if (self.access_key is None) is not (self.secret_key is None):
            self._refuse("access_key and secret_key", "give both, or neither")
        for name in ("access_key", "secret_key"):
            key = getattr(self, name)
            if key is not None and not (key and key.isascii() and key.isprintable()):
                self._refuse(name, "it is empty, or has characters that no request can carry")
        for name in ("request_s", "retry_s"):
            if not 0 < getattr(self, name) <= LONGEST_WAIT_S:
                self._refuse(name, f"give seconds above 0, up to {LONGEST_WAIT_S:g}")
        if not 0 <= self.retries <= MOST_RETRIES:
            self._refuse("retries", f"give a number from 0 to {MOST_RETRIES}")
        self._check_endpoint()

    def _check_endpoint(self) -> None:
        if self.endpoint is None:
            return
        match = _ENDPOINT.fullmatch(self.endpoint)
        if match is None or not 0 < int(match[1] or 1) <= _LAST_PORT:
            # It is not quoted: it may contain keys.
            remedy = "Write https://host:port, without a path, and the keys apart"
            raise BucketSettingsError("the endpoint", "it is not the address of a server", remedy)

    def _refuse(self, what: str, remedy: str) -> None:
        raise BucketSettingsError(what, "it cannot be used", remedy[0].upper() + remedy[1:])

    @property
    def where(self) -> str:
        """Address for people: endpoint and bucket."""
        return f"{(self.endpoint or 'S3').rstrip('/')}/{self.bucket}"


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
