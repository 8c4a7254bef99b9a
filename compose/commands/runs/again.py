"""`callboard runs retry|fork|redrive`: runs that go on now, again from an entry, or from the start."""

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
    """Let a run that failed, is parked or waits for its next attempt go on now.

    A run that failed for good gets a new run with the same messages (as `runs redrive`); a parked one
    starts again; one that waits for a retry does not wait any longer. An effect in doubt has to be
    decided with `runs resolve`.

    Example: `callboard runs retry 0f3c…`
    """
    async with open_run(target, run) as (runtime, row):
        if row.status is RunStatus.FAILED:
            refuse_swept(row)
            new = await runtime.redrive_run(row.run_id)
            done, text = "redriven", f"{run} goes on as {new}"
        else:
            await _refuse(runtime, row)
            await runtime.resolve(row.run_id)
            new, done = row.run_id, "parked" if row.parked else "back-off"
            text = f"run {run} goes on where its agent is served"
    return target.tell({"run": run, "was": done, "goes_on_as": new}, text)


async def _refuse(runtime: Runtime, row: RunRow) -> None:
    """Raise what keeps a run from being retried, and the remedy."""
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
    """Start a new run that goes on from an entry of another one's log; print its id.

    What is recorded up to that entry is replayed and happens no second time. All behind it is executed
    again. The other run stays as it is; the agent's state is what it is now. If the agent has an open
    run, the fork waits for its agent. Not possible behind the run's end, inside of an effect or a
    question, and while a child is open.

    Examples:
    `callboard runs fork 0f3c… --at 12`;
    `callboard runs fork 0f3c… --at 12 --copy 1`

    Parameters
    ----------
    at
        The last entry that is kept; `callboard runs log RUN` shows the numbers.
    copy
        Forking at the same entry again names the same fork; another number makes another one.
    """
    async with open_run(target, run) as (runtime, row):
        new = await runtime.fork_run(row.run_id, at_seq=at, copy=copy)
    return target.tell({"run": new, "forked_from": {"run": run, "seq": at}, "copy": copy}, new)


async def redrive(*runs: str, every: AllFlag = False, target: Target = HERE) -> int:
    """Start the work of dead runs again: each gets a new run with the same messages.

    A dead run is one that failed for good. Its log stays as it is. Redriving it twice starts one run;
    to try again after that, redrive the new one. Its dead letters go with it. If one of them was sent
    again by `dlq redrive` the run is not redriven: its work would be done twice. Redrive the others, too.

    Examples:
    `callboard runs redrive 0f3c…`;
    `callboard runs redrive --all --json`

    Parameters
    ----------
    runs
        Ids of failed runs.
    every
        All failed runs, the newest 1000.
    """
    if every == bool(runs):
        raise ContractError("name the runs to redrive, or give --all")
    async with target.client() as runtime:
        found = await _failed(runtime) if every else [await _dead(runtime, run) for run in runs]
        started = {run: await _again(runtime, run) for run in found}
    is_done = every or all(isinstance(new, str) for new in started.values())
    told = [
        f"{old} goes on as {new}" if isinstance(new, str) else str(new)
        for old, new in started.items()
    ]
    data = [_to_json(old, new) for old, new in started.items()]
    target.tell(data, "\n".join(told) or "no failed runs")
    return Exit.OK if is_done else Exit.FAILED


async def _again(runtime: Runtime, run: RunId) -> RunId | AlreadyRedrivenError:
    """Redrive a run; return the new run's id, or the refusal: the command continues with the others."""
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
