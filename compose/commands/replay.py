"""`callboard replay`: a conversation re-run from its log."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import track

from actors.errors import ContractError
from compose.commands.exits import Exit
from compose.commands.numbers import Seq
from compose.commands.output import console, print_json, print_table, say
from compose.replay import BAD, Catalogue, replay_run
from compose.run_export import read_export
from compose.serving import find_served, serve_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from compose.replay import Replayed

WORDS = {
    "reproduced": "reproduced",
    "diverged": "DIVERGED",
    "past_end": "RAN PAST THE LOG'S END",
    "stuck": "STUCK",
    "unserved": "UNSERVED",
    "not_begun": "not begun",
}


async def replay(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module_attr: str,
    /,
    *,
    until: Seq | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a conversation again from its export, and see whether the code does the same.

    Needs no server. What effects gave is served from the log; nothing is executed outside: no step,
    no tool, no model call, no message. The code between them runs, and middleware. Any version of an
    agent is tried, so this tells before a deployment whether open runs survive it. Exit code 1 when a
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
    json
        Print JSON for programs instead of a table for people.
    debug
        Show the traceback of an error, and every log line.
    """
    del debug  # read by `compose.cli`, for every command alike
    with _reading(file) as lines:
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


@contextmanager
def _reading(file: str) -> Iterator[TextIO]:
    if file == "-":
        yield sys.stdin
        return
    try:
        with Path(file).open(encoding="utf-8") as lines:
            yield lines
    except OSError as exc:
        raise ContractError(f"cannot read {file}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ContractError(f"{file} is no text in UTF-8, so no export") from exc


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
