"""Writes that need no lease: submits, messages and signals, each kind grouped, each safe to send again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, LiteralString, NamedTuple, TypeAlias

from typing_extensions import override

from actors._kernel.agent.agent import NewSession
from actors._kernel.agent.message import Message
from actors._kernel.faults import armed
from actors._kernel.json import JsonValue
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash
from actors._kernel.runtime.rows import RESERVED, Arrived, CancelReport, NewRun, SignalOutcome
from actors._kernel.runtime.waits import Answer, AnswerStatus
from actors._kernel.stores.conversations import SessionFact
from actors._kernel.stores.errors import SessionDeletingError, UnknownSessionError
from actors._kernel.stores.runs import (
    MOST_ANSWERED,
    ArrivalStore,
    OnConflict,
    Submitted,
    ends_of,
    sender_of_message,
)
from actors.errors import RunConflictError, UnknownRunError
from persistence._postgres.commits.encode import columns, json_text, message_text, run_columns
from persistence._postgres.commits.unit import text_or_none
from persistence._postgres.connection.batch import Batched, Batcher
from persistence._postgres.connection.link import Link, Links, StoreSettings
from persistence._postgres.reads.reads import Reads

SQL_SUBMIT_RUNS: Final[LiteralString] = (
    "select i, run_id, arrival, fresh, local, busy from submit_runs"
    "($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"
)
SQL_SUBMIT_TO_SESSIONS: Final[LiteralString] = (
    "select s.i, s.run_id, s.arrival, s.fresh, s.local, s.busy, f.number, f.ahead, f.at from submit_runs"
    "($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19) s"
    " left join lateral queued_fact(($4::text[])[s.i], s.run_id) f on true"
)
"""The same, with the facts that the submits have written."""
SQL_SUBMIT_APART: Final[LiteralString] = (
    "select i, run_id, arrival, fresh, local, busy from submit_apart"
    "($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"
)
SQL_DELIVER_MAIL: Final[LiteralString] = (
    "select i, arrival, fresh, state from deliver_mail($1,$2,$3,$4,$5,$6)"
)
SQL_SEND_SIGNALS: Final[LiteralString] = (
    "select i, agent, ended, fresh, same from send_signals($1,$2,$3,$4,$5,$6)"
)
SQL_NUDGE: Final[LiteralString] = "select nudge_owners($1,$2,$3,$4,$5)"

SQL_GIVE_ANSWERS: Final[LiteralString] = (
    "select i, agent, fresh, same from give_answers($1,$2,$3,$4,$5,$6,$7,$8)"
)
SQL_EMIT_EVENT: Final[LiteralString] = "select run, agent from emit_event($1,$2,$3,$4,$5)"
SQL_REQUEST_CANCEL: Final[LiteralString] = "select run_id, agent from request_cancel($1,$2,$3)"


class _Submit(NamedTuple):
    mode: OnConflict
    is_apart: bool
    agent_id: AgentId
    message: Message
    sender: str
    row: tuple[object, ...]
    session: NewSession | None


class _Delivery(NamedTuple):
    messages: Sequence[Message]
    rows: list[tuple[object, ...]]


class _Signal(NamedTuple):
    run_id: RunId
    row: tuple[object, ...]


_Answer: TypeAlias = tuple[RunId, str, AnswerStatus, str | None, str | None, RunId | None, int]
"""Run, key, status, result and error as text, the ended run, and its last entry."""


class Arrivals(ArrivalStore):
    """Writes what comes from outside a commit.

    After an unknown outcome the group is sent again: what is known by its key then counts as
    accepted by this call.
    """

    def __init__(
        self,
        settings: StoreSettings,
        links: Links,
        link: Link,
        keyed: Link,
        *,
        reads: Reads,
        on_session: Callable[[AgentId, Sequence[SessionFact]], None],
    ) -> None:
        """`on_session(agent, facts)`: facts of a session were written; none: they have to be read."""
        self._me, self._on_session = settings.owner, on_session
        self.on_begun: Callable[[AgentId, SessionFact], None] | None = None
        """Called with the fact of a submit whose caller follows the run, which this process executes."""
        self._links, self._link, self._keyed, self._reads = links, link, keyed, reads
        limit = settings.group_limit
        self._submits: Batcher[_Submit, Submitted] = Batcher(self._flush_submits, limit=limit)
        self._deliveries: Batcher[_Delivery, list[Arrived]] = Batcher(
            self._flush_deliveries, limit=limit
        )
        self._signals: Batcher[_Signal, SignalOutcome] = Batcher(self._flush_signals, limit=limit)
        self._answers: Batcher[_Answer, SignalOutcome] = Batcher(self._flush_answers, limit=limit)
        self._nudges: Batcher[tuple[str, Nudge], None] = Batcher(self._flush_nudges, limit=limit)
        self._fault = armed("submit")
        self.batchers = (
            self._submits,
            self._deliveries,
            self._signals,
            self._answers,
            self._nudges,
        )

    @override
    async def submit(
        self,
        new_run: NewRun,
        message: Message,
        *,
        on_conflict: OnConflict = "queue",
        is_apart: bool = False,
    ) -> Submitted:
        sender = sender_of_message(message)
        row = (*run_columns(new_run), sender, message.id, message_text(message, sender))
        return await self._submits.call(
            _Submit(on_conflict, is_apart, new_run.agent_id, message, sender, row, new_run.session)
        )

    @override
    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        if not messages:
            return []
        return await self._deliveries.call(
            _Delivery(messages, [mail_row(message) for message in messages])
        )

    @override
    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        row = (run_id, name, json_text(payload, f"signal {name}"), sender, message_id)
        return await self._signals.call(_Signal(run_id, row))

    def nudge(self, owner: str, nudge: Nudge) -> None:
        """Tell another owner, soon, what changed for one of its agents or shards."""
        # Nobody waits for a hint.
        _ = self._nudges.call((owner, nudge))

    @override
    async def answer(self, answer: Answer) -> SignalOutcome:
        """After an unknown outcome, an equal answer in the store counts as this one."""
        result, error = text_or_none(answer.result, "answer"), text_or_none(answer.error, "answer")
        row = (answer.run_id, answer.key, answer.status, result, error, answer.by, answer.last_seq)
        return await self._answers.call(row)

    @override
    async def emit(
        self, event: str, payload: JsonValue, *, after: str = "", limit: int = MOST_ANSWERED
    ) -> list[tuple[RunId, AgentId]]:
        text = text_or_none(payload, "event")
        rows = await self._links.fetch(
            "emitting", SQL_EMIT_EVENT, self._me, event, text, limit, after
        )
        return [(RunId(row["run"]), AgentId.parse(row["agent"])) for row in rows]

    @override
    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        rows = await self._links.fetch("cancelling", SQL_REQUEST_CANCEL, self._me, run_id, reason)
        if not rows and await self._reads.run(run_id) is None:
            raise UnknownRunError(run_id)
        cancelled_runs = [(RunId(row["run_id"]), AgentId.parse(row["agent"])) for row in rows]
        for _, agent in cancelled_runs:
            self._on_session(agent, ())
        return CancelReport(tuple(cancelled_runs))

    async def _flush_submits(self, calls: list[Batched[_Submit, Submitted]]) -> None:
        queue_calls = [call for call in calls if call.args.mode == "queue"]
        if queue_calls:
            await self._send_submits("queue", queue_calls)
        for call in calls:
            if call.args.mode != "queue":
                # One at a time: the function decides by the run that holds the agent, and an earlier
                # submit of the group may be that run.
                await self._send_submits(call.args.mode, [call])

    async def _send_submits(
        self, mode: OnConflict, calls: list[Batched[_Submit, Submitted]]
    ) -> None:
        args = columns((call.args.row for call in calls), 15)
        of_sessions = _session_columns([call.args.session for call in calls])
        if mode in {"join", "interrupt"} and calls[0].args.is_apart:
            statement = SQL_SUBMIT_APART
        else:
            statement = SQL_SUBMIT_RUNS if of_sessions is None else SQL_SUBMIT_TO_SESSIONS
        with self._fault:
            rows, may_be_done = await self._link.fetch_once_or_again(
                "submitting", statement, self._me, mode, *args, *(of_sessions or (None, None))
            )
        seen_arrivals: set[int] = set()
        for row in rows:
            call = calls[row["i"] - 1]
            submit = call.args
            if row["run_id"] is None:
                refusal = SessionDeletingError if row["busy"] else UnknownSessionError
                call.fail(refusal(str(submit.agent_id)))
                continue
            run_id = RunId(row["run_id"])
            if row["busy"]:
                call.fail(RunConflictError(str(submit.agent_id), run_id))
                continue
            arrival = None
            # Without an arrival it is known by its id alone.
            is_new = (row["fresh"] or may_be_done) and row["arrival"] is not None
            # Several calls may be about one message: it is handed to the agent once.
            if is_new and row["arrival"] not in seen_arrivals:
                seen_arrivals.add(row["arrival"])
                bound_run = run_id if mode != "join" or run_id == submit.row[0] else None
                arrival = Arrived(
                    submit.message, submit.sender, submit.agent_id, row["arrival"], bound_run
                )
            if submit.session is not None:
                facts: Sequence[SessionFact] = ()
                if row.get("number") is not None:  # the statement has read it
                    facts = (SessionFact(row["number"], "queued", run_id, row["ahead"], row["at"]),)
                self._on_session(submit.agent_id, facts)
                is_here = row["fresh"] and row["local"] and run_id == submit.row[0]
                if submit.session.is_followed and is_here and facts and self.on_begun is not None:
                    self.on_begun(submit.agent_id, facts[0])
            call.answer(Submitted(run_id, arrival, row["local"]))

    async def _flush_deliveries(self, calls: list[Batched[_Delivery, list[Arrived]]]) -> None:
        mail_rows = [row for call in calls for row in call.args.rows]
        rows, may_be_done = await self._link.fetch_once_or_again(
            "delivering", SQL_DELIVER_MAIL, self._me, *columns(mail_rows, 5)
        )
        arrivals: list[int | None] = [None] * len(mail_rows)
        seen_arrivals: set[int] = set()
        for row in rows:
            # After an unknown outcome the row is not fresh any more, but was written by this call's first try.
            is_new = row["fresh"] or (may_be_done and row["state"] == "p")
            if is_new and row["arrival"] not in seen_arrivals:
                seen_arrivals.add(row["arrival"])
                arrivals[row["i"] - 1] = row["arrival"]
        start = 0
        for call in calls:
            messages = call.args.messages
            numbers = arrivals[start : start + len(messages)]
            start += len(messages)
            call.answer(
                [
                    arrived_now(message, arrival)
                    for message, arrival in zip(messages, numbers, strict=True)
                    if arrival is not None
                ]
            )

    async def _flush_signals(self, calls: list[Batched[_Signal, SignalOutcome]]) -> None:
        args = columns((call.args.row for call in calls), 5)
        rows, may_be_done = await self._link.fetch_once_or_again(
            "signalling", SQL_SEND_SIGNALS, self._me, *args
        )
        seen_keys: set[tuple[object, ...]] = set()
        for row in rows:
            call = calls[row["i"] - 1]
            run_id, name, _, sender, message_id = call.args.row
            key = (run_id, sender, message_id)
            is_accepted = (
                row["fresh"] or (may_be_done and not row["ended"])
            ) and key not in seen_keys
            if name.startswith(
                RESERVED
            ):  # of several decisions at once, only the stored one is accepted
                is_accepted = (row["fresh"] or may_be_done) and row["same"] and key not in seen_keys
            if is_accepted:
                seen_keys.add(key)
            is_same = row["same"] and not is_accepted
            call.answer(SignalOutcome(is_accepted, AgentId.parse(row["agent"]), is_same))
        for call in calls:
            if not call.future.done():
                call.fail(UnknownRunError(call.args.run_id))

    async def _flush_answers(self, calls: list[Batched[_Answer, SignalOutcome]]) -> None:
        args = columns((call.args for call in calls), 7)
        rows, may_be_done = await self._keyed.fetch_once_or_again(
            "answering", SQL_GIVE_ANSWERS, self._me, *args
        )
        seen_keys: set[tuple[object, ...]] = set()
        for row in rows:
            call = calls[row["i"] - 1]
            key = call.args[:2]
            is_accepted = (row["fresh"] or (may_be_done and row["same"])) and key not in seen_keys
            if is_accepted:
                seen_keys.add(key)
            call.answer(SignalOutcome(is_accepted, AgentId.parse(row["agent"])))
        for call in calls:
            if not call.future.done():
                call.fail(UnknownRunError(call.args[0]))

    async def _flush_nudges(self, calls: list[Batched[tuple[str, Nudge], None]]) -> None:
        nudge_rows = {(owner, *nudge_row(nudge)) for owner, nudge in (call.args for call in calls)}
        for call in calls:
            call.answer(None)
        await self._link.fetch("nudging", SQL_NUDGE, self._me, *columns(nudge_rows, 4))


def _session_columns(
    sessions: Sequence[NewSession | None],
) -> tuple[Sequence[str | None], Sequence[str | None] | None] | None:
    """Return `r_project` and `r_owner` of `submit_runs`, or None if no submit is of a session."""
    if not any(sessions):
        return None
    projects = [None if s is None else s.project for s in sessions]
    expected = [None if s is None else s.expected for s in sessions]
    owners = [None if s is None else s.owner or "" for s in expected] if any(expected) else None
    return projects, owners


def nudge_row(nudge: Nudge) -> tuple[str, str | None, str | None]:
    """Return kind, agent, and run or shard, as hints travel."""
    agent = None if nudge.agent_id is None else str(nudge.agent_id)
    return nudge.kind, agent, nudge.shard if nudge.kind == "fanout" else nudge.run_id


def mail_row(message: Message) -> tuple[str, int, str, str, str]:
    """Return agent, hash, sender, id and body. Raises what `ends_of` does."""
    sender, agent = ends_of(message)
    return str(agent), partition_hash(agent), sender, message.id, message_text(message, sender)


def arrived_now(message: Message, arrival: int) -> Arrived:
    """Return what became of a message of `mail_row`."""
    return Arrived(message, *ends_of(message), arrival)
