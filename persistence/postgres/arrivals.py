"""What anybody may write: submits, mail and signals, each kind grouped, each safe to send again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple

from actors.errors import ContractError, RunConflictError, UnknownRunError
from actors.kernel.faults import armed
from actors.kernel.runtime.commit import Arrived, SignalOutcome
from actors.kernel.runtime.decisions import RESERVED
from actors.kernel.runtime.ids import AgentId, RunId, partition_hash
from actors.kernel.runtime.store import Nudge, Submitted
from persistence.postgres.batch import Batcher, Call
from persistence.postgres.encode import columns, json_text, message_text, run_columns
from persistence.postgres.link import KEYED, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.message import Message
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import NewRun
    from actors.kernel.runtime.store import OnConflict
    from persistence.postgres.link import Outage
    from persistence.postgres.settings import StoreSettings

SQL_SUBMIT_RUNS: Final[LiteralString] = (
    "select i, run_id, arrival, fresh, local, busy from submit_runs"
    "($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)"
)
SQL_DELIVER_MAIL: Final[LiteralString] = (
    "select i, arrival, fresh, state from deliver_mail($1,$2,$3,$4,$5,$6)"
)
SQL_SEND_SIGNALS: Final[LiteralString] = (
    "select i, agent, ended, fresh, same from send_signals($1,$2,$3,$4,$5,$6)"
)
SQL_NUDGE: Final[LiteralString] = "select nudge_owners($1,$2,$3,$4,$5)"


class _Submit(NamedTuple):
    mode: OnConflict
    agent_id: AgentId
    message: Message
    sender: str
    row: tuple[object, ...]


class _Mail(NamedTuple):
    messages: Sequence[Message]
    rows: list[tuple[object, ...]]


class _Signal(NamedTuple):
    run_id: RunId
    row: tuple[object, ...]


class Arrivals:
    """Writes what comes from outside a turn; see `RunStore.submit`, `deliver` and `signal`.

    After an unknown outcome the group is sent again: what is known by its key then counts as
    accepted by this call.
    """

    def __init__(self, settings: StoreSettings, outage: Outage) -> None:
        self._me = settings.owner
        self._link = Link(settings, outage, KEYED)
        limit = settings.group_limit
        self._submits: Batcher[_Submit, Submitted] = Batcher(self._flush_submits, limit=limit)
        self._mails: Batcher[_Mail, list[Arrived]] = Batcher(self._flush_mails, limit=limit)
        self._signals: Batcher[_Signal, SignalOutcome] = Batcher(self._flush_signals, limit=limit)
        self._nudges: Batcher[tuple[str, Nudge], None] = Batcher(self._flush_nudges, limit=limit)
        self._fault = armed("submit")
        self.batchers = (self._submits, self._mails, self._signals, self._nudges)

    async def submit(self, new_run: NewRun, message: Message, on_conflict: OnConflict) -> Submitted:
        """See `RunStore.submit`."""
        sender = _sender_of(message)
        row = (*run_columns(new_run), sender, message.id, message_text(message, sender))
        return await self._submits.call(
            _Submit(on_conflict, new_run.agent_id, message, sender, row)
        )

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """See `RunStore.deliver`."""
        if not messages:
            return []
        return await self._mails.call(_Mail(messages, [mail_row(message) for message in messages]))

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """See `RunStore.signal`."""
        row = (run_id, name, json_text(payload, f"signal {name}"), sender, message_id)
        return await self._signals.call(_Signal(run_id, row))

    def nudge(self, owner: str, nudge: Nudge) -> None:
        """Tell another owner, soon, what changed for one of its agents or shards."""
        # Nobody waits for a hint.
        _ = self._nudges.call((owner, nudge))

    async def close(self) -> None:
        """Close the connection; the batchers have ended."""
        await self._link.close()

    # --- groups -----------------------------------------------------------------------------------

    async def _flush_submits(self, calls: list[Call[_Submit, Submitted]]) -> None:
        queued = [call for call in calls if call.args.mode == "queue"]
        if queued:
            await self._send_submits("queue", queued)
        for call in calls:
            if call.args.mode != "queue":
                await self._send_submits(call.args.mode, [call])

    async def _send_submits(self, mode: OnConflict, calls: list[Call[_Submit, Submitted]]) -> None:
        args = columns((call.args.row for call in calls), 15)
        if self._fault is not None:
            self._fault.before()
        rows, again = await self._link.fetch_once_or_again(
            "submitting", SQL_SUBMIT_RUNS, self._me, mode, *args
        )
        if self._fault is not None:
            self._fault.after()
        seen: set[int] = set()
        for row in rows:
            call = calls[row["i"] - 1]
            submit = call.args
            run_id = RunId(row["run_id"])
            if row["busy"]:
                call.fail(RunConflictError(str(submit.agent_id), run_id))
                continue
            arrived = None
            if (row["fresh"] or again) and row["arrival"] not in seen:
                seen.add(row["arrival"])
                bound = run_id if mode != "join" or run_id == submit.row[0] else None
                arrived = Arrived(
                    submit.message, submit.sender, submit.agent_id, row["arrival"], bound
                )
            call.answer(Submitted(run_id, arrived, row["local"]))

    async def _flush_mails(self, calls: list[Call[_Mail, list[Arrived]]]) -> None:
        flat = [row for call in calls for row in call.args.rows]
        rows, again = await self._link.fetch_once_or_again(
            "delivering", SQL_DELIVER_MAIL, self._me, *columns(flat, 5)
        )
        arrivals: list[int | None] = [None] * len(flat)
        seen: set[int] = set()
        for row in rows:
            fresh = row["fresh"] or (again and row["state"] == "p")
            if fresh and row["arrival"] not in seen:
                seen.add(row["arrival"])
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

    async def _flush_signals(self, calls: list[Call[_Signal, SignalOutcome]]) -> None:
        args = columns((call.args.row for call in calls), 5)
        rows, again = await self._link.fetch_once_or_again(
            "signalling", SQL_SEND_SIGNALS, self._me, *args
        )
        seen: set[tuple[object, ...]] = set()
        for row in rows:
            call = calls[row["i"] - 1]
            run_id, name, _, sender, message_id = call.args.row
            key = (run_id, sender, message_id)
            accepted = (row["fresh"] or (again and not row["ended"])) and key not in seen
            if name.startswith(RESERVED):  # of several at once that one counts which was kept
                accepted = (row["fresh"] or again) and row["same"] and key not in seen
            if accepted:
                seen.add(key)
            same = row["same"] and not accepted
            call.answer(SignalOutcome(accepted, AgentId.parse(row["agent"]), same))
        for call in calls:
            if not call.future.done():
                call.fail(UnknownRunError(call.args.run_id))

    async def _flush_nudges(self, calls: list[Call[tuple[str, Nudge], None]]) -> None:
        wanted = {(owner, *nudge_row(nudge)) for owner, nudge in (call.args for call in calls)}
        for call in calls:
            call.answer(None)
        await self._link.fetch("nudging", SQL_NUDGE, self._me, *columns(wanted, 4))


def nudge_row(nudge: Nudge) -> tuple[str, str | None, str | None]:
    """Return kind, agent, and run or shard, as hints travel."""
    agent = None if nudge.agent_id is None else str(nudge.agent_id)
    return nudge.kind, agent, nudge.shard if nudge.kind == "fanout" else nudge.run_id


def mail_row(message: Message) -> tuple[str, int, str, str, str]:
    """Return agent, hash, sender, id and body.

    Raises:
        ContractError: The message has no sender, or goes to a topic.
    """
    target = message.target
    if not isinstance(target, AgentId):
        msg = f"message {message.id} goes to topic {target}: only agents have an inbox"
        raise ContractError(msg)
    return (
        str(target),
        partition_hash(target),
        _sender_of(message),
        message.id,
        message_text(message, message.sender),
    )


def arrived_now(message: Message, arrival: int) -> Arrived:
    """Return what became of a message of `mail_row`."""
    assert isinstance(message.target, AgentId)
    assert message.sender is not None
    return Arrived(message, message.sender, message.target, arrival)


def _sender_of(message: Message) -> str:
    if message.sender is None:
        msg = f"message {message.id} has no sender: order and dedup are per sender"
        raise ContractError(msg)
    return message.sender
