"""`callboard dlq list|redrive`: messages that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId
from compose.commands.exits import Exit
from compose.commands.output import ago, print_json, print_table, say
from compose.commands.target import HERE, NoDataError, Target

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import DeadLetter

MOST = 10_000


async def list_letters(*, agent: str | None = None, limit: int = 50, target: Target = HERE) -> None:
    """List dead letters, newest first: which message, why, and the last error.

    Example: `callboard dlq list --agent desk/main`

    Parameters
    ----------
    agent
        Only those of this agent, TYPE/KEY.
    limit
        At most so many.
    """
    agent_id = AgentId.parse(agent) if agent is not None else None
    async with target.client() as runtime:
        letters = await runtime.store.dead_letters(agent=agent_id, limit=limit)
    if target.json:
        print_json([_to_json(letter) for letter in letters])
        return
    print_table(
        ("id", "agent", "message", "reason", "attempts", "last error", "run", "age"),
        [
            (
                str(letter.id), str(letter.agent_id), letter.message.id, letter.reason,
                str(letter.attempts), letter.last_error, letter.run_id or "", ago(letter.at),
            )
            for letter in letters
        ],
        empty="no dead letters",
    )  # fmt: skip


async def redrive(
    ids: Annotated[list[int] | None, Parameter(negative="")] = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    agent: str | None = None,
    target: Target = HERE,
) -> int:
    """Give dead letters back to their agents as new messages; each letter once.

    Examples:
    `callboard dlq redrive 3 4`;
    `callboard dlq redrive --all --agent desk/main`

    Parameters
    ----------
    ids
        Numbers that `callboard dlq list` shows.
    every
        All of them.
    agent
        With --all: only those of this agent.
    """
    if bool(ids) == every:
        raise ContractError("name the dead letters to redrive, or say --all")
    agent_id = AgentId.parse(agent) if agent is not None else None
    async with target.client() as runtime:
        wanted = list(ids or ())
        if every:
            letters = await runtime.store.dead_letters(agent=agent_id, limit=MOST)
            wanted = [letter.id for letter in letters]
        given = await runtime.store.redrive(wanted)
    if not given and not every:
        numbers = ", ".join(map(str, wanted))
        raise NoDataError(f"no such dead letter (any more): {numbers}")
    if target.json:
        print_json(
            {"redriven": [{"agent": str(a.agent_id), "message": a.message.id} for a in given]}
        )
    else:
        say(f"redrove {len(given)} of {len(wanted)} dead letter(s)")
    return Exit.OK


def _to_json(letter: DeadLetter) -> dict[str, JsonValue]:
    return {
        "id": letter.id, "agent": str(letter.agent_id), "message": letter.message.to_json(),
        "reason": letter.reason, "attempts": letter.attempts, "last_error": letter.last_error,
        "run": letter.run_id, "at": letter.at.isoformat() if letter.at is not None else None,
    }  # fmt: skip
