"""Errors of a bucket, or of a folder that is used as one."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from actors.errors import Facts, PersistenceError, StoreUnreachableError


class BucketUnreachableError(Facts, StoreUnreachableError):
    """No answer from the server of a bucket, or that it is too busy; what was under way may have happened."""

    text = (
        "{doing}: {where} gave no answer ({problem}); the outcome is unknown, and the same may be sent "
        "again. Check that the server runs, and the endpoint"
    )
    doing: str
    where: str
    problem: str


class BucketRefusedError(Facts, PersistenceError):
    """A bucket, or a folder, refused a request; nothing was changed, and the same again is refused again."""

    retryable: ClassVar[bool] = False

    text = "{doing}: {where} refused it: {problem}. {remedy}"
    doing: str
    where: str
    problem: str
    remedy: str


CLIENT_ERRORS: Final = (BaseError, OSError, ValueError)
"""Errors that a call of the client raises."""
_NO_BUCKET: Final = "NoSuchBucket"
_KEYS: Final = (
    "Check access_key and secret_key, the machine's clock, and the user's rights: s3:GetObject, "
    "s3:PutObject, s3:DeleteObject and s3:ListBucket"
)
_REMEDIES: Final = {
    _NO_BUCKET: "Create the bucket, or correct its name",
    "PermanentRedirect": "Name the bucket's own region and endpoint",
    "AuthorizationHeaderMalformed": "Name the bucket's own region",
    "QuotaExceeded": "Make room in the bucket",
}
_NO_KEYS: Final = ("169.254.169.254", "169.254.170.2")
"""Hosts that a client asks for keys when it was given none."""
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,200})")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_BUSY: Final = frozenset(("408", "429"))
_PROBLEM_CHARS: Final = 200


def is_missing_object(exc: Exception) -> bool:
    """Return True if the bucket exists and the object does not."""
    return isinstance(exc, FileNotFoundError) and _first_group(_CODE, exc) != _NO_BUCKET


def translate_objects(exc: Exception, doing: str, where: str) -> PersistenceError:
    """Return the `PersistenceError` for an error of the client. Its text has no key and no signature."""
    text, code, status = str(exc), _first_group(_CODE, exc), _first_group(_STATUS, exc)
    if any(host in text for host in _NO_KEYS):
        return BucketRefusedError(doing, where, "there are no keys", _KEYS)
    problem = " ".join(filter(None, (status, code, _first_group(_MESSAGE, exc))))
    if not problem:
        line = text.partition("\n")[0].rpartition(" - ")[
            2
        ]  # without the request's address before it
        problem = line.strip()[:_PROBLEM_CHARS] or "no reason was given"
    if isinstance(exc, PermissionDeniedError | UnauthenticatedError) or status in {"401", "403"}:
        return BucketRefusedError(doing, where, problem, _KEYS)
    if code in _REMEDIES:
        return BucketRefusedError(doing, where, problem, _REMEDIES[code])
    if status.startswith(("3", "4")) and status not in _BUSY:
        remedy = "Check endpoint, region and bucket"
        return BucketRefusedError(doing, where, problem, remedy)
    return BucketUnreachableError(doing, where, problem)


def translate_folder(exc: Exception, doing: str, where: str) -> PersistenceError:
    """Return the same for a folder. Its path is in the error; the names of files are not."""
    match = re.search(r"[A-Z][a-z ]+ \(os error \d+\)", str(exc))
    problem = match[0] if match else getattr(exc, "strerror", None) or type(exc).__name__
    return BucketRefusedError(
        doing, where, problem, "Check the folder's rights, and the room on its disk"
    )


def _first_group(pattern: re.Pattern[str], exc: Exception) -> str:
    match = pattern.search(str(exc))
    return match[1] if match else ""
