"""The sessions of an application, found in the object of `MODULE:APP`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.agent.agent import DEFAULT_MODE
from actors.kernel.runtime.ids import AgentId
from actors.runtime.runtime import host_of
from actors.sessions.agent import SessionAgent
from actors.sessions.runtime import APP
from compose.host.loader import ALLOWED, ServeError, agent_of, are_flows, instance_of, serve_all

if TYPE_CHECKING:
    from actors.kernel.agent.agent import Agent
    from actors.kernel.runtime.scheduler import RetryPolicy
    from actors.runtime import Runtime

ALLOWED_TOO: Final = f"{ALLOWED}; for a chat also a mapping {{mode: agent}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionApp:
    """An application whose sessions this process can execute.

    Attributes:
        app: The type of its sessions' agents.
        modes: Agents by mode; empty if the application has registered the type itself.
        known_modes: Names of the modes; empty if they are not known.
        version: See `SessionAgent`.
        retry: See `SessionAgent`.
    """

    app: str
    modes: Mapping[str, Agent]
    known_modes: tuple[str, ...] = ()
    version: str | None = None
    retry: RetryPolicy | None = None


async def serve_app(
    runtime: Runtime, spec: str, found: object, *, app: str | None = None
) -> SessionApp:
    """Register the other agents of an application, and return its sessions.

    An agent, the first agent of a list, and the first type of a mapping {type: factory} answer as the mode
    ``normal`` of sessions. All members of a list or of such a mapping are registered too. A function may return
    any of these, or register the type of a `SessionAgent`. A list may have `Flows`. Without agents there are no
    sessions.

    Args:
        runtime: The runtime that registers the agents.
        spec: The application's name ``MODULE:APP``.
        found: The object with this name.
        app: The type of the sessions' agents. None means the type of a SessionAgent, else ``session``.

    Raises:
        ServeError: The object has none of the allowed forms, or has no sessions.
        RegistrationError: Two agents contradict each other.
    """
    if isinstance(found, type):
        found = instance_of(spec, found)
    if are_flows(found):
        found = [found]
    if isinstance(found, SessionAgent):
        return _of_agent(found, app)
    if _is_agent(found):
        return _of_modes({DEFAULT_MODE: agent_of(spec, found)}, app)
    if isinstance(found, dict) and found and all(_is_agent(one) for one in found.values()):
        return _of_modes(found, app)
    if callable(found):
        return await _of_function(runtime, spec, found, app)
    if not isinstance(found, dict | list | tuple):
        problem = f"it is a {type(found).__name__}"
        raise ServeError(spec, problem, f"It has to be {ALLOWED_TOO}")
    await serve_all(runtime, {spec: found})
    return _of_first(spec, found, app)


async def _of_function(
    runtime: Runtime, spec: str, function: Callable[[Runtime], Any], app: str | None
) -> SessionApp:
    """Return the sessions of the object that a function returns, else of the type that it registers."""
    given = function(runtime)
    if inspect.isawaitable(given):
        given = await given
    if given is not None:
        return await serve_app(runtime, spec, given, app=app)
    return _registered(runtime, spec, app)


def _is_agent(one: Any) -> bool:
    return isinstance(getattr(one, "id", None), AgentId) and not isinstance(one, type)


def _of_agent(found: SessionAgent, app: str | None) -> SessionApp:
    return SessionApp(
        app=app or found.id.type,
        modes=found.modes,
        known_modes=tuple(found.modes),
        version=found.version,
        retry=found.retry,
    )


def _of_modes(modes: Mapping[str, Agent], app: str | None) -> SessionApp:
    return SessionApp(app=app or APP, modes=dict(modes), known_modes=tuple(modes))


def _of_first(spec: str, found: Any, app: str | None) -> SessionApp:
    """Return the sessions of the first agent of a list, or of the first factory of a mapping."""
    if isinstance(found, dict):
        type_, factory = next(iter(found.items()))
        first = factory(AgentId(type_, "main"))
    else:
        agents = [one for one in found if not are_flows(one)]
        if not agents:
            return _of_modes({}, app)
        first = instance_of(spec, agents[0]) if isinstance(agents[0], type) else agents[0]
    if isinstance(first, SessionAgent):
        return SessionApp(app=first.id.type, modes={}, known_modes=tuple(first.modes))
    return _of_modes({DEFAULT_MODE: agent_of(spec, first)}, app)


def _registered(runtime: Runtime, spec: str, app: str | None) -> SessionApp:
    """Return the sessions whose type a function has registered.

    Raises:
        ServeError: The function has registered no such type, or several.
    """
    agents = host_of(runtime).worker.env.agents
    found: dict[str, SessionAgent] = {}
    for type_ in agents.serves().types:
        agent = agents.find(AgentId(type_, "check"))
        if isinstance(agent, SessionAgent) and app in (None, type_):
            found[type_] = agent
    if len(found) == 1:
        [(type_, one)] = found.items()
        return SessionApp(app=type_, modes={}, known_modes=tuple(one.modes))
    types = ", ".join(found)
    problem = (
        f"it has registered several types of sessions: {types}" if found else "it has no sessions"
    )
    remedy = (
        "Choose one with --app"
        if found
        else "Register the type of a SessionAgent, or return an agent or a mapping {mode: agent}"
    )
    raise ServeError(spec, problem, remedy)
