"""Commands to runs from outside: kept once each, in order, and read from a cursor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command.

    Attributes:
        command_id: Its name; a second one of the same name is not kept.
        run_id: The run.
        type: For example ``pause`` or ``cancel``.
        payload: JSON data.
        ts: When it was given.
        seq: Its position in the store, from 1; given by the store.
        client_id: The client that gave the command.
    """

    command_id: str
    run_id: str
    type: str
    payload: dict[str, Any] = field(default_factory=dict)
    ts: str = ""
    seq: int = 0
    client_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the command as stores keep it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CommandAppendResult:
    """The end of an append: one of `accepted` and `duplicate`; `seq` is the position of the kept one."""

    accepted: bool
    duplicate: bool
    seq: int


@runtime_checkable
class CommandStore(Protocol):
    """Commands in one order."""

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """Keep the command, unless one of its id is there. Durable when this returns."""

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """Return at most `limit` commands after `after`, and the cursor for the next call."""

    def get_last_seq(self) -> int:
        """Return the position of the last command; 0: there is none."""


@runtime_checkable
class DeletableCommandStore(CommandStore, Protocol):
    """A store from which the commands of a run can be removed."""

    def delete(self, run_id: str) -> int:
        """Remove the commands to a run; return how many.

        Their ids and positions stay taken: none of them is accepted again, and no reader misses a later one.
        """


@runtime_checkable
class CommandCursorStore(Protocol):
    """The position up to which a reader has carried out commands."""

    def load(self) -> int:
        """Return it; 0 at first."""

    def save(self, cursor: int) -> None:
        """Keep it; durable when this returns."""
