"""`callboard export` and `replay`: write runs into a file, and replay them from it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.progress import track

from actors._runtime.loop.clock import SystemClock
from compose._commands.files import progress, reading, writing
from compose._commands.options import HERE, DebugFlag, Flag, JsonFlag, RunIdArg, Seq, Target
from compose._commands.output import Exit, print_json
from compose._commands.runs.list import open_run
from compose._commands.terminal import console, print_table, say
from compose._host.loader import find_served, serve_all
from compose._tools.export import Exporter, read_export
from compose._tools.replay import BAD, Catalogue, Replayed, replay_run

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
    """Write a run with its log as JSON lines, which `callboard replay` can replay elsewhere.

    The file has the content of messages, results and errors: protect it like the database. It also has the
    turns that the run's model calls saw or added, if the runtime's store still keeps them. `callboard history
    show AGENT --file FILE` prints these turns. With `--json` a summary is printed as JSON on standard
    error.

    Examples:
    `callboard export 0f3c… > run.jsonl`;
    `callboard export 0f3c… --tree -o conversation.jsonl`

    Parameters
    ----------
    tree
        Write all runs below it too.
    output
        The file, which is written completely or not at all. Default: standard output.
    """
    async with open_run(target, run) as (runtime, row):
        exporter = Exporter(runtime.store)
        with writing(output) as file, progress(output, "log entries") as report_progress:
            async for line in exporter.lines(row, tree=tree, at=SystemClock().now()):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                report_progress(exporter.entries)
    if target.json:
        summary = {
            "run": run,
            "runs": exporter.runs,
            "entries": exporter.entries,
            "turns": exporter.turns,
        }
        sys.stderr.write(json.dumps(summary) + "\n")
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
    """Replay exported runs, and compare the code's behaviour with their logs.

    The command needs no server. It takes the results of effects from the log, and executes no step, tool,
    model call or message. The code between the effects runs, and so does middleware. The command tries
    any version of an agent, so it shows before a deployment whether open runs survive the deployment. The
    exit code is 1 if a run differs from its log.

    Examples:
    `callboard replay conversation.jsonl shop.agents:app`;
    `callboard export 0f3c… | callboard replay - shop.agents:app --json`;
    `callboard replay run.jsonl shop.agents:app --until 17`

    Parameters
    ----------
    file
        A file of `callboard export`; - reads standard input.
    module_attr
        MODULE:ATTR as of `callboard host`.
    until
        Cut the log after this entry, and show the code's next action there.
    """
    del debug  # `compose._cli` reads this option for every command
    with reading(file) as lines:
        runs = read_export(lines, file=file)
    catalogue = Catalogue()
    await serve_all(catalogue, {module_attr: find_served(module_attr)})
    error_console = console(stderr=True)
    is_silent = json or not error_console.is_terminal
    results = [
        await replay_run(run, catalogue.agents, until=until)
        for run in track(
            runs, "replaying", console=error_console, transient=True, disable=is_silent
        )
    ]
    if json:
        print_json({"file": file, "runs": [asdict(result) for result in results]})
    else:
        _show(results)
    return Exit.FAILED if any(result.outcome in BAD for result in results) else Exit.OK


def _show(results: list[Replayed]) -> None:
    rows = []
    for result in results:
        verdict = WORDS[result.outcome]
        if result.outcome == "reproduced" and result.found:
            verdict += f", then {result.found}"
        rows.append((result.run_id, result.agent, verdict, str(result.entries)))
    print_table(("run", "agent", "result", "entries"), rows, empty_text="the export holds no run")
    for result in results:
        if result.outcome in BAD:
            say(f"run {result.run_id}, position {result.position or '-'}")
            say(f"  the log has   {result.expected or '-'}")
            say(f"  the code did  {result.found or '-'}")
        if result.note:
            say(f"run {result.run_id}: {result.note}")
