"""The source's `Runtime` over the actor driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.runs import RunFilter
from actors._kernel.workflow.errors import NoSuchRunError
from actors._kernel.workflow.run_state import RunState
from actors._runtime import Runtime as Host
from actors._workflow.hosted.ledger_feed import flow_runs
from actors._workflow.machine import variables
from actors._workflow.machine.records import TRACES
from actors._workflow.machine.variables import RUNTIME, namespace
from actors.workflow import DefaultEffectPolicy, FlowRuns, Flows, WorkflowSpec
from tests.compat.abstractruntime.actor_driver.place import PLACE
from tests.compat.abstractruntime.actor_driver.rest import until_rest
from tests.compat.abstractruntime.actor_driver.views import NotApplicableError, new_app

T = TypeVar("T")


class Runtime:
    """Runs of one app. See the room's docstring for what a call does.

    `max_steps` is not kept: a host goes on until the run rests, and a case that needs the limit fails.
    """

    def __init__(
        self,
        *,
        run_store: Any,
        ledger_store: Any,
        effect_handlers: Any = None,
        effect_policy: Any = None,
        workflow_registry: Any = None,
        artifact_store: Any = None,
        config: Any = None,
    ) -> None:
        self.run_store, self.ledger_store = run_store, ledger_store
        self.effect_policy = effect_policy or DefaultEffectPolicy()
        self.workflow_registry, self.artifact_store = workflow_registry, artifact_store
        self._handlers, self._config = effect_handlers, config
        self._specs: dict[str, WorkflowSpec] = {}
        self._app = getattr(run_store, "app", None) or new_app()
        if hasattr(run_store, "loaded"):
            run_store.loaded, run_store.children = self._loaded, self._children
        if hasattr(ledger_store, "read"):
            ledger_store.read = self.get_ledger

    def start(
        self,
        workflow: WorkflowSpec,
        *,
        vars: dict[str, Any] | None = None,  # noqa: A002
        actor_id: str | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        **more: Any,
    ) -> str:
        """Queue a run; a host executes it with the next call that has one.

        The source's callers give its namespaces, empty; ours makes them itself.
        """
        if more:
            raise NotApplicableError(f"start has no {', '.join(more)}")
        self._know(workflow)
        variables = {
            name: value for name, value in (vars or {}).items() if value or name[:1] != "_"
        }
        whose = {"actor_id": actor_id, "session_id": session_id, "id": run_id}
        return self._ask(lambda runs: runs.start(workflow.workflow_id, vars=variables, **whose))

    def tick(
        self,
        workflow: WorkflowSpec,
        run_id: str,
        max_steps: int = 100,
        step_gate: Callable[[], bool] | None = None,
    ) -> RunState:
        """Let a host go on with a run until it rests."""
        del max_steps
        if step_gate is not None:
            raise NotApplicableError("no gate is asked before each step")
        self._know(workflow)
        return self.hosted(run_id)

    def resume(  # noqa: PLR0917 - the source's parameters
        self,
        workflow: WorkflowSpec,
        run_id: str,
        wait_key: str | None,
        payload: Any,
        max_steps: int = 100,
    ) -> RunState:
        """Answer a wait of a run, and let a host go on with it."""
        del max_steps
        self._know(workflow)
        self._ask(lambda runs: runs.resume(RunId(run_id), wait_key or "", payload))
        return self.hosted(run_id)

    def get_state(self, run_id: str) -> RunState:
        """Return a run as its log tells it."""
        return self._ask(lambda runs: runs.state(RunId(run_id)))

    def get_ledger(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of a run."""
        return self._ask(lambda runs: runs.ledger(RunId(run_id)))

    def cancel_run(self, run_id: str, reason: str | None = None) -> RunState:
        """Cancel a run, with all below it."""
        self._ask(lambda runs: runs.cancel(RunId(run_id), reason=reason or ""))
        return self.hosted(run_id)

    def cancel_tree(self, run_id: str, reason: str | None = None) -> list[RunState]:
        """Cancel a run, with all below it; return them."""
        below = [run.run_id for run in self._below(run_id)]
        first = self.cancel_run(run_id, reason)
        return [first, *(self.hosted(child_id) for child_id in below)]

    def pause_run(self, run_id: str, reason: str | None = None) -> RunState:
        """Pause a run."""
        self._ask(lambda runs: runs.pause_run(RunId(run_id), reason))
        return self.get_state(run_id)

    def resume_run(self, run_id: str) -> RunState:
        """Let a paused run go on with the next call."""
        self._ask(lambda runs: runs.resume_run(RunId(run_id)))
        return self.get_state(run_id)

    def get_node_traces(self, run_id: str) -> dict[str, Any]:
        """Return the last attempts of effects, by node."""
        return namespace(namespace(self.get_state(run_id).vars, RUNTIME), TRACES)

    def get_node_trace(self, run_id: str, node_id: str) -> dict[str, Any]:
        """Return the last attempts of effects of one node."""
        return namespace(self.get_node_traces(run_id), node_id)

    def get_limit_status(self, run_id: str) -> dict[str, Any]:
        """Return the limits of a run."""
        return variables.limit_status(self.get_state(run_id))

    def set_artifact_store(self, store: Any) -> None:
        """Give nodes another artifact store."""
        self.artifact_store = store

    def list_runs(self) -> list[RunState]:
        """Return all runs of the app, newest first."""

        async def read(host: Host) -> list[RunState]:
            page = await flow_runs(host.store.lists, RunFilter(type=self._app))
            runs = FlowRuns(host, self._app)
            return [await runs.state(row.run_id) for row in page.rows]

        return PLACE.call(read, serve=False)

    def hosted(self, run_id: str) -> RunState:
        """Return a run as it rests, after a host went on with it."""

        async def go_on(host: Host) -> RunState:
            flows = Flows(
                self._app,
                self._known_specs().values(),
                effect_handlers=self._handlers,
                effect_policy=self.effect_policy,
                config=self._config,
                artifact_store=self.artifact_store,
            )
            await flows.register(host)
            runs = FlowRuns(host, self._app)
            await until_rest(host, runs, run_id)
            return await runs.state(RunId(run_id))

        return PLACE.call(go_on)

    def _ask(self, ask: Callable[[FlowRuns], Awaitable[T]]) -> T:
        return PLACE.call(lambda client: ask(FlowRuns(client, self._app)), serve=False)

    def _know(self, workflow: WorkflowSpec) -> None:
        self._specs[workflow.workflow_id] = workflow

    def _known_specs(self) -> Mapping[str, WorkflowSpec]:
        registry = self.workflow_registry
        names = [] if registry is None else registry.list_ids()
        return {name: registry.get_or_raise(name) for name in names} | self._specs

    def _loaded(self, run_id: str) -> RunState | None:
        try:
            return self.get_state(run_id)
        except NoSuchRunError:
            return None

    def _children(self, run_id: str) -> list[RunState]:
        async def read(client: Host) -> list[RunState]:
            runs = FlowRuns(client, self._app)
            rows = await client.children(RunId(run_id))
            return [await runs.state(row.run_id) for row in rows]

        return PLACE.call(read, serve=False)

    def _below(self, run_id: str) -> list[RunState]:
        children = [child for child in self._children(run_id) if not child.status.is_terminal]
        return [*children, *(below for child in children for below in self._below(child.run_id))]
