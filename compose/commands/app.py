"""Which commands there are, and what the program says when one cannot be carried out."""

from __future__ import annotations

import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cyclopts import App, CycloptsError, Group
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
from compose.commands.exits import Exit, NoDataError
from compose.commands.output import Terminal, console

if TYPE_CHECKING:
    from collections.abc import Sequence

EPILOGUE: Final = (
    "Exit codes: 0 done; 1 the answer is no (a run failed, doctor found something, the proof does "
    "not hold); 2 the command cannot be carried out as given; 3 a server does not answer; "
    "4 there is no such thing; 130 interrupted."
)
SERVE: Final = Group("Serving agents", sort_key=1)
TALK: Final = Group("Talking to agents", sort_key=2)
LOOK: Final = Group("Looking", sort_key=3)
DECIDE: Final = Group("Deciding", sort_key=4)
SET_UP: Final = Group("Setting up", sort_key=5)

app = App(
    name="callboard",
    help="A durable actor runtime for AI agents: runs that survive kill -9.",
    help_epilogue=EPILOGUE,
    help_format="markdown",
    version=lambda: version("callboard"),
)
runs = App(name="runs", help="Look at runs, stop them, decide what they cannot decide.", group=LOOK)
agents = App(name="agents", help="Who has something to do, and what it waits for.", group=LOOK)
limits = App(
    name="limits", help="How many runs execute at once and start per second.", group=DECIDE
)
dlq = App(name="dlq", help="Messages that were given up, and giving them back.", group=DECIDE)
approvals = App(name="approvals", help="What runs may do only if a person agrees.", group=DECIDE)
schedules = App(name="schedules", help="Messages that come to agents by themselves.", group=TALK)

# Import paths: a command's module, with the servers' clients that it needs, is imported when the
# command is used, which makes every other one start four times as fast.
_COMMANDS: Final = (
    (SERVE, "demo", "compose.commands.demo:demo"),
    (SERVE, "dev", "compose.commands.dev:dev"),
    (SERVE, "host", "compose.commands.host:host"),
    (TALK, "send", "compose.commands.send:send"),
    (TALK, "ask", "compose.commands.ask:ask"),
    (TALK, "publish", "compose.commands.topics:publish"),
    (TALK, "follow", "compose.commands.topics:follow"),
    (TALK, "unfollow", "compose.commands.topics:unfollow"),
    (TALK, "followers", "compose.commands.topics:followers"),
    (LOOK, "hosts", "compose.commands.agents:hosts"),
    (LOOK, "trace", "compose.commands.trace:trace"),
    (LOOK, "tap", "compose.commands.tap:tap"),
    (LOOK, "describe", "compose.commands.describe:describe"),
    (LOOK, "export", "compose.commands.export:export"),
    (LOOK, "replay", "compose.commands.replay:replay"),
    (SET_UP, "migrate", "compose.commands.migrate:migrate"),
    (SET_UP, "doctor", "compose.commands.doctor:doctor"),
    (SET_UP, "nats-config", "compose.commands.keys:nats_config"),
    (SET_UP, "env", "compose.commands.env:env"),
    (SET_UP, "completion", "compose.completion:completion"),
)
_PARTS: Final = (
    (runs, "list", "compose.commands.runs:list_runs"),
    (runs, "show", "compose.commands.runs:show"),
    (runs, "log", "compose.commands.runs:log"),
    (runs, "events", "compose.commands.events:events"),
    (runs, "tree", "compose.commands.run_tree:tree"),
    (runs, "cancel", "compose.commands.run_orders:cancel"),
    (runs, "signal", "compose.commands.run_orders:signal"),
    (runs, "resolve", "compose.commands.run_orders:resolve"),
    (runs, "retry", "compose.commands.run_again:retry"),
    (runs, "fork", "compose.commands.run_again:fork"),
    (runs, "redrive", "compose.commands.run_ends:redrive"),
    (runs, "sweep", "compose.commands.run_ends:sweep"),
    (agents, "list", "compose.commands.agents:list_agents"),
    (agents, "inbox", "compose.commands.agents:inbox"),
    (agents, "state", "compose.commands.agents:state"),
    (approvals, "list", "compose.commands.approvals:list_approvals"),
    (approvals, "approve", "compose.commands.approvals:approve"),
    (approvals, "deny", "compose.commands.approvals:deny"),
    (schedules, "create", "compose.commands.schedules:create"),
    (schedules, "list", "compose.commands.schedules:list_schedules"),
    (schedules, "show", "compose.commands.schedules:show"),
    (schedules, "pause", "compose.commands.schedules:pause"),
    (schedules, "resume", "compose.commands.schedules:resume"),
    (schedules, "trigger", "compose.commands.schedules:trigger"),
    (schedules, "delete", "compose.commands.schedules:delete"),
    (limits, "list", "compose.commands.limits:list_limits"),
    (limits, "set", "compose.commands.limits:set_limit"),
    (limits, "delete", "compose.commands.limits:delete_limit"),
    (dlq, "list", "compose.commands.dlq:list_letters"),
    (dlq, "show", "compose.commands.dlq:show"),
    (dlq, "redrive", "compose.commands.dlq:redrive"),
    (dlq, "discard", "compose.commands.dlq:discard"),
)
for _group, _name, _path in _COMMANDS:
    app.command(_path, name=_name, group=_group)
_APPS: Final = (runs, agents, dlq, limits, schedules, approvals)
for _part in _APPS:
    app.command(_part)
for _part, _name, _path in _PARTS:
    _part.command(_path, name=_name)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one sentence on stderr."""
    try:
        _know_commands(arguments)
        code = app(
            list(arguments), console=Terminal(), exit_on_error=False, print_error=False,
            result_action="return_value",
        )  # fmt: skip
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise  # whoever read our output has seen enough: no mistake
    except Exception as exc:
        if "--debug" in arguments and not isinstance(exc, CycloptsError):
            raise
        text, code = explained(exc)
        console(stderr=True).print(Text(f"callboard: {text}"), style="red", soft_wrap=True)
    return code if isinstance(code, int) else Exit.OK


def _know_commands(arguments: Sequence[str]) -> None:
    """Import the commands whose first sentences a list of commands will show."""
    if "--version" in arguments:
        return
    words = [word for word in arguments if not word.startswith("-")]
    part = next((one for one in _APPS if words[:1] == list(one.name)), app)
    if len(words) <= (part is not app):
        for name in part:
            part[name]


_NOT_FOUND: Final = (
    UnknownRunError,
    UnknownApprovalError,
    UnknownScheduleError,
    NoDataError,
    RunSweptError,
)
# By name: the modules of servers' clients are imported by the commands that need them, and only then.
_UNREACHABLE: Final = frozenset(
    {
        "ConnectionLostError",
        "DatabaseUnreachableError",
        "NoAnswerError",
        "OutcomeUnknownError",
        "UnreachableError",
    }
)
_USAGE: Final = frozenset(
    {"BadRequestError", "DecisionRefusedError", "NotPermittedError", "TooLargeError"}
)
_OURS: Final = frozenset({"actors", "broker", "compose", "persistence"})


def explained(exc: Exception) -> tuple[str, Exit]:
    """Return what is said of an error, on one line, and the exit code."""
    # A command that is imported when it is used fails with an error around the real one.
    cause = exc.__cause__ if isinstance(exc, ImportError) else None
    match cause or exc:
        case CycloptsError() as found:
            words = " ".join(("callboard", *(found.command_chain or ())))
            return f"{found} (see `{words} --help`)", Exit.USAGE
        case ActorsError() as found:
            return str(found), _code(found)
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] not in _OURS:
            remedy = f"{name} is not installed: pip install 'callboard[all]'"
            return f"this command needs more: {remedy}", Exit.USAGE
        case OSError(strerror=str(problem), filename=place):
            return f"{place}: {problem}" if place else problem, Exit.FAILED
        case found:
            at = traceback.extract_tb(found.__traceback__)[-1:]
            where = "".join(f" ({Path(one.filename).name}:{one.lineno})" for one in at)
            text = " ".join(f"{type(found).__name__}: {found}".split())
            return f"unexpected {text}{where}; --debug shows the traceback", Exit.FAILED


def _code(exc: ActorsError) -> Exit:
    name = type(exc).__name__
    if isinstance(exc, _NOT_FOUND) or name == UnknownRunError.__name__:
        return Exit.NOT_FOUND
    if name in _UNREACHABLE:
        return Exit.UNREACHABLE
    if name in _USAGE or (isinstance(exc, ContractError) and not isinstance(exc, RunFailedError)):
        return Exit.USAGE
    return Exit.FAILED
