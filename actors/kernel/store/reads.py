"""Reads by id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from actors.kernel.json import JsonValue
from actors.kernel.runtime.hints import Handed
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.runtime.rows import BufferedSignal, LoadedRun, RunRow
from actors.kernel.runtime.waits import Answer

SMALL_STATE_KEYS: Final = 100
SMALL_STATE_BYTES: Final = 16_384
"""A state of no more keys and bytes is read as a whole."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """Keys of an agent's state and their values; `is_whole`: it has no others."""

    values: Mapping[str, JsonValue]
    is_whole: bool


class ReadStore(Protocol):
    """A run or an agent's state, by its id."""

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """Return rows and logs of several runs in one round trip; unknown ids are left out."""

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return one run's row."""

    async def started_by(self, run_id: RunId) -> str | None:
        """Return the sender of all messages that the run's tree began with, started or not.

        None: there were several, or none, or it is not known any more, or there is no such run.
        """

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """Return the run's signals that are not consumed, in arrival order."""

    async def answers(self, run_id: RunId) -> list[Answer]:
        """Return the run's answers that are not consumed, whether it waits for them or not."""

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """Return the agent's state."""

    async def state_at(self, agent_id: AgentId, key: str) -> StatePart:
        """Return one key of the agent's state if it is there; of a small state all keys."""

    async def tokens_left(self, run_id: RunId) -> int | None:
        """Return how many tokens the run's tree may still use; None: its budget limits none."""

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq` to its present end."""

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq`, then what is appended.

        Ends after a terminal entry, and when a run that was there is there no more.
        """

    def handed(self, run_id: RunId) -> AbstractContextManager[Handed[RunLogEntry] | None]:
        """Yield the entries of a run that this process has submitted lately and executes; None: use `tail`.

        Of a submit one reader gets them. It has to use `tail` if it has to read, or if none come for a while.
        """
        del run_id
        return nullcontext()
