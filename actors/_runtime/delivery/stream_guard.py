"""The stream guard: checks that the stream MAIL is the one that was read, and acts when it is not."""

from __future__ import annotations

import logging

from typing_extensions import override

from actors._kernel.stores.transport import MailConnection, MailStore, StreamRecord, StreamState
from actors.errors import BrokerError

_log = logging.getLogger("callboard.delivery")


class StreamRolledBackError(BrokerError):
    """The stream MAIL, or the database, was rolled back: the stream has to be made anew.

    Attributes:
        stream: Its name.
        problem: The reason why it was not deleted; empty if it was.
    """

    def __init__(self, stream: str, problem: str = "") -> None:
        super().__init__(stream, problem)
        self.stream, self.problem = stream, problem

    @override
    def __str__(self) -> str:
        event = f"stream {self.stream}, or the database, was rolled back"
        if not self.problem:
            return f"{event}: the stream is made anew"
        return (
            f"{event}, and the stream cannot be deleted: {self.problem}. Run `callboard migrate --streams` "
            "with the admin's login, which makes it anew; until then messages wait"
        )


async def guard_stream(connection: MailConnection, rows: MailStore) -> StreamRecord:
    """Return the stream's record. A stream other than the one that was read starts a new incarnation.

    A broker may lose the messages that it acknowledged last, or all messages, and give their numbers to later
    messages. A stream that was rolled back is deleted and created again, because sources do not deliver again
    the messages of external clients that it lost. The same is done if more messages were purged than the store
    has allowed: then the database lost its last commits, and with them the rows of purged messages.

    Raises:
        StreamRolledBackError: The stream cannot be read on. It is deleted now, so connect again; or
            this login may not delete it, and another login has to.
        BrokerError: The broker did not answer.
    """
    state = await connection.stream_state()
    record = await rows.stream(state)
    while record.created == state.created:
        if await _fits(connection, state, record):
            return record
        record, previous_record = await rows.stream(state), record
        if record == previous_record:  # else another host read on, and purged meanwhile
            break
    is_whole = record.created != state.created and state.first_sequence <= 1
    if not is_whole:
        try:
            await connection.forget_stream(state)
        except BrokerError as exc:
            # Raises if the broker is away: then it has refused nothing.
            await connection.stream_state()
            raise StreamRolledBackError(state.name, str(exc)) from exc
    highest = record.highest
    facts = {
        "stream": state.name,
        "stream_created": str(state.created),
        "was_created": str(record.created),
        "read_up_to": highest.sequence if highest else 0,
        "purged_up_to": record.purged,
        "begins_at": state.first_sequence,
        "ends_at": state.last_sequence,
    }
    if not is_whole:
        _log.warning(
            "the stream MAIL is made anew: it, or the database, was rolled back", extra=facts
        )
        raise StreamRolledBackError(state.name)
    _log.error(
        "the stream MAIL is not the one that was read: all it holds is read again, and what was "
        "sent and not received is sent again. Nothing of that is lost; what clients published "
        "and no host had read is only as safe as the broker's disk",
        extra=facts,
    )
    return await rows.next_stream_epoch(record, state.created)


async def _fits(connection: MailConnection, state: StreamState, record: StreamRecord) -> bool:
    """Return True if the stream has all that the store has not read, and the message that it read last."""
    if state.first_sequence > record.purged:
        return False
    highest = record.highest
    if highest is None or highest.at is None:
        return True
    return await connection.stored_at(highest.sequence) == highest.at
