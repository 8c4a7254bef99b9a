"""`callboard dlq list|show|redrive|discard`: messages that were given up."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId
from compose.commands.exits import Exit
from compose.commands.numbers import LETTERS, Limit
from compose.commands.output import ago, print_facts, print_json, print_table, say, working
from compose.commands.target import HERE, NoDataError, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import DeadLetter
    from actors.runtime import Runtime

MOST: Final = 10_000
PAGE: Final = 500
"""Letters that are written to a file before they are forgotten, at once."""


async def list_letters(
    *, agent: str | None = None, limit: Limit = 50, target: Target = HERE
) -> None:
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


async def show(letter: Annotated[int, LETTERS], /, *, target: Target = HERE) -> None:
    """Show one dead letter whole: the message with its payload, why it was given up, its run.

    Example: `callboard dlq show 3`

    Parameters
    ----------
    letter
        A number that `callboard dlq list` shows.
    """
    async with target.client() as runtime:
        (found,) = await _known(runtime, [letter])
    if target.json:
        print_json(_to_json(found))
        return
    message = found.message
    print_facts(
        (
            ("id", str(found.id)), ("agent", str(found.agent_id)), ("message", message.id),
            ("from", message.sender or ""), ("sent", f"{ago(message.created_at)} ago"),
            ("reason", found.reason), ("attempts", str(found.attempts)),
            ("last error", found.last_error), ("run", found.run_id or ""),
            ("given up", f"{ago(found.at)} ago"),
            ("payload", json.dumps(message.payload, ensure_ascii=False, indent=2)),
        )
    )  # fmt: skip


async def _known(runtime: Runtime, ids: Sequence[int]) -> list[DeadLetter]:
    """Return these dead letters, by number.

    Raises:
        NoDataError: One of them is not there.
    """
    found = await runtime.store.dead_letters(ids=ids, limit=len(ids))
    missing = sorted(set(ids) - {letter.id for letter in found})
    if missing:
        numbers = ", ".join(map(str, missing))
        raise NoDataError(f"no such dead letter (any more): {numbers}; see `callboard dlq list`")
    return sorted(found, key=lambda letter: letter.id)


async def redrive(
    ids: Annotated[list[int] | None, Parameter(negative=""), LETTERS] = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    agent: str | None = None,
    target: Target = HERE,
) -> int:
    """Give dead letters back to their agents as new messages; each letter once.

    A run that failed on several messages has a letter of each. Either its letters are given back, or the
    run is started again with all of them (`runs redrive`): what comes second is refused.

    Examples:
    `callboard dlq redrive 3 4`;
    `callboard dlq redrive --all --agent desk/main`

    Parameters
    ----------
    ids
        Numbers that `callboard dlq list` shows.
    every
        All of them, the newest 10000.
    agent
        With --all: only those of this agent.
    """
    agent_id = _chosen("redrive", ids, agent, every=every)
    async with target.client() as runtime:
        if ids:
            letters = await _known(runtime, ids)
        else:
            letters = await runtime.store.dead_letters(agent=agent_id, limit=MOST)
        wanted = [letter.id for letter in letters]
        given = await runtime.store.redrive(wanted)
    if target.json:
        print_json(
            {"redriven": [{"agent": str(a.agent_id), "message": a.message.id} for a in given]}
        )
    else:
        say(f"redrove {len(given)} of {len(wanted)} dead letter(s)")
    return Exit.OK


async def discard(
    ids: Annotated[list[int] | None, Parameter(negative=""), LETTERS] = None,
    /,
    *,
    export: Path,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    agent: str | None = None,
    target: Target = HERE,
) -> int:
    """Write dead letters to a file, one JSON object a line, and forget them then.

    Nothing is forgotten before the file is on the disk. Who is broken off in between has both, and
    starts again with another file.

    Examples:
    `callboard dlq discard 3 4 --export letters.jsonl`;
    `callboard dlq discard --all --agent desk/main --export letters.jsonl`

    Parameters
    ----------
    ids
        Numbers that `callboard dlq list` shows.
    export
        A new file for the letters.
    every
        All of them.
    agent
        With --all: only those of this agent.
    """
    agent_id = _chosen("discard", ids, agent, every=every)
    gone = 0
    async with target.client() as runtime:
        if ids:
            page = await _known(runtime, ids)
        else:
            page = await runtime.store.dead_letters(agent=agent_id, limit=PAGE)
        if not page:
            _tell_discarded(0, None, target)
            return Exit.OK
        with _new_file(export) as file, working("discarding") as count:
            while page:
                await asyncio.to_thread(_write, file, page)
                gone += await runtime.store.discard([letter.id for letter in page])
                count(gone)
                page = await runtime.store.dead_letters(agent=agent_id, limit=PAGE) if every else []
    _tell_discarded(gone, export, target)
    return Exit.OK


def _tell_discarded(gone: int, export: Path | None, target: Target) -> None:
    if target.json:
        print_json({"discarded": gone, "export": None if export is None else str(export)})
    elif export is None:
        say("no dead letters")
    else:
        say(f"discarded {gone} dead letter(s); they are in {export}")


def _chosen(
    verb: str, ids: Sequence[int] | None, agent: str | None, *, every: bool
) -> AgentId | None:
    """Return whose letters `--all` means.

    Raises:
        ContractError: Letters are named and meant all at once, or neither.
    """
    if bool(ids) == every:
        raise ContractError(f"name the dead letters to {verb}, or say --all")
    if agent is not None and not every:
        raise ContractError("--agent goes with --all")
    return AgentId.parse(agent) if agent is not None else None


def _new_file(path: Path) -> TextIO:
    try:
        # Letters hold what outsiders have sent: nobody else reads them.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ContractError(f"--export {path}: the file is there already; name a new one") from None
    except OSError as exc:
        raise ContractError(
            f"--export {path}: {exc.strerror}; name a file that can be made"
        ) from None
    return os.fdopen(descriptor, "w", encoding="utf-8")


def _write(file: TextIO, letters: Sequence[DeadLetter]) -> None:
    file.writelines(json.dumps(_to_json(letter), ensure_ascii=False) + "\n" for letter in letters)
    file.flush()
    os.fsync(file.fileno())


def _to_json(letter: DeadLetter) -> dict[str, JsonValue]:
    return {
        "id": letter.id, "agent": str(letter.agent_id), "message": letter.message.to_json(),
        "reason": letter.reason, "attempts": letter.attempts, "last_error": letter.last_error,
        "run": letter.run_id, "at": letter.at.isoformat() if letter.at is not None else None,
    }  # fmt: skip
