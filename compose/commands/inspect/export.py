"""`callboard export` and `replay`: a conversation as a file, and re-run from it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.progress import track

from actors.runtime.loop.clock import SystemClock
from compose.commands.files import progress, reading, writing
from compose.commands.options import HERE, DebugFlag, Flag, JsonFlag, RunIdArg, Seq, Target
from compose.commands.output import Exit, print_json
from compose.commands.runs.list import open_run
from compose.commands.terminal import console, print_table, say
from compose.host.loader import find_served, serve_all
from compose.tools.export import Exporter, read_export
from compose.tools.replay import BAD, Catalogue, Replayed, replay_run

WORDS = {
    "reproduced": "reproduced",
    "diverged": "DIVERGED",
    "past_end": "RAN PAST THE LOG'S END",
    "stuck": "STUCK",
    "unserved": "UNSERVED",
    "not_begun": "not begun",
}


async def export(
    run: RunIdArg,
    /,
    *,
    tree: Flag = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> int:
    """Write a run with its log as JSON lines, to be replayed elsewhere: `callboard replay`.

    The content of messages, results and errors is in it: treat it like the database. So are the turns that
    its model calls saw or added, as far as the runtime's store still keeps them: `callboard history show
    AGENT --file FILE` prints them. With `--json` a summary is printed as JSON on standard error.

    Examples:
    `callboard export 0f3c… > run.jsonl`;
    `callboard export 0f3c… --tree -o conversation.jsonl`

    Parameters
    ----------
    tree
        All runs below it, too.
    output
        The file, written whole or not at all; left out: standard output.
    """
    async with open_run(target, run) as (runtime, row):
        exporter = Exporter(runtime.store)
        with writing(output) as file, progress(output, "log entries") as moved:
            async for line in exporter.lines(row, tree=tree, at=SystemClock().now()):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                moved(exporter.entries)
    if target.json:
        done = {
            "run": run,
            "runs": exporter.runs,
            "entries": exporter.entries,
            "turns": exporter.turns,
        }
        sys.stderr.write(json.dumps(done) + "\n")
    else:
        text = (
            f"{exporter.runs} run(s), {exporter.entries} log entries, {exporter.turns} turn(s);"
            " message content is included"
        )
        console(stderr=True).print(text)
    return Exit.OK


async def replay(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module_attr: str,
    /,
    *,
    until: Seq | None = None,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> int:
    """Run a conversation again from its export, and see whether the code does the same.

    Needs no server. What effects gave is served from the log; nothing is executed outside: no step,
    no tool, no model call, no message. The code between them runs, and middleware. Any version of an
    agent is tried, so this shows before a deployment whether open runs survive it. Exit code 1 when a
    run does not do what its log says.

    Examples:
    `callboard replay conversation.jsonl shop.agents:app`;
    `callboard export 0f3c… | callboard replay - shop.agents:app --json`;
    `callboard replay run.jsonl shop.agents:app --until 17`

    Parameters
    ----------
    file
        What `callboard export` wrote; - reads standard input.
    module_attr
        MODULE:ATTR as of `callboard host`.
    until
        Only the log up to this entry: where does the code go from there?
    """
    del debug  # read by `compose.cli`, for every command alike
    with reading(file) as lines:
        runs = read_export(lines, file=file)
    catalogue = Catalogue()
    await serve_all(catalogue, {module_attr: find_served(module_attr)})
    err = console(stderr=True)
    silent = json or not err.is_terminal
    found = [
        await replay_run(run, catalogue.agents, until=until)
        for run in track(runs, "replaying", console=err, transient=True, disable=silent)
    ]
    if json:
        print_json({"file": file, "runs": [asdict(one) for one in found]})
    else:
        _show(found)
    return Exit.FAILED if any(one.outcome in BAD for one in found) else Exit.OK


def _show(found: list[Replayed]) -> None:
    print_table(
        ("run", "agent", "result", "entries"),
        [(one.run_id, one.agent, _result(one), str(one.entries)) for one in found],
        empty="the export holds no run",
    )
    for one in found:
        if one.outcome in BAD:
            say(f"run {one.run_id}, position {one.position or '-'}")
            say(f"  the log has   {one.expected or '-'}")
            say(f"  the code did  {one.found or '-'}")
        if one.note:
            say(f"run {one.run_id}: {one.note}")


def _result(one: Replayed) -> str:
    text = WORDS[one.outcome]
    return f"{text}, then {one.found}" if one.outcome == "reproduced" and one.found else text
