"""Operators' changes of runs and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, LiteralString

from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.message import Message
from actors._kernel.json import read_or
from actors._kernel.runtime.ids import HostIncarnation, RunId, derive_id, run_id_of_fork
from actors._kernel.runtime.rows import Arrived, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import fold
from actors._kernel.stores.runs import OperatorStore, Submitted
from actors.errors import (
    AlreadyRedrivenError,
    ContractError,
    IllegalTransitionError,
    UnknownRunError,
)
from persistence._postgres.commits.encode import columns, message_from_text, message_text
from persistence._postgres.connection.link import Link, Links, Row
from persistence._postgres.mail.arrivals import arrived_now, mail_row
from persistence._postgres.reads.reads import Reads

SQL_SELECT_LETTERS: Final[LiteralString] = """
select d.id, d.sender, d.body, d.reason, d.last_error from dead_letters d
  where d.redriven_at is null and d.id = any($1::bigint[]) order by d.id
"""
SQL_REDRIVE_LETTERS: Final[LiteralString] = (
    "select i, arrival from redrive_dead_letters($1,$2,$3,$4,$5,$6,$7)"
)
SQL_DISCARD_LETTERS: Final[LiteralString] = """
with gone as (
  delete from dead_letters d where d.id = any($1::bigint[]) and d.redriven_at is null returning 1)
select count(*) as n from gone
"""
SIGNAL_KIND: Final = "callboard.signal"
"""Payload kind of a signal kept as a dead letter, as the SQL function `ingest_mail` writes it."""
SQL_FIRST_MESSAGES: Final[LiteralString] = """
select e.payload from event_log e
  where e.run_id = $1 and e.kind = 'msg.received' and e.position like 'in.%'
    and substr(e.position, 4)::int < coalesce((select min((f.payload ->> 'kept')::int) from event_log f
      where f.run_id = $1 and f.kind = 'run.attempt_failed'), 2147483647)
    and e.seq < coalesce((select min(c.seq) from event_log c
      where c.run_id = $1 and c.kind = 'run.continued'), 2147483647)
  order by e.seq
"""
SQL_REDRIVE_RUN: Final[LiteralString] = (
    "select status, fresh, arrival, local, given, rest"
    " from redrive_run($1,$2,$3,$4,$5::interval,$6,$7,$8)"
)
SQL_FORK_RUN: Final[LiteralString] = (
    "select known, last_seq, local from fork_run($1,$2,$3,$4,$5,$6::interval)"
)


class Operators(OperatorStore):
    """Writes for operators.

    Args:
        owner: The host's.
        links: Connections, each for one statement at a time.
        keyed: A connection for reads by key.
        reads: The reads of the same store.
    """

    def __init__(self, owner: HostIncarnation, links: Links, keyed: Link, reads: Reads) -> None:
        self._me, self._links, self._keyed, self._reads = owner, links, keyed, reads

    @override
    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """Sent again after an unknown outcome it finds the run that it made."""
        source = await self._reads.run(run_id)
        if source is None:
            raise UnknownRunError(run_id)
        new_id = run_id_of_fork(run_id, at_seq, copy)
        rows = await self._links.fetch(
            "forking a run",
            SQL_FORK_RUN,
            self._me,
            run_id,
            at_seq,
            new_id,
            *_own_terms(source.supervision, new_id),
        )
        if not rows:
            raise UnknownRunError(run_id)
        row = rows[0]
        if not row["known"] and not 0 <= at_seq <= row["last_seq"]:
            msg = f"run {run_id} has entries 0 to {row['last_seq']}, none with seq {at_seq}"
            raise ContractError(msg)
        return Submitted(new_id, None, row["local"])

    @override
    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """Two callers at once: each dead letter goes to one of them.

        Raises:
            ContractError: One of them is no message: bytes that could not be read, or a signal.
        """
        doing = "redriving dead letters"
        letters = await self._links.fetch(doing, SQL_SELECT_LETTERS, list(ids))
        if not letters:
            return []
        messages = [_redriven_message(row) for row in letters]
        rows = await self._links.fetch(
            doing,
            SQL_REDRIVE_LETTERS,
            self._me,
            [row["id"] for row in letters],
            *columns((mail_row(message) for message in messages), 5),
        )
        return [arrived_now(messages[row["i"] - 1], row["arrival"]) for row in rows]

    @override
    async def redrive_run(self, run_id: RunId) -> Submitted:
        failed_run = await self._reads.run(run_id)
        if failed_run is None or failed_run.swept:
            raise UnknownRunError(run_id)
        new_id = RunId(derive_id("redrive", run_id))
        log = await self._keyed.fetch("reading", SQL_FIRST_MESSAGES, run_id)
        messages = [_message_again(row, run_id) for row in log]
        (row,), may_be_done = await self._keyed.fetch_once_or_again(
            "redriving a run",
            SQL_REDRIVE_RUN,
            self._me,
            run_id,
            new_id,
            *_own_terms(failed_run.supervision, new_id),
            *columns(((m.sender or "", m.id, message_text(m, m.sender)) for m in messages), 3),
        )
        if row["given"]:
            raise AlreadyRedrivenError(run_id, tuple(row["given"]), tuple(row["rest"] or ()))
        if row["status"] != RunStatus.FAILED.value:
            raise IllegalTransitionError(run_id, row["status"], RunStatus.PENDING)
        first = None
        if (row["fresh"] or may_be_done) and messages:
            sender = messages[0].sender or ""
            first = Arrived(messages[0], sender, failed_run.agent_id, row["arrival"], new_id)
        return Submitted(new_id, first, row["local"])

    @override
    async def discard(self, ids: Sequence[int]) -> int:
        """After a lost answer the returned number may be too small."""
        return int(
            await self._links.value("discarding dead letters", SQL_DISCARD_LETTERS, list(ids))
        )

    @override
    async def refold(self, run_id: RunId) -> RunRow:
        row = await self._reads.run(run_id)
        if row is None:
            raise UnknownRunError(run_id)
        return fold(row, [entry async for entry in self._reads.entries(run_id)])


def _own_terms(
    supervision: Supervision | None, run_id: RunId
) -> tuple[str | None, timedelta | None]:
    """Return the run's supervision as JSON, changed to that of a root run, and its deadline."""
    if supervision is None:
        return None, None
    limit_s = supervision.execution_budget.deadline_s
    limit = None if limit_s is None else timedelta(seconds=limit_s)
    return supervision.as_root(run_id).model_dump_json(), limit


def _message_again(row: Row, failed_run_id: RunId) -> Message:
    """Return a copy of a dead run's message with a new id, so that it is not dropped as a duplicate."""
    message = read_or(
        row["payload"],
        lambda payload: Message.from_json(from_json(payload)["message"]),
        lambda _: None,
    )
    if message is None:
        msg = f"a message of run {failed_run_id} cannot be read: restore its log, or send the message again"
        raise ContractError(msg)
    return replace(message, id=derive_id("redrive", message.id, failed_run_id))


def _redriven_message(row: Row) -> Message:
    message = read_or(row["body"], message_from_text, lambda _: None)
    if message is None:
        msg = f"dead letter {row['id']} cannot be read: let its sender send it again"
        raise ContractError(msg)
    payload = message.payload
    is_signal = isinstance(payload, dict) and payload.get("kind") == SIGNAL_KIND
    if row["reason"] == "undecodable" or (row["reason"] == "explicit" and is_signal):
        what = "a signal for a run that is not there" if is_signal else "no message"
        msg = (
            f"dead letter {row['id']} is {what} and cannot be redriven ({row['last_error']}): let "
            "its sender send it again"
        )
        raise ContractError(msg)
    sender: str = row["sender"]
    new_id = derive_id("redrive", str(message.target), sender, message.id)
    return replace(message, id=new_id, sender=sender, causation_id=message.id)
