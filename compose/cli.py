"""`callboard`: the command line."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError
from rich.text import Text

from actors.errors import ActorsError, ContractError, RunFailedError, UnknownRunError
from compose.commands.demo import demo
from compose.commands.dlq import list_letters, redrive
from compose.commands.doctor import doctor
from compose.commands.exits import Exit
from compose.commands.host import host
from compose.commands.migrate import migrate
from compose.commands.output import console
from compose.commands.run_orders import cancel, resolve, signal
from compose.commands.runs import list_runs, log, show
from compose.commands.send import send
from compose.commands.target import NoDataError
from compose.logs import write_logs
from persistence.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EPILOGUE = (
    "Exit codes: 0 done; 1 the answer is no (a run failed, doctor found something, the proof does "
    "not hold); 2 the command cannot be carried out as given; 3 the database does not answer; "
    "4 there is no such thing."
)

app = App(
    name="callboard",
    help="A durable actor runtime for AI agents: runs that survive kill -9.",
    help_epilogue=EPILOGUE,
    help_format="markdown",
    version=lambda: version("callboard"),
)
runs = App(name="runs", help="Look at runs, stop them, decide what they cannot decide.")
dlq = App(name="dlq", help="Messages that were given up, and giving them back.")
_COMMANDS: tuple[Callable[..., object], ...] = (demo, host, send, migrate, doctor)
for _command in _COMMANDS:
    app.command(_command)
app.command(runs)
app.command(dlq)
runs.command(list_runs, name="list")
for _command in (show, log, cancel, signal, resolve):
    runs.command(_command)
dlq.command(list_letters, name="list")
dlq.command(redrive)


def main() -> None:
    """Run the command that the program was started with, and end with its exit code."""
    arguments = sys.argv[1:]
    level = logging.DEBUG if "--debug" in arguments else logging.WARNING
    write_logs(as_json=False, level=level)
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough, as `head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one sentence on stderr."""
    try:
        code = app(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as exc:
        return _complain(f"{exc} (see `callboard --help`)", Exit.USAGE)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except ActorsError as exc:
        if "--debug" in arguments:
            raise
        return _complain(str(exc), _code(exc))
    return code if isinstance(code, int) else Exit.OK


def _code(exc: ActorsError) -> Exit:
    match exc:
        case UnknownRunError() | NoDataError():
            return Exit.NOT_FOUND
        case DatabaseUnreachableError():
            return Exit.UNREACHABLE
        case RunFailedError():
            return Exit.FAILED
        case ContractError():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def _complain(text: str, code: Exit) -> int:
    console(stderr=True).print(Text(f"callboard: {text}"), style="red", soft_wrap=True)
    return code


if __name__ == "__main__":
    main()
