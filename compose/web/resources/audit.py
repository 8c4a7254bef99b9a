"""The audit: changes that principals made over HTTP, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from pydantic import Field, JsonValue

from actors.kernel.stores.administration import AuditRow
from compose.web.endpoint import Done, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.resources.pages import Limit

_MOST_ID: Final = 2**63 - 1
LISTED: Final = 20
"""Maximum number of changes that a page lists."""


class AuditQuery(StrictModel):
    """The query of a list of changes. `after` is `next` of the previous page."""

    thing: str | None = Field(default=None, min_length=1)
    limit: Limit = 100
    after: int | None = Field(default=None, ge=1, le=_MOST_ID)


class AuditRowJson(ShownModel):
    """A change. See `AuditRow`.

    Attributes:
        id: Its number. Later changes have greater numbers.
        at: When the row was written, after the change.
        principal: The principal that made the change.
        action: The kind of change.
        thing: The thing that was changed: its kind, a colon and its id.
        before: Values before the change; null if they are unknown.
        after: Values after the change, or the values that a refused change asked for.
        outcome: ``done``, or the code of the problem for which the change was refused.
    """

    id: int
    at: datetime
    principal: str
    action: str
    thing: str
    before: Mapping[str, JsonValue] | None
    after: Mapping[str, JsonValue] | None
    outcome: str


class AuditJson(ShownModel):
    """A page of changes, newest first. `next` is null on the last page."""

    changes: list[AuditRowJson]
    next: int | None


async def list_changes(call: WebCall, query: AuditQuery, _: None) -> Done:
    """Return a page of the changes of the principal's tenant."""
    rows = await call.runtime.store.audit.list(
        call.principal.tenant, thing=query.thing, after=query.after, limit=query.limit + 1
    )
    page = rows[: query.limit]
    more = page[-1].id if len(rows) > query.limit else None
    return AuditJson(changes=[_shown(row) for row in page], next=more)


async def changes_of(call: WebCall, thing: str) -> dict[str, Any]:
    """Return the latest changes of a thing for a page's template; none without the scope `operate`."""
    rows: list[AuditRow] = []
    if "operate" in call.principal.scopes:
        audit, tenant = call.runtime.store.audit, call.principal.tenant
        rows = await audit.list(tenant, thing=thing, limit=LISTED)
    return {"changes": rows, "most_changes": LISTED}


def _shown(row: AuditRow) -> AuditRowJson:
    facts = asdict(row)
    return AuditRowJson(**{name: facts[name] for name in AuditRowJson.model_fields})


ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path="/v1/audit",
        call=list_changes,
        says="List changes that principals made over HTTP, newest first.",
        query=AuditQuery,
        answer=AuditJson,
    ),
)
