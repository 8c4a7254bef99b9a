"""The removal of rows: old ones by the sweeper, a little at a time, others because a person has them erased.

`Erasing` removes all that a deployment keeps of a tenant, an agent, a session or a subject, batch by batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.administration import (
    ERASE_BATCH,
    Erasable,
    EraseProgress,
    EraseReport,
    EraseRequest,
    EraseScope,
    Unreached,
)
from actors._kernel.stores.errors import OpenRunsError
from actors._kernel.stores.forgotten import Forgotten
from actors._kernel.stores.run_store import RunStore
from actors.errors import ContractError, PersistenceError

_log = logging.getLogger("callboard.sharding")

BATCH: Final = 200
FORGET_BATCH: Final = 2000
PAUSE_S: Final = 0.2
"""Seconds between two batches, so that the store has time for other work."""
EVERY_S: Final = 60.0
AGAIN_S: Final = 0.1
"""The pause before an agent whose runs were cancelled is polled again."""


async def sweep_all(store: RunStore, *, older_than_s: float | None, pause_s: float = 0.0) -> int:
    """Sweep and forget until nothing of that age is left; return how many runs were swept.

    Args:
        store: The store of the runs.
        older_than_s: Seconds since the end of runs that go; None for what needs no age alone (see `RunStore`).
        pause_s: Seconds between two batches.
    """
    total = 0
    while True:
        swept_count = await store.retention.sweep(older_than_s=older_than_s, limit=BATCH)
        forgotten_count = await store.retention.forget_old(
            older_than_s=older_than_s, limit=FORGET_BATCH
        )
        total += swept_count
        if not swept_count and forgotten_count < FORGET_BATCH:
            return total
        await asyncio.sleep(pause_s)


async def forget_agent(
    store: RunStore, agent_id: AgentId, *, cancel: bool = False, wait_s: float = 30.0
) -> Forgotten:
    """Delete what belongs to an agent (see `RetentionStore.forget_agent`); return how much that was.

    If it is broken off it is done in part; call it again.

    Raises:
        ContractError: A run of it is open; with `cancel`: still open after `wait_s`.
    """
    total = Forgotten(more=True)
    end = asyncio.get_running_loop().time() + wait_s
    while total.more:
        total = total.and_then(await store.retention.forget_agent(agent_id, cancel=cancel))
        if total.open_run is None:
            continue
        if not cancel:
            msg = f"run {total.open_run} of {agent_id} is open: wait for its end, or say --cancel"
            raise ContractError(msg)
        if asyncio.get_running_loop().time() > end:
            problem = f"run {total.open_run} of {agent_id} was cancelled and is still open"
            raise ContractError(f"{problem} after {wait_s:g} s: does a host serve it? Ask again")
        await asyncio.sleep(AGAIN_S)
    return total


async def sweep_for_ever(store: RunStore, *, older_than_s: float | None) -> None:
    """Sweep once a minute until cancelled. Several hosts may do it: each row is taken once."""
    while True:
        try:
            swept_count = await sweep_all(store, older_than_s=older_than_s, pause_s=PAUSE_S)
            if swept_count:
                _log.info("old runs were swept", extra={"runs": swept_count})
        except PersistenceError as exc:
            _log.warning("sweeping is tried again", exc_info=exc)
        await asyncio.sleep(EVERY_S)


MAX_NAMED: Final = 10
"""Number of open runs that a refusal names."""
AT_ONCE: Final = 100
"""Number of open runs that are cancelled at once."""
ERASE_AGAIN_S: Final = 0.1
"""The pause before runs that were cancelled are polled again."""
EDGE_DAYS: Final = 7
LETTER_DAYS: Final = 90
MESSAGE_ID_DAYS: Final = 8

_SUBJECT_PLACES: Final = (
    ("conversations and logs", "they have the memories that agents recalled: erase these sessions"),
    (
        "agents' own memories and blocks",
        "they may be about the subject, too: see `callboard memory list`, then forget them or erase the agent",
    ),
)
_SHARED_PLACES: Final = (
    (
        "other agents",
        "they keep the answers and messages that it sent: erase them, too, or the tenant",
    ),
)
_AGENT_PLACES: Final = (
    (
        "memories in shared scopes",
        "what the agent kept of others belongs to its scope, such as user:7: erase that by about=",
    ),
)
_SESSION_PLACES: Final = (
    (
        "memories that its runs kept",
        "they belong to the agent or to a scope such as user:7: erase that, or `callboard memory forget` one",
    ),
    (
        "runs without turns",
        "a run that left no turn in the session keeps its log: see `runs sweep`",
    ),
    (
        "the agent's state, messages and artifacts",
        "they belong to all of its sessions: erase the agent",
    ),
)
_BROKER_PLACES: Final = (
    ("stream EDGE", "bodies of messages from external clients", EDGE_DAYS),
    ("stream TOPIC", "posts to topics", EDGE_DAYS),
    ("stream DEAD", "copies of dead letters", LETTER_DAYS),
    ("message ids", "hashes of ids, so that no message is handled again", MESSAGE_ID_DAYS),
    ("uploads under way", "bytes that no artifact names yet", 1),
    ("Redis", "results of effects, for a day; sessions of a Redis history are erased by also=", 7),
)
_ANY_PLACES: Final = (
    (
        "usage totals",
        "they stay: counts and costs by agent and model, and no text of a conversation",
    ),
    ("back-ups, replicas, WAL", "a restored back-up has it again: erase again after a restore"),
    (
        "dead rows on the disk",
        "nobody can select them: PostgreSQL uses their pages again after vacuum",
    ),
    ("traces, logs and exports", "they were sent elsewhere: see your collector's retention"),
    ("memory of hosts", "decoded turns, which nobody can ask for: gone when a host starts anew"),
)


def unreached(what: EraseRequest, now: datetime) -> tuple[Unreached, ...]:
    """Return the locations that an erase does not reach, those with a date first."""
    scope = what.scope
    dated_places = () if scope is EraseScope.SUBJECT else _BROKER_PLACES
    special_places = {
        EraseScope.SUBJECT: _SUBJECT_PLACES,
        EraseScope.SESSION: (*_SHARED_PLACES, *_SESSION_PLACES),
        EraseScope.AGENT: (*_SHARED_PLACES, *_AGENT_PLACES),
        EraseScope.TENANT: (),
    }[scope]
    return (
        *(Unreached(name, why, now + timedelta(days=days)) for name, why, days in dated_places),
        *(Unreached(name, why) for name, why in (*special_places, *_ANY_PLACES)),
    )


@dataclass(slots=True)
class Erasing:
    """An erase under way.

    Attributes:
        store: The rows.
        what: The request.
        also: Stores beside it.
        cancel: Function that asks a run to stop, or None to refuse while runs are open.
        wait_s: Seconds until cancelled runs must have ended.
        on_progress: Called with the number of rows that are gone; see `EraseProgress`.
    """

    store: RunStore
    what: EraseRequest
    also: Sequence[Erasable] = ()
    cancel: Callable[[RunId], Awaitable[object]] | None = None
    wait_s: float = 30.0
    on_progress: EraseProgress | None = None
    _counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _cancelled: dict[RunId, None] = field(default_factory=dict)
    _batches: int = 0

    async def preview(self, now: datetime) -> EraseReport:
        """Return what an erase would remove now. Removes nothing."""
        for part in self._parts:
            self._counts[part.erased_as].update(await part.count(self.what))
        return self._report(now, is_dry_run=True)

    async def run(self, now: datetime) -> EraseReport:
        """Erase; safe to call again after any crash.

        Raises:
            OpenRunsError: Runs are open; with `cancel`: still open after `wait_s`.
        """
        end = asyncio.get_running_loop().time() + self.wait_s
        while True:
            await self._end_open_runs(end)
            try:
                await self._remove_all()
            except OpenRunsError:
                if self.cancel is None or asyncio.get_running_loop().time() > end:
                    raise
            else:
                return self._report(now, is_dry_run=False)

    @property
    def _parts(self) -> tuple[Erasable, ...]:
        return (*self.store.data.erasure.parts, *self.also)

    async def _remove_all(self) -> None:
        for part in self._parts:
            cursor, is_done = None, False
            while not is_done:
                batch = await part.erase(self.what, cursor=cursor, limit=ERASE_BATCH)
                self._counts[part.erased_as].update(batch.rows)
                self._batches += 1
                if self.on_progress is not None:
                    self.on_progress(sum(kinds.total() for kinds in self._counts.values()))
                cursor, is_done = batch.cursor, batch.cursor is None

    async def _end_open_runs(self, end: float) -> None:
        """Wait until the session's runs that were open at this call have ended.

        If more than a session is erased, wait until no run is open.
        """
        erasure, what = self.store.data.erasure, self.what
        open_runs = await erasure.open_runs(what, limit=AT_ONCE)
        is_session = what.scope is EraseScope.SESSION
        first_ids = {run_id for run_id, _ in open_runs}
        while open_runs:
            if self.cancel is None:
                remedy = "wait for their end, or say cancel=True (--cancel) to stop them first"
                raise _refusal(what, open_runs, remedy)
            for run_id, agent in open_runs:
                if run_id not in self._cancelled:
                    await self.cancel(run_id)
                    self._cancelled[run_id] = None
                if not is_session:
                    # Waiting messages would begin runs when the open ones have ended.
                    forgotten = await self.store.retention.forget_agent(
                        agent, cancel=True, limit=ERASE_BATCH
                    )
                    rows = {
                        "messages": forgotten.messages,
                        "state": forgotten.state,
                        "follows": forgotten.follows,
                    }
                    self._counts["agents"].update(rows)
            if asyncio.get_running_loop().time() > end:
                problem = f"they were cancelled and are still open after {self.wait_s:g} s"
                raise _refusal(what, open_runs, f"{problem}: does a host serve them? Erase again")
            await asyncio.sleep(ERASE_AGAIN_S)
            open_runs = await erasure.open_runs(what, limit=AT_ONCE)
            if is_session:
                open_runs = [run for run in open_runs if run[0] in first_ids]

    def _report(self, now: datetime, *, is_dry_run: bool) -> EraseReport:
        return EraseReport(
            what=self.what,
            counts={name: dict(kinds) for name, kinds in self._counts.items()},
            cancelled=tuple(self._cancelled),
            is_dry_run=is_dry_run,
            batches=self._batches,
            unreached=unreached(self.what, now),
        )


def _refusal(
    what: EraseRequest, open_runs: Sequence[tuple[RunId, AgentId]], remedy: str
) -> OpenRunsError:
    run_ids_text = ", ".join(run_id for run_id, _ in open_runs[:MAX_NAMED])
    more = ", …" if len(open_runs) > MAX_NAMED else ""
    name = f"tenant {what.tenant}" if what.agent is None else f"agent {what.agent}"
    return OpenRunsError(name, run_ids_text + more, remedy)
