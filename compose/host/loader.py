"""Find the agents that a host serves by their name `MODULE:ATTR`, and register them."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import TypeIs

from actors.errors import ContractError, Facts
from actors.kernel.agent.agent import ModalAgent
from actors.kernel.runtime.ids import AgentId

if TYPE_CHECKING:
    from actors.kernel.agent.agent import Agent
    from actors.runtime import Runtime
    from actors.workflow.hosted.flows import Flows

ALLOWED = (
    "an agent, a list of agents, an agent class with `id`, a mapping {type: factory}, a SessionAgent, Flows, "
    "or a function app(runtime) that registers agents"
)

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
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name + ".").startswith(exc.name + "."):
            remedy = f"Run in the folder that holds it (this is {here}), or install it"
            raise ServeError(spec, f"there is no module {module_name!r}", remedy) from exc
        problem = f"module {module_name!r} imports {exc.name!r}, which is not installed"
        raise ServeError(spec, problem, "Install it in this environment") from exc
    except Exception as exc:
        problem = f"importing {module_name!r} raised {type(exc).__name__}: {exc}"
        raise ServeError(spec, problem, "Correct the module; --debug shows the traceback") from exc
    for name in path.split("."):
        if not hasattr(found, name):
            public = [key for key in vars(found) if not key.startswith("_")]
            remedy = f"It has: {', '.join(public[:20]) or 'nothing public'}"
            raise ServeError(spec, f"module {module_name!r} has no {name!r}", remedy)
        found = getattr(found, name)
    return found


def are_flow_files(spec: str) -> bool:
    """Return True if the text is the path of a flow document, of a bundle or of a folder, not MODULE:ATTR."""
    return spec.endswith((*_DOCUMENTS, _BUNDLE)) or (":" not in spec and Path(spec).is_dir())


def flows_of_files(path: str) -> Flows:
    """Return the flows of a file or of a folder as the app ``flows``. See `find_served`."""
    from actors.workflow.bundles import open_workflow_bundle  # noqa: PLC0415
    from actors.workflow.hosted.flows import Flows  # noqa: PLC0415 - few hosts serve flows
    from actors.workflow.visual.loading import load_flow  # noqa: PLC0415

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
    for spec, found in specs.items():
        await _serve(runtime, spec, found)


async def _serve(runtime: Runtime, spec: str, found: object) -> None:
    from actors.runtime.runtime import host_of  # noqa: PLC0415 - who serves has loaded it

    match found:
        case dict() | list() | tuple() if not found:
            raise ServeError(spec, "it is empty", f"It has to be {ALLOWED}")
        case dict() if all(
            isinstance(name, str) and callable(made) for name, made in found.items()
        ):
            async with host_of(runtime).claiming_once():
                for name, made in found.items():
                    await runtime.register_type(name, cast("Callable[[AgentId], Agent]", made))
        case list() | tuple():
            async with host_of(runtime).claiming_once():
                for one in found:
                    await _register(runtime, spec, one)
        case type():
            await _register(runtime, spec, instance_of(spec, found))
        case _ if are_flows(found):
            await _register(runtime, spec, found)
        case _ if isinstance(getattr(found, "id", None), AgentId):
            await _register(runtime, spec, found)
        case _ if callable(found):
            done = cast("Callable[[Runtime], Awaitable[None] | None]", found)(runtime)
            if inspect.isawaitable(done):
                await done
        case _:
            raise ServeError(spec, f"it is a {type(found).__name__}", f"It has to be {ALLOWED}")


async def _register(runtime: Runtime, spec: str, one: object) -> None:
    """Register flows, an agent, or the type of a `SessionAgent`, which has a session for each key."""
    if are_flows(one):
        await one.register(runtime)
        return
    if isinstance(one, ModalAgent):
        from actors.sessions.agent import SessionAgent  # noqa: PLC0415 - needed only for sessions

        if isinstance(one, SessionAgent):
            await runtime.register_type(one.id.type, one.of_id)
            return
    await runtime.register(agent_of(spec, one))


def are_flows(one: object) -> TypeIs[Flows]:
    """Return True for the flows of an app. The function does not import their module."""
    module = sys.modules.get("actors.workflow.hosted.flows")
    return module is not None and isinstance(one, module.Flows)


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


def agent_of(spec: str, one: Any) -> Agent:
    """Return `one` if it is an agent.

    Raises:
        ServeError: `one` is not an agent.
    """
    if not (isinstance(getattr(one, "id", None), AgentId) and callable(getattr(one, "run", None))):
        problem = f"{type(one).__name__} is not an agent"
        raise ServeError(
            spec, problem, "An agent has `id: AgentId` and `async def run(self, ctx, inbox)`"
        )
    return cast("Agent", one)
