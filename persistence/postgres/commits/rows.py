"""Rows as the kernel's values."""

from __future__ import annotations

from typing import Final, LiteralString

from pydantic_core import from_json

from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import Supervision
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.runtime.rows import Arrived, DeadLetter, ForkPoint, LoadedRun, RunRow
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.kernel.runtime.wakeup import WakeSet
from persistence.postgres.connection.link import Row

RUN_COLUMNS: Final[LiteralString] = """
r.run_id, r.agent, r.status, r.priority, r.attempt, r.retry_policy, r.parent, r.root, r.depth,
r.wake, r.wake_at, r.parked, r.cancel_requested, r.result, r.error, r.deadline_at, r.version, r.trace,
r.created_at, r.updated_at, r.arrival, r.supervision, r.swept, r.fork_of, r.fork_seq,
coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1) as last_seq
"""
_STATUS: Final = {status.value: status for status in RunStatus}


def run_of(row: Row) -> RunRow:
    """Return a row of RUN_COLUMNS, perhaps with its `parent_agent`."""
    parent_agent = row.get("parent_agent")
    policy, wake, result, error = row["retry_policy"], row["wake"], row["result"], row["error"]
    terms = row["supervision"]
    return RunRow(
        run_id=row["run_id"],
        agent_id=AgentId.parse(row["agent"]),
        status=_STATUS[row["status"]],
        priority=row["priority"],
        attempt=row["attempt"],
        retry_policy=None if policy is None else RetryPolicy.model_validate_json(policy),
        parent=row["parent"],
        root=row["root"],
        depth=row["depth"],
        wake=None if wake is None else WakeSet.from_json(from_json(wake)),
        wake_at=row["wake_at"],
        parked=row["parked"],
        last_seq=row["last_seq"],
        cancel_requested=row["cancel_requested"],
        result=None if result is None else from_json(result),
        error=None if error is None else from_json(error),
        deadline_at=row["deadline_at"],
        version=row["version"],
        trace=row["trace"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        arrival=row["arrival"],
        supervision=None if terms is None else Supervision.model_validate_json(terms),
        swept=row["swept"],
        fork=None if row["fork_of"] is None else ForkPoint(row["fork_of"], row["fork_seq"]),
        parent_agent=None if parent_agent is None else AgentId.parse(parent_agent),
    )


def entry_of(run_id: RunId, row: Row) -> RunLogEntry:
    """Return a row of seq, kind, position, payload, ts."""
    return RunLogEntry(
        run_id, row["seq"], row["kind"], row["position"], from_json(row["payload"]), row["ts"]
    )


def loaded_of(row: Row) -> LoadedRun:
    """Return a row of RUN_COLUMNS with the arrays of its log and of its bound messages."""
    run = run_of(row)
    entries: tuple[RunLogEntry, ...] = ()
    if row["seqs"] is not None:
        payloads = from_json(row["payloads"])
        lines = zip(
            row["seqs"], row["kinds"], row["positions"], payloads, row["stamps"], strict=True
        )
        entries = tuple(RunLogEntry(run.run_id, *line) for line in lines)
    messages: tuple[Arrived, ...] = ()
    if row["arrivals"] is not None:
        bound = zip(row["arrivals"], row["senders"], from_json(row["bodies"]), strict=True)
        messages = tuple(
            Arrived(Message.from_json(body), sender, run.agent_id, arrival, run.run_id)
            for arrival, sender, body in bound
        )
    return LoadedRun(run, entries, messages)


def arrived_of(row: Row) -> Arrived:
    """Return a row of agent, sender, arrival, body, alone."""
    message = Message.from_json(from_json(row["body"]))
    agent_id = AgentId.parse(row["agent"])
    return Arrived(message, row["sender"], agent_id, row["arrival"], alone=row["alone"])


def dead_letter_of(row: Row) -> DeadLetter:
    """Return a row of `dead_letters`."""
    return DeadLetter(
        id=row["id"],
        agent_id=AgentId.parse(row["agent"]),
        message=Message.from_json(from_json(row["body"])),
        reason=row["reason"],
        attempts=row["attempts"],
        last_error=row["last_error"],
        run_id=None if row["run_id"] is None else RunId(row["run_id"]),
        at=row["at"],
        times=row["times"],
    )
