"""`callboard runs retry|fork`: a run that goes on at once, or once more from one of its entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.errors import ContractError
from actors.kernel.runtime.scheduler import RunStatus
from compose.commands.exits import Exit
from compose.commands.numbers import Count, Seq
from compose.commands.output import ago, print_json, say
from compose.commands.runs import in_doubt, known_run, open_effects, refuse_swept
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.runtime.commit import RunRow
    from actors.runtime import Runtime


async def retry(run: str, /, *, target: Target = HERE) -> int:
    """Let a run that failed, is parked or waits for its next attempt go on now.

    A run that failed for good gets a new run with the same messages (as `runs redrive`); a parked one
    starts anew; one that waits for a retry does not wait any longer. An effect in doubt has to be
    decided with `runs resolve`.

    Example: `callboard runs retry 0f3c…`

    Parameters
    ----------
    run
        The run's id.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        if row.status is RunStatus.FAILED:
            refuse_swept(row)
            new = await runtime.redrive_run(row.run_id)
            done, text = "redriven", f"{run} goes on as {new}"
        else:
            await _refuse(runtime, row)
            await runtime.resolve(row.run_id)
            new, done = row.run_id, "parked" if row.parked else "back-off"
            text = f"run {run} goes on where its agent is served"
    if target.json:
        print_json({"run": run, "was": done, "goes_on_as": new})
    else:
        say(text)
    return Exit.OK


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
    waiting = {
        RunStatus.PENDING: "it waits for its turn",
        RunStatus.RUNNING: "it executes",
    }.get(row.status, f"it waits since {ago(row.updated_at)}, see `callboard runs show {run}`")
    raise ContractError(f"run {run} has not failed: {waiting}; there is nothing to retry")


async def fork(run: str, /, *, at: Seq, copy: Count = 0, target: Target = HERE) -> int:
    """Start a new run that goes on from an entry of another one's log; print its id.

    What is recorded up to that entry is replayed and happens no second time. All behind it is executed
    anew. The other run stays as it is; the agent's state is what it is now. If the agent has an open
    run, the fork waits for its turn. Not possible behind the run's end, inside of an effect or a
    question, and while a child is open.

    Examples:
    `callboard runs fork 0f3c… --at 12`;
    `callboard runs fork 0f3c… --at 12 --copy 1`

    Parameters
    ----------
    run
        The run's id.
    at
        The last entry that is kept; `callboard runs log RUN` shows the numbers.
    copy
        Forking at the same entry again names the same fork; another number makes another one.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        new = await runtime.fork_run(row.run_id, at_seq=at, copy=copy)
    if target.json:
        print_json({"run": new, "forked_from": {"run": run, "seq": at}, "copy": copy})
    else:
        say(new)
    return Exit.OK
