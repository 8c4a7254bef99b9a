"""`callboard runs retry|fork|redrive`: continue runs now, from an entry of a log, or from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.errors import AlreadyRedrivenError, ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from compose.commands.options import HERE, AllFlag, Count, RunIdArg, Seq, Target
from compose.commands.output import Exit, ago
from compose.commands.runs.list import in_doubt, known_run, open_effects, open_run, refuse_swept

if TYPE_CHECKING:
    from actors.runtime import Runtime

_PAGE: Final = 1000


async def retry(run: RunIdArg, /, *, target: Target = HERE) -> int:
    """Continue a run now that failed, is parked or waits for its next attempt.

    A failed run gets a new run with the same messages, as by `runs redrive`. A parked run starts
    again. A run that waits for a retry starts its next attempt now. If an effect is in doubt, the
    command is refused: decide the effect with `runs resolve`.

    Example: `callboard runs retry 0f3c…`
    """
    async with open_run(target, run) as (runtime, row):
        if row.status is RunStatus.FAILED:
            refuse_swept(row)
            new = await runtime.redrive_run(row.run_id)
            done, text = "redriven", f"{run} continues as {new}"
        else:
            await _refuse(runtime, row)
            await runtime.resolve(row.run_id)
            new, done = row.run_id, "parked" if row.parked else "back-off"
            text = f"run {run} continues where its agent is served"
    return target.tell({"run": run, "was": done, "goes_on_as": new}, text)


async def _refuse(runtime: Runtime, row: RunRow) -> None:
    """Raise ContractError, with the reason and the remedy, if the run cannot be retried."""
    run = row.run_id
    if row.status.is_terminal:
        msg = (
            f"run {run} has ended {row.status}: only failed runs are retried; to execute a part of "
        )
        raise ContractError(f"{msg}it again: callboard runs fork {run} --at SEQ")
    if row.parked:
        entries = [entry async for entry in runtime.entries(row.run_id)]
        doubtful = in_doubt(row, open_effects(entries))
        if doubtful:
            places = ", ".join(one.position for one in doubtful)
            msg = f"run {run} is in doubt at {places}: decide with `callboard runs resolve {run} "
            raise ContractError(f"{msg}{doubtful[0].position} --value JSON | --retry | --fail`")
        return
    if row.status is RunStatus.PENDING and row.attempt > 0:
        return
    waiting = {RunStatus.PENDING: "it waits for its agent", RunStatus.RUNNING: "it executes"}.get(
        row.status, f"it waits since {ago(row.updated_at)}, see `callboard runs show {run}`"
    )
    raise ContractError(f"run {run} has not failed: {waiting}; there is nothing to retry")


async def fork(run: RunIdArg, /, *, at: Seq, copy: Count = 0, target: Target = HERE) -> int:
    """Start a new run that continues from an entry of another run's log; print its id.

    The entries up to that entry are replayed, and their effects are not executed again. Everything after
    that entry is executed again. The other run does not change. The fork uses the agent's present state.
    If the agent has an open run, the fork waits for its end. A fork is refused after the run's terminal
    entry, inside an effect or a question, and while a child run is open.

    Examples:
    `callboard runs fork 0f3c… --at 12`;
    `callboard runs fork 0f3c… --at 12 --copy 1`

    Parameters
    ----------
    at
        The last entry that the fork keeps. `callboard runs log RUN` shows the numbers.
    copy
        Number of the fork. The same entry and number name the same fork. Another number makes another
        fork.
    """
    async with open_run(target, run) as (runtime, row):
        new = await runtime.fork_run(row.run_id, at_seq=at, copy=copy)
    return target.tell({"run": new, "forked_from": {"run": run, "seq": at}, "copy": copy}, new)


async def redrive(*runs: str, every: AllFlag = False, target: Target = HERE) -> int:
    """Start the work of failed runs again: each gets a new run with the same messages.

    The failed run's log does not change, and its dead letters are redriven with it. A run that is redriven
    twice starts one new run. If the new run fails too, redrive the new run. If `dlq redrive` sent
    one of the run's dead letters again, the run is not redriven, because its work would be done twice. In
    that case redrive its other dead letters by `dlq redrive` too.

    Examples:
    `callboard runs redrive 0f3c…`;
    `callboard runs redrive --all --json`

    Parameters
    ----------
    runs
        Ids of failed runs.
    every
        Redrive the newest 1000 failed runs.
    """
    if every == bool(runs):
        raise ContractError("name the runs to redrive, or give --all")
    async with target.client() as runtime:
        found = await _failed(runtime) if every else [await _dead(runtime, run) for run in runs]
        started = {run: await _again(runtime, run) for run in found}
    is_done = every or all(isinstance(new, str) for new in started.values())
    told = [
        f"{old} continues as {new}" if isinstance(new, str) else str(new)
        for old, new in started.items()
    ]
    data = [_to_json(old, new) for old, new in started.items()]
    target.tell(data, "\n".join(told) or "no failed runs")
    return Exit.OK if is_done else Exit.FAILED


async def _again(runtime: Runtime, run: RunId) -> RunId | AlreadyRedrivenError:
    """Redrive a run. Return the new run's id, or the refusal, so that the command continues with other runs."""
    try:
        return await runtime.redrive_run(run)
    except AlreadyRedrivenError as exc:
        return exc


def _to_json(run: RunId, new: RunId | AlreadyRedrivenError) -> JsonValue:
    if isinstance(new, AlreadyRedrivenError):
        return {
            "run": run,
            "redriven_as": None,
            "given_back": list(new.given),
            "left": list(new.left),
        }
    return {"run": run, "redriven_as": new}


async def _failed(runtime: Runtime) -> list[RunId]:
    rows = await runtime.store.lists.runs(status=[RunStatus.FAILED], limit=_PAGE)
    return [row.run_id for row in rows if not row.swept]


async def _dead(runtime: Runtime, run: str) -> RunId:
    row = await known_run(runtime, run)
    refuse_swept(row)
    if row.status is not RunStatus.FAILED:
        raise ContractError(f"run {run} is {row.status}: only failed runs are redriven")
    return row.run_id
