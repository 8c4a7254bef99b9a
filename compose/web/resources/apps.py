"""Apps: agent types that are served and can have sessions."""

from __future__ import annotations

from typing import Final

from compose.web.endpoint import Done, NoQuery, ShownModel, WebCall, WebEndpoint


class AppJson(ShownModel):
    """An app.

    Attributes:
        app: The type of its agents.
        is_default: True if requests that name no app use this one.
        is_served: True if a live host executes its runs.
        modes: Names of the modes of its sessions; null if this server does not know them.
    """

    app: str
    is_default: bool
    is_served: bool
    modes: list[str] | None


class AppsJson(ShownModel):
    """The apps, by name: the server's own; with the scope `operate` or without logins all served types."""

    apps: list[AppJson]


async def apps_of(call: WebCall) -> list[AppJson]:
    """Return the apps that the principal may use."""
    api, runtime = call.api, call.runtime
    served = {name for host in await runtime.store.insight.hosts() for name in host.serves}
    types = {name for name in (*served, *runtime.serves) if "/" not in name}
    return [
        AppJson(
            app=name,
            is_default=name == api.app,
            is_served=name in types,
            modes=list(api.modes) or None if name == api.app else None,
        )
        for name in sorted({*types, *api.apps, api.app})
        if api.may_use(call.principal, name)
    ]


async def list_apps(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the apps."""
    return AppsJson(apps=await apps_of(call))


ENDPOINTS: Final = (
    WebEndpoint(
        method="GET", path="/v1/apps", call=list_apps, says="List apps and modes.", answer=AppsJson
    ),
)
