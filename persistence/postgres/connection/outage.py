"""The outage that all connections of a store share: said once, ended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlsplit

from persistence.errors import is_full, want_of
from persistence.postgres.connection.settings import StoreSettings

_log = logging.getLogger("callboard.postgres")


def address(settings: StoreSettings) -> str:
    """Return host and port for log lines."""
    parts = urlsplit(settings.url)
    return parts.netloc.rpartition("@")[2] or "the default host"


class ServerOutage:
    """The state of an outage of the server: one log line when it begins and one when it ends.

    Attributes:
        incarnation: The incarnation of the server that was met last.
        on_new_incarnation: Called on the event loop when another one is met, before anything is asked of it.
            It may be behind: a standby that took over without the last commits.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._where = address(settings)
        self._since: float | None = None
        self._over_at = 0.0
        self._full_since = 0.0
        self._full: str | None = None
        self._refused: str | None = None
        self.incarnation: datetime | None = None
        self.on_new_incarnation: Callable[[], None] = lambda: None

    def meets(self, incarnation: datetime) -> None:
        """Note whose connection was made."""
        known, self.incarnation = self.incarnation, incarnation
        if known not in {None, incarnation}:
            self.on_new_incarnation()

    @property
    def trouble(self) -> str | None:
        """The reason why a server that answers takes nothing; None if no reason is known."""
        return self._full or self._refused

    def refuses(self, problem: BaseException) -> None:
        """Note that the server had no capacity for a statement."""
        if self._full is None:
            self._full_since = asyncio.get_running_loop().time()
            _log.warning(
                "PostgreSQL refuses to write; calls wait for it",
                extra={"server": self._where, "problem": want_of(problem)},
            )
        self._full = f"refuses to write: {want_of(problem)}"

    def writes(self) -> None:
        """Note that the server took a statement for which it had no capacity before."""
        if self._full is not None:
            self._full = None
            away_s = asyncio.get_running_loop().time() - self._full_since
            _log.warning(
                "PostgreSQL writes again", extra={"server": self._where, "away_s": round(away_s, 3)}
            )

    def begins(self, problem: BaseException, opened_at: float | None = None) -> None:
        """Note that a connection, opened at that time of the event loop's clock, was lost.

        One that is older than the end of the last outage was lost in that one already.
        """
        if is_full(problem):
            self._refused = f"refuses connections: {want_of(problem)}"
        if self._since is None and (opened_at is None or opened_at > self._over_at):
            self._since = asyncio.get_running_loop().time()
            _log.warning(
                "connection to PostgreSQL lost; calls wait for it",
                extra={"server": self._where, "problem": f"{type(problem).__name__}: {problem}"},
            )

    def ends(self) -> None:
        """Note that a connection was made."""
        self._refused = None
        if self._since is not None:
            self._over_at = asyncio.get_running_loop().time()
            away_s = self._over_at - self._since
            self._since = None
            _log.warning(
                "connection to PostgreSQL is back",
                extra={"server": self._where, "away_s": round(away_s, 3)},
            )
