"""Answers, open waits, children and dead runs, for those who are no turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, LiteralString

from pydantic_core import from_json

from actors.errors import AlreadyRedrivenError, IllegalTransitionError, UnknownRunError
from actors.kernel.agent.message import Message
from actors.kernel.runtime.commit import (
    Answer,
    Arrived,
    OpenWait,
    SignalOutcome,
    Wait,
    WaitCycle,
)
from actors.kernel.runtime.ids import AgentId, RunId, derive_id
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.store import Nudge, Submitted
from persistence.postgres.encode import columns, message_text
from persistence.postgres.link import KEYED, Link
from persistence.postgres.rows import RUN_COLUMNS, run_of
from persistence.postgres.talk import text_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.supervision import Supervision
    from actors.kernel.runtime.commit import RunRow, WaitKind
    from actors.kernel.runtime.ids import ShardId
    from persistence.postgres.link import Outage, Row
    from persistence.postgres.settings import StoreSettings

SQL_GIVE_ANSWER: Final[LiteralString] = (
    "select agent, fresh, same from give_answer($1,$2,$3,$4,$5,$6,$7,$8)"
)
SQL_YOUNG_CYCLES: Final[LiteralString] = (
    "select places, run_ids, agents from young_cycles($1::text[], $2::interval)"
)
SQL_UNNOTICED: Final[LiteralString] = "select kind, agent, run_id from unnoticed($1,$2)"
SQL_WAITS: Final[LiteralString] = """
select w.run_id, r.agent as waiter, w.position, w.kind, w.key, w.agent, w.target_run, w.must, w.request,
    w.expires_at, w.since
  from waits w join runs r on r.run_id = w.run_id
  where r.ended_at is null and ($1::text is null or w.kind = $1) and ($2::text is null or w.run_id = $2)
    and not exists (
      select 1 from completions c where c.parent = w.run_id and c.child = w.key and not c.consumed)
  order by w.since, w.run_id, w.position limit $3
"""
SQL_CHILDREN: Final[LiteralString] = (
    "select" + RUN_COLUMNS + "from runs r where r.parent = $1 order by r.arrival, r.run_id"
)
SQL_RUN_OF_MESSAGE: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """from runs r where r.run_id = coalesce(
    (select i.run_id from inbox i where i.agent = $1 and i.sender = $2 and i.message_id = $3),
    started_on($1))"""
)
SQL_DEAD_RUN: Final[LiteralString] = "select" + RUN_COLUMNS + "from runs r where r.run_id = $1"
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


class Answers:
    """See `RunStore.answer`, `wait_cycles`, `waits`, `children`, `run_of_message`, `redrive_run`.

    On a connection of its own, whose plans start from keys.
    """

    def __init__(self, settings: StoreSettings, outage: Outage) -> None:
        self._me, self._link = settings.owner, Link(settings, outage, KEYED)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def answer(self, answer: Answer) -> SignalOutcome:
        """See `RunStore.answer`. After an unknown outcome the same answer counts as this call's."""
        rows, again = await self._link.fetch_once_or_again(
            "answering",
            SQL_GIVE_ANSWER,
            self._me,
            answer.run_id,
            answer.key,
            answer.status,
            text_or_none(answer.result, "answer"),
            text_or_none(answer.error, "answer"),
            answer.by,
            answer.last_seq,
        )
        if not rows:
            raise UnknownRunError(answer.run_id)
        row = rows[0]
        accepted = row["fresh"] or (again and row["same"])
        return SignalOutcome(accepted, AgentId.parse(row["agent"]))

    async def unnoticed(self, shards: Sequence[ShardId], younger_than_s: float) -> list[Nudge]:
        """See `RunStore.unnoticed`."""
        younger = timedelta(seconds=younger_than_s)
        rows = await self._link.fetch(
            "looking for lost hints", SQL_UNNOTICED, list(shards), younger
        )
        return [
            Nudge(row["kind"], AgentId.parse(row["agent"]), RunId(row["run_id"])) for row in rows
        ]

    async def wait_cycles(
        self, shards: Sequence[ShardId], younger_than_s: float
    ) -> list[WaitCycle]:
        """See `RunStore.wait_cycles`."""
        younger = timedelta(seconds=younger_than_s)
        rows = await self._link.fetch("looking for cycles", SQL_YOUNG_CYCLES, list(shards), younger)
        found: dict[tuple[RunId, str], WaitCycle] = {}
        for row in rows:
            cycle = _from_the_greatest(row)
            found.setdefault((cycle.run_id, cycle.position), cycle)
        return list(found.values())

    async def waits(
        self, kind: WaitKind | None, run_id: RunId | None, limit: int
    ) -> list[OpenWait]:
        """See `RunStore.waits`."""
        rows = await self._link.fetch("reading", SQL_WAITS, kind, run_id, limit)
        return [_open_wait(row) for row in rows]

    async def children(self, run_id: RunId) -> list[RunRow]:
        """See `RunStore.children`."""
        return [run_of(row) for row in await self._link.fetch("reading", SQL_CHILDREN, run_id)]

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """See `RunStore.run_of_message`."""
        rows = await self._link.fetch(
            "reading", SQL_RUN_OF_MESSAGE, str(agent_id), sender, message_id
        )
        return run_of(rows[0]) if rows else None

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """See `RunStore.redrive_run`."""
        rows = await self._link.fetch("reading", SQL_DEAD_RUN, run_id)
        if not rows or rows[0]["swept"]:
            raise UnknownRunError(run_id)
        dead = run_of(rows[0])
        new_id = RunId(derive_id("redrive", run_id))
        terms = own_terms(dead.supervision, new_id)
        limit_s = None if terms is None else terms.execution_budget.deadline_s
        log = await self._link.fetch("reading", SQL_FIRST_MESSAGES, run_id)
        messages = [_again(row, run_id) for row in log]
        (row,), again = await self._link.fetch_once_or_again(
            "redriving a run",
            SQL_REDRIVE_RUN,
            self._me,
            run_id,
            new_id,
            None if terms is None else terms.model_dump_json(),
            None if limit_s is None else timedelta(seconds=limit_s),
            *columns(((m.sender or "", m.id, message_text(m, m.sender)) for m in messages), 3),
        )
        if row["given"]:
            raise AlreadyRedrivenError(run_id, tuple(row["given"]), tuple(row["rest"] or ()))
        if row["status"] != RunStatus.FAILED.value:
            raise IllegalTransitionError(run_id, row["status"], RunStatus.PENDING)
        first = None
        if (row["fresh"] or again) and messages:
            sender = messages[0].sender or ""
            first = Arrived(messages[0], sender, dead.agent_id, row["arrival"], new_id)
        return Submitted(new_id, first, row["local"])


def answer_of(row: Row) -> Answer:
    """Return a row of `completions`."""
    result, error = row["result"], row["error"]
    return Answer(
        run_id=RunId(row["parent"]),
        key=row["child"],
        status=row["status"],
        result=None if result is None else from_json(result),
        error=None if error is None else from_json(error),
        by=None if row["run"] is None else RunId(row["run"]),
        last_seq=row["last_seq"],
    )


def _open_wait(row: Row) -> OpenWait:
    agent, request = row["agent"], row["request"]
    wait = Wait(
        position=row["position"],
        kind=row["kind"],
        key=row["key"],
        agent=None if agent is None else AgentId.parse(agent),
        target_run=row["target_run"],
        must=row["must"],
        request=None if request is None else from_json(request),
        expires_at=row["expires_at"],
    )
    return OpenWait(RunId(row["run_id"]), AgentId.parse(row["waiter"]), wait, row["since"])


def _from_the_greatest(row: Row) -> WaitCycle:
    """Return a circle as its greatest run sees it: one of them has to fail, always the same."""
    runs, places = row["run_ids"], row["places"]
    agents = [AgentId.parse(agent) for agent in row["agents"]]
    n = runs.index(max(runs))
    return WaitCycle(RunId(runs[n]), agents[n], places[n], (*agents[n:], *agents[:n]))


def own_terms(supervision: Supervision | None, run_id: RunId) -> Supervision | None:
    """Return a run's terms as those of a root."""
    if supervision is None:
        return None
    place = {"run_id": run_id, "root_id": run_id, "parent_id": None, "depth": 0}
    return supervision.model_copy(update=place)


def _again(row: Row, dead: RunId) -> Message:
    """Return a message that a dead run got, as one that is new to its agent."""
    message = Message.from_json(from_json(row["payload"])["message"])
    return replace(message, id=derive_id("redrive", message.id, dead))
