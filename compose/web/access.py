"""Access table: each endpoint, and the scope that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from actors.kernel.stores.administration import Scope

Access: TypeAlias = Scope | Literal["public", "signed in"]
"""A scope; ``public``: no login is needed; ``signed in``: any principal with a login, whatever its scopes."""
OPENAPI: Final = "/v1/openapi.json"

ACCESS: Final[Mapping[str, Access]] = {
    f"GET {OPENAPI}": "public",
    "GET /": "sessions:own",
    "GET /login": "public",
    "GET /chat/{app}": "sessions:own",
    "GET /chat/{app}/{session}": "sessions:own",
    "GET /chat/{app}/{session}/runs/{run}": "sessions:own",
    "GET /chat/{app}/{session}/runs/{run}/children/{child}": "sessions:own",
    "GET /flows": "flows:run",
    "GET /flows/{flow_app}/{flow}": "flows:run",
    "GET /graph-runs/{graph_run}": "flows:run",
    "GET /graph-runs/{graph_run}/evidence/{evidence}/{text}": "flows:run",
    "POST /agui/{app}": "sessions:own",
    "POST /v1/login": "public",
    "GET /v1/login": "signed in",
    "POST /v1/logout": "signed in",
    "GET /v1/apps": "sessions:own",
    "POST /v1/sessions": "sessions:own",
    "GET /v1/sessions": "sessions:own",
    "GET /v1/sessions/{session}": "sessions:own",
    "PATCH /v1/sessions/{session}": "sessions:own",
    "DELETE /v1/sessions/{session}": "sessions:own",
    "GET /v1/sessions/{session}/events": "sessions:own",
    "GET /v1/sessions/{session}/nodes": "sessions:own",
    "PUT /v1/sessions/{session}/active-node": "sessions:own",
    "POST /v1/sessions/{session}/runs": "sessions:own",
    "GET /v1/sessions/{session}/runs": "sessions:own",
    "GET /v1/sessions/{session}/runs/{run}": "sessions:own",
    "GET /v1/sessions/{session}/runs/{run}/events": "sessions:own",
    "POST /v1/sessions/{session}/runs/{run}/cancel": "sessions:own",
    "GET /v1/sessions/{session}/runs/{run}/children": "sessions:own",
    "GET /v1/sessions/{session}/runs/{run}/children/{child}": "sessions:own",
    "GET /v1/sessions/{session}/runs/{run}/children/{child}/events": "sessions:own",
    "GET /v1/approvals": "sessions:own",
    "POST /v1/approvals/{approval}": "sessions:own",
    "POST /v1/artifacts": "sessions:own",
    "GET /v1/artifacts": "sessions:own",
    "GET /v1/artifacts/{artifact}": "sessions:own",
    "DELETE /v1/artifacts/{artifact}": "sessions:own",
    "POST /v1/cleanup/artifacts": "cleanup",
    "POST /v1/cleanup/tasks": "cleanup",
    "GET /v1/audit": "operate",
    "POST /v1/agents/{type}/{key}/messages": "operate",
    "GET /v1/runs/{run}": "operate",
    "GET /v1/runs/{run}/events": "operate",
    "GET /v1/flows": "flows:run",
    "POST /v1/flows": "flows:install",
    "GET /v1/flows/{flow}": "flows:run",
    "GET /v1/flows/{flow}/bundle": "flows:run",
    "GET /v1/flows/{flow}/svg": "flows:run",
    "GET /v1/flows/{flow}/schema": "flows:run",
    "DELETE /v1/flows/{flow}": "flows:install",
    "POST /v1/flows/{flow}/runs": "flows:run",
    "GET /v1/graph-runs": "flows:run",
    "GET /v1/graph-runs/{graph_run}": "flows:run",
    "GET /v1/graph-runs/{graph_run}/ledger": "flows:run",
    "GET /v1/graph-runs/{graph_run}/snapshot": "flows:run",
    "POST /v1/graph-runs/{graph_run}/waits/{wait}": "flows:run",
    "POST /v1/graph-runs/{graph_run}/cancel": "flows:operate",
    "POST /v1/graph-runs/{graph_run}/pause": "flows:operate",
    "POST /v1/graph-runs/{graph_run}/resume": "flows:operate",
    "POST /v1/graph-runs/{graph_run}/steer": "flows:operate",
    "POST /v1/graph-runs/{graph_run}/limits": "flows:operate",
    "POST /v1/graph-runs/{graph_run}/snapshots": "flows:operate",
    "GET /v1/graph-snapshots": "flows:run",
    "GET /v1/graph-snapshots/{snapshot}": "flows:run",
    "POST /v1/graph-snapshots/{snapshot}/restore": "flows:operate",
    "DELETE /v1/graph-snapshots/{snapshot}": "flows:operate",
    "POST /v1/events": "flows:run",
}
"""Access by method and path. `Principal.sees` decides which sessions a principal sees."""


def access_of(method: str, path: str) -> Access:
    """Return the access that an endpoint needs.

    Raises:
        LookupError: The endpoint is not in the table. No application can be made with it.
    """
    name = f"{method} {path}"
    if name not in ACCESS:
        raise LookupError(f"{name}: add the endpoint to ACCESS in compose/web/access.py")
    return ACCESS[name]
