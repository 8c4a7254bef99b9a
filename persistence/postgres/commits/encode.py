"""Values as the columns that SQL functions take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_core import PydanticSerializationError, to_json

from actors.errors import NotSerializableError
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import partition_hash
from actors.kernel.runtime.rows import NewRun
from actors.kernel.runtime.scheduler import ShardLease


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
