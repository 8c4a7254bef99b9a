"""`callboard send`: submit one message, and wait for the answer if wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from typing_extensions import override

from actors.errors import ActorsError
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import RunStatus
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.numbers import Priority, Seconds
from compose.commands.output import print_json, say
from compose.commands.runs import run_to_json
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.runtime.commit import RunRow


async def send(
    agent: str,
    payload: Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)],
    /,
    *,
    message_id: str | None = None,
    priority: Priority = 5,
    on_conflict: Literal["queue", "join", "reject", "interrupt"] = "queue",
    wait: Annotated[bool, Parameter(negative="")] = False,
    timeout_s: Seconds | None = None,
    target: Target = HERE,
) -> int:
    """Submit a message to an agent, which starts one run; print the run's id.

    The message is durable when the id is printed. With `--wait` the run's output is printed when it
    ended; the exit code is 1 if it failed or was cancelled.

    Examples:
    `callboard send desk/main '{"documents": []}'`;
    `callboard send shop/42 '"open"' --wait --timeout-s 30`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    payload
        The message as JSON; - reads it from standard input, @FILE from a file.
    message_id
        Sending the same id to the same agent again changes nothing and prints the first run's id.
    priority
        Lower goes first.
    on_conflict
        When the agent has an open run: wait behind it, join it, be rejected, or cancel it first.
    wait
        Wait for the run to end and print its output as JSON.
    timeout_s
        How long to wait; the run goes on.
    """
    agent_id = AgentId.parse(agent)
    message = Message.of(agent_id, parse_json(payload, what="the message"), id=message_id)
    async with target.client() as runtime:
        run_id = await runtime.submit(
            agent_id, message, priority=priority, tenant=agent_id.tenant, on_conflict=on_conflict
        )
        if not wait:
            _print_id(run_id, target)
            return Exit.OK
        try:
            async with asyncio.timeout(timeout_s):
                row = await runtime.wait(run_id)
        except TimeoutError:
            raise StillOpenError(run_id, timeout_s or 0.0) from None
    return _print_end(row, target)


class StillOpenError(ActorsError):
    """`--wait --timeout-s` was over before the run was."""

    def __init__(self, run_id: str, waited_s: float) -> None:
        super().__init__(run_id, waited_s)
        self.run_id, self.waited_s = run_id, waited_s

    @override
    def __str__(self) -> str:
        return (
            f"run {self.run_id} has not ended within {self.waited_s:g} s and goes on; "
            f"look at it with: callboard runs show {self.run_id}"
        )


def _print_id(run_id: str, target: Target) -> None:
    if target.json:
        print_json({"run": run_id})
    else:
        say(run_id)


def _print_end(row: RunRow, target: Target) -> int:
    completed = row.status is RunStatus.COMPLETED
    if target.json:
        print_json(run_to_json(row))
    elif completed:
        print_json(row.result)
    else:
        reason = (row.error or {}).get("message") or row.cancel_requested or "no reason given"
        say(f"run {row.run_id} ended {row.status}: {reason}")
    return Exit.OK if completed else Exit.FAILED
