"""Values of the kernel as the columns that SQL functions take, and rows as values of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, LiteralString

from pydantic_core import PydanticSerializationError, from_json, to_json

from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.message import Message, stored_message
from actors._kernel.json import Unreadable, decoded_object, read_or
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import Arrived, DeadLetter, ForkPoint, LoadedRun, NewRun, RunRow
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus, ShardLease
from actors._kernel.runtime.waits import WakeSet
from actors.errors import NotSerializableError
from persistence._postgres.connection.link import Row


def json_text(value: object, where: str) -> str:
    """Return JSON data as text; floats keep their notation, so `from_json` gives the same value.

    Raises:
        NotSerializableError: `value` is not JSON data, or its text cannot be stored.
    """
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as exc:
        raise NotSerializableError(where, type(value).__name__, str(exc)) from exc


def message_text(message: Message, sender: str | None) -> str:
    """Return the stored form of a message from `sender`."""
    data = message.to_json()
    data["sender"] = sender
    return json_text(data, "message")


def message_from_text(text: str) -> Message:
    """Return a message from its stored form. Raises what `Message.from_json` does."""
    return Message.from_json(from_json(text))


def run_columns(run: NewRun) -> tuple[object, ...]:
    """Return run, agent, hash, priority, retry policy, parent, root, depth, deadline, version, trace, terms."""
    policy = run.retry_policy
    retry = None if policy is None else policy.model_dump_json()
    return (
        run.run_id,
        str(run.agent_id),
        partition_hash(run.agent_id),
        run.priority,
        retry,
        run.parent,
        run.root or run.run_id,
        run.depth,
        run.deadline_at,
        run.version,
        run.trace,
        None if run.supervision is None else run.supervision.model_dump_json(),
    )


def columns(rows: Iterable[tuple[object, ...]], width: int) -> Sequence[Sequence[object]]:
    """Turn rows into `width` columns, also when there is no row."""
    return list(zip(*rows, strict=True)) or [()] * width


def lease_columns(leases: Sequence[ShardLease]) -> Sequence[Sequence[object]]:
    """Return shards, owners and epochs."""
    return columns(((lease.shard, lease.owner, lease.epoch) for lease in leases), 3)


RUN_COLUMNS: Final[LiteralString] = """
r.run_id, r.agent, r.status, r.priority, r.attempt, r.retry_policy, r.parent, r.root, r.depth,
r.wake, r.wake_at, r.parked, r.cancel_requested, r.result, r.error, r.deadline_at, r.version, r.trace,
r.created_at, r.updated_at, r.arrival, r.supervision, r.swept, r.fork_of, r.fork_seq,
coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1) as last_seq
"""
_STATUS: Final = {status.value: status for status in RunStatus}
_NOBODY: Final = AgentId("unreadable", "unreadable")
"""Stands in place of a name that cannot be read; no host serves it."""


class _Columns:
    """Columns of a row, decoded one by one; `problems` names those that cannot be."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self.problems: list[str] = []

    def get(self, name: str, read: Callable[[Any], Any], instead: Any = None) -> Any:
        """Return a column as `read` decodes it, None if it is null, or `instead`; `Unreadable`: the problem."""
        value = self._row[name]
        return None if value is None else read_or(value, read, partial(self._note, name, instead))

    def _note(self, name: str, instead: Any, problem: Unreadable) -> Any:
        self.problems.append(f"{name} {problem}")
        return problem if instead is Unreadable else instead


def run_of(row: Row) -> RunRow:
    """Return a row of RUN_COLUMNS, perhaps with its `parent_agent`. What cannot be decoded is named in it."""
    columns, parent_agent = _Columns(row), row.get("parent_agent")
    run = RunRow(
        run_id=row["run_id"],
        agent_id=columns.get("agent", AgentId.parse, _NOBODY),
        status=columns.get("status", _STATUS.__getitem__, RunStatus.SUSPENDED),
        priority=row["priority"],
        attempt=row["attempt"],
        retry_policy=columns.get("retry_policy", RetryPolicy.model_validate_json),
        parent=row["parent"],
        root=row["root"],
        depth=row["depth"],
        wake=columns.get("wake", lambda text: WakeSet.from_json(from_json(text))),
        wake_at=row["wake_at"],
        parked=row["parked"],
        last_seq=row["last_seq"],
        cancel_requested=row["cancel_requested"],
        result=columns.get("result", from_json, Unreadable),
        error=columns.get("error", from_json),
        deadline_at=row["deadline_at"],
        version=row["version"],
        trace=row["trace"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        arrival=row["arrival"],
        supervision=columns.get("supervision", Supervision.model_validate_json),
        swept=row["swept"],
        fork=None if row["fork_of"] is None else ForkPoint(row["fork_of"], row["fork_seq"]),
        parent_agent=None if parent_agent is None else AgentId.parse(parent_agent),
    )
    if not columns.problems:
        return run
    problem = Unreadable("; ".join(columns.problems))
    error = run.error or {"type": "unreadable", "message": problem}
    return replace(run, error=error, unreadable=problem)


def entry_of(run_id: RunId, row: Row) -> RunLogEntry:
    """Return a row of seq, kind, position, payload, ts. A payload that cannot be read says so."""
    payload = decoded_object(row["payload"])
    return RunLogEntry(run_id, row["seq"], row["kind"], row["position"], payload, row["ts"])


def loaded_run_of(row: Row) -> LoadedRun:
    """Return a row of RUN_COLUMNS with the arrays of its log and of its bound messages.

    If a part cannot be decoded, the run has neither, and says why.
    """
    run = run_of(row)
    if run.unreadable is not None:
        return LoadedRun(run, (), unreadable=run.unreadable)
    return read_or(
        row,
        lambda row: LoadedRun(run, _log_of(run, row), _bound_messages(run, row)),
        lambda problem: LoadedRun(run, (), unreadable=f"log or messages: {problem}"),
    )


def _log_of(run: RunRow, row: Row) -> tuple[RunLogEntry, ...]:
    if row["seqs"] is None:
        return ()
    payloads = from_json(row["payloads"])
    lines = zip(row["seqs"], row["kinds"], row["positions"], payloads, row["stamps"], strict=True)
    return tuple(RunLogEntry(run.run_id, *line) for line in lines)


def _bound_messages(run: RunRow, row: Row) -> tuple[Arrived, ...]:
    if row["arrivals"] is None:
        return ()
    bound = zip(row["arrivals"], row["senders"], from_json(row["bodies"]), strict=True)
    return tuple(
        Arrived(Message.from_json(body), sender, run.agent_id, arrival, run.run_id)
        for arrival, sender, body in bound
    )


def arrived_of(row: Row) -> Arrived:
    """Return a row of agent, sender, message_id, arrival, body, alone.

    A message that cannot be read starts a run by itself, so that no other message is lost with it.
    """
    agent_id, sender = AgentId.parse(row["agent"]), row["sender"]
    message = stored_message(row["body"], id_=row["message_id"], target=agent_id, sender=sender)
    is_alone = row["alone"] or isinstance(message.payload, Unreadable)
    return Arrived(message, sender, agent_id, row["arrival"], alone=is_alone)


def dead_letter_of(row: Row) -> DeadLetter:
    """Return a row of `dead_letters`."""
    agent_id = AgentId.parse(row["agent"])
    return DeadLetter(
        id=row["id"],
        agent_id=agent_id,
        message=stored_message(
            row["body"], id_=row["message_id"], target=agent_id, sender=row["sender"]
        ),
        reason=row["reason"],
        attempts=row["attempts"],
        last_error=row["last_error"],
        run_id=None if row["run_id"] is None else RunId(row["run_id"]),
        at=row["at"],
        times=row["times"],
    )
