"""Audit rows: changes that principals made, each with its time, thing, values before and after, and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from pydantic_core import to_json

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, check_name
from actors.kernel.text import check_name_of

MAX_FACTS_BYTES: Final = 4 * 1024
"""Maximum size of the values before a change, and of those after it, as JSON text."""
DONE: Final = "done"
"""The outcome of a change that was made."""

Facts = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAuditRow:
    """An audit row to be written.

    Attributes:
        tenant: The tenant of the principal and of the thing.
        principal: The name of the principal.
        action: The kind of change, as ``session.delete``.
        thing: The thing that the change is about: its kind, a colon and its id, as ``run:0f3c``.
        agent: The agent whose thing it is. An erase of the agent clears `before` and `after`.
        before: Values before the change; None if they are unknown or there were none.
        after: Values after the change, or the values that a refused change asked for.
        outcome: ``done``, or the code of the problem for which the change was refused.
        write_id: The id that the caller made for this write. A second write of the tenant with it adds no row.
            None: each write adds a row, also one that the store sends again because the answer was lost.

    Raises:
        InvalidTextError: A text is too long, or has characters that no database takes.
        ContractError: `before` or `after` is larger than 4 KiB as JSON.
    """

    tenant: str
    principal: str
    action: str
    thing: str
    agent: AgentId | None = None
    before: Facts | None = None
    after: Facts | None = None
    outcome: str = DONE
    write_id: str | None = None

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        for what in ("principal", "action", "thing", "outcome", "write_id"):
            check_name_of(f"{what} of an audit row", getattr(self, what) or "")
        for what, facts in (("before", self.before), ("after", self.after)):
            size = 0 if facts is None else len(to_json(facts))
            if size > MAX_FACTS_BYTES:
                remedy = f"write {MAX_FACTS_BYTES} bytes at most"
                raise ContractError(f"`{what}` of an audit row has {size} bytes: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow(NewAuditRow):
    """A stored audit row.

    Attributes:
        id: Its number. Later rows have greater numbers.
        at: The instant at which it was written.
    """

    id: int
    at: datetime


class AuditStore(Protocol):
    """The audit rows of all tenants. They outlive their things.

    Retention and an erase of the tenant delete rows. An erase of an agent, as the deletion of a session is,
    clears `before` and `after` of its rows.
    """

    async def add(self, new: NewAuditRow) -> AuditRow:
        """Write a row, or find the row of the same tenant and `write_id`. It is durable on return."""

    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return rows of a tenant, newest first.

        Args:
            tenant: The tenant.
            thing: Only rows about this thing.
            after: Only rows with smaller ids: `id` of the last row of the previous page.
            limit: Maximum number of rows.

        Raises:
            InvalidTextError: `thing` is too long, or has characters that no database takes.
        """
