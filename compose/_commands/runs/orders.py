"""`callboard runs cancel|signal|resolve|sweep|retry|fork|redrive`: decide, stop, continue and remove runs.

`retry` continues a run now, `fork` from an entry of its log, and `redrive` starts its work again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RESERVED, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.runs import RunFilter
from actors._runtime.sharding.retention import sweep_all
from actors.errors import AlreadyRedrivenError, ContractError
from compose._commands import options as opt
from compose._commands.options import HERE, AllFlag, Count, RunIdArg, Seq, Target
from compose._commands.output import Exit, ago
from compose._commands.runs.list import (
    in_doubt,
    known_run,
    open_effects,
    open_run,
    refuse_swept,
    status_of,
)
from compose._commands.terminal import working

if TYPE_CHECKING:
    from actors._runtime import Runtime

WHOLE_RUN = "-"
PAGE: Final = 500
"""Number of runs per read while `runs cancel` cancels many runs."""


async def cancel(
    run: opt.RunIdArg | None = None,
    /,
    *,
    reason: str = "cancelled by operator",
    status: opt.StatusOpt = None,
    agent: str | None = None,
    type_: opt.TypeOpt = None,
    tenant: str | None = None,
    yes: opt.Flag = False,
    target: Target = HERE,
) -> int:
    """Ask a run and its whole tree below to stop, or all open runs of a status, agent, type or tenant.

    A waiting run ends at once, an executing run at its next await on ctx. A host that serves the agent
    writes the terminal entry. Cancelling an ended run changes nothing. Many runs are cancelled only with
    `--yes`. Without it the command counts the runs and cancels nothing.

    Examples:
    `callboard runs cancel 0f3c… --reason 'wrong customer'`;
    `callboard runs cancel --status suspended --agent desk/main`;
    `callboard runs cancel --type desk --tenant acme --yes`

    Parameters
    ----------
    reason
        Text that the run's log keeps.
    status
        Instead of a run: all runs in this status: pending, running or suspended.
    agent
        Instead of a run: all runs of this agent, TYPE/KEY or TENANT:TYPE/KEY.
    type_
        Instead of a run: all runs of agents of this type.
    tenant
        Instead of a run: all runs of this tenant.
    yes
        Cancel all runs that are found.
    """
    has_filter = any(option is not None for option in (status, agent, type_, tenant))
    if (run is not None) == has_filter:
        raise ContractError("name one run, or choose runs by --status, --agent, --type, --tenant")
    if run is None:
        statuses = [status_of(text) for text in status or ("pending", "running", "suspended")]
        if any(s.is_terminal for s in statuses):
            raise ContractError("--status: only pending, running and suspended runs can be stopped")
        agent_id = AgentId.parse(agent) if agent is not None else None
        among = RunFilter(type=type_, tenant=tenant)
        return await _cancel_many(target, statuses, agent_id, among, reason=reason, yes=yes)
    async with open_run(target, run) as (runtime, row):
        report = await runtime.cancel(row.run_id, reason=reason)
    asked_runs = [run_id for run_id, _ in report.runs]
    text = f"asked {len(asked_runs)} run(s) to stop"
    return target.tell(
        {"run": run, "asked_to_stop": asked_runs},
        text if asked_runs else f"run {run} has ended {row.status} already",
    )


async def _cancel_many(
    target: Target,
    status: Sequence[RunStatus],
    agent: AgentId | None,
    among: RunFilter,
    *,
    reason: str,
    yes: bool,
) -> int:
    found_count = 0
    asked_run_ids: dict[RunId, None] = {}
    async with target.client() as runtime:
        with working("cancelling" if yes else "counting") as count:
            while page := await runtime.store.lists.runs(
                status=status, agent=agent, among=among, limit=PAGE
            ):
                found_count += len(page)
                for row in page:
                    # A cancel reaches the whole tree below a run, and this or a later page lists it again.
                    if yes and row.cancel_requested is None and row.run_id not in asked_run_ids:
                        report = await runtime.cancel(row.run_id, reason=reason)
                        asked_run_ids |= dict.fromkeys(run for run, _ in report.runs)
                count(found_count)
                among = replace(among, after=page[-1].run_id)
    text = f"found {found_count} run(s), asked {len(asked_run_ids)} to stop"
    if not yes:
        text = f"{found_count} run(s) would be asked to stop, with what they spawned: give --yes to do it"
    target.tell({"found": found_count, "asked_to_stop": list(asked_run_ids)}, text)
    return Exit.OK if yes or not found_count else Exit.FAILED


async def signal(
    run: opt.RunIdArg,
    name: str,
    payload: opt.JsonArg = "null",
    /,
    *,
    message_id: str | None = None,
    target: Target = HERE,
) -> int:
    """Send a signal to a run. The signal is kept until the run waits for it.

    Example: `callboard runs signal 0f3c… approved '{"by": "Kim"}'`

    Parameters
    ----------
    name
        Name of the signal, as in ctx.sleep_until_signal(name).
    payload
        Data for the run, as JSON; - reads it from standard input.
    message_id
        Sending the same id to the same run again changes nothing.
    """
    if name.startswith(RESERVED):
        msg = f"signal {name!r}: names that start with {RESERVED} are the runtime's own; to decide "
        raise ContractError(f"{msg}an effect in doubt use `callboard runs resolve`")
    data = opt.parse_json(payload, what="the signal's data")
    async with open_run(target, run) as (runtime, row):
        _refuse_ended(row)
        is_accepted = await runtime.signal(row.run_id, name, data, message_id=message_id)
    text = "signal sent" if is_accepted else "nothing changed: this message id is known"
    return target.tell({"run": run, "signal": name, "accepted": is_accepted}, text)


async def resolve(
    run: opt.RunIdArg,
    position: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    value: Annotated[str | None, Parameter(name="--value", allow_leading_hyphen=True)] = None,
    retry: opt.Flag = False,
    fail: opt.Flag = False,
    reason: str = "failed by operator",
    seq: opt.Seq | None = None,
    target: Target = HERE,
) -> int:
    """Decide an effect in doubt of a parked run, and continue the run.

    An at-most-once effect that was started before a crash of its host may or may not have happened. Find
    out whether it happened, then give `--value` (the effect happened and returned this value), `--retry`
    (the effect did not happen: execute it now) or `--fail` (the effect raises EffectError in the
    agent's code). `callboard runs show RUN` prints POSITION. `-` starts a run again that is parked for
    another reason.

    A decision counts once, for one doubt. A second decision with another content is refused. A
    decision is also refused when that doubt is over. The same decision again changes nothing. With
    `--seq`, as `runs show` prints it, the decision applies to the doubt of that output. Without `--seq` it
    applies to the doubt that is open when the command reads the run.

    Examples:
    `callboard runs resolve 0f3c… 4 --value '{"sent": true}'`;
    `callboard runs resolve 0f3c… 4.1.0 --retry --seq 17`;
    `callboard runs resolve 0f3c… - --retry`

    Parameters
    ----------
    position
        Position of the effect in doubt, or - for the run as a whole.
    value
        The effect's value, as JSON.
    retry
        Execute the effect now.
    fail
        Make the effect fail.
    reason
        Text of the error that --fail raises.
    seq
        Number of the entry that started the effect. Another doubt is not decided.
    """
    if (value is not None) + retry + fail != 1:
        raise ContractError("give one of --value JSON, --retry and --fail")
    action: Literal["value", "retry", "fail"] = "retry" if retry else "fail" if fail else "value"
    if position == WHOLE_RUN and not retry:
        raise ContractError("position - means the whole run: give --retry, not --value or --fail")
    data = opt.parse_json(value, what="--value") if value is not None else None
    async with open_run(target, run) as (runtime, row):
        _refuse_ended(row)
        is_accepted = await runtime.resolve(
            row.run_id,
            None if position == WHOLE_RUN else position,
            action=action,
            value=data,
            error=reason,
            seq=seq,
        )
        # Refused as a repetition, or because the run ended after its row was read: the new row tells which.
        if not is_accepted:
            _refuse_ended(await known_run(runtime, run))
    text = f"decided: {action}; the run continues where its agent is served"
    decision = {"value": data} if action == "value" else {"error": reason} if fail else {}
    return target.tell(
        {"run": run, "position": position, "action": action, **decision, "accepted": is_accepted},
        text if is_accepted else "nothing changed: exactly this was decided before",
    )


async def sweep(*, older_than: str = "30d", target: Target = HERE) -> int:
    """Remove the logs, results and signals of runs that ended long ago.

    Tombstones, dead letters and ids of messages of that age are removed too, but not before they are 8 days
    old. Open runs are not changed. A host does the same by itself for runs that ended more than
    CALLBOARD_RETAIN_DAYS days ago.

    Examples: `callboard runs sweep`; `callboard runs sweep --older-than 12h --json`

    Parameters
    ----------
    older_than
        Least time since the end of a run: a number with s, m, h or d.
    """
    seconds = opt.span_s(older_than)
    async with target.client() as runtime:
        swept_count = await sweep_all(runtime.store, older_than_s=seconds)
    return target.tell(
        {"swept": swept_count, "older_than_s": seconds}, f"swept {swept_count} run(s)"
    )


def _refuse_ended(row: RunRow) -> None:
    if row.status.is_terminal:
        raise ContractError(
            f"run {row.run_id} has ended {row.status}: it accepts no signal or decision"
        )


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
            new_run_id = await runtime.redrive_run(row.run_id)
            previous_state, text = "redriven", f"{run} continues as {new_run_id}"
        else:
            await _refuse_retry(runtime, row)
            await runtime.resolve(row.run_id)
            new_run_id, previous_state = row.run_id, "parked" if row.parked else "back-off"
            text = f"run {run} continues where its agent is served"
    return target.tell({"run": run, "was": previous_state, "goes_on_as": new_run_id}, text)


async def _refuse_retry(runtime: Runtime, row: RunRow) -> None:
    """Raise ContractError, with the reason and the remedy, if the run cannot be retried."""
    run_id = row.run_id
    if row.status.is_terminal:
        msg = f"run {run_id} has ended {row.status}: only failed runs are retried; to execute a part of "
        raise ContractError(f"{msg}it again: callboard runs fork {run_id} --at SEQ")
    if row.parked:
        entries = [entry async for entry in runtime.entries(row.run_id)]
        doubtful_effects = in_doubt(row, open_effects(entries))
        if doubtful_effects:
            positions = ", ".join(effect.position for effect in doubtful_effects)
            msg = f"run {run_id} is in doubt at {positions}: decide with `callboard runs resolve {run_id} "
            raise ContractError(
                f"{msg}{doubtful_effects[0].position} --value JSON | --retry | --fail`"
            )
        return
    if row.status is RunStatus.PENDING and row.attempt > 0:
        return
    reason = {RunStatus.PENDING: "it waits for its agent", RunStatus.RUNNING: "it executes"}.get(
        row.status, f"it waits since {ago(row.updated_at)}, see `callboard runs show {run_id}`"
    )
    raise ContractError(f"run {run_id} has not failed: {reason}; there is nothing to retry")


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
        new_run_id = await runtime.fork_run(row.run_id, at_seq=at, copy=copy)
    return target.tell(
        {"run": new_run_id, "forked_from": {"run": run, "seq": at}, "copy": copy}, new_run_id
    )


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
        if every:
            rows = await runtime.store.lists.runs(status=[RunStatus.FAILED], limit=_PAGE)
            failed_run_ids = [row.run_id for row in rows if not row.swept]
        else:
            failed_run_ids = [await _failed_run(runtime, run_id) for run_id in runs]
        outcomes_by_run_id = {id_: await _redrive_run(runtime, id_) for id_ in failed_run_ids}
    is_done = every or all(isinstance(outcome, str) for outcome in outcomes_by_run_id.values())
    lines = [
        f"{run_id} continues as {outcome}" if isinstance(outcome, str) else str(outcome)
        for run_id, outcome in outcomes_by_run_id.items()
    ]
    data = [_to_json(run_id, outcome) for run_id, outcome in outcomes_by_run_id.items()]
    target.tell(data, "\n".join(lines) or "no failed runs")
    return Exit.OK if is_done else Exit.FAILED


async def _redrive_run(runtime: Runtime, run_id: RunId) -> RunId | AlreadyRedrivenError:
    """Redrive a run. Return the new run's id, or the refusal, so that the command continues with other runs."""
    try:
        return await runtime.redrive_run(run_id)
    except AlreadyRedrivenError as exc:
        return exc


def _to_json(run_id: RunId, outcome: RunId | AlreadyRedrivenError) -> JsonValue:
    if isinstance(outcome, AlreadyRedrivenError):
        return {
            "run": run_id,
            "redriven_as": None,
            "given_back": list(outcome.given),
            "left": list(outcome.left),
        }
    return {"run": run_id, "redriven_as": outcome}


async def _failed_run(runtime: Runtime, run_id: str) -> RunId:
    row = await known_run(runtime, run_id)
    refuse_swept(row)
    if row.status is not RunStatus.FAILED:
        raise ContractError(f"run {run_id} is {row.status}: only failed runs are redriven")
    return row.run_id
