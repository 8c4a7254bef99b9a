"""Dead letters given back as new messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, LiteralString

from pydantic_core import from_json

from actors.errors import ContractError
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import derive_id
from persistence.postgres.arrivals import arrived_now, mail_row
from persistence.postgres.encode import columns
from persistence.postgres.reads import SQL_SELECT_LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.runtime.commit import Arrived
    from persistence.postgres.link import Links, Row
    from persistence.postgres.settings import StoreSettings

SQL_REDRIVE_LETTERS: Final[LiteralString] = (
    "select i, arrival from redrive_letters($1,$2,$3,$4,$5,$6,$7)"
)

SQL_DISCARD_LETTERS: Final[LiteralString] = """
with gone as (
  delete from dead_letters d where d.id = any($1::bigint[]) and d.redriven_at is null returning 1)
select count(*) as n from gone
"""

SIGNAL_KIND: Final = "callboard.signal"
"""Payload kind of a signal kept as a dead letter, as the SQL function `ingest_mail` writes it."""


async def redrive(settings: StoreSettings, links: Links, ids: Sequence[int]) -> list[Arrived]:
    """See `RunStore.redrive`. Two callers at once: each letter goes to one of them.

    Raises:
        ContractError: One of them is no mail: bytes that nobody could read, or a signal.
    """
    doing = "redriving dead letters"
    letters = await links.fetch(doing, SQL_SELECT_LETTERS, list(ids))
    if not letters:
        return []
    messages = [_again(row) for row in letters]
    rows = await links.fetch(
        doing,
        SQL_REDRIVE_LETTERS,
        settings.owner,
        [row["id"] for row in letters],
        *columns((mail_row(message) for message in messages), 5),
    )
    return [arrived_now(messages[row["i"] - 1], row["arrival"]) for row in rows]


async def discard(links: Links, ids: Sequence[int]) -> int:
    """See `RunStore.discard`. After an answer that was lost it may count too few."""
    rows = await links.fetch("discarding dead letters", SQL_DISCARD_LETTERS, list(ids))
    count: int = rows[0]["n"]
    return count


def _again(row: Row) -> Message:
    message = Message.from_json(from_json(row["body"]))
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
