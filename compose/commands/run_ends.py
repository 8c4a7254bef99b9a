"""`callboard runs redrive|sweep`: dead runs started again, old ones taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from actors.errors import AlreadyRedrivenError, ContractError
from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.sweeping import sweep_all
from compose.commands.exits import Exit
from compose.commands.output import print_json, say
from compose.commands.runs import known_run, refuse_swept
from compose.commands.span import span_s
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.ids import RunId
    from actors.runtime import Runtime

_PAGE: Final = 1000


async def redrive(
    *runs: str,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    target: Target = HERE,
) -> int:
    """Start the work of dead runs again: each gets a new run with the same messages.

    A dead run is one that failed for good. Its log stays as it is. Redriving it twice starts one run;
    to try again after that, redrive the new one. Its dead letters go with it. When one of them was given
    back by `dlq redrive` the run is not redriven, its work would be done twice: give back the others, too.

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
    if target.json:
        print_json([_to_json(old, new) for old, new in started.items()])
    for old, new in () if target.json else started.items():
        say(f"{old} goes on as {new}" if isinstance(new, str) else str(new))
    if not started and not target.json:
        say("no failed runs")
    return Exit.OK if is_done else Exit.FAILED


async def _again(runtime: Runtime, run: RunId) -> RunId | AlreadyRedrivenError:
    """Return the run's new one, or why it has none: the others are redriven all the same."""
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
    rows = await runtime.store.list_runs(status=[RunStatus.FAILED], limit=_PAGE)
    return [row.run_id for row in rows if not row.swept]


async def _dead(runtime: Runtime, run: str) -> RunId:
    row = await known_run(runtime, run)
    refuse_swept(row)
    if row.status is not RunStatus.FAILED:
        raise ContractError(f"run {run} is {row.status}: only failed runs are redriven")
    return row.run_id


async def sweep(*, older_than: str = "30d", target: Target = HERE) -> int:
    """Take away what ended runs left behind: logs, results, signals. Tombstones stay.

    Open runs are never touched. A host does this by itself when CALLBOARD_RETAIN_DAYS is set.

    Examples: `callboard runs sweep`; `callboard runs sweep --older-than 12h --json`

    Parameters
    ----------
    older_than
        Runs that ended longer ago than this, a number with s, m, h or d.
    """
    seconds = span_s(older_than)
    async with target.client() as runtime:
        swept = await sweep_all(runtime.store, older_than_s=seconds)
    if target.json:
        print_json({"swept": swept, "older_than_s": seconds})
    else:
        say(f"swept {swept} run(s)")
    return Exit.OK
