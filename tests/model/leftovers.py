"""What a host keeps in memory without a reason in the rows: a leak, or an agent that it takes for free."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from actors._runtime.loop.timers import HORIZON_S
from actors._runtime.worker.mailbox import Adoption, Holding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.rows import RunRow
    from actors._kernel.stores.run_store import RunStore
    from actors._runtime import Runtime
    from actors._runtime.worker.mailbox import Mailbox

QUIET_S: Final = 12.0
"""Seconds within which a host with nothing to do forgets its agents: two scans."""
LOOK_S: Final = 0.5
LATE_S: Final = 1.0
"""Seconds by which a timer may ring late."""


async def leftovers(runtime: Runtime, store: RunStore, runs: Sequence[RunRow]) -> list[str]:
    """Return what the runtime's worker keeps without a reason, as text, once that changes no more.

    Args: runtime: A host at which nothing happens. store: Has its rows. runs: The runs that are
    looked at.
    """
    texts, by_id = list[str](), {run.run_id: run for run in runs}
    for _ in range(int(QUIET_S / LOOK_S)):
        texts = await _find_leftovers(runtime, store, by_id)
        if not texts:
            break
        await asyncio.sleep(LOOK_S)
    return texts


async def _find_leftovers(
    runtime: Runtime, store: RunStore, runs: Mapping[RunId, RunRow]
) -> list[str]:
    state: Any = runtime._host.worker._state
    texts = [*_of_ended(runtime, {run_id for run_id, run in runs.items() if _is_over(run)})]
    texts += _under_way(runtime)
    for mailbox in list(state.mailboxes._by_agent.values()):
        if not await _has_reason(mailbox, runtime, store, runs):
            texts.append(str(mailbox))
    return texts + await _taken_for_free(state, store)


def _is_over(run: RunRow) -> bool:
    return run.status.is_terminal


def _of_ended(runtime: Runtime, ended: set[RunId]) -> Iterator[str]:
    """What is kept of runs that have ended."""
    state: Any = runtime._host.worker._state
    run_maps: dict[str, Any] = {
        "executing": state.executing,
        "fresh": state.fresh,
        "refusals": state.refusals,
        "setbacks": state.setbacks._counts,
        "waiters": state.completions._waiters,
        "open answers": runtime._host._live.open_answers._runs,
    }
    for what, by_run in run_maps.items():
        for run_id in by_run.keys() & ended:
            yield f"{what} of run {run_id}, which has ended"


def _under_way(runtime: Runtime) -> Iterator[str]:
    """What looks as if something were going on that is not: places, tasks, messages, preparations."""
    worker: Any = runtime._host.worker
    state = worker._state
    executing = {execution.lease.agent_id for execution in state.executing.values()}
    permits = {permit.item.agent_id for permit in state.dispatcher.admission._permits}
    tasks = {task.get_name() for task in state.tasks._tasks}
    prepared = {*worker._preparation._scopes, *worker._preparation._answered}
    yield from (f"a permit of {agent}" for agent in permits - executing)
    yield from (f"the task {name}" for name in tasks - {f"agent {agent}" for agent in executing})
    yield from (f"what is prepared for {agent}" for agent in prepared)
    yield from (f"messages held back: {rows}" for rows in worker.intake.held_back.values() if rows)
    if state.dispatcher.load != len(executing):
        yield f"a load of {state.dispatcher.load}: {len(executing)} runs execute"


async def _has_reason(
    mailbox: Mailbox, runtime: Runtime, store: RunStore, runs: Mapping[RunId, RunRow]
) -> bool:
    """Return whether the agent is more than rows: its run executes, or something will happen soon."""
    if mailbox.adoption is not Adoption.DONE:
        return mailbox.adoption is Adoption.NOT_SERVED
    if mailbox.run_id is not None:
        run, worker = runs.get(mailbox.run_id), runtime._host.worker
        if run is None:
            return True  # not looked at
        soon = worker.env.clock.now() + timedelta(seconds=HORIZON_S + LATE_S)
        is_due = run.wake_at is not None and run.wake_at <= soon
        is_to_go_on = is_due or mailbox.holding in (Holding.PARKED, Holding.BACKOFF)
        if is_to_go_on or mailbox.run_id in worker._state.executing:
            return not _is_over(run)
    return await store.lists.pending_count(mailbox.agent_id) > 0


async def _taken_for_free(state: Any, store: RunStore) -> list[str]:
    """Return agents whose run sleeps, and of which the owner of their shard has no trace."""
    sleepers = await store.backlog.sleepers([lease.shard for lease in state.held.loaded])
    return [
        f"no trace of {agent}, whose run sleeps"
        for shard, agents in sleepers.items()
        for agent in agents.keys() - {str(a) for a in state.mailboxes._by_shard.get(shard, ())}
        if hash(agent) not in _hashes(state, shard)
    ]


def _hashes(state: Any, shard: str) -> Any:
    sleepers = state.mailboxes._sleepers.get(shard)
    return () if sleepers is None else sleepers._hashes
