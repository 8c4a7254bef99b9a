"""`callboard`: the command line."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError
from rich.text import Text

from actors.errors import (
    ActorsError,
    ContractError,
    RunFailedError,
    RunSweptError,
    UnknownApprovalError,
    UnknownRunError,
    UnknownScheduleError,
)
from compose.commands.approvals import approve, deny, list_approvals
from compose.commands.demo import demo
from compose.commands.dlq import list_letters, redrive
from compose.commands.doctor import doctor
from compose.commands.exits import Exit
from compose.commands.host import host
from compose.commands.limits import delete_limit, list_limits, set_limit
from compose.commands.migrate import migrate
from compose.commands.output import console
from compose.commands.run_ends import redrive as redrive_runs
from compose.commands.run_ends import sweep
from compose.commands.run_orders import cancel, resolve, signal
from compose.commands.runs import list_runs, log, show
from compose.commands.schedules import create as create_schedule
from compose.commands.schedules import delete as delete_schedule
from compose.commands.schedules import list_schedules, pause, resume, trigger
from compose.commands.schedules import show as show_schedule
from compose.commands.send import send
from compose.commands.target import NoDataError
from compose.commands.topics import follow, followers, publish, unfollow
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
limits = App(name="limits", help="How many runs execute at once and start per second.")
dlq = App(name="dlq", help="Messages that were given up, and giving them back.")
approvals = App(name="approvals", help="What runs may do only if a person agrees.")
schedules = App(name="schedules", help="Messages that come to agents by themselves.")
_COMMANDS: tuple[Callable[..., object], ...] = (
    *(demo, host, send, migrate, doctor),
    *(publish, follow, unfollow, followers),
)
for _command in _COMMANDS:
    app.command(_command)
app.command(runs)
app.command(dlq)
app.command(limits)
app.command(schedules)
app.command(approvals)
runs.command(list_runs, name="list")
for _command in (show, log, cancel, signal, resolve):
    runs.command(_command)
runs.command(redrive_runs, name="redrive")
runs.command(sweep)
approvals.command(list_approvals, name="list")
approvals.command(approve)
approvals.command(deny)
schedules.command(create_schedule, name="create")
schedules.command(list_schedules, name="list")
schedules.command(show_schedule, name="show")
for _command in (pause, resume, trigger):
    schedules.command(_command)
schedules.command(delete_schedule, name="delete")
limits.command(list_limits, name="list")
limits.command(set_limit, name="set")
limits.command(delete_limit, name="delete")
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
        case UnknownRunError() | UnknownApprovalError() | UnknownScheduleError():
            return Exit.NOT_FOUND
        case NoDataError() | RunSweptError():
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
