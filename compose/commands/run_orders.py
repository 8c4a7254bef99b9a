"""`callboard runs cancel|signal|resolve`: telling runs what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from actors.errors import ContractError
from actors.runtime.signals import RESERVED
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.output import print_json, say
from compose.commands.runs import in_doubt, known_run, open_effects
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.runtime import Runtime

WHOLE_RUN = "-"


async def cancel(
    run: str, /, *, reason: str = "cancelled by operator", target: Target = HERE
) -> int:
    """Ask a run and everything it spawned to stop.

    Waiting runs end at once, executing ones at their next await on ctx; a host that serves the agent
    writes the end. Cancelling an ended run changes nothing.

    Example: `callboard runs cancel 0f3c… --reason 'wrong customer'`

    Parameters
    ----------
    run
        The run's id.
    reason
        Kept in the run's log.
    """
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
    target: Target = HERE,
) -> int:
    """Decide what a parked run cannot decide, and let it go on.

    An at-most-once effect that was begun before a crash may or may not have happened. Find out, then
    say so: `--value` (it happened, this is what it returned), `--retry` (it did not: execute it now)
    or `--fail` (let it raise EffectError in the agent's code). POSITION is what
    `callboard runs show RUN` names; `-` starts a run anew that is parked for another reason.

    Examples:
    `callboard runs resolve 0f3c… 4 --value '{"sent": true}'`;
    `callboard runs resolve 0f3c… 4.1.0 --retry`;
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
    """
    if (value is not None) + retry + fail != 1:
        raise ContractError("say one of --value JSON, --retry and --fail")
    action: Literal["value", "retry", "fail"] = "retry" if retry else "fail" if fail else "value"
    data = parse_json(value, what="--value") if value is not None else None
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        _refuse_ended(row)
        await _refuse_wrong_place(runtime, row, position, is_retry=retry)
        await runtime.resolve(
            row.run_id, None if position == WHOLE_RUN else position, action=action, value=data,
            error=reason,
        )  # fmt: skip
    if target.json:
        decision = {"value": data} if action == "value" else {"error": reason} if fail else {}
        print_json({"run": run, "position": position, "action": action, **decision})
    else:
        say(f"decided: {action}; the run goes on where its agent is served")
    return Exit.OK


async def _refuse_wrong_place(
    runtime: Runtime, row: RunRow, position: str, *, is_retry: bool
) -> None:
    if not row.parked:
        msg = f"run {row.run_id} is {row.status}, not parked: there is nothing to decide"
        raise ContractError(msg)
    entries = [entry async for entry in runtime.entries(row.run_id)]
    doubtful = [one.position for one in in_doubt(row, open_effects(entries))]
    places = ", ".join(doubtful) or "none"
    if position == WHOLE_RUN:
        if doubtful:
            raise ContractError(f"the run is in doubt: name the position instead of -: {places}")
        if not is_retry:
            raise ContractError(f"run {row.run_id} is parked ({row.parked}): only --retry applies")
    elif position not in doubtful:
        msg = (
            f"nothing is in doubt at position {position!r} of run {row.run_id}; in doubt: {places}"
        )
        raise ContractError(msg + ("" if doubtful else "; to start it anew: - --retry"))


def _refuse_ended(row: RunRow) -> None:
    if row.status.is_terminal:
        raise ContractError(f"run {row.run_id} has ended {row.status}: nothing reaches it any more")
