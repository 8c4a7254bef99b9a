"""The agents, flows and sessions that a process serves: found by the name `MODULE:ATTR`, then registered.

`serve_all` registers them for a host, and `serve_app` for a chat. Modules of the runtime and of sessions are
imported when they are used, because a host starts its servers before.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import TypeIs

from actors._kernel.agent.agent import DEFAULT_MODE, ModalAgent
from actors._kernel.runtime.ids import AgentId
from actors.errors import ContractError, Facts

if TYPE_CHECKING:
    from actors._kernel.agent.agent import Agent
    from actors._kernel.runtime.scheduler import RetryPolicy
    from actors._runtime import Runtime
    from actors._sessions.agent import SessionAgent
    from actors._workflow.hosted.flows import Flows

ALLOWED = (
    "an agent, a list of agents, an agent class with `id`, a mapping {type: factory}, a SessionAgent, Flows, "
    "or a function app(runtime) that registers agents"
)
ALLOWED_TOO: Final = f"{ALLOWED}; for a chat also a mapping {{mode: agent}}"


_DOCUMENTS: Final = (".json", ".yaml", ".yml")
_BUNDLE: Final = ".flow"


class ServeError(Facts, ContractError):
    """`MODULE:ATTR` does not name an object that a host can serve."""

    text = "cannot serve {spec!r}: {problem}. {remedy}"
    spec: str
    problem: str
    remedy: str


def check_spec(spec: str) -> tuple[str, str]:
    """Return module and attribute of ``MODULE:ATTR``, or a path of flows and an empty text.

    Raises:
        ServeError: The text has neither form.
    """
    if are_flow_files(spec):
        return spec, ""
    module_name, colon, path = spec.partition(":")
    if not (module_name and colon and path):
        remedy = "For example: shop.agents:app. Flows may be in files, for example refund.json"
        raise ServeError(spec, "it is not written MODULE:ATTR", remedy)
    return module_name, path


def find_served(spec: str) -> object:
    """Return the object that ``MODULE:ATTR`` names. Modules of the current folder are found too.

    For the path of a flow document, of a bundle or of a folder with some, return the app ``flows`` with these
    flows.

    Raises:
        ServeError: The text has not this form, there is no such module or attribute, or its import failed.
        FlowError: A flow document has mistakes.
        WorkflowBundleError: A file is not a valid bundle.
    """
    if are_flow_files(spec):
        return flows_of_files(spec)
    module_name, path = check_spec(spec)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: object = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # Only if the named module or a parent of it is missing. Else the module is there, and an import in it
        # fails.
        if exc.name is not None and (module_name + ".").startswith(exc.name + "."):
            remedy = f"Run in the folder that holds it (this is {here}), or install it"
            raise ServeError(spec, f"there is no module {module_name!r}", remedy) from exc
        problem = f"module {module_name!r} imports {exc.name!r}, which is not installed"
        raise ServeError(spec, problem, "Install it in this environment") from exc
    # The module is a user's, and may raise anything at its import. The error names the module and its fault.
    except Exception as exc:
        problem = f"importing {module_name!r} raised {type(exc).__name__}: {exc}"
        raise ServeError(spec, problem, "Correct the module; --debug shows the traceback") from exc
    for name in path.split("."):
        if not hasattr(target, name):
            public_names = [key for key in vars(target) if not key.startswith("_")]
            remedy = f"It has: {', '.join(public_names[:20]) or 'nothing public'}"
            raise ServeError(spec, f"module {module_name!r} has no {name!r}", remedy)
        target = getattr(target, name)
    return target


def are_flow_files(spec: str) -> bool:
    """Return True if the text is the path of a flow document, of a bundle or of a folder, not MODULE:ATTR."""
    return spec.endswith((*_DOCUMENTS, _BUNDLE)) or (":" not in spec and Path(spec).is_dir())


def flows_of_files(path: str) -> Flows:
    """Return the flows of a file or of a folder as the app ``flows``.

    Raises:
        ServeError: There is no such file or folder, or no flow in it.
        FlowError: A flow document has mistakes.
        WorkflowBundleError: A file is not a valid bundle.
    """
    from actors._workflow.bundles import open_workflow_bundle  # noqa: PLC0415
    from actors._workflow.hosted.flows import Flows  # noqa: PLC0415 - few hosts serve flows
    from actors._workflow.visual.loading import load_flow  # noqa: PLC0415

    folder = Path(path)
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    specs = []
    try:
        for file in files:
            if file.name.endswith(_BUNDLE):
                specs += open_workflow_bundle(file).specs()
            elif file.name.endswith(_DOCUMENTS):
                specs.append(load_flow(file))
    except OSError as exc:
        problem = f"{exc.filename or path}: {exc.strerror or exc}"
        raise ServeError(
            path, problem, "Name a flow document, a bundle or a folder of them"
        ) from exc
    if not specs:
        raise ServeError(path, "there is no flow in it", "Put refund.json or refund.flow into it")
    return Flows("flows", specs)


async def serve_all(runtime: Runtime, specs: Mapping[str, object]) -> None:
    """Register the object of each name.

    Raises:
        ServeError: An object has none of the allowed forms.
        RegistrationError: Two of the agents contradict each other.
    """
    for spec, target in specs.items():
        await _serve(runtime, spec, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionApp:
    """An application whose sessions this process can execute.

    Attributes:
        app: The type of its sessions' agents.
        modes: Agents by mode; empty if the application has registered the type itself.
        known_modes: Names of the modes; empty if they are not known.
        version: The version of the agents' code; None if the application has none.
        retry: The retry policy of runs for which the caller gives none.
    """

    app: str
    modes: Mapping[str, Agent]
    known_modes: tuple[str, ...] = ()
    version: str | None = None
    retry: RetryPolicy | None = None


async def serve_app(
    runtime: Runtime, spec: str, target: object, *, app: str | None = None
) -> SessionApp:
    """Register the other agents of an application, and return its sessions.

    An agent, the first agent of a list, and the first type of a mapping {type: factory} answer as the mode
    ``normal`` of sessions. All members of a list or of such a mapping are registered too. A function may return
    any of these, or register the type of a `SessionAgent`. A list may have `Flows`. Without agents there are no
    sessions.

    Args:
        runtime: The runtime that registers the agents.
        spec: The application's name ``MODULE:APP``.
        target: The object with this name.
        app: The type of the sessions' agents. None means the type of a SessionAgent, else ``session``.

    Raises:
        ServeError: The object has none of the allowed forms, or has no sessions.
        RegistrationError: Two agents contradict each other.
    """
    from actors._sessions.agent import SessionAgent  # noqa: PLC0415 - a host may have no sessions

    if isinstance(target, type):
        target = instance_of(spec, target)
    if are_flows(target):
        target = [target]
    if isinstance(target, SessionAgent):
        return _app_of_agent(target, app)
    if _is_agent(target):
        return _app_of_modes({DEFAULT_MODE: agent_of(spec, target)}, app)
    if isinstance(target, dict) and target and all(_is_agent(agent) for agent in target.values()):
        return _app_of_modes(target, app)
    if callable(target):
        return await _app_of_function(runtime, spec, target, app)
    if not isinstance(target, dict | list | tuple):
        problem = f"it is a {type(target).__name__}"
        raise ServeError(spec, problem, f"It has to be {ALLOWED_TOO}")
    await serve_all(runtime, {spec: target})
    return _app_of_first(spec, target, app)


def are_flows(target: object) -> TypeIs[Flows]:
    """Return True for the flows of an app. The function does not import their module."""
    # Flows exist only if their module was imported. Importing it here would cost each host its time.
    module = sys.modules.get("actors._workflow.hosted.flows")
    return module is not None and isinstance(target, module.Flows)


def instance_of(spec: str, kind: type) -> object:
    """Return an object of a class of agents.

    Raises:
        ServeError: The class needs arguments.
    """
    try:
        return kind()
    except TypeError as exc:
        remedy = f"Name an object, or a mapping {{type: factory}}, instead of a class ({exc})"
        raise ServeError(spec, f"class {kind.__name__} needs arguments", remedy) from exc


def agent_of(spec: str, target: Any) -> Agent:
    """Return `target` if it is an agent.

    Raises:
        ServeError: `target` is not an agent.
    """
    if not (
        isinstance(getattr(target, "id", None), AgentId) and callable(getattr(target, "run", None))
    ):
        problem = f"{type(target).__name__} is not an agent"
        raise ServeError(
            spec, problem, "An agent has `id: AgentId` and `async def run(self, ctx, inbox)`"
        )
    return cast("Agent", target)


async def _serve(runtime: Runtime, spec: str, target: object) -> None:
    from actors._runtime.runtime import host_of  # noqa: PLC0415 - who serves has loaded it

    match target:
        case dict() | list() | tuple() if not target:
            raise ServeError(spec, "it is empty", f"It has to be {ALLOWED}")
        case dict() if all(
            isinstance(name, str) and callable(factory) for name, factory in target.items()
        ):
            # The claim of shards comes once, after all of them: each registration would claim by itself.
            async with host_of(runtime).claiming_once():
                for name, factory in target.items():
                    await runtime.register_type(name, cast("Callable[[AgentId], Agent]", factory))
        case list() | tuple():
            async with host_of(runtime).claiming_once():
                for member in target:
                    await _register(runtime, spec, member)
        case type():
            await _register(runtime, spec, instance_of(spec, target))
        case _ if are_flows(target):
            await _register(runtime, spec, target)
        case _ if isinstance(getattr(target, "id", None), AgentId):
            await _register(runtime, spec, target)
        case _ if callable(target):
            result = cast("Callable[[Runtime], Awaitable[None] | None]", target)(runtime)
            if inspect.isawaitable(result):
                await result
        case _:
            raise ServeError(spec, f"it is a {type(target).__name__}", f"It has to be {ALLOWED}")


async def _register(runtime: Runtime, spec: str, target: object) -> None:
    """Register flows, an agent, or the type of a `SessionAgent`, which has a session for each key."""
    if are_flows(target):
        await target.register(runtime)
        return
    if isinstance(target, ModalAgent):
        from actors._runtime.runtime import host_of  # noqa: PLC0415 - who serves has loaded it
        from actors._sessions.agent import SessionAgent  # noqa: PLC0415 - needed only for sessions

        if isinstance(target, SessionAgent):
            await runtime.register_type(target.id.type, target.of_id)
            host_of(runtime).prepare_models(target.modes.values())
            return
    await runtime.register(agent_of(spec, target))


async def _app_of_function(
    runtime: Runtime, spec: str, function: Callable[[Runtime], Any], app: str | None
) -> SessionApp:
    """Return the sessions of the object that a function returns, else of the type that it registers."""
    target = function(runtime)
    if inspect.isawaitable(target):
        target = await target
    if target is not None:
        return await serve_app(runtime, spec, target, app=app)
    return _app_of_registered_type(runtime, spec, app)


def _is_agent(target: Any) -> bool:
    return isinstance(getattr(target, "id", None), AgentId) and not isinstance(target, type)


def _app_of_agent(agent: SessionAgent, app: str | None) -> SessionApp:
    return SessionApp(
        app=app or agent.id.type,
        modes=agent.modes,
        known_modes=tuple(agent.modes),
        version=agent.version,
        retry=agent.retry,
    )


def _app_of_modes(modes: Mapping[str, Agent], app: str | None) -> SessionApp:
    from actors._sessions.runtime import APP  # noqa: PLC0415 - as above

    return SessionApp(app=app or APP, modes=dict(modes), known_modes=tuple(modes))


def _app_of_first(spec: str, target: Any, app: str | None) -> SessionApp:
    """Return the sessions of the first agent of a list, or of the first factory of a mapping."""
    from actors._sessions.agent import SessionAgent  # noqa: PLC0415 - as above

    if isinstance(target, dict):
        type_, factory = next(iter(target.items()))
        first_agent = factory(AgentId(type_, "main"))
    else:
        agents = [member for member in target if not are_flows(member)]
        if not agents:
            return _app_of_modes({}, app)
        first_agent = instance_of(spec, agents[0]) if isinstance(agents[0], type) else agents[0]
    if isinstance(first_agent, SessionAgent):
        return SessionApp(app=first_agent.id.type, modes={}, known_modes=tuple(first_agent.modes))
    return _app_of_modes({DEFAULT_MODE: agent_of(spec, first_agent)}, app)


def _app_of_registered_type(runtime: Runtime, spec: str, app: str | None) -> SessionApp:
    """Return the sessions whose type a function has registered.

    Raises:
        ServeError: The function has registered no such type, or several.
    """
    from actors._runtime.runtime import host_of  # noqa: PLC0415 - who serves has loaded it
    from actors._sessions.agent import SessionAgent  # noqa: PLC0415 - as above

    agents = host_of(runtime).worker.env.agents
    session_agents: dict[str, SessionAgent] = {}
    for type_ in agents.serves().types:
        agent = agents.find(AgentId(type_, "check"))
        if isinstance(agent, SessionAgent) and app in (None, type_):
            session_agents[type_] = agent
    if len(session_agents) == 1:
        [(type_, session_agent)] = session_agents.items()
        return SessionApp(app=type_, modes={}, known_modes=tuple(session_agent.modes))
    types = ", ".join(session_agents)
    problem = (
        f"it has registered several types of sessions: {types}"
        if session_agents
        else "it has no sessions"
    )
    remedy = (
        "Choose one with --app"
        if session_agents
        else "Register the type of a SessionAgent, or return an agent or a mapping {mode: agent}"
    )
    raise ServeError(spec, problem, remedy)
