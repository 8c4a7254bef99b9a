"""What programs that are no hosts may ask of this runtime; see `actors.kernel.runtime.front`."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from actors.errors import ContractError, OtherTenantError, UnknownRunError, UnservedError
from actors.kernel.agent.message import Message, sender_of
from actors.kernel.runtime.commit import NewRun
from actors.kernel.runtime.front import RunEvent
from actors.kernel.runtime.ids import RunId, run_id_of_submit
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.tracing import caused_by
from actors.runtime.describe import describe
from actors.runtime.signals import refuse_reserved
from actors.runtime.summary import error_of_row, result_of_row, row_of, summary_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.communication import RunStatusSummary
    from actors.kernel.runtime.follow_graph import FollowMode
    from actors.kernel.runtime.front import Caller, Order
    from actors.kernel.runtime.ids import AgentId, TopicId
    from actors.kernel.runtime.insight import InsightStore
    from actors.kernel.runtime.log_entry import RunLogEntry
    from actors.kernel.runtime.store import RunStore
    from actors.kernel.runtime.supervisor import RunResult
    from actors.runtime.desk import Desk
    from actors.runtime.following import Topics
    from actors.runtime.live import LiveEvents
    from actors.runtime.registry import Registry

SERVED_S: Final = 2.0
"""Seconds for which a type counts as served elsewhere without asking the store again."""
_RUN_ID: Final = re.compile(r"[!-~]{1,128}")


class RuntimeFront:
    """See `Front`.

    Args:
        store: The rows.
        desk: Does for a client of this process what is asked from outside.
        registry: What is served here.
        topics: Follows.
        live: Pieces of models' answers.
    """

    def __init__(
        self,
        store: RunStore,
        desk: Desk,
        *,
        registry: Registry,
        topics: Topics,
        live: LiveEvents,
    ) -> None:
        self._store, self._desk, self._live = store, desk, live
        self._registry, self._topics = registry, topics
        self._served = Served(store.insight)

    # --- beginning and ending -------------------------------------------------------------------

    async def submit(self, caller: Caller, order: Order) -> RunId:
        """See `Front.submit`.

        Raises:
            UnservedError: No live host serves the agent, and the order is not known already.
        """
        agent_id = order.agent_id
        if agent_id.tenant != caller.tenant:
            raise _foreign(caller, agent_id)
        sender = sender_of("ext", caller.publisher)
        await self._refuse_unserved(agent_id, sender, order.message_id)
        message = Message(
            id=order.message_id, target=agent_id, payload=order.payload, sender=sender,
            metadata=dict(order.metadata),
        )  # fmt: skip
        run = NewRun(
            run_id_of_submit(agent_id, sender, order.message_id), agent_id,
            priority=order.priority, trace=caused_by(order.metadata),
        )  # fmt: skip
        return await self._desk.submit_sent(run, message, order.on_conflict)

    async def _refuse_unserved(self, agent_id: AgentId, sender: str, message_id: str) -> None:
        if self._registry.is_served(agent_id):
            return
        if await self._served.includes(agent_id):
            return
        # Its host may have died since: who asks again waits for the run that there is.
        if await self._store.run_of_message(agent_id, sender, message_id) is None:
            raise UnservedError(str(agent_id))

    async def result(self, caller: Caller, run_id: RunId) -> RunResult:
        """See `Front.result`."""
        row = await self._own(caller, run_id)
        return result_of_row(row if row.status.is_terminal else await self._desk.wait(run_id))

    # --- one run --------------------------------------------------------------------------------

    async def status(self, caller: Caller, run_id: RunId) -> RunStatusSummary:
        """See `Front.status`."""
        return await summary_of(self._store, await self._own(caller, run_id))

    async def cancel(self, caller: Caller, run_id: RunId, *, reason: str) -> bool:
        """See `Front.cancel`."""
        row = await self._own(caller, run_id)
        if row.status.is_terminal:
            return False
        report = await self._desk.cancel(run_id, reason)
        return any(cancelled == run_id for cancelled, _ in report.runs)

    async def signal(
        self, caller: Caller, run_id: RunId, name: str, payload: JsonValue, *, message_id: str
    ) -> bool:
        """See `Front.signal`."""
        refuse_reserved(name)
        await self._own(caller, run_id)
        sender = sender_of("ext", caller.publisher)
        return await self._desk.signal(run_id, name, payload, message_id, sender=sender)

    async def _own(self, caller: Caller, run_id: RunId) -> RunRow:
        """Return the run's row, if it is one of the caller's tenant."""
        if _RUN_ID.fullmatch(run_id) is None:
            raise UnknownRunError(run_id)
        row = await row_of(self._store, run_id)
        if row.agent_id.tenant != caller.tenant:
            raise UnknownRunError(run_id)
        return row

    # --- topics ---------------------------------------------------------------------------------

    async def follow(
        self, caller: Caller, follower: AgentId, topic: TopicId, *, mode: FollowMode
    ) -> None:
        """See `Front.follow`."""
        _check_tenants(caller, follower, topic)
        await self._topics.follow(follower, topic, mode)

    async def unfollow(self, caller: Caller, follower: AgentId, topic: TopicId) -> bool:
        """See `Front.unfollow`."""
        _check_tenants(caller, follower, topic)
        return await self._topics.unfollow(follower, topic)

    # --- looking on -----------------------------------------------------------------------------

    async def events(
        self, caller: Caller, run_id: RunId, *, from_seq: int = 0
    ) -> AsyncGenerator[RunEvent, None]:
        """See `Front.events`.

        Raises:
            ContractError: The log does not reach `from_seq`.
        """
        row = await self._own(caller, run_id)
        if not 0 <= from_seq <= row.last_seq + 1:
            msg = f"the log of run {run_id} ends at {row.last_seq}: from_seq is 0 to {row.last_seq + 1}"
            raise ContractError(msg)
        attempt = Attempts(await self._attempt_before(run_id, from_seq))
        if from_seq <= row.last_seq or not row.status.is_terminal:
            log = self._store.tail(run_id, from_seq=from_seq)
            last_seq = from_seq - 1
            async with aclosing(self._live.merge(run_id, log)) as entries:
                async for entry in entries:
                    if entry.seq < 0:
                        if (delta := attempt.delta(entry, last_seq)) is not None:
                            yield delta
                    else:
                        last_seq = entry.seq
                        yield attempt.entry(entry)
        yield _end_mark(await row_of(self._store, run_id), attempt.number)

    async def _attempt_before(self, run_id: RunId, seq: int) -> int:
        number = 1
        if seq > 0:
            before: AsyncIterator[RunLogEntry] = self._store.entries(run_id)
            async for entry in before:
                if entry.seq >= seq:
                    break
                number = next_attempt(number, entry)
        return number

    async def describe(self, caller: Caller) -> JsonValue:
        """See `Front.describe`."""
        return describe(self._registry, tenant=caller.tenant)


class Served:
    """What live hosts serve. A yes holds for a moment, a no is read from the store each time."""

    def __init__(self, insight: InsightStore) -> None:
        self._insight = insight
        self._names: frozenset[str] = frozenset()
        self._until = 0.0

    async def includes(self, agent_id: AgentId) -> bool:
        """Whether a host that lives serves the agent, by its type or alone."""
        wanted, now = {agent_id.type, str(agent_id)}, asyncio.get_running_loop().time()
        if now >= self._until or wanted.isdisjoint(self._names):
            hosts = await self._insight.hosts()
            self._names = frozenset(name for host in hosts for name in host.serves)
            self._until = now + SERVED_S
        return not wanted.isdisjoint(self._names)


class Attempts:
    """Says of each event of a run to which attempt it belongs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def entry(self, entry: RunLogEntry) -> RunEvent:
        """Return an entry of the log as an event; it may begin an attempt."""
        after = next_attempt(self.number, entry)
        if entry.kind != EntryKind.RUN_ATTEMPT_FAILED:  # which is the last of its attempt
            self.number = after
        event = RunEvent(
            kind="entry", run_id=entry.run_id, seq=entry.seq, attempt=self.number, name=entry.kind,
            position=entry.position, data=entry.payload, at=entry.ts.isoformat(),
        )  # fmt: skip
        self.number = after
        return event

    def delta(self, entry: RunLogEntry, last_seq: int) -> RunEvent | None:
        """Return a piece of what the run says as an event; None for one of an attempt that is over."""
        attempt = int(str(entry.payload["attempt"]))
        if attempt < self.number:
            return None
        data: JsonValue = {key: value for key, value in entry.payload.items() if key != "attempt"}
        return RunEvent(
            kind="delta", run_id=entry.run_id, seq=last_seq, attempt=attempt, name=entry.kind,
            position=entry.position, data=data, at=entry.ts.isoformat(),
        )  # fmt: skip


def next_attempt(number: int, entry: RunLogEntry) -> int:
    """Return the attempt that executes behind this entry. See `History.life`."""
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
        kind="end", run_id=row.run_id, seq=row.last_seq, attempt=attempt, name=str(row.status),
        position="", data={"result": output, "error": error_of_row(row)},
        at="" if row.updated_at is None else row.updated_at.isoformat(),
    )  # fmt: skip


def _check_tenants(caller: Caller, follower: AgentId, topic: TopicId) -> None:
    for named in (follower, topic):
        if named.tenant != caller.tenant:
            raise _foreign(caller, named)


def _foreign(caller: Caller, named: AgentId | TopicId) -> OtherTenantError:
    return OtherTenantError(str(named), caller.tenant)
