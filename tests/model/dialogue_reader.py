"""A reader of a session that is disconnected, and continues after its last event."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.sessions import CursorError

if TYPE_CHECKING:
    from actors.sessions import AgentRuntime, SessionEvent
    from tests.model.dialogue_program import Reader


@dataclass
class Watch:
    """The events of one reader.

    Attributes: reader: Its connections, and the number of events in each. seen: All stored events
    that it got, in its order. wrong: Violations. was_lost: Its last cursor was refused. is_settled:
    It has been connected since all runs waited or had ended, so that it has all events.
    """

    reader: Reader
    seen: list[SessionEvent] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    was_lost: bool = False
    is_settled: bool = False
    _cursor: str | None = None
    _task: asyncio.Task[None] | None = None
    _pause: int | None = None
    _turn: int = 0

    @property
    def is_on(self) -> bool:
        """Whether it is connected now."""
        return self._task is not None and not self._task.done()

    def is_due(self) -> bool:
        """Count an act while it is disconnected; return whether it connects now."""
        if self.is_on:
            return False
        cuts = self.reader.cuts
        if self._pause is None:
            self._pause = cuts[self._turn][0] if self._turn < len(cuts) else 0
        self._pause -= 1
        return self._pause < 0

    def come(self, talks: AgentRuntime, session: str, *, at_last: bool = False) -> None:
        """Read on, for the events of this connection; `at_last`: for all."""
        cuts = self.reader.cuts
        most = cuts[self._turn][1] if self._turn < len(cuts) and not at_last else None
        self._turn, self._pause, self.was_lost = self._turn + 1, None, False
        self.is_settled = False
        self._task = asyncio.ensure_future(self._read(talks, session, most))

    async def _read(self, talks: AgentRuntime, session: str, most: int | None) -> None:
        live = self.reader.who % 2 == 0
        try:
            async with aclosing(
                talks.tail_session(session, cursor=self._cursor, live=live)
            ) as events:
                async for event in events:
                    if event.event_id is None:
                        continue
                    self.seen.append(event)
                    self._cursor = event.event_id
                    most = None if most is None else most - 1
                    if most == 0:
                        return
        except CursorError:
            self._cursor, self.was_lost = None, True
        except Exception as exc:  # noqa: BLE001 - told at the end, with the program
            self.wrong.append(f"a reader got {exc!r} behind {self._cursor}")

    async def go(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
