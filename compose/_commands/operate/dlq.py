"""`callboard dlq list|show|redrive|discard`: dead letters, the messages that the runtime gave up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import Parameter

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.rows import DeadLetter
from actors.errors import ContractError
from compose._commands.options import HERE, LETTERS, AllFlag, LettersArg, LimitOpt, Target
from compose._commands.output import NoDataError, ago, pick, print_json
from compose._commands.terminal import print_facts, working

if TYPE_CHECKING:
    from actors._runtime import Runtime

MOST: Final = 10_000
PAGE: Final = 500
"""Number of dead letters per batch of `dlq discard`, which writes a batch to a file and then deletes it."""


AgentOpt = Annotated[str | None, Parameter(help="With --all: only dead letters of this agent.")]


async def list_letters(
    *, agent: str | None = None, limit: LimitOpt = 50, target: Target = HERE
) -> None:
    """List dead letters, newest first, each with its message, the reason and the last error.

    Example: `callboard dlq list --agent desk/main`

    Parameters
    ----------
    agent
        Only dead letters of this agent, TYPE/KEY.
    """
    agent_id = AgentId.parse(agent) if agent is not None else None
    async with target.client() as runtime:
        letters = await runtime.store.lists.dead_letters(agent=agent_id, limit=limit)
    target.table(
        letters,
        _to_json,
        ("id", "agent", "message", "reason", "attempts", "last error", "run", "age"),
        _row,
        empty_text="no dead letters",
    )


def _row(letter: DeadLetter) -> tuple[object, ...]:
    error = letter.last_error + (f" ({letter.times} times)" if letter.times > 1 else "")
    first_cells = (letter.id, letter.agent_id, letter.message.id, letter.reason)
    return *first_cells, letter.attempts, error, letter.run_id, ago(letter.at)


async def show(letter: Annotated[int, LETTERS], /, *, target: Target = HERE) -> None:
    """Show one dead letter in full: the message with its payload, the reason, the last error and the run.

    Example: `callboard dlq show 3`

    Parameters
    ----------
    letter
        A number that `callboard dlq list` shows.
    """
    async with target.client() as runtime:
        (dead_letter,) = await _letters_by_id(runtime, [letter])
    if target.json:
        print_json(_to_json(dead_letter))
        return
    message = dead_letter.message
    print_facts(
        (
            ("id", dead_letter.id),
            ("agent", dead_letter.agent_id),
            ("message", message.id),
            ("from", message.sender),
            ("sent", f"{ago(message.created_at)} ago"),
            ("reason", dead_letter.reason),
            ("attempts", dead_letter.attempts),
            ("times", dead_letter.times),
            ("last error", dead_letter.last_error),
            ("run", dead_letter.run_id),
            ("given up", f"{ago(dead_letter.at)} ago"),
            ("payload", json.dumps(message.payload, ensure_ascii=False, indent=2)),
        )
    )


async def _letters_by_id(runtime: Runtime, ids: Sequence[int]) -> list[DeadLetter]:
    """Return the dead letters with these numbers, in the order of the numbers.

    Raises:
        NoDataError: The store does not have one of them.
    """
    letters = await runtime.store.lists.dead_letters(ids=ids, limit=len(ids))
    missing_ids = sorted(set(ids) - {letter.id for letter in letters})
    if missing_ids:
        numbers = ", ".join(map(str, missing_ids))
        raise NoDataError(f"no such dead letter (any more): {numbers}; see `callboard dlq list`")
    return sorted(letters, key=lambda letter: letter.id)


async def redrive(
    ids: LettersArg = None,
    /,
    *,
    every: AllFlag = False,
    agent: AgentOpt = None,
    target: Target = HERE,
) -> int:
    """Send dead letters to their agents again as new messages, each dead letter once.

    A run that failed on several messages has a dead letter for each message. Either `dlq redrive` sends these
    again, or `runs redrive` starts a new run with all of them. The second of these commands is refused.

    Examples: `callboard dlq redrive 3 4`;
    `callboard dlq redrive --all --agent desk/main`

    Parameters
    ----------
    every
        Redrive the newest 10000 dead letters.
    """
    agent_id = _selected_agent("redrive", ids, agent, every=every)
    async with target.client() as runtime:
        letter_ids = [letter.id for letter in await _selected_letters(runtime, ids, agent_id, MOST)]
        redriven_letters = await runtime.store.operators.redrive(letter_ids)
    redriven_json = [
        {"agent": str(letter.agent_id), "message": letter.message.id} for letter in redriven_letters
    ]
    text = f"redrove {len(redriven_letters)} of {len(letter_ids)} dead letter(s)"
    return target.tell({"redriven": redriven_json}, text)


async def discard(
    ids: LettersArg = None,
    /,
    *,
    export: Path,
    every: AllFlag = False,
    agent: AgentOpt = None,
    target: Target = HERE,
) -> int:
    """Write dead letters to a file, one JSON object on a line, then delete them.

    The command deletes a dead letter only after its line is on the disk. If the command dies between the two,
    the file and the database both have the dead letter. Call the command again with another file.

    Examples:
    `callboard dlq discard 3 4 --export letters.jsonl`;
    `callboard dlq discard --all --agent desk/main --export letters.jsonl`

    Parameters
    ----------
    export
        A new file for the dead letters.
    every
        Discard all dead letters.
    """
    agent_id = _selected_agent("discard", ids, agent, every=every)
    discarded_count = 0
    async with target.client() as runtime:
        page = await _selected_letters(runtime, ids, agent_id, PAGE)
        if not page:
            return target.tell({"discarded": 0, "export": None}, "no dead letters")
        with _new_file(export) as file, working("discarding") as count:
            while page:
                # On the disk before the rows are deleted: a crash between the two leaves both.
                await asyncio.to_thread(_write, file, page)
                discarded_count += await runtime.store.operators.discard(
                    [letter.id for letter in page]
                )
                count(discarded_count)
                page = (
                    await runtime.store.lists.dead_letters(agent=agent_id, limit=PAGE)
                    if every
                    else []
                )
    text = f"discarded {discarded_count} dead letter(s); they are in {export}"
    return target.tell({"discarded": discarded_count, "export": str(export)}, text)


def _selected_agent(
    verb: str, ids: Sequence[int] | None, agent: str | None, *, every: bool
) -> AgentId | None:
    """Return the agent of `--agent`, or None for all agents.

    Raises:
        ContractError: Both numbers and `--all` are given, or neither, or `--agent` without `--all`.
    """
    if bool(ids) == every:
        raise ContractError(f"name the dead letters to {verb}, or give --all")
    if agent is not None and not every:
        raise ContractError("--agent goes with --all")
    return AgentId.parse(agent) if agent is not None else None


async def _selected_letters(
    runtime: Runtime, ids: Sequence[int] | None, agent: AgentId | None, limit: int
) -> list[DeadLetter]:
    """Return the dead letters with the numbers `ids`, else the newest `limit` of the agent or of all agents."""
    if ids:
        return await _letters_by_id(runtime, ids)
    return await runtime.store.lists.dead_letters(agent=agent, limit=limit)


def _new_file(path: Path) -> TextIO:
    try:
        # Dead letters have content of external clients, so other users of the machine must not read the file.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ContractError(f"--export {path}: the file exists already; name a new one") from None
    except OSError as exc:
        raise ContractError(
            f"--export {path}: {exc.strerror}; name a file that can be created"
        ) from None
    return os.fdopen(descriptor, "w", encoding="utf-8")


def _write(file: TextIO, letters: Sequence[DeadLetter]) -> None:
    file.writelines(json.dumps(_to_json(letter), ensure_ascii=False) + "\n" for letter in letters)
    file.flush()
    os.fsync(file.fileno())


def _to_json(letter: DeadLetter) -> dict[str, JsonValue]:
    columns_text = "id agent=agent_id message reason attempts last_error times run=run_id at"
    return pick(letter, columns_text)
