"""The requests of external clients to this runtime, and the document that describes the agents it serves.

`RuntimeFront` does what `actors._kernel.stores.outside` names. `describe` is pure: a registry in, JSON data
out. Types become JSON Schemas by pydantic; what an agent does not declare is left open rather than guessed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import typing
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from types import FunctionType
from typing import Any, Final, Literal, Protocol, cast

from pydantic import TypeAdapter

from actors._kernel.agent.message import Message, payload_of, sender_of
from actors._kernel.agent.tools import Tool
from actors._kernel.json import JsonValue, recordable
from actors._kernel.runtime.communication import FollowMode, RunStatusSummary
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, RunId, TopicId
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunResult
from actors._kernel.stores.insight import InsightStore
from actors._kernel.stores.outside import Caller, EventKind, Order, RunEvent
from actors._kernel.stores.run_store import RunStore
from actors._kernel.text import check_message
from actors._kernel.tracing import caused_by
from actors._runtime.client.client import Client
from actors._runtime.client.live_events import LiveEvents
from actors._runtime.client.writer import Writer
from actors._runtime.registry import Registry, version_of
from actors._runtime.replay.verdict import error_of_row, result_of_row, row_of, summary_of
from actors._runtime.verbs.buffers import refuse_reserved
from actors.errors import (
    ContractError,
    OtherTenantError,
    RunSweptError,
    UnknownRunError,
    UnservedError,
)

SERVED_S: Final = 2.0
"""Seconds for which a type counts as served elsewhere without asking the store again."""
_RUN_ID: Final = re.compile(r"[!-~]{1,128}")


class GatewayListener(Protocol):
    """Serves requests over a line of its own while the runtime runs. See `HostParts.attach`."""

    async def run(self) -> None:
        """Serve until cancelled; whatever happens to the line, it is opened again."""

    async def leave(self) -> None:
        """Take nothing new from now on, so that other hosts get it; go on with what is held."""

    async def shut(self) -> None:
        """Tell the callers that still wait to ask another host, and close the connection; within seconds."""


class RuntimeFront:
    """The `Front` of this process: the calls of external clients.

    Args:
        store: The rows.
        client: The client of this process, which executes the calls that both may make.
        writer: The writer, which writes in the name of the external client.
        registry: The agents that are served here.
        live: The live events of runs.
    """

    def __init__(
        self,
        store: RunStore,
        client: Client,
        writer: Writer,
        *,
        registry: Registry,
        live: LiveEvents,
    ) -> None:
        self._store, self._client, self._writer = store, client, writer
        self._registry, self._live = registry, live
        self._served_agents = Served(store.insight)

    async def submit(self, caller: Caller, order: Order) -> RunId:
        """Queue a run of an agent for an external client's order, and return its id.

        Raises:
            UnservedError: No live host serves the agent, and the order is not known already.
            MessageTooLargeError: The payload has more than 256 KiB as JSON.
        """
        agent_id = order.agent_id
        if agent_id.tenant != caller.tenant:
            raise _foreign(caller, agent_id)
        sender = sender_of(caller.kind, caller.publisher)
        await self._refuse_unserved(agent_id, sender, order.message_id)
        message = Message(
            id=order.message_id,
            target=agent_id,
            payload=payload_of(order.payload, what=f"message to {agent_id}"),
            sender=sender,
            metadata=dict(order.metadata),
        )
        check_message(message)
        trace = caused_by(order.metadata)
        run = self._writer.new_run(
            message, agent_id, priority=order.priority, trace=trace, session=order.session
        )
        is_apart = caller.sees == "own"
        return await self._writer.submit(run, message, order.on_conflict, is_apart=is_apart)

    async def _refuse_unserved(self, agent_id: AgentId, sender: str, message_id: str) -> None:
        if self._registry.is_served(agent_id):
            return
        if await self._served_agents.includes(agent_id):
            return
        # Its host may have died since: a repeated request waits for the existing run.
        if await self._store.lists.run_of_message(agent_id, sender, message_id) is None:
            raise UnservedError(str(agent_id))

    async def result(self, caller: Caller, run_id: RunId) -> RunResult:
        """Return how a run of the caller ended, once it has."""
        row = await self._own(caller, run_id)
        if not row.status.is_terminal:
            row = await self._client.wait(run_id)
        if row.swept:
            raise RunSweptError(run_id, row.status)
        return result_of_row(row)

    async def status(self, caller: Caller, run_id: RunId) -> RunStatusSummary:
        """Return how far a run of the caller is."""
        return await summary_of(self._store, await self._own(caller, run_id))

    async def cancel(self, caller: Caller, run_id: RunId, *, reason: str) -> bool:
        """Ask a run of the caller, and its subtree, to stop; return False if it had ended."""
        row = await self._own(caller, run_id)
        if row.status.is_terminal:
            return False
        report = await self._client.cancel(run_id, reason=reason)
        return any(cancelled_id == run_id for cancelled_id, _ in report.runs)

    async def signal(
        self, caller: Caller, run_id: RunId, name: str, payload: JsonValue, *, message_id: str
    ) -> bool:
        """Buffer a signal for a run of the caller; return False for a known id or an ended run."""
        refuse_reserved(name)
        await self._own(caller, run_id)
        sender = sender_of(caller.kind, caller.publisher)
        return await self._writer.signal(
            run_id, name, payload, message_id=message_id, sender=sender
        )

    async def _own(self, caller: Caller, run_id: RunId) -> RunRow:
        """Return the run's row, if the caller sees it.

        Raises:
            UnknownRunError: It does not, or there is no such run.
            RunSweptError: Nothing is left that names its owner.
        """
        if _RUN_ID.fullmatch(run_id) is None:
            raise UnknownRunError(run_id)
        row = await row_of(self._store, run_id)
        # The same error as for no run: other tenants must not learn which ids exist.
        if row.agent_id.tenant != caller.tenant:
            raise UnknownRunError(run_id)
        if caller.sees == "own":
            starter = await self._store.reads.started_by(run_id)
            if starter is None and row.swept:
                raise RunSweptError(run_id, "long ago")
            if starter != sender_of(caller.kind, caller.publisher):
                raise UnknownRunError(run_id)
        return row

    async def follow(
        self, caller: Caller, follower: AgentId, topic: TopicId, *, mode: FollowMode
    ) -> None:
        """Let an agent of the caller's tenant follow a topic of it."""
        _check_tenants(caller, follower, topic)
        await self._client.follow(follower, topic.type, topic.source, mode=mode)

    async def unfollow(self, caller: Caller, follower: AgentId, topic: TopicId) -> bool:
        """End a subscription; return False if the agent did not follow the topic."""
        _check_tenants(caller, follower, topic)
        return await self._client.unfollow(follower, topic.type, topic.source)

    async def events(
        self, caller: Caller, run_id: RunId, *, from_seq: int = 0
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield the entries of a run of the caller, and live pieces between them, until its end.

        Raises:
            ContractError: The log does not reach `from_seq`.
        """
        row = await self._own(caller, run_id)
        if not 0 <= from_seq <= row.last_seq + 1:
            msg = f"the log of run {run_id} ends at {row.last_seq}: from_seq is 0 to {row.last_seq + 1}"
            raise ContractError(msg)
        attempt = Attempts(await self._attempt_before(run_id, from_seq))
        if from_seq <= row.last_seq or not row.status.is_terminal:
            log = self._store.reads.tail(run_id, from_seq=from_seq)
            last_seq = from_seq - 1
            async with aclosing(self._live.merge(run_id, log)) as entries:
                async for entry in entries:
                    if entry.seq >= 0:
                        last_seq = entry.seq
                        yield attempt.entry(entry)
                    elif (delta := attempt.delta(entry, last_seq)) is not None:
                        yield delta
        yield _end_mark(await row_of(self._store, run_id), attempt.number)

    async def _attempt_before(self, run_id: RunId, seq: int) -> int:
        number = 1
        if seq > 0:
            async for entry in self._store.reads.entries(run_id):
                if entry.seq >= seq:
                    break
                number = next_attempt(number, entry)
        return number

    async def describe(self, caller: Caller) -> JsonValue:
        """Return the document that describes the agents that the caller may use."""
        return describe(self._registry, tenant=caller.tenant)


class Served:
    """The agents that live hosts serve. A yes holds for a moment, a no is read from the store each time."""

    def __init__(self, insight: InsightStore) -> None:
        self._insight = insight
        self._names: frozenset[str] = frozenset()
        self._until = 0.0

    async def includes(self, agent_id: AgentId) -> bool:
        """Return True if a live host serves the agent, by its type or alone."""
        names, now = {agent_id.type, str(agent_id)}, asyncio.get_running_loop().time()
        # A no is never cached: a host that has just begun to serve the agent would stay unknown.
        if now >= self._until or names.isdisjoint(self._names):
            hosts = await self._insight.hosts()
            self._names = frozenset(name for host in hosts for name in host.serves)
            self._until = now + SERVED_S
        return not names.isdisjoint(self._names)


class Attempts:
    """The attempt of a run, as the reader of its events has come to it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def entry(self, entry: RunLogEntry) -> RunEvent:
        """Return an entry of the log as an event; it may begin an attempt."""
        next_number = next_attempt(self.number, entry)
        if entry.kind != EntryKind.RUN_ATTEMPT_FAILED:  # which is the last of its attempt
            self.number = next_number
        event = _event(entry, kind="entry", seq=entry.seq, attempt=self.number, data=entry.payload)
        self.number = next_number
        return event

    def delta(self, entry: RunLogEntry, last_seq: int) -> RunEvent | None:
        """Return a piece of what the run says as an event, or None if its attempt is over."""
        attempt = int(str(entry.payload["attempt"]))
        if attempt < self.number:
            return None
        data: JsonValue = {key: value for key, value in entry.payload.items() if key != "attempt"}
        return _event(entry, kind="delta", seq=last_seq, attempt=attempt, data=data)


def _event(
    entry: RunLogEntry, *, kind: EventKind, seq: int, attempt: int, data: JsonValue
) -> RunEvent:
    return RunEvent(
        kind=kind,
        run_id=entry.run_id,
        seq=seq,
        attempt=attempt,
        name=entry.kind,
        position=entry.position,
        data=data,
        at=entry.ts.isoformat(),
    )


def next_attempt(number: int, entry: RunLogEntry) -> int:
    """Return the attempt that executes after this entry. See `History.execution_number`."""
    match entry.kind:
        case EntryKind.RUN_ATTEMPT_FAILED:
            return number + 1
        case EntryKind.RUN_RESUMED if entry.payload.get("reason") == "recovered":
            return number + 1
        case EntryKind.RUN_CONTINUED:
            return 1
        case _:
            return number


def _end_mark(row: RunRow, attempt: int) -> RunEvent:
    output = row.result if row.status is RunStatus.COMPLETED else None
    return RunEvent(
        kind="end",
        run_id=row.run_id,
        seq=row.last_seq,
        attempt=attempt,
        name=str(row.status),
        position="",
        data={"result": output, "error": error_of_row(row)},
        at="" if row.updated_at is None else row.updated_at.isoformat(),
    )


def _check_tenants(caller: Caller, follower: AgentId, topic: TopicId) -> None:
    for address in (follower, topic):
        if address.tenant != caller.tenant:
            raise _foreign(caller, address)


def _foreign(caller: Caller, address: AgentId | TopicId) -> OtherTenantError:
    return OtherTenantError(str(address), caller.tenant)


_log = logging.getLogger("callboard.client")

VERSION: Final = 1
ANY_OBJECT: Final[dict[str, JsonValue]] = {"type": "object"}
"""Schema that every body from outside has to fit."""
EXAMPLE_KEY: Final = "KEY"
"""Key of the agent that a factory makes to be described; it is never run."""
_NOT_DECLARED: Final = object()


def describe(registry: Registry, *, tenant: str | None = None) -> JsonValue:
    """Return ``{"callboard": 1, "agents": [...]}`` with one object for each type or single agent.

    ``type``, ``key`` and ``tenant`` (None for any), ``description`` (the docstring), ``version``,
    ``input`` and ``output`` (JSON Schemas), ``follows`` and ``tools``. An agent declares its payload
    and result with attributes `input` and `output`, types that pydantic knows; without `output` the
    return annotation of its code counts. `follows` is a list of topics, shown here and used nowhere.

    With `tenant`, single agents of others are left out. A factory is called with the key ``KEY``.
    What cannot be described is left open.
    """
    serves = registry.serves()
    agents: list[JsonValue] = []
    for type_ in serves.types:
        identity: dict[str, JsonValue] = {"type": type_, "key": None, "tenant": None}
        agents.append(identity | _facts(registry, AgentId(type_, EXAMPLE_KEY, DEFAULT_TENANT)))
    for agent_id in serves.agents:
        if tenant not in {None, agent_id.tenant}:
            continue
        identity = {"type": agent_id.type, "key": agent_id.key, "tenant": agent_id.tenant}
        agents.append(identity | _facts(registry, agent_id))
    return {"callboard": VERSION, "agents": agents}


def _facts(registry: Registry, agent_id: AgentId) -> dict[str, JsonValue]:
    try:
        facts = recordable(_of_agent(registry.find(agent_id)), where=f"agent {agent_id}")
    except Exception as exc:  # noqa: BLE001 - an author's code; the others are described all the same
        _log.warning(
            "an agent cannot be described", extra={"agent": str(agent_id), "problem": repr(exc)}
        )
        return _of_agent(object())
    assert isinstance(facts, dict)
    return facts


def _of_agent(agent: Any) -> dict[str, JsonValue]:
    output = getattr(agent, "output", _NOT_DECLARED)
    if output is _NOT_DECLARED:
        output = _returned_by(agent)
    input_type = getattr(agent, "input", _NOT_DECLARED)
    return {
        "description": _words_of(agent),
        "version": version_of(agent),
        "input": dict(ANY_OBJECT)
        if input_type is _NOT_DECLARED
        else _schema(input_type, "validation"),
        "output": {} if output is _NOT_DECLARED else _schema(output, "serialization"),
        "follows": [str(topic) for topic in getattr(agent, "follows", None) or ()],
        "tools": _tools(getattr(agent, "tools", None) or ()),
    }


def _words_of(agent: object) -> str:
    """Return the agent's docstring; not the one of `object`, or of whatever it is made of."""
    text = vars(agent).get("__doc__") if hasattr(agent, "__dict__") else None
    text = text or (type(agent).__doc__ if type(agent) is not object else None)
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _returned_by(agent: object) -> Any:
    """Return the type that the agent's code says it returns, if it says one."""
    code = getattr(agent, "__wrapped__", None) or getattr(type(agent), "run", None)
    if not isinstance(code, FunctionType) or "return" not in code.__annotations__:
        return _NOT_DECLARED
    # Its other annotations often name what is imported for type checkers only.
    bare_function = FunctionType(code.__code__, code.__globals__)
    bare_function.__annotations__ = {"return": code.__annotations__["return"]}
    try:
        return_type = typing.get_type_hints(bare_function)["return"]
    # The annotation names something that the module does not have at run time: the type stays open.
    except (NameError, TypeError, AttributeError):
        return _NOT_DECLARED
    return _NOT_DECLARED if return_type is Any else return_type


def _schema(kind: Any, mode: Literal["validation", "serialization"]) -> dict[str, JsonValue]:
    """Return the JSON Schema of a type; of one that pydantic does not know the empty one."""
    if isinstance(kind, dict):
        return cast("dict[str, JsonValue]", kind)
    try:
        return TypeAdapter(kind).json_schema(mode=mode)
    except Exception as exc:  # noqa: BLE001 - types may bring code of their own
        _log.warning("a type has no JSON Schema", extra={"type": str(kind), "problem": str(exc)})
        return {}


def _tools(tools: Iterable[Tool]) -> list[JsonValue]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "risk": tool.risk.value,
            "idempotent": tool.idempotent,
        }
        for tool in tools
    ]
