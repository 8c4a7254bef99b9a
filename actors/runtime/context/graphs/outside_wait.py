"""A wait of a graph for an answer from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from typing_extensions import override

from actors.kernel.json import JsonValue
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.waits import Wait, WaitKind
from actors.runtime.context.call import Call, Entry
from actors.runtime.context.question import Question

ENDS: Final = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT)
"""Entries that such a wait records."""


class OutsideWait(Question):
    """A wait for a person, an event or a job, with its deadline."""

    def __init__(  # noqa: PLR0917 - what others see of it
        self, call: Call, kind: WaitKind, key: str, request: JsonValue, until: datetime | None
    ) -> None:
        super().__init__(call, kind, None)
        self._kind, self._request = kind, request
        self.key, self.at = key, until

    @override
    async def prepare(self) -> Wait:
        return Wait(
            self.call.position, self._kind, self.key, request=self._request, expires_at=self.at
        )

    @override
    async def timed_out(self) -> Entry:
        return self.call.entry(K.ASK_TIMEOUT, {"outcome": "timed_out"})
