"""Positions in the events of a session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from actors.kernel.stores.conversations import NO_FACT
from actors.kernel.text import MAX_INT
from actors.sessions.errors import CursorError

_FORM: Final = re.compile(
    r"(?P<fact>\d{1,15})(?P<half>\.0)?:(?:-1|(?P<seq>\d{1,15})(?:\.(?P<part>\d{1,9}))?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The position after an event. Its text is ``fact:seq``.

    Attributes:
        fact: The number of the last fact of the session that was read.
        seq: The number of the last entry that was read of the run that is active after that fact. -1: no entry
            was read.
        part: The number of the last event of that entry that was read. None: all its events were read.
        is_half: True if only the first of the fact's two events was read.
    """

    fact: int = NO_FACT
    seq: int = -1
    part: int | None = None
    is_half: bool = False

    @classmethod
    def parse(cls, text: str, session: str) -> Self:
        """Return the cursor from its text.

        Raises:
            CursorError: The text is not a cursor.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise CursorError(text[:60], session, "it is not the `event_id` of an event")
        seq, part = found["seq"], found["part"]
        if int(seq or 0) > MAX_INT:
            raise CursorError(text[:60], session, f"its second number is above {MAX_INT}")
        return cls(
            int(found["fact"]),
            -1 if seq is None else int(seq),
            None if part is None else int(part),
            found["half"] is not None,
        )

    @property
    def last_fact(self) -> int:
        """Number of the last fact of which all events were read."""
        return self.fact - 1 if self.is_half else self.fact

    @property
    def next_seq(self) -> int:
        """Number of the first entry to read."""
        return self.seq + 1 if self.part is None else self.seq

    @property
    def skip(self) -> int:
        """The number of events of that entry that were read already."""
        return 0 if self.part is None else self.part + 1

    @override
    def __str__(self) -> str:
        half = ".0" if self.is_half else ""
        part = "" if self.part is None else f".{self.part}"
        return f"{self.fact}{half}:{self.seq}{part}"
