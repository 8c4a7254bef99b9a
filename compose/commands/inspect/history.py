"""`callboard history list|show|export`: conversations of agents in the runtime's store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from actors.errors import ContractError
from actors.kernel.agent.message import ContentBlock
from actors.kernel.agent.transcript import SessionInfo, Turn
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.conversations import TranscriptStore
from compose.commands import options as opt
from compose.commands.files import progress, reading, writing
from compose.commands.options import HERE, Target
from compose.commands.output import Exit, NoDataError, ago, picked, print_json, short
from compose.commands.terminal import console, say
from compose.host.visible import visible
from compose.tools.export import read_export
from compose.tools.history import turn_to_json, turns_of

SHOWN: Final = 50
"""Number of turns that `show` prints by default."""
ROLE_STYLES: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta"}


async def list_sessions(
    agent: opt.AgentArg, /, *, limit: opt.LimitOpt = 50, target: Target = HERE
) -> None:
    """List the sessions of an agent. The session with the newest turn is first.

    The column of tokens is the sum of all counted turns. `callboard context` shows the tokens that the runtime
    sends to a model. An agent whose context has a history of its own keeps its turns there.

    Examples:
    `callboard history list helper/main`;
    `callboard history list acme:helper/main --limit 5 --json`
    """
    async with target.client() as runtime:
        found = await runtime.store.transcripts.sessions(agent, limit=limit)
        if not found:
            raise no_sessions(agent)
    target.table(
        found,
        lambda one: picked(one, "session=name turns tokens first_at last_at"),
        ("session", "turns", "tokens", "first", "last"),
        _session_row,
        empty="",
    )
    if len(found) == limit and not target.json:
        say(f"there may be more: give a larger --limit than {limit}")


def _session_row(one: SessionInfo) -> tuple[object, ...]:
    return one.name, one.turns, one.tokens, ago(one.first_at), ago(one.last_at)


async def show(
    agent: opt.AgentArg,
    /,
    *,
    session: str = "main",
    limit: opt.Limit | None = None,
    offset: opt.Count | None = None,
    last: opt.Limit | None = None,
    full: opt.Flag = False,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    target: Target = HERE,
) -> None:
    """Print the turns of a session, by default the newest 50: role, text, time and run of each.

    Calls of tools and their results are cut to 100 characters. The output has message content: protect it like
    the database.

    Examples:
    `callboard history show helper/main`;
    `callboard history show helper/main --session support-7 --last 4 --full`;
    `callboard history show helper/main --offset 100 --limit 20 --json`;
    `callboard history show helper/main --file run.jsonl`

    Parameters
    ----------
    session
        The session, as `callboard history list` names it.
    limit
        Print at most this number of turns, from the start or from --offset.
    offset
        Leave out this number of turns at the start.
    last
        Print only this number of turns at the end.
    full
        Print calls of tools and their results in full.
    file
        A file of `callboard export`, or - for standard input. The command prints the turns that model calls
        of its runs saw or added, and needs no server.
    """
    if last is not None and (limit is not None or offset is not None):
        msg = "--last counts from the end, --offset and --limit from the start: give one kind"
        raise ContractError(msg)

    def page(count: int) -> tuple[int, int]:
        newest = limit is None and offset is None
        most = (last or SHOWN) if newest else SHOWN if limit is None else limit
        return (max(0, count - most) if newest else offset or 0), most

    if file is not None:
        turns = _exported(file, agent, session)
        count = len(turns)
        first, most = page(count)
        found = turns[first:][:most]
    else:
        async with target.client() as runtime:
            store = runtime.store.transcripts
            count = await counted(store, agent, session)
            first, most = page(count)
            found = await store.page(agent, session, limit=most, offset=first)
    if target.json:
        print_json([turn_to_json(turn) for turn in found])
        return
    for turn in found:
        print_turn(turn, is_full=full)
    before, behind = min(first, count), max(0, count - first - len(found))
    if before or behind:
        say(f"not shown: {before} turn(s) before, {behind} after; see --offset, --limit and --last")


def _exported(file: str, agent: AgentId, session: str) -> list[Turn]:
    """Return the turns of a session in an export, oldest first; at least one.

    Raises:
        NoDataError: The export has no turn of the session.
    """
    with reading(file) as lines:
        runs = [run for run in read_export(lines, file=file) if run.row.agent_id == agent]
    turns = {turn.ordinal: turn for run in runs for turn in run.turns.get(session, ())}
    if not turns:
        known = sorted({name for run in runs for name in run.turns})
        held = ", ".join(known) or "none"
        msg = f"{file} holds no turn of session {session!r} of {agent} (its sessions there: {held})"
        raise NoDataError(f"{msg}: name another with --session, or export a run of the agent")
    return [turns[ordinal] for ordinal in sorted(turns)]


def print_turn(turn: Turn, *, is_full: bool) -> None:
    """Print a turn for people. Calls of tools and their results are cut unless `is_full`."""
    message, out = turn.message, console()
    facts = [f"{turn.at:%Y-%m-%d %H:%M:%S}"]
    facts += [f"run {turn.run_id}"] if turn.run_id else []
    facts += [f"{turn.tokens} tokens"] if turn.tokens is not None else []
    facts += [f"behind {turn.parent}"] if turn.parent is not None else []
    head = Text(f"{turn.ordinal}  ")
    head.append(message.role, style=ROLE_STYLES.get(message.role, "bold"))
    head.append(visible(f" {message.name}" if message.name else ""))
    head.append(visible(f"  {'  '.join(facts)}"), style="dim")
    out.print(head, soft_wrap=True)
    for block in message.content:
        for line in _lines(block, is_full=is_full):
            out.print(Text(visible(f"    {line}")), soft_wrap=True)


def _lines(block: ContentBlock, *, is_full: bool) -> Iterator[str]:
    """Yield the text lines of a content block."""
    data: dict[str, Any] = block.model_extra or {}
    match block.type:
        case "text":
            yield from (block.text or "").split("\n")
        case "tool_call":
            arguments = data.get("arguments") or {}
            whole = json.dumps(arguments, ensure_ascii=False)
            yield f"→ {data.get('name')} {whole if is_full else short(arguments)}"
        case "tool_result":
            name = f"{data.get('name')} failed" if data.get("is_error") else data.get("name")
            first, *rest = (block.text or "").split("\n") if is_full else [short(block.text)]
            yield f"← {name}: {first}"
            yield from (f"  {line}" for line in rest)
        case other:
            said = {**data, **({} if block.text is None else {"text": block.text})}
            whole = json.dumps(said, ensure_ascii=False)
            yield f"[{other}] {whole if is_full else short(said)}"


async def export(
    agent: opt.AgentArg,
    /,
    *,
    session: str,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> int:
    """Write a session as JSON lines, one turn on a line, oldest first.

    Each line has ordinal, id, run, parent, tokens, at and message. `ChatMessage.model_validate` converts
    `message` to the argument of `HistoryProvider.append_many`, so that any history can read the file. A
    history that has a turn already drops the copy. The file has message content: protect it like the
    database. With `--json` a summary is printed as JSON on standard error.

    Examples:
    `callboard history export helper/main --session main > main.jsonl`;
    `callboard history export acme:helper/main --session support-7 --output support-7.jsonl`

    Parameters
    ----------
    session
        The session, as `callboard history list` names it.
    output
        The file, which is written completely or not at all. Default: standard output.
    """
    written = 0
    async with target.client() as runtime:
        store = runtime.store.transcripts
        await counted(store, agent, session)
        with writing(output) as file, progress(output, "turns") as moved:
            async for turn in turns_of(store, agent, session):
                file.write(json.dumps(turn_to_json(turn), ensure_ascii=False) + "\n")
                written += 1
                moved(written)
    if target.json:
        done = {"agent": str(agent), "session": session, "turns": written}
        sys.stderr.write(json.dumps(done) + "\n")
    else:
        console(stderr=True).print(f"{written} turn(s); message content is included")
    return Exit.OK


async def counted(store: TranscriptStore, agent: AgentId, session: str) -> int:
    """Return the number of turns of a session; at least 1.

    Raises:
        NoDataError: The store has no such session.
    """
    count = await store.count(agent, session)
    if count:
        return count
    if not await store.sessions(agent, limit=1):
        raise no_sessions(agent)
    remedy = f"list its sessions with `callboard history list {agent}`"
    raise NoDataError(f"{agent} has no session {session!r}: {remedy}")


def no_sessions(agent: AgentId) -> NoDataError:
    """Return the error about an agent that has no session in the store."""
    remedy = f"list agents that ran with `callboard runs list --type {agent.type}`"
    return NoDataError(
        f"{agent} has no session here: {remedy}; a history of its own is not read by this command"
    )
