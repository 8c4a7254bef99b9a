"""Positions in the events of a session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from actors.kernel.storage.session import NO_FACT
from actors.sessions.errors import CursorError

_FORM: Final = re.compile(
    r"(?P<fact>\d{1,15})(?P<half>\.0)?:(?:-1|(?P<seq>\d{1,15})(?:\.(?P<part>\d{1,9}))?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The position behind an event, written ``fact:seq``.

    Attributes:
        fact: Number of the last fact of the session that was seen.
        seq: Of the last entry that was seen of the run that is active then; -1: none.
        part: Of several events of that entry the last one that was seen; None: all were.
        is_half: Of the two events of that fact only the first was seen.
    """

    fact: int = NO_FACT
    seq: int = -1
    part: int | None = None
    is_half: bool = False

    @classmethod
    def parse(cls, text: str, session: str) -> Self:
        """Return the cursor that `str` of it gave.

        Raises:
            CursorError: It is none.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise CursorError(text[:60], session, "it is not the `event_id` of an event")
        seq, part = found["seq"], found["part"]
        return cls(
            int(found["fact"]),
            -1 if seq is None else int(seq),
            None if part is None else int(part),
            found["half"] is not None,
        )

    @property
    def last_fact(self) -> int:
        """Number of the last fact of which all was seen."""
        return self.fact - 1 if self.is_half else self.fact

    @property
    def next_seq(self) -> int:
        """The first entry to read."""
        return self.seq + 1 if self.part is None else self.seq

    @property
    def skip(self) -> int:
        """The number of events of that entry that were seen."""
        return 0 if self.part is None else self.part + 1

    @override
    def __str__(self) -> str:
        half = ".0" if self.is_half else ""
        part = "" if self.part is None else f".{self.part}"
        return f"{self.fact}{half}:{self.seq}{part}"
