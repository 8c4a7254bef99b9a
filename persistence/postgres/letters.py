"""Dead letters given back as new messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, LiteralString

import asyncpg
from pydantic_core import from_json

from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import derive_id
from persistence.errors import translate
from persistence.postgres.arrivals import arrived_now, mail_row
from persistence.postgres.encode import columns
from persistence.postgres.reads import SQL_SELECT_LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.runtime.commit import Arrived
    from persistence.postgres.link import Links
    from persistence.postgres.settings import StoreSettings

SQL_REDRIVE_LETTERS: Final[LiteralString] = (
    "select i, arrival from redrive_letters($1,$2,$3,$4,$5,$6,$7)"
)


async def redrive(settings: StoreSettings, links: Links, ids: Sequence[int]) -> list[Arrived]:
    """See `RunStore.redrive`. Two callers at once: each letter goes to one of them."""
    try:
        letters = await links.fetch(SQL_SELECT_LETTERS, list(ids))
        if not letters:
            return []
        messages = [
            _again(Message.from_json(from_json(row["body"])), row["sender"]) for row in letters
        ]
        rows = await links.fetch(
            SQL_REDRIVE_LETTERS,
            settings.owner,
            [row["id"] for row in letters],
            *columns((mail_row(message) for message in messages), 5),
        )
    except asyncpg.PostgresError as exc:
        raise translate(exc, "redriving dead letters") from exc
    return [arrived_now(messages[row["i"] - 1], row["arrival"]) for row in rows]


def _again(message: Message, sender: str) -> Message:
    new_id = derive_id("redrive", str(message.target), sender, message.id)
    return replace(message, id=new_id, sender=sender, causation_id=message.id)
