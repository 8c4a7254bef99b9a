"""The translation of a database's errors into the errors of this project."""

from __future__ import annotations

from typing import ClassVar, Final, TypeGuard
from urllib.parse import SplitResult, urlsplit, urlunsplit

import asyncpg
from typing_extensions import override

from actors.errors import (
    ContractError,
    Facts,
    PersistenceError,
    StoreRefusedError,
    StoreUnreachableError,
)

__all__ = [
    "AGEMissingError",
    "BytesElsewhereError",
    "DatabaseFullError",
    "DatabaseUnreachableError",
    "DatabaseUrlError",
    "IndexInUseError",
    "MigrationError",
    "TextRefusedError",
]


class DatabaseUrlError(ContractError):
    """The database cannot be used as the URL says; waiting does not help."""

    url: str
    problem: str
    remedy: str

    def __init__(self, url: str, problem: str, remedy: str) -> None:
        self.url, self.problem, self.remedy = without_password(url), problem, remedy
        super().__init__(self.url, problem, remedy)

    @override
    def __str__(self) -> str:
        return f"{self.url}: {self.problem}. {self.remedy}"


class MigrationError(Facts, PersistenceError):
    """The schema in the database is not the one this release made."""

    retryable: ClassVar[bool] = False

    text = "migration {name} of schema {schema!r}: {problem}"
    schema: str
    name: str
    problem: str


class AGEMissingError(Facts, PersistenceError):
    """The database has no Apache AGE that this user may use. The message has the remedy."""

    retryable: ClassVar[bool] = False

    text = "{problem}"
    problem: str


class BytesElsewhereError(Facts, PersistenceError):
    """Bytes of an artifact are in a bucket or a folder that this process was not given."""

    retryable: ClassVar[bool] = False

    text = (
        "the bytes of artifact {artifact_id} are in a bucket or folder: give this process CALLBOARD_ARTIFACTS "
        "as its hosts have it"
    )
    artifact_id: str


class DatabaseUnreachableError(Facts, StoreUnreachableError):
    """No answer within the time limit; what was under way may or may not have happened."""

    text = (
        "PostgreSQL at {where} gave no answer for {waited_s:g} s ({problem}); the outcome of "
        "what was under way is unknown. Check that the server runs"
    )
    where: str
    waited_s: float
    problem: str


class DatabaseFullError(Facts, StoreUnreachableError):
    """The server answers and has no capacity: disk, memory or slots. Nothing was written."""

    text = (
        "PostgreSQL at {where} refuses to write for {waited_s:g} s now: {problem}; nothing was "
        "written. Make room, and try again"
    )
    where: str
    waited_s: float
    problem: str


class IndexInUseError(Facts, PersistenceError):
    """An index of erased rows could not be dropped; the rows are gone. Erase again later."""

    text = (
        "an index of tenant {tenant!r} could not be dropped: another session, such as a back-up, reads its "
        "table; the rows are gone, and the index still names their scope. Erase again when that has ended"
    )
    tenant: str


RefusedError = StoreRefusedError
"""Error of one refused statement; other statements may succeed."""


class TextRefusedError(RefusedError, ContractError):
    """A text has a NUL or half a surrogate pair, which PostgreSQL keeps nowhere: an error of the caller."""


DRIVER_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""Errors of a call to the driver. `InternalClientError` occurs if the server vanishes during a call."""
_NO_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
"""The server's errors about text that it cannot keep. The driver's has a `UnicodeEncodeError` as cause."""
_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
)
_FULL: Final = {
    "53100": "disk full",
    "53200": "out of memory",
    "53300": "too many connections",
    "58030": "I/O error",
}
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_BAD_URL: dict[type[BaseException], str] = {
    asyncpg.InvalidPasswordError: "Check user and password",
    asyncpg.InvalidAuthorizationSpecificationError: "Check the user, and pg_hba.conf",
    asyncpg.InvalidCatalogNameError: "Create the database, or correct its name",
    asyncpg.InsufficientPrivilegeError: "Grant the user CREATE on the database",
    asyncpg.ClientConfigurationError: "Write postgresql://user:password@host:port/database, with special "
    "characters of user and password percent-encoded",
}

_POOLER_REFUSES: Final = "unsupported startup parameter"


def without_password(url: str) -> str:
    """Return the URL as it may be shown: the password is three asterisks."""
    try:
        parts = urlsplit(url)
        if _is_cut(parts):
            return "the given URL"
        if "password=" in parts.query:
            parts = parts._replace(query="***")
        head, separator, host = parts.netloc.rpartition("@")
        user, colon, _ = head.partition(":")
        netloc = f"{user}:***@{host}" if separator and colon else parts.netloc
        return urlunsplit(parts._replace(netloc=netloc))
    except ValueError:
        return "the given URL"


def check_url(url: str) -> None:
    """Refuse a URL that is parsed wrongly because of a special character in the password.

    Raises:
        DatabaseUrlError: The URL is such a one. The driver's error would quote pieces of the password.
    """
    try:
        is_cut = _is_cut(urlsplit(url))
    except ValueError:
        is_cut = True
    if is_cut:
        raise DatabaseUrlError(url, "it cannot be read", _BAD_URL[asyncpg.ClientConfigurationError])


def _is_cut(parts: SplitResult) -> bool:
    is_in_query = "@" in parts.query and "user=" not in parts.query
    return is_in_query or "@" in parts.path + parts.fragment


def is_lost(exc: BaseException) -> bool:
    """Return True if the connection is gone, or the server cannot be used now: connect again."""
    return isinstance(exc, _LOST)


def is_passing(exc: BaseException) -> bool:
    """Return True if the same statement may succeed when it is sent again at once."""
    return isinstance(exc, _AGAIN)


def is_full(exc: BaseException) -> TypeGuard[asyncpg.PostgresError]:
    """Return True if the server has no capacity for a statement, which it takes later: class 53, I/O error."""
    code = str(exc.sqlstate) if isinstance(exc, asyncpg.PostgresError) else ""
    return code.startswith("53") or code in _FULL


def want_of(exc: BaseException) -> str:
    """Return what the server has not, in words."""
    code = str(getattr(exc, "sqlstate", ""))
    return f"{_FULL.get(code, 'no resources')} ({code}: {exc})"


def bad_url(url: str, exc: BaseException) -> DatabaseUrlError | None:
    """Return the error that waiting cannot cure, or None for any other."""
    for kind, remedy in _BAD_URL.items():
        if isinstance(exc, kind):
            return DatabaseUrlError(url, str(exc), remedy)
    if _POOLER_REFUSES in str(exc):
        return pooled(url, str(exc))
    if isinstance(exc, ValueError) and not isinstance(exc, OSError):
        return DatabaseUrlError(url, str(exc), _BAD_URL[asyncpg.ClientConfigurationError])
    return None


def pooled(url: str, problem: str) -> DatabaseUrlError:
    """Return the error of a session that did not get its settings, of which `search_path` is one."""
    remedy = (
        "A session needs its search_path and other settings, which a pooler such as pgbouncer does not pass on "
        "(ignore_startup_parameters only hides that). Name PostgreSQL itself in the URL"
    )
    return DatabaseUrlError(url, problem, remedy)


def translate(exc: Exception, doing: str) -> RefusedError:
    """Return a driver's error as one of ours. Only this module knows driver errors."""
    if isinstance(exc, asyncpg.PostgresError):
        is_text = isinstance(exc, _NO_TEXT) or isinstance(exc.__cause__, UnicodeEncodeError)
        return (TextRefusedError if is_text else RefusedError)(doing, str(exc), exc.sqlstate)
    return RefusedError(doing, f"{type(exc).__name__}: {exc}")
