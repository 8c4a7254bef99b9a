"""The names of events, which a wait and an emission have in common."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState

SCOPES = ("session", "workflow", "run", "global")
_BEGINNING = "evt:"


def event_key(name: str, *, scope: str, scope_id: str) -> str:
    """Return the wait key of an event of this name in this scope.

    Raises:
        GraphError: The name is empty, or the scope does not exist.
    """
    if not name:
        raise GraphError("an event", "it has no name. Give its payload a `name`")
    if scope not in SCOPES:
        raise GraphError(f"event {name!r}", f"scope {scope!r} is none of {', '.join(SCOPES)}")
    return f"{_BEGINNING}{scope}:{scope_id}:{name}"


def is_event_key(wait_key: str) -> bool:
    """Return True if the key is that of an event, which any number of waits may have."""
    return wait_key.startswith(_BEGINNING)


def key_of_payload(run: RunState, payload: dict[str, Any]) -> str:
    """Return the key of the event that an effect of `run` waits for or emits.

    The scope is the run's session, or the run's own id if it has no session. The payload may set another scope
    with `scope`, `session_id`, `workflow_id` or `run_id`.

    Raises:
        GraphError: See `event_key`.
    """
    scope = str(payload.get("scope") or "session")
    own = {
        "session": run.session_id or run.run_id,
        "workflow": run.workflow_id,
        "run": run.run_id,
        "global": "global",
    }
    scope_id = str(payload.get(f"{scope}_id") or own.get(scope, ""))
    return event_key(str(payload.get("name") or ""), scope=scope, scope_id=scope_id)


def event_from(payload: dict[str, Any], id_: str, run_id: str) -> dict[str, Any]:
    """Return the data that an answered wait for an event gets."""
    return {
        "event_id": id_,
        "name": payload.get("name"),
        "scope": payload.get("scope") or "session",
        "payload": payload.get("payload"),
        "run_id": run_id,
    }
