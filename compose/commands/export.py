"""`callboard export`: a conversation as a file."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import Progress

from actors.errors import ContractError
from actors.runtime.clock import SystemClock
from compose.commands.exits import Exit
from compose.commands.output import console
from compose.commands.runs import known_run
from compose.commands.target import HERE, Target
from compose.run_export import Exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO


async def export(
    run: str,
    /,
    *,
    tree: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> int:
    """Write a run with its log as JSON lines, to be replayed elsewhere: `callboard replay`.

    The content of messages, results and errors is in it: treat it like the database. With `--json`
    what was written is told as JSON on standard error.

    Examples:
    `callboard export 0f3c… > run.jsonl`;
    `callboard export 0f3c… --tree -o conversation.jsonl`

    Parameters
    ----------
    run
        The run's id.
    tree
        All runs below it, too.
    output
        The file, written whole or not at all; left out: standard output.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        exporter = Exporter(runtime.store)
        with _writing(output) as file, _progress(output) as moved:
            async for line in exporter.lines(row, tree=tree, at=SystemClock().now()):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                moved(exporter.counted.entries)
    counted = exporter.counted
    if target.json:
        done = {"run": run, "runs": counted.runs, "entries": counted.entries}
        sys.stderr.write(json.dumps(done) + "\n")
    else:
        text = f"{counted.runs} run(s), {counted.entries} log entries; message content is included"
        console(stderr=True).print(text)
    return Exit.OK


@contextmanager
def _writing(output: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that gets its name when all is written."""
    if output is None:
        yield sys.stdout
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=_privately) as file:
            yield file
        part.replace(output)
    except OSError as exc:
        problem = exc.strerror or exc
        raise ContractError(f"cannot write {output}: {problem}; name another file") from exc
    finally:
        part.unlink(missing_ok=True)


def _privately(path: str, flags: int) -> int:
    # What the database keeps from others does not lie open beside it.
    return os.open(path, flags, 0o600)


@contextmanager
def _progress(output: Path | None) -> Iterator[Callable[[int], None]]:
    """Yield what is told how far the work is; shown on a terminal when the output is a file."""
    out = console(stderr=True)
    if output is None or not out.is_terminal:
        yield lambda _: None
        return
    with Progress(console=out, transient=True) as bar:
        task = bar.add_task("log entries", total=None)
        yield lambda entries: bar.update(task, completed=entries)
