"""`callboard history`, `memory` and `context`: what agents keep of conversations, and what models read of it.

`history list|show|export` has the conversations of the runtime's store, `memory list|show|forget` the long-term
memories of a tenant, by scope. `context` shows the window of a session that the runtime sends to a model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from actors._kernel.agent.agent import Agent
from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors._kernel.stores.conversations import TranscriptStore
from actors._kernel.stores.memory import Memory
from actors._kernel.stores.run_store import RunStore
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.files import progress, reading, writing
from compose._commands.options import HERE, AgentArg, Target
from compose._commands.output import Exit, NoDataError, ago, pick, print_json, short
from compose._commands.terminal import console, print_facts, print_table, say
from compose._host.loader import find_served, serve_all
from compose._host.logs import visible
from compose._tools.export import read_export
from compose._tools.history import SentWindow, last_window, turn_to_json, turns_of

if TYPE_CHECKING:
    from actors._context.compaction.steps import CompactionStep
    from actors._runtime.verbs.conversation.windows import WindowReport

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
        sessions = await runtime.store.data.transcripts.sessions(agent, limit=limit)
        if not sessions:
            raise no_sessions(agent)
    target.table(
        sessions,
        lambda session: pick(session, "session=name turns tokens first_at last_at"),
        ("session", "turns", "tokens", "first", "last"),
        lambda session: (
            session.name,
            session.turns,
            session.tokens,
            ago(session.first_at),
            ago(session.last_at),
        ),
        empty_text="",
    )
    if len(sessions) == limit and not target.json:
        say(f"there may be more: give a larger --limit than {limit}")


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
        is_from_end = limit is None and offset is None
        max_turns = (last or SHOWN) if is_from_end else SHOWN if limit is None else limit
        return (max(0, count - max_turns) if is_from_end else offset or 0), max_turns

    if file is not None:
        turns = _exported_turns(file, agent, session)
        count = len(turns)
        first, max_turns = page(count)
        shown_turns = turns[first:][:max_turns]
    else:
        async with target.client() as runtime:
            store = runtime.store.data.transcripts
            count = await count_turns(store, agent, session)
            first, max_turns = page(count)
            shown_turns = await store.page(agent, session, limit=max_turns, offset=first)
    if target.json:
        print_json([turn_to_json(turn) for turn in shown_turns])
        return
    for turn in shown_turns:
        print_turn(turn, is_full=full)
    count_before, count_after = min(first, count), max(0, count - first - len(shown_turns))
    if count_before or count_after:
        say(
            f"not shown: {count_before} turn(s) before, {count_after} after; see --offset, --limit and --last"
        )


def _exported_turns(file: str, agent: AgentId, session: str) -> list[Turn]:
    """Return the turns of a session in an export, oldest first; at least one.

    Raises:
        NoDataError: The export has no turn of the session.
    """
    with reading(file) as lines:
        runs = [run for run in read_export(lines, file=file) if run.row.agent_id == agent]
    # Model calls of several runs saw the same turn, so that the export has it several times.
    turns_by_ordinal = {turn.ordinal: turn for run in runs for turn in run.turns.get(session, ())}
    if not turns_by_ordinal:
        names = sorted({name for run in runs for name in run.turns})
        names_text = ", ".join(names) or "none"
        msg = f"{file} holds no turn of session {session!r} of {agent} (its sessions there: {names_text})"
        raise NoDataError(f"{msg}: name another with --session, or export a run of the agent")
    return [turns_by_ordinal[ordinal] for ordinal in sorted(turns_by_ordinal)]


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
            json_text = json.dumps(arguments, ensure_ascii=False)
            yield f"→ {data.get('name')} {json_text if is_full else short(arguments)}"
        case "tool_result":
            name = f"{data.get('name')} failed" if data.get("is_error") else data.get("name")
            first_line, *other_lines = (
                (block.text or "").split("\n") if is_full else [short(block.text)]
            )
            yield f"← {name}: {first_line}"
            yield from (f"  {line}" for line in other_lines)
        case block_type:
            block_data = {**data, **({} if block.text is None else {"text": block.text})}
            json_text = json.dumps(block_data, ensure_ascii=False)
            yield f"[{block_type}] {json_text if is_full else short(block_data)}"


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
    turn_count = 0
    async with target.client() as runtime:
        store = runtime.store.data.transcripts
        await count_turns(store, agent, session)
        with writing(output) as file, progress(output, "turns") as report_progress:
            async for turn in turns_of(store, agent, session):
                file.write(json.dumps(turn_to_json(turn), ensure_ascii=False) + "\n")
                turn_count += 1
                report_progress(turn_count)
    if target.json:
        summary = {"agent": str(agent), "session": session, "turns": turn_count}
        sys.stderr.write(json.dumps(summary) + "\n")
    else:
        console(stderr=True).print(f"{turn_count} turn(s); message content is included")
    return Exit.OK


async def count_turns(store: TranscriptStore, agent: AgentId, session: str) -> int:
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


async def list_memories(
    about: str | None = None,
    /,
    *,
    tenant: opt.TenantOpt = None,
    limit: opt.LimitOpt = 50,
    offset: opt.Count = 0,
    target: Target = HERE,
) -> None:
    """List the present memories of a scope or, without a scope, of a tenant, newest first.

    The scope of an agent's own memories is `agent:` and its id, and the scope of its blocks is `blocks:agent:`
    and its id. The output has the texts: protect it like the database.

    Examples:
    `callboard memory list`;
    `callboard memory list user:7 --limit 5 --json`

    Parameters
    ----------
    about
        The scope, such as user:7.
    offset
        Leave out this number of the newest memories.
    """
    async with target.client() as runtime:
        memories = runtime.memory(tenant or DEFAULT_TENANT)
        page = await memories.page(about=about, limit=limit, offset=offset)
    target.table(
        page,
        _json,
        ("about", "key or id", "text", "source", "version", "since"),
        _row,
        empty_text="there are no memories here",
    )
    if len(page) == limit and not target.json:
        say(f"there may be more: give --offset {offset + limit}")


async def show_memory(
    key_or_id: str, /, *, about: str, tenant: opt.TenantOpt = None, target: Target = HERE
) -> None:
    """Print a memory with its earlier versions, the present version first.

    Examples:
    `callboard memory show units --about user:7`;
    `callboard memory show units --about agent:helper/main --json`

    Parameters
    ----------
    key_or_id
        The memory's key, or the id of any of its versions.
    about
        The memory's scope.
    """
    async with target.client() as runtime:
        versions = await runtime.memory(tenant or DEFAULT_TENANT).versions(key_or_id, about=about)
    if not versions:
        raise _unknown(key_or_id, about)
    if target.json:
        print_json([_json(version) for version in versions])
        return
    out = console()
    for version in versions:
        until = (
            "" if version.valid_until is None else f" until {version.valid_until:%Y-%m-%d %H:%M:%S}"
        )
        run = f"  run {version.run_id}" if version.run_id else ""
        facts = (
            f"{version.updated_at:%Y-%m-%d %H:%M:%S}{until}  {version.source}{run}  {version.id}"
        )
        out.print(
            Text(visible(f"version {version.version}  {facts}"), style="bold"), soft_wrap=True
        )
        for line in version.text.split("\n"):
            out.print(Text(visible(f"    {line}")), soft_wrap=True)


async def forget(
    key_or_id: str, /, *, about: str, tenant: opt.TenantOpt = None, target: Target = HERE
) -> None:
    """Remove a memory with its earlier versions and their embeddings for good.

    Logs of runs that kept or recalled the memory have its text until these runs are swept.

    Examples:
    `callboard memory forget units --about user:7`

    Parameters
    ----------
    key_or_id
        The memory's key, or the id of any of its versions.
    about
        The memory's scope.
    """
    async with target.client() as runtime:
        removed_count = await runtime.memory(tenant or DEFAULT_TENANT).forget(
            key_or_id, about=about
        )
    if not removed_count:
        raise _unknown(key_or_id, about)
    if target.json:
        print_json({"about": about, "memory": key_or_id, "versions": removed_count})
        return
    say(f"forgotten: {key_or_id!r} of {about!r}, {removed_count} version(s)")


def _json(memory: Memory) -> dict[str, object]:
    return memory.model_dump(mode="json", exclude={"score"})


def _row(memory: Memory) -> tuple[object, ...]:
    return (
        memory.about,
        memory.key or memory.id,
        short(memory.text),
        memory.source,
        memory.version,
        ago(memory.updated_at),
    )


def _unknown(key_or_id: str, about: str) -> NoDataError:
    remedy = f"`callboard memory list {about}` lists the existing ones"
    return NoDataError(f"there is no memory {key_or_id!r} about {about!r}: {remedy}")


async def context(
    agent: AgentArg,
    /,
    *,
    session: str | None = None,
    module_attr: Annotated[str | None, Parameter(name="--app")] = None,
    target: Target = HERE,
) -> int:
    """Show the window of a session: its parts with their tokens, and the turns that each strategy left out.

    With `--app` the agent's code makes the window now, from the stored turns, before a new turn. The command
    asks no model. A strategy that needs a model is shown as `would ask MODEL`, and does not change
    the window. Without `--app` the command shows the window of the session's last model call, as the
    log describes it.

    Examples:
    `callboard context helper/main`;
    `callboard context helper/main --app shop.agents:app`;
    `callboard context acme:helper/main --session support-7 --app shop.agents:app --json`

    Parameters
    ----------
    session
        The session, as `callboard history list` names it. Default with --app: the agent's own session.
        Default without --app: the session that was written last.
    module_attr
        MODULE:ATTR as of `callboard host`.
    """
    served_agent = None if module_attr is None else await _agent(module_attr, agent)
    async with target.client() as runtime:
        if served_agent is not None:
            report = await _window_now(served_agent, runtime.store, session)
            _show_report(report, target)
            return Exit.OK
        transcripts = runtime.store.data.transcripts
        if not session:
            newest_sessions = await transcripts.sessions(agent, limit=1)
            if not newest_sessions:
                raise no_sessions(agent)
            session = newest_sessions[0].name
        await count_turns(transcripts, agent, session)
        window = await last_window(runtime.store, agent, session)
    if window is None:
        remedy = "give --app MODULE:ATTR to make it from the stored turns"
        raise NoDataError(f"no log has a model call in session {session!r} of {agent}: {remedy}")
    _show_sent(window, agent, target)
    return Exit.OK


async def _agent(module_attr: str, agent: AgentId) -> Agent:
    from compose._tools.replay import Catalogue  # noqa: PLC0415 - only `context --app` executes an application

    catalogue = Catalogue()
    await serve_all(catalogue, {module_attr: find_served(module_attr)})
    served_agent = catalogue.agents.find(agent)
    if served_agent is None:
        remedy = f"see `callboard describe {module_attr}`"
        raise ContractError(f"{module_attr} does not serve {agent}: {remedy}")
    return served_agent


async def _window_now(served_agent: Agent, store: RunStore, session: str | None) -> WindowReport:
    from actors._runtime.verbs.conversation.windows import window_report  # noqa: PLC0415 - as above

    report = await window_report(served_agent, store, session)
    if session is not None and not report.turns:
        if report.history == "StoreHistory":
            await count_turns(store.data.transcripts, served_agent.id, session)
        remedy = "name another session; a history in memory exists only in its own process"
        raise NoDataError(
            f"{report.history} has no session {session!r} of {served_agent.id}: {remedy}"
        )
    return report


def _show_report(report: WindowReport, target: Target) -> None:
    if target.json:
        print_json(_report_to_json(report))
        return
    budget, cut = report.budget, report.cut
    cut_text = ""
    if cut is not None:
        cut_text = "of shortened turns" if cut.upto == NO_CUT else f"behind turn {cut.upto}"
        cut_text += f", by {cut.strategy} in run {cut.run_id}, {ago(cut.at)} ago"
    size = "" if report.context_size is None else f" (context of {report.context_size} tokens)"
    goal = "" if budget is None or budget.target == budget.tokens else f", then {budget.target}"
    print_facts(
        (
            ("agent", report.agent),
            ("session", report.session),
            ("model", None if report.model is None else report.model + size),
            ("history", f"{report.turns} turn(s) in {report.history}, {report.read} read"),
            ("cut", cut_text),
            ("budget", None if budget is None else f"{budget.tokens} tokens{goal}"),
        )
    )
    parts = [(part.name, part.count, part.tokens) for part in report.parts]
    rows = [*parts, ("in all", "", report.tokens)] if parts else []
    print_table(("part", "count", "tokens"), rows, empty_text="the window is empty")
    columns = ("strategy", "kept", "dropped", "changed", "added", "tokens", "")
    steps = [_step_row(step) for step in report.steps]
    print_table(columns, steps, empty_text="no strategy had to run: the turns fit")


def _step_row(step: CompactionStep) -> tuple[object, ...]:
    tokens = f"{step.tokens_before} → {step.tokens_after}"
    asks = f"would ask {step.would_ask}" if step.would_ask is not None else ""
    return step.name, step.kept, step.dropped, step.changed, step.added, tokens, asks


def _report_to_json(report: WindowReport) -> dict[str, Any]:
    columns_text = "strategy=name kept dropped changed added tokens_before tokens_after would_ask"
    return {
        "made": "now",
        **pick(report, "agent session model context_size history turns read"),
        "cut": None if report.cut is None else pick(report.cut, "upto strategy run=run_id at"),
        "budget": None if report.budget is None else pick(report.budget, "tokens target"),
        "parts": [pick(part, "name count tokens") for part in report.parts],
        "tokens": report.tokens,
        "steps": [pick(step, columns_text) for step in report.steps],
    }


def _show_sent(window: SentWindow, agent: AgentId, target: Target) -> None:
    receipt = window.receipt
    if target.json:
        facts = {"made": "sent", "agent": str(agent), "session": receipt["session"]}
        print_json({**facts, **pick(window, "run at model receipt")})
        return
    cut = receipt["cut"]
    print_facts(
        (
            ("agent", agent),
            ("session", receipt["session"]),
            ("model", window.model),
            ("sent", f"in run {window.run}, {ago(window.at)} ago"),
            ("cut", None if cut == NO_CUT else f"behind turn {cut}"),
            ("turns", receipt["turns"]),
            ("tokens", f"{receipt['tokens']}, without instructions and tools"),
        )
    )
    names = ("strategy", "dropped", "changed", "added", "tokens")
    rows = [tuple(step[name] for name in names) for step in receipt["steps"]]
    print_table(names, rows, empty_text="no strategy changed it")
    say("--app MODULE:ATTR makes the window that would be sent now")
