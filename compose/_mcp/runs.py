"""Tools that start runs: one per flow of an app, and one per agent."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from actors._kernel.agent.agent import ModalAgent
from actors._kernel.agent.message import Message
from actors._kernel.agent.tools import Risk, Tool
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, RunId
from actors._runtime import Runtime
from actors._workflow.bundles import INSTALLED_APP, BundleRecord, StoredBundles
from actors._workflow.bundles.stored import inputs_of
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.ledger_feed import ledger_feed
from actors._workflow.hosted.runs import FlowRuns
from actors.errors import ContractError, RunSweptError, UnknownRunError
from compose._host.loader import ServeError, agent_of, are_flows, instance_of
from compose._mcp.server import ID_KEY, Report, client_call

_SENDER: Final = "submit:mcp"
"""Sender of the messages of all workers, so that an id names the same run at every worker."""
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters that are not allowed in tool names."""
_VARS: Final = {"type": "object", "properties": {}, "additionalProperties": True}
_Start: TypeAlias = "Callable[[dict[str, Any], str | None], Awaitable[RunId]]"


@dataclass(frozen=True, slots=True)
class RunTools:
    """Tools whose calls are runs. If the runtime is a client, hosts execute the runs.

    Calls with the same client-chosen id are one run, also after the client has disconnected. A cancelled call
    cancels its run if no other call in this process waits for the run, and if the call has no id or the client
    requested the cancel. A client that requests progress receives one report per record of a flow's ledger.

    Attributes:
        runtime: The runtime that starts the runs.
        wait_s: Seconds that a call waits for the end of its run. Then it returns the run's id, for
            `run_result`.
    """

    runtime: Runtime
    wait_s: float
    _waiters: Counter[RunId] = field(default_factory=Counter)

    def of_flows(self, flows: Flows) -> list[Tool]:
        """Return one tool per flow. Its arguments are the initial vars of a run."""
        runs = FlowRuns(self.runtime, flows)
        return [self._of_flow(runs, name, name, _VARS) for name in flows.specs]

    async def of_installed(self) -> list[Tool]:
        """Return one tool per installed bundle: the entry flow of its newest version, with its inputs."""
        store, newest = self.runtime.store, dict[str, BundleRecord]()
        bundles = StoredBundles(store.data.flow_bundles, store.data.artifacts, DEFAULT_TENANT)
        for record in await bundles.list():  # the newest version first
            newest.setdefault(record.manifest.bundle_id, record)
        runs, tools = FlowRuns(self.runtime, INSTALLED_APP), list[Tool]()
        for name, record in newest.items():
            schema = await inputs_of(bundles, record, record.manifest.entry.flow_id)
            tools.append(self._of_flow(runs, name, record.manifest.ref, schema))
        return tools

    def _of_flow(self, runs: FlowRuns, name: str, flow: str, schema: dict[str, Any]) -> Tool:
        async def start(arguments: dict[str, Any], key: str | None) -> RunId:
            return await runs.start(flow, vars=arguments, id=key)

        description = f"Run the flow {flow}; the arguments are its vars."
        return self._tool(name, description, schema, start, has_ledger=True)

    def of_agents(self, agents: Mapping[str, Sequence[AgentId]]) -> list[Tool]:
        """Return one tool per agent, and one per type with an empty list, whose keys are free."""
        return [
            self._of_agent(type_, agent)
            for type_, ids in agents.items()
            for agent in ids or (None,)
        ]

    def result(self, types: Iterable[str], *, apps: Iterable[str] = ()) -> Tool:
        """Return the tool that waits for a run of these agent types, or of flows of these apps."""
        flow_apps = frozenset(apps)
        known_types = flow_apps.union(types)

        async def run_result(run: str) -> dict[str, Any]:
            row = await self.runtime.store.reads.run(RunId(run))
            if row is None or row.agent_id.type not in known_types:
                raise UnknownRunError(RunId(run))
            return await self._outcome(row.run_id, has_ledger=row.agent_id.type in flow_apps)

        description = "Wait for the result of a run that had not ended when its call returned."
        return Tool("run_result", description, run_result, idempotent=True)

    def _of_agent(self, type_: str, fixed_id: AgentId | None) -> Tool:
        properties: dict[str, Any] = {"message": {"description": "JSON data, such as a text."}}
        required_names = ["message"]
        if fixed_id is None:
            properties["key"] = {"type": "string", "description": "Which one of the agents."}
            required_names.append("key")

        async def start(arguments: dict[str, Any], key: str | None) -> RunId:
            if missing_names := [name for name in required_names if name not in arguments]:
                raise ContractError(f"{' and '.join(missing_names)}: missing, give a value")
            agent = fixed_id or AgentId(type_, str(arguments["key"]))
            message = Message.of(agent, arguments["message"], id=key)
            return await self.runtime.submit(agent, message, sender=_SENDER)

        schema = {"type": "object", "properties": properties, "required": required_names}
        name = type_ if fixed_id is None else f"{type_}_{fixed_id.key}"
        return self._tool(
            name, f"Send a message to {fixed_id or f'agents of type {type_}'}.", schema, start
        )

    def _tool(
        self,
        name: str,
        description: str,
        schema: dict[str, Any],
        start: _Start,
        *,
        has_ledger: bool = False,
    ) -> Tool:
        async def run(**arguments: Any) -> dict[str, Any]:
            call = client_call.get()
            run_id = await start(arguments, call.key)
            try:
                return await self._outcome(run_id, has_ledger=has_ledger)
            except asyncio.CancelledError:
                if not self._waiters[run_id] and (call.key is None or call.is_withdrawn()):
                    # Shielded: a second cancellation must not leave a run that nobody waits for.
                    await asyncio.shield(
                        self.runtime.cancel(run_id, reason="the tool call of the run was cancelled")
                    )
                raise

        note = f"With an id in _meta[{ID_KEY!r}] it may be repeated."
        return Tool(_FORBIDDEN.sub("_", name), f"{description} {note}", run, schema, risk=Risk.HIGH)

    async def _outcome(self, run_id: RunId, *, has_ledger: bool) -> dict[str, Any]:
        """Return the run's id, its status, and its output if it has ended.

        Raises:
            RunFailedError: The run failed or was cancelled.
        """
        report = client_call.get().report
        self._waiters[run_id] += 1
        try:
            async with asyncio.timeout(self.wait_s):
                if has_ledger and report is not None:
                    await self._report(run_id, report)
                output = await self.runtime.result(run_id)
        except TimeoutError:
            return {"run": run_id, "status": "open", "next": "call run_result to wait for its end"}
        finally:
            self._waiters[run_id] -= 1
            if not self._waiters[run_id]:
                del self._waiters[run_id]
        return {"run": run_id, "status": "completed", "output": output}

    async def _report(self, run_id: RunId, report: Report) -> None:
        """Report each record after the start record. A slow client delays only its own reports."""
        feed, count = ledger_feed(self.runtime, run_id, follow=True), 0
        with suppress(RunSweptError):
            async with aclosing(feed) as records:
                async for _, record in records:
                    if "start" not in (record.get("delta") or {}):
                        count += 1
                        await report(count, f"{record['node_id']}: {record['status']}")


def agents_of(spec: str, target: object) -> dict[str, list[AgentId]]:
    """Return the agents that ``MODULE:ATTR`` names, by type. An empty list means that any key is an agent.

    Raises:
        ServeError: The object names no such agents, or agents of sessions or flows.
    """
    if isinstance(target, dict):
        return {str(name): [] for name in target}
    if are_flows(target) or (callable(target) and not isinstance(target, type)):
        remedy = "Name an agent, a list of agents, or a mapping {type: factory}"
        raise ServeError(spec, "it does not name agents", remedy)
    instance = instance_of(spec, target) if isinstance(target, type) else target
    agents: dict[str, list[AgentId]] = {}
    for agent in instance if isinstance(instance, list | tuple) else [instance]:
        if isinstance(agent, ModalAgent):
            remedy = "Serve sessions by callboard serve"
            raise ServeError(spec, f"{agent.id} is the agent of sessions", remedy)
        id_ = agent_of(spec, agent).id
        agents.setdefault(id_.type, []).append(id_)
    return agents
