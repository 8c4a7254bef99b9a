"""Changes by HTTP: the action of each endpoint that changes something, and the audit rows of a request."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic_core import to_json

from actors.kernel.hidden import HiddenNames
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.stores.administration import (
    DONE,
    MAX_FACTS_BYTES,
    AuditStore,
    Facts,
    NewAuditRow,
)
from compose.web.principal import Principal

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ACTIONS: Final[Mapping[str, str | None]] = {
    "POST /agui/{app}": "approval.decide",
    "POST /v1/login": None,
    "POST /v1/logout": None,
    "POST /v1/sessions": "session.create",
    "PATCH /v1/sessions/{session}": "session.relabel",
    "DELETE /v1/sessions/{session}": "session.delete",
    "PUT /v1/sessions/{session}/active-node": "session.switch",
    "POST /v1/sessions/{session}/runs": None,
    "POST /v1/sessions/{session}/runs/{run}/cancel": "run.cancel",
    "POST /v1/approvals/{approval}": "approval.decide",
    "POST /v1/artifacts": "artifact.store",
    "DELETE /v1/artifacts/{artifact}": "artifact.delete",
    "POST /v1/cleanup/artifacts": "cleanup.artifacts",
    "POST /v1/cleanup/tasks": "cleanup.tasks",
    "POST /v1/agents/{type}/{key}/messages": None,
    "POST /v1/flows": "flow.install",
    "DELETE /v1/flows/{flow}": "flow.remove",
    "POST /v1/flows/{flow}/runs": None,
    "POST /v1/graph-runs/{graph_run}/waits/{wait}": "wait.answer",
    "POST /v1/graph-runs/{graph_run}/cancel": "run.cancel",
    "POST /v1/graph-runs/{graph_run}/pause": "run.pause",
    "POST /v1/graph-runs/{graph_run}/resume": "run.resume",
    "POST /v1/graph-runs/{graph_run}/steer": "run.steer",
    "POST /v1/graph-runs/{graph_run}/limits": "run.limits",
    "POST /v1/graph-runs/{graph_run}/snapshots": "snapshot.create",
    "POST /v1/graph-snapshots/{snapshot}/restore": "snapshot.restore",
    "DELETE /v1/graph-snapshots/{snapshot}": "snapshot.delete",
    "POST /v1/events": None,
}
"""Actions of audit rows by method and path.

None: the endpoint writes no row. These endpoints start runs, send messages and events, which the logs of runs
have with their senders, or make and end logins, which the table of tokens has.
"""


def action_of(method: str, path: str) -> str | None:
    """Return the action of an endpoint; None if it changes nothing, or writes no audit rows.

    Raises:
        LookupError: The endpoint is not in the table. No application can be made with it.
    """
    name = f"{method} {path}"
    if method not in _READS and name not in ACTIONS:
        raise LookupError(f"{name}: add the endpoint to ACTIONS in compose/web/changes.py")
    return ACTIONS.get(name)


def thing_of_session(agent: AgentId) -> str:
    """Return the thing of audit rows about a session."""
    return f"session:{agent.type}/{agent.key}"


def thing_of_run(run_id: RunId) -> str:
    """Return the thing of audit rows about a run that belongs to no session."""
    return f"run:{run_id}"


@dataclass(slots=True, kw_only=True)
class WebChange:
    """A change that a request makes. A handler may set `after` when the change is made.

    Attributes:
        thing: See `NewAuditRow`.
        agent: See `NewAuditRow`.
        before: Values before the change.
        after: Values after the change, or the values that the request asks for.
    """

    thing: str
    agent: AgentId | None = None
    before: Facts | None = None
    after: Facts | None = None


async def write_changes(
    store: AuditStore,
    principal: Principal,
    action: str | None,
    changes: Iterable[WebChange],
    *,
    names: HiddenNames,
    outcome: str = DONE,
) -> None:
    """Write an audit row for each change of a request.

    Values under hidden names are not written. Values of more than 4 KiB are replaced by their size. A change
    has one row also if the answer of the store is lost, and the row is sent again.
    """
    for one in changes:
        if action is None:
            raise LookupError(f"{one.thing}: give its endpoint an action in compose/web/changes.py")
        await store.add(
            NewAuditRow(
                tenant=principal.tenant,
                principal=principal.name,
                action=action,
                thing=one.thing,
                agent=one.agent,
                before=_bounded(one.before, names),
                after=_bounded(one.after, names),
                outcome=outcome,
                write_id=secrets.token_hex(16),
            )
        )


def _bounded(facts: Facts | None, names: HiddenNames) -> Facts | None:
    if facts is None:
        return None
    shown: Facts = names.shown({**facts})
    size = len(to_json(shown))
    return shown if size <= MAX_FACTS_BYTES else {"size_bytes": size}
