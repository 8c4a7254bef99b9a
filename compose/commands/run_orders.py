"""`callboard runs cancel|signal|resolve`: telling runs what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.decisions import RESERVED
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.store import RunFilter
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.numbers import Seq
from compose.commands.output import print_json, say, working
from compose.commands.runs import known_run, status_of
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.ids import RunId
    from actors.kernel.runtime.scheduler import RunStatus

WHOLE_RUN = "-"
PAGE: Final = 500
"""Runs that are read at once while many are cancelled."""


async def cancel(
    run: str | None = None,
    /,
    *,
    reason: str = "cancelled by operator",
    status: Annotated[list[str] | None, Parameter(negative="")] = None,
    agent: str | None = None,
    type_: Annotated[str | None, Parameter(name="--type")] = None,
    tenant: str | None = None,
    yes: Annotated[bool, Parameter(negative="")] = False,
    target: Target = HERE,
) -> int:
    """Ask a run and everything it spawned to stop; or all open runs of a status, agent, type or tenant.

    Waiting runs end at once, executing ones at their next await on ctx; a host that serves the agent
    writes the end. Cancelling an ended run changes nothing. Many are cancelled with `--yes` only;
    without it they are counted.

    Examples:
    `callboard runs cancel 0f3c… --reason 'wrong customer'`;
    `callboard runs cancel --status suspended --agent desk/main`;
    `callboard runs cancel --type desk --tenant acme --yes`

    Parameters
    ----------
    run
        The run's id.
    reason
        Kept in the run's log.
    status
        Instead of a run: all in this status: pending, running or suspended.
    agent
        Instead of a run: all of this agent, TYPE/KEY or TENANT:TYPE/KEY.
    type_
        Instead of a run: all of agents of this type.
    tenant
        Instead of a run: all of this tenant.
    yes
        Do it, to all that are found.
    """
    chosen = any(given is not None for given in (status, agent, type_, tenant))
    if (run is not None) == chosen:
        raise ContractError("name one run, or say which: --status, --agent, --type, --tenant")
    if run is None:
        wanted = [status_of(text) for text in status or ("pending", "running", "suspended")]
        if any(found.is_terminal for found in wanted):
            raise ContractError("--status: only pending, running and suspended runs can be stopped")
        agent_id = AgentId.parse(agent) if agent is not None else None
        among = RunFilter(type=type_, tenant=tenant)
        return await _cancel_many(target, wanted, agent_id, among, reason=reason, yes=yes)
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        report = await runtime.cancel(row.run_id, reason=reason)
    asked: list[JsonValue] = [found for found, _ in report.runs]
    if target.json:
        print_json({"run": run, "asked_to_stop": asked})
    elif asked:
        say(f"asked {len(asked)} run(s) to stop")
    else:
        say(f"run {run} has ended {row.status} already")
    return Exit.OK


async def _cancel_many(
    target: Target,
    status: Sequence[RunStatus],
    agent: AgentId | None,
    among: RunFilter,
    *,
    reason: str,
    yes: bool,
) -> int:
    found = 0
    asked: dict[RunId, None] = {}
    async with target.client() as runtime:
        with working("cancelling" if yes else "counting") as count:
            while page := await runtime.store.list_runs(
                status=status, agent=agent, among=among, limit=PAGE
            ):
                found += len(page)
                for row in page:
                    if yes and row.cancel_requested is None and row.run_id not in asked:
                        report = await runtime.cancel(row.run_id, reason=reason)
                        asked |= dict.fromkeys(run for run, _ in report.runs)
                count(found)
                among = replace(among, after=page[-1].run_id)
    if target.json:
        runs: list[JsonValue] = list(asked)
        print_json({"found": found, "asked_to_stop": runs})
    elif yes:
        say(f"found {found} run(s), asked {len(asked)} to stop")
    else:
        say(f"{found} run(s) would be asked to stop, with what they spawned: say it with --yes")
    return Exit.OK if yes or not found else Exit.FAILED


async def signal(
    run: str,
    name: str,
    payload: Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)] = "null",
    /,
    *,
    message_id: str | None = None,
    target: Target = HERE,
) -> int:
    """Send a signal to a run; it is kept until the run asks for it.

    Example: `callboard runs signal 0f3c… approved '{"by": "Kim"}'`

    Parameters
    ----------
    run
        The run's id.
    name
        What the run waits for in ctx.sleep_until_signal(name).
    payload
        Data for the run, as JSON; - reads it from standard input.
    message_id
        Sending the same id to the same run again changes nothing.
    """
    if name.startswith(RESERVED):
        msg = f"signal {name!r}: names that start with {RESERVED} are the runtime's own; to decide "
        raise ContractError(f"{msg}an effect in doubt use `callboard runs resolve`")
    data = parse_json(payload, what="the signal's data")
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        _refuse_ended(row)
        accepted = await runtime.signal(row.run_id, name, data, message_id=message_id)
    if target.json:
        print_json({"run": run, "signal": name, "accepted": accepted})
    else:
        say("signal sent" if accepted else "nothing changed: this message id is known")
    return Exit.OK


async def resolve(
    run: str,
    position: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    value: Annotated[str | None, Parameter(name="--value", allow_leading_hyphen=True)] = None,
    retry: Annotated[bool, Parameter(negative="")] = False,
    fail: Annotated[bool, Parameter(negative="")] = False,
    reason: str = "failed by operator",
    seq: Seq | None = None,
    target: Target = HERE,
) -> int:
    """Decide what a parked run cannot decide, and let it go on.

    An at-most-once effect that was begun before a crash may or may not have happened. Find out, then
    say so: `--value` (it happened, this is what it returned), `--retry` (it did not: execute it now)
    or `--fail` (let it raise EffectError in the agent's code). POSITION is what
    `callboard runs show RUN` names; `-` starts a run anew that is parked for another reason.

    A decision counts for one doubt, once. A second, other one is refused, and so is one that comes when
    the run is not at that any more; the same again changes nothing. With `--seq`, as `runs show` prints
    it, that holds from the moment you looked, else from the moment of the command.

    Examples:
    `callboard runs resolve 0f3c… 4 --value '{"sent": true}'`;
    `callboard runs resolve 0f3c… 4.1.0 --retry --seq 17`;
    `callboard runs resolve 0f3c… - --retry`

    Parameters
    ----------
    run
        The run's id.
    position
        Of the effect in doubt; - for the run as a whole.
    value
        The effect's value, as JSON.
    retry
        Execute the effect now.
    fail
        Make the effect fail.
    reason
        With --fail: the error's text.
    seq
        Of the entry that this is about: nothing else is decided.
    """
    if (value is not None) + retry + fail != 1:
        raise ContractError("say one of --value JSON, --retry and --fail")
    action: Literal["value", "retry", "fail"] = "retry" if retry else "fail" if fail else "value"
    if position == WHOLE_RUN and not retry:
        raise ContractError("position - starts a run anew: only --retry applies")
    data = parse_json(value, what="--value") if value is not None else None
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        _refuse_ended(row)
        counts = await runtime.resolve(
            row.run_id, None if position == WHOLE_RUN else position, action=action, value=data,
            error=reason, seq=seq,
        )  # fmt: skip
        if not counts:
            _refuse_ended(await known_run(runtime, run))
    if target.json:
        decision = {"value": data} if action == "value" else {"error": reason} if fail else {}
        print_json(
            {"run": run, "position": position, "action": action, **decision, "accepted": counts}
        )
    elif counts:
        say(f"decided: {action}; the run goes on where its agent is served")
    else:
        say("nothing changed: exactly this was decided before")
    return Exit.OK


def _refuse_ended(row: RunRow) -> None:
    if row.status.is_terminal:
        raise ContractError(f"run {row.run_id} has ended {row.status}: nothing reaches it any more")
