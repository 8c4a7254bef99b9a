"""Approvals: what waits for a person, and decisions."""

from __future__ import annotations

from typing import Final

from actors.errors import UnknownApprovalError
from actors.kernel.runtime.communication import ApprovalRequest
from actors.kernel.runtime.ids import AgentId, RunId
from actors.runtime.client.approvals import MOST
from compose.web.endpoint import Done, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.resources.pages import Paged


class ApprovalsJson(ShownModel):
    """A page of open requests, oldest first. `next` is null on the last page."""

    approvals: list[ApprovalRequest]
    next: str | None


class ApprovalsQuery(Paged):
    """The query of a list of requests."""

    run_id: str | None = None


class DecisionJson(StrictModel):
    """A decision; the comment is kept in the run's log."""

    approve: bool
    comment: str = ""


async def _open(call: WebCall, run_id: str | None = None) -> list[ApprovalRequest]:
    """Return the open requests that the principal sees: of its sessions and runs below, or of its tenant."""
    run = None if run_id is None else RunId(run_id)
    found = await call.runtime.approvals.open(run_id=run, limit=MOST)
    tenant = call.principal.tenant
    found = [one for one in found if AgentId.parse(one.agent_id).tenant == tenant]
    owner = call.principal.only_owner
    if owner is None or not found:
        return found
    runs = {RunId(one.run_id) for one in found}
    owned = await call.runtime.store.directory.owned(tenant, owner, runs)
    return [one for one in found if one.run_id in owned]


async def list_approvals(call: WebCall, query: ApprovalsQuery, _: None) -> Done:
    """Return a page of what waits for a person."""
    found = await _open(call, query.run_id)
    if query.after is not None:
        ids = [one.id for one in found]
        if query.after not in ids:
            raise UnknownApprovalError(query.after[:100], "it is not open")
        found = found[ids.index(query.after) + 1 :]
    page = found[: query.limit]
    return ApprovalsJson(approvals=page, next=page[-1].id if len(found) > query.limit else None)


async def decide(call: WebCall, _: None, body: DecisionJson) -> Done:
    """Approve or deny a request, once; its run goes on."""
    id_ = call.names["approval"]
    if id_ not in [one.id for one in await _open(call)]:
        raise UnknownApprovalError(id_[:100], "nobody waits for it")
    return await call.runtime.approvals.decide(
        id_, approve=body.approve, by=call.principal.name, comment=body.comment
    )


ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path="/v1/approvals",
        call=list_approvals,
        says="List what waits for a person, oldest first.",
        query=ApprovalsQuery,
        answer=ApprovalsJson,
    ),
    WebEndpoint(
        method="POST",
        path="/v1/approvals/{approval}",
        call=decide,
        says="Approve or deny, once.",
        body=DecisionJson,
        answer=ApprovalRequest,
    ),
)
