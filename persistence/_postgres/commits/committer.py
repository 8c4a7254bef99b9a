"""The one writer of commits: groups them, one round trip a group, and settles what is unknown.

Every outcome is decided by the database under locks. When a connection is lost while a group is
under way, its server process is ended first, then each commit is looked up by its key; only commits
that are not there are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Final, LiteralString, cast

from typing_extensions import override

from actors._kernel.agent.message import Message
from actors._kernel.basics import Backoff
from actors._kernel.faults import armed
from actors._kernel.histogram import SIZES, Histogram
from actors._kernel.runtime.commit import (
    Commit,
    CommitOutcome,
    Committed,
    Conflict,
    Missing,
    Outgoing,
)
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.runs import CommitStore
from actors._kernel.stores.transport import OutboxRow
from actors.errors import StoreUnreachableError
from persistence._postgres.commits.columns import is_usual
from persistence._postgres.commits.encode import columns, message_from_text
from persistence._postgres.commits.outcomes import (
    SQL_FIND_NUDGES,
    CommitNudges,
    HandOver,
    Verdicts,
    Written,
    append_error,
    are_appends,
    nudges_by_unit,
    write_appends,
    write_commits,
)
from persistence._postgres.commits.unit import (
    ArtifactsOf,
    Ended,
    Unit,
    Unknown,
    Write,
    WriteCall,
    WriteResult,
    check_commit,
    put_apart,
    units_of,
)
from persistence._postgres.connection.batch import Batcher
from persistence._postgres.connection.link import (
    KEYED,
    PASSING_RETRIES,
    Connection,
    Link,
    Row,
    ServerOutage,
    StoreSettings,
)
from persistence.errors import DRIVER_ERRORS, is_full, is_lost, is_passing, translate

FOR_EVER: Final = inf
"""A commit waits this long for its server: the result of an effect may be nowhere else."""
EVERYBODY: Final = frozenset({"53100", "58030"})
"""The server has no capacity for any caller of these wants."""

SQL_FIND_COMMITS: Final[LiteralString] = """
select t.i::int, e.kind, e.position, e.payload::text as payload, r.cancel_requested,
    r.status = 'SUSPENDED' and r.wake is not null and is_woken(r.run_id, r.agent, r.wake) as wake
  from unnest($1::text[], $2::int[]) with ordinality t(run_id, seq, i)
  cross join lateral (select * from event_log e
    where e.run_id = t.run_id and e.seq = t.seq offset 0) e
  cross join lateral (select * from runs r where r.run_id = t.run_id offset 0) r
"""
SQL_FIND_ROUTED: Final[LiteralString] = """
select i.agent, i.sender, i.message_id, i.arrival, s.owner
  from unnest($1::text[], $2::text[], $3::text[]) m(agent, sender, message_id)
  cross join lateral (select * from inbox i
    where i.agent = m.agent and i.sender = m.sender and i.message_id = m.message_id offset 0) i
  left join shards s on s.shard = i.shard
  where i.state = 'p'
"""
SQL_FIND_POSTED: Final[LiteralString] = """
select 'outbox' as outcome, o.target as agent, o.sender, o.message_id, o.n as arrival
  from unnest($1::text[], $2::text[], $3::text[]) m(target, sender, message_id)
  cross join lateral (select * from outbox o
    where o.target = m.target and o.sender = m.sender and o.message_id = m.message_id offset 0) o
"""


class Committer(CommitStore):
    """Takes appends and commits of any number of runs."""

    link: Link
    groups: int
    fast: int
    written: int

    def __init__(
        self,
        settings: StoreSettings,
        outage: ServerOutage,
        *,
        hand_over: HandOver,
        on_foreign: Callable[[str, Nudge], None],
        artifacts_of: ArtifactsOf,
    ) -> None:
        """`hand_over`: the readers of what is written. `on_foreign(owner, nudge)`: for another host."""
        self._artifacts_of, self._incarnations = artifacts_of, 0
        self._settings, self.link = settings, Link(settings, outage, KEYED)
        self._outage, self._backoff = outage, Backoff()
        self._hand_over, self._on_foreign = hand_over, on_foreign
        self._batcher: Batcher[Write, WriteResult] = Batcher(
            self._flush, limit=settings.group_limit
        )
        self._append_fault, self._commit_fault = armed("append"), armed("commit")
        self.on_posted: Callable[[Sequence[OutboxRow]], None] | None = None
        """Called with new outbox rows, by `n`, before their commits are answered."""
        self._refused_calls: set[WriteCall] = set()
        self.groups = self.fast = self.written = 0
        self.group_size: Histogram = Histogram(SIZES)

    @override
    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        result = await self._batcher.call(Write(lease, expected_seq, entries))
        if type(result) is Committed:
            return result.last_seq
        raise append_error(result, lease, expected_seq)

    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        check_commit(commit)
        write = Write(commit.lease, commit.expected_seq, commit.entries, commit)
        write.is_usual = is_usual(commit, brokered=self._settings.brokered)
        if commit.turns:
            incarnation = self._incarnations
            await self._put_apart(write)
            if incarnation != self._incarnations and write.expected < 0:
                return Conflict(-1)  # see `refuse_beginnings`, which could not know of it
        verdict = await self._batcher.call(write)
        if isinstance(verdict, Ended):
            return Missing((f"run {commit.lease.run_id} has ended {verdict.status}",))
        if isinstance(verdict, Unknown):
            return Missing((f"run {commit.lease.run_id}",))
        return verdict

    async def _put_apart(self, write: Write) -> None:
        """Store what turns are too large for a row. Waits for the server as long as commits do."""
        assert write.parts is not None
        assert write.parts.transcripts is not None
        backoff = Backoff()
        while True:
            try:
                rows, agent = write.parts.transcripts, write.lease.agent_id
                # Before the commit is grouped: an upload of one call must not hold up the group.
                await put_apart(rows, agent, self._artifacts_of)
            except StoreUnreachableError:
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def run(self) -> None:
        """Work until `close`; to be run as a task."""
        try:
            await self._batcher.run()
        finally:
            await self.link.close()

    def close(self) -> None:
        """Finish what is queued, then let `run` return."""
        self._batcher.close()

    def refuse_beginnings(self) -> None:
        """Write no commit that begins a run and was made from answers of another incarnation of the server.

        Other commits say where the log of their run ends, by which the server knows whether it is behind.
        Those that wait for capacity are written first: were it behind them, their runs could get as
        far again meanwhile, another way.
        """
        self._incarnations += 1
        self._refused_calls = {call for call in self._batcher.under_way if call.args.expected < 0}
        for call in self._refused_calls:
            call.answer(Conflict(-1))
        self._batcher.flush_again()

    async def _flush(self, calls: list[WriteCall]) -> None:
        while calls:
            units, calls = units_of(calls)
            await self._send(units)

    async def _send(self, units: list[Unit]) -> None:
        """Have every call of the units answered, whatever happens on the way."""
        passing_errors, is_outcome_unknown = 0, False
        while units:
            try:
                connection = await self.link.connection(FOR_EVER)
                if self._refused_calls:
                    # `refuse_beginnings` has answered the others: the database has lost what they begin from.
                    units = [unit for unit in units if self._refused_calls.isdisjoint(unit.calls)]
                if is_outcome_unknown:
                    # The server may have committed the group whose answer was lost: sent again, each
                    # commit would be in conflict with itself.
                    units = await self._settle(connection, units)
                if not units:
                    return
                rows = await self._round_trip(connection, units)
            except DRIVER_ERRORS as exc:
                # A deadlock or a serialization failure rolled everything back: the same statement may succeed
                # at once.
                if is_passing(exc) and (passing_errors := passing_errors + 1) < PASSING_RETRIES:
                    continue
                if is_full(exc) and not is_lost(exc):
                    await self._put_off(units, exc)
                    return
                if not self.link.lose(exc):
                    await self._one_by_one(units, exc)
                    return
                is_outcome_unknown = True
            else:
                # While some commits wait for capacity the outage is not over: this one may just have been small
                # enough.
                if self._outage.trouble is not None and not self._batcher.is_putting_off:
                    self._outage.writes()
                    self._backoff.reset()
                await self._answer(units, rows, is_resent=is_outcome_unknown)
                return

    async def _put_off(self, units: list[Unit], exc: Exception) -> None:
        """Nothing of the group was written for lack of capacity: it is tried again while this process runs.

        What a commit holds may exist nowhere else. Where it may be a single commit that is too much, the
        others are tried without it.
        """
        calls = [call for unit in units for call in unit.calls]
        # If memory is short, for example, one large commit may be too much, and the others are not.
        if len(calls) > 1 and getattr(exc, "sqlstate", "") not in EVERYBODY:
            await self._one_by_one(units, exc)
            return
        self._outage.refuses(exc)
        self._batcher.put_back(calls, self._backoff.next_s())

    async def _one_by_one(self, units: list[Unit], exc: Exception) -> None:
        """A group was refused as a whole: let each commit find its own fate."""
        if len(units) == 1 and len(units[0].calls) == 1:
            units[0].calls[0].fail(translate(exc, "a commit"))
            return
        # One after the other, in order: a call of a run is refused unless the one before it is written.
        for unit in units:
            for call in unit.calls:
                await self._send([Unit(call)])

    async def _round_trip(self, connection: Connection, units: list[Unit]) -> list[Row]:
        self.groups += 1
        self.written += len(units)
        self.group_size.observe(len(units))
        written_args = self._hand_over.written_args(units)
        if are_appends(units):
            with self._append_fault:
                return await write_appends(connection, units, self._settings, written_args)
        with self._commit_fault:
            rows, is_fast = await write_commits(connection, units, self._settings, written_args)
        self.fast += is_fast
        return rows

    async def _answer(self, units: list[Unit], rows: list[Row], *, is_resent: bool) -> None:
        verdicts = Verdicts(units, rows)
        refusals = verdicts.refusals
        arrivals = self._route(units, verdicts.routed) if verdicts.routed else {}
        nudges_by_number = (
            nudges_by_unit(units, verdicts.nudges, self._on_foreign) if verdicts.nudges else {}
        )
        if verdicts.posted:
            self._post(units, verdicts.posted)
        for i, unit in enumerate(units, 1):
            if i in refusals:
                continue
            cancel_reason, is_woken = None, False
            if (note := verdicts.notes.get(i)) is not None:
                cancel_reason, is_woken = note["detail"], note["wake"]
            last = Committed(
                unit.last,
                cancel_reason,
                tuple(arrivals.get(i, ())),
                is_woken,
                tuple(verdicts.cycles.get(i, ())),
            )
            if i in nudges_by_number:
                nudges, spawned = (
                    tuple(nudges_by_number[i].nudges),
                    tuple(nudges_by_number[i].spawned),
                )
                last = replace(last, nudges=nudges, spawned=spawned)
            self._answer_committed(unit, last, verdicts.written.get(i))
        if refusals:
            await self._refuse([(units[i - 1], refusals[i]) for i in refusals], is_resent=is_resent)

    async def _refuse(self, verdicts: list[tuple[Unit, WriteResult]], *, is_resent: bool) -> None:
        """Answer refused calls. Merged calls are sent one by one; calls that were sent before are looked up."""
        doubtful: list[Unit] = []
        for unit, verdict in verdicts:
            # The first copy was executed after all, and is what this one is in conflict with.
            if is_resent and isinstance(verdict, Conflict | Ended):
                # Sent twice, and the first one was executed after all.
                doubtful.append(unit)
            elif len(unit.calls) == 1:
                unit.calls[0].answer(verdict)
            else:
                for call in unit.calls:
                    await self._send([Unit(call)])
        if doubtful:
            connection = await self.link.connection(FOR_EVER)
            for unit in await self._settle(connection, doubtful):
                for call in unit.calls:
                    await self._send([Unit(call)])

    def _answer_committed(
        self, unit: Unit, last: Committed, written: Written | None = None
    ) -> None:
        """Answer every call of the unit; the commit that closes it gets `last`."""
        self._hand_over.give(unit, written)  # before the run goes on, which may take a while
        seq = unit.first.expected
        for call in unit.calls:
            seq += len(call.args.rows)
            call.answer(Committed(seq) if call.args.commit is None else last)

    def _route(self, units: list[Unit], rows: list[Row]) -> dict[int, list[Arrived]]:
        sent_messages_by_key = _sent_by(units)
        arrivals_by_number: dict[int, list[Arrived]] = {}
        for row in rows:
            i, out = sent_messages_by_key[row["agent"], row["sender"], row["message_id"]]
            agent = cast("AgentId", out.target)
            arrival = Arrived(_message_of(out), out.sender, agent, row["arrival"])
            arrivals_by_number.setdefault(i, []).append(arrival)
            owner = row["owner"]
            if owner is not None and owner != units[i - 1].first.lease.owner:
                self._on_foreign(owner, Nudge("mail", agent))
        return arrivals_by_number

    def _post(self, units: list[Unit], rows: list[Row]) -> None:
        """Pass outbox rows to the publisher, which may ignore them."""
        if self.on_posted is None:
            return
        sent_messages_by_key = _sent_by(units)
        outbox_rows: list[OutboxRow] = []
        for row in rows:
            if row["outcome"] == "dead":
                parts = units[row["turn"] - 1].parts
                reason = None if parts is None else cast("str", parts.then[-1])
                message = message_from_text(row["detail"])
                outbox_rows.append(OutboxRow(row["arrival"], message, reason))
            else:
                _, out = sent_messages_by_key[row["agent"], row["sender"], row["message_id"]]
                outbox_rows.append(OutboxRow(row["arrival"], _message_of(out)))
        # The publisher keeps the order of a sender's messages by `n`.
        outbox_rows.sort(key=lambda row: row.n)
        self.on_posted(outbox_rows)

    async def _settle(self, connection: Connection, units: list[Unit]) -> list[Unit]:
        """Answer the commits whose entries are in the log already; return the others.

        A commit without entries cannot be found in the log. It is returned, since a second write of it changes
        nothing.
        """
        units_with_rows = [unit for unit in units if unit.rows]
        log_rows = await connection.fetch(
            SQL_FIND_COMMITS,
            [unit.first.lease.run_id for unit in units_with_rows],
            [unit.last for unit in units_with_rows],
            timeout=self._settings.answer_s,
        )
        written_units = [
            (units_with_rows[row["i"] - 1], row)
            for row in log_rows
            if units_with_rows[row["i"] - 1].rows[-1]
            # Another owner of the run may have written another entry with this number.
            == (row["kind"], row["position"], row["payload"])
        ]
        done_units = [unit for unit, _ in written_units]
        keys = [
            (str(out.target), out.sender, out.message.id)
            for unit in done_units
            for out in unit.outgoing
        ]
        routed_rows = await connection.fetch(SQL_FIND_ROUTED, *columns(keys, 3)) if keys else []
        arrivals = self._route(done_units, routed_rows)
        if keys and self._settings.brokered:
            self._post(done_units, await connection.fetch(SQL_FIND_POSTED, *columns(keys, 3)))
        nudges = await self._nudges_again(connection, done_units)
        for i, (unit, row) in enumerate(written_units, 1):
            cancel_reason, is_woken = row["cancel_requested"], bool(row["wake"])
            arrivals_of_unit = tuple(arrivals.get(i, ()))
            unit_nudges = tuple(nudges[i].nudges) if i in nudges else ()
            self._answer_committed(
                unit,
                Committed(unit.last, cancel_reason, arrivals_of_unit, is_woken, nudges=unit_nudges),
            )
        remaining_ids = set(map(id, units)) - set(map(id, done_units))
        return [unit for unit in units if id(unit) in remaining_ids]

    async def _nudges_again(
        self, connection: Connection, done_units: list[Unit]
    ) -> dict[int, CommitNudges]:
        """Return the nudges of commits that were written before. The next scans find cycles of waits."""
        if not done_units:
            return {}
        done_run_ids = [unit.first.lease.run_id for unit in done_units]
        run_ids = [
            run_id for unit in done_units if unit.parts is not None for run_id in unit.parts.named
        ]
        rows = await connection.fetch(
            SQL_FIND_NUDGES, done_run_ids, run_ids, timeout=self._settings.answer_s
        )
        return nudges_by_unit(done_units, rows, self._on_foreign)


def _sent_by(units: list[Unit]) -> dict[tuple[str, str, str], tuple[int, Outgoing]]:
    """Each outgoing message by its key, with the number of the first unit that sends it."""
    sent_messages_by_key: dict[tuple[str, str, str], tuple[int, Outgoing]] = {}
    for i, unit in enumerate(units, 1):
        for out in unit.outgoing:
            # The first unit: a message that two commits send is written, and answered, once.
            sent_messages_by_key.setdefault((str(out.target), out.sender, out.message.id), (i, out))
    return sent_messages_by_key


def _message_of(out: Outgoing) -> Message:
    message = out.message
    return message if message.sender == out.sender else replace(message, sender=out.sender)
