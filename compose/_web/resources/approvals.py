"""Approvals: pending requests for a person's decision, and decisions."""

from __future__ import annotations

from typing import Any, Final

from actors._kernel.runtime.communication import ApprovalRequest
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.waits import OpenWait
from actors._kernel.stores.runs import ApprovalFilter
from actors._kernel.text import is_name
from actors._runtime.client.approvals import request_of
from actors._runtime.replay.verdict import row_of
from actors.errors import UnknownApprovalError
from compose._web.endpoint import (
    Endpoints,
    ShownModel,
    StrictModel,
    WebCall,
    WebChange,
    thing_of_run,
    thing_of_session,
)
from compose._web.resources.pages import Paged, parse_wait_place, wait_place_text

endpoint: Final = Endpoints()


class ApprovalsJson(ShownModel):
    """A page of pending requests, oldest first. `next` is null on the last page."""

    approvals: list[ApprovalRequest]
    next: str | None


class ApprovalsQuery(Paged):
    """The query of a list of requests."""

    run_id: str | None = None


class DecisionJson(StrictModel):
    """A decision. The comment is stored in the run's log."""

    approve: bool
    comment: str = ""


def _visible_filter(call: WebCall, **conditions: Any) -> ApprovalFilter:
    """Return a filter for the requests that the principal sees: of its own runs, or of its tenant."""
    principal = call.principal
    return ApprovalFilter(tenant=principal.tenant, owner=principal.only_owner, **conditions)


@endpoint.get("/v1/approvals", scope="sessions:own")
async def list_approvals(call: WebCall, query: ApprovalsQuery) -> ApprovalsJson:
    """List pending approvals, oldest first."""
    if query.run_id is not None and not is_name(query.run_id):
        return ApprovalsJson(approvals=[], next=None)
    run_id = None if query.run_id is None else RunId(query.run_id)
    after = None if query.after is None else parse_wait_place(query.after)
    waits = await call.runtime.store.lists.approvals(
        _visible_filter(call, run_id=run_id, after=after), limit=query.limit + 1
    )
    page = waits[: query.limit]
    next_cursor = wait_place_text(page[-1].place) if len(waits) > query.limit else None
    return ApprovalsJson(approvals=[request_of(wait) for wait in page], next=next_cursor)


@endpoint.post("/v1/approvals/{approval}", scope="sessions:own", action="approval.decide")
async def decide(call: WebCall, body: DecisionJson) -> ApprovalRequest:
    """Approve or deny a pending request.

    A request is decided once, and its run continues.
    """
    id_, waits = call.names["approval"], list[OpenWait]()
    if is_name(id_):
        waits = await call.runtime.store.lists.approvals(_visible_filter(call, key=id_), limit=1)
    if id_ not in [wait.wait.key for wait in waits]:
        raise UnknownApprovalError(id_[:100], "no run waits for it")
    await audit_decision(call, waits[0].run_id, id_, approve=body.approve)
    return await call.runtime.approvals.decide(
        id_, approve=body.approve, by=call.principal.name, comment=body.comment
    )


async def audit_decision(call: WebCall, run_id: RunId, id_: str, *, approve: bool) -> WebChange:
    """Note a decision as a change of the session whose run, or a run below it, asked; else of the root run.

    Return the change.
    """
    reads = call.runtime.store.reads
    row = await row_of(call.runtime.store, run_id)
    root = row if row.root in (None, run_id) else await reads.run(row.root)
    agent, thing = row.agent_id, thing_of_run(run_id)
    if root is not None:
        agent, thing = root.agent_id, thing_of_run(root.run_id)
        if await call.runtime.store.data.sessions.get(agent) is not None:
            thing = thing_of_session(agent)
    before = {"approval": id_, "run": run_id, "status": "pending"}
    after = {"approval": id_, "run": run_id, "status": "approved" if approve else "denied"}
    return call.audit(thing, agent=agent, before=before, after=after)
