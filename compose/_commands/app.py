"""The table of commands, and the message and exit code of a command that fails."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cyclopts import App, CycloptsError, Group

from actors import errors
from actors._kernel.stores.errors import UnknownNodeError, UnknownSessionError
from compose._commands.output import Exit, NoDataError
from compose._host.collector import loading

if TYPE_CHECKING:
    from rich.console import Console

EPILOGUE: Final = (
    "Exit codes: 0 done; 1 the answer is no (a run failed, doctor found a problem, the proof does "
    "not hold); 2 the command cannot be executed as given; 3 a server does not answer; "
    "4 the object does not exist; 130 interrupted."
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
runs = App(
    name="runs", help="Show, stop, retry and fork runs; resolve effects in doubt.", group=LOOK
)
agents = App(name="agents", help="Agents with work, their messages and their state.", group=LOOK)
history = App(
    name="history", help="Conversations of agents and users: sessions and turns.", group=LOOK
)
sessions = App(
    name="sessions", help="Sessions of agents: conversations as nodes and events.", group=LOOK
)
graphs = App(name="graphs", help="Runs of flows: their states, waits and ledgers.", group=LOOK)
flows = App(name="flows", help="Check, draw, pack and install documents of flows.", group=SET_UP)
memory = App(name="memory", help="Texts that agents keep beyond conversations.", group=LOOK)
limits = App(
    name="limits", help="How many runs execute at once and start per second.", group=DECIDE
)
indexes = App(
    name="indexes", help="Search by meaning in large collections and memory scopes.", group=SET_UP
)
tokens = App(name="tokens", help="Tokens of clients of `callboard serve`.", group=SET_UP)
audit = App(name="audit", help="Changes that principals made over HTTP.", group=LOOK)
dlq = App(name="dlq", help="Dead letters: list, redrive or discard them.", group=DECIDE)
approvals = App(
    name="approvals", help="Pending approvals: list, approve or deny them.", group=DECIDE
)
cleanup = App(
    name="cleanup",
    help="Artifacts and task logs of sessions: show them, and remove them with --apply.",
    group=DECIDE,
)
schedules = App(name="schedules", help="Messages that the runtime sends by a schedule.", group=TALK)

# Import paths. The module of a command imports the servers' clients that the command needs. It is
# imported when the command is used, so that each other command starts four times as fast.
_COMMANDS: Final = (
    (SERVE, "serve.demo", "demo"),
    (SERVE, "serve.dev", "dev"),
    (SERVE, "serve.serve", "host"),
    (SERVE, "serve.serve", "serve"),
    (SERVE, "serve.serve", "mcp-worker"),
    (TALK, "messages.send", "send ask"),
    (TALK, "sessions.chat", "chat"),
    (TALK, "messages.topics", "publish follow unfollow followers"),
    (LOOK, "inspect.agents", "hosts"),
    (LOOK, "inspect.trace", "trace"),
    (LOOK, "inspect.agents", "tap"),
    (LOOK, "inspect.history", "context"),
    (LOOK, "inspect.trace", "usage"),
    (LOOK, "inspect.agents", "describe"),
    (LOOK, "inspect.export", "export replay"),
    (DECIDE, "operate.cleanup", "erase"),
    (SET_UP, "operate.servers", "migrate"),
    (SET_UP, "operate.servers", "doctor"),
    (SET_UP, "operate.configuration", "nats-config"),
    (SET_UP, "operate.configuration", "env"),
)
"""The group of the help, the module, and its commands; each function is named like its command."""
_PARTS: Final = (
    (runs, "runs.list", "list=list_runs show log events"),
    (runs, "inspect.trace", "tree"),
    (runs, "runs.orders", "cancel signal resolve sweep"),
    (runs, "runs.orders", "retry fork redrive"),
    (agents, "inspect.agents", "list=list_agents inbox state forget"),
    (history, "inspect.history", "list=list_sessions show export"),
    (sessions, "sessions.look", "list=list_all show nodes"),
    (sessions, "sessions.change", "switch delete export"),
    (graphs, "flow_runs.look", "list=list_graph_runs show ledger verify"),
    (graphs, "flow_runs.change", "start"),
    (graphs, "flow_runs.change", "resume emit cancel"),
    (graphs, "flow_runs.change", "pause resume-run=resume_run steer limits"),
    (graphs, "flow_runs.snapshots", "snapshot snapshots restore delete-snapshot=delete_snapshot"),
    (graphs, "flow_runs.bundles", "export import=import_run inspect replay"),
    (
        graphs,
        "flow_runs.bundles",
        "store-list=store_list store-export=store_export store-import=store_import",
    ),
    (flows, "flows.documents", "check draw schema"),
    (flows, "flows.bundles", "pack install list=list_bundles show remove"),
    (flows, "flows.documents", "import=import_flow"),
    (memory, "inspect.history", "list=list_memories show=show_memory forget"),
    (approvals, "messages.topics", "list=list_approvals approve deny"),
    (schedules, "operate.schedules", "create list=list_schedules show pause resume trigger delete"),
    (indexes, "operate.servers", "list=list_indexes build drop"),
    (limits, "operate.schedules", "list=list_limits set=set_limit delete=delete_limit"),
    (cleanup, "operate.cleanup", "artifacts tasks"),
    (audit, "operate.access", "list=list_changes"),
    (tokens, "operate.access", "create list=list_tokens revoke"),
    (dlq, "operate.dlq", "list=list_letters show redrive discard"),
)
"""The part, the module, and its commands, as NAME or NAME=FUNCTION."""
_APPS: Final = (
    *(runs, agents, history, sessions, memory, dlq, limits, schedules, approvals),
    *(audit, cleanup, flows, graphs, indexes, tokens),
)


def _add(part: App, module: str, commands: str, group: Group | None = None) -> None:
    for command in commands.split():
        name, _, function = command.partition("=")
        path = f"compose._commands.{module}:{function or name.replace('-', '_')}"
        part.command(path, name=name, group=group)


for _group, _module, _names in _COMMANDS:
    _add(app, _module, _names, _group)
app.command("compose._completion:completion", name="completion", group=SET_UP)
for _part in _APPS:
    app.command(_part)
for _part, _module, _names in _PARTS:
    _add(_part, _module, _names)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    An error is one sentence on stderr; with `--json` it is the object ``{"error": …, "exit_code": …}``.
    """
    try:
        with loading():
            console = _load(arguments)
        code = app(
            list(arguments),
            console=console,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise  # `compose._cli` handles it: the reader of the output closed the pipe, which is no error
    # A command may raise anything. Without --debug a person gets one line with the remedy, and no traceback.
    except Exception as exc:
        if "--debug" in arguments and not isinstance(exc, CycloptsError):
            raise
        text, code = explain_error(exc)
        if "--json" in arguments:
            sys.stderr.write(json.dumps({"error": text, "exit_code": int(code)}) + "\n")
        else:
            _complain(f"callboard: {text}")
    return code if isinstance(code, int) else Exit.OK


def _load(arguments: Sequence[str]) -> Console | None:
    """Import the command, or, for a list of commands, each command of the list.

    Returns a console if the arguments ask for help or the version, else None.
    """
    words = [word for word in arguments if not word.startswith("-")]
    part = next((candidate for candidate in _APPS if words[:1] == list(candidate.name)), app)
    words = words[part is not app :]
    if "--version" not in arguments:
        for name in words[:1] or part:
            if name in part:
                part[name]
    if words and not {"--help", "-h", "--version"}.intersection(arguments):
        return None
    from compose._commands.terminal import Terminal  # noqa: PLC0415 - as rich takes its time

    return Terminal()


def _complain(text: str) -> None:
    from rich.text import Text  # noqa: PLC0415 - as above

    from compose._commands.terminal import console  # noqa: PLC0415

    console(stderr=True).print(Text(text), style="red", soft_wrap=True)


_NOT_FOUND: Final = (
    errors.UnknownRunError,
    errors.UnknownApprovalError,
    errors.UnknownScheduleError,
    NoDataError,
    UnknownNodeError,
    UnknownSessionError,
    errors.RunSweptError,
)
_NO: Final = ("stale_resume",)
"""Codes of refusals of a request that was right, but came too late."""
# Class names in place of classes: only the commands that need a server's client import its module.
_UNREACHABLE: Final = frozenset(
    {
        "ApiUnreachableError",
        "ConnectionLostError",
        "DatabaseUnreachableError",
        "NoAnswerError",
        "OutcomeUnknownError",
        "UnreachableError",
    }
)
_GONE: Final = (
    "ApiNotFoundError",
    "NoGraphStoreError",
    "NoSuchRunError",
    "NoSuchSnapshotError",
    "UnknownRunError",
)
_USAGE: Final = ("BadRequestError", "DecisionRefusedError", "NotPermittedError", "TooLargeError")
_FAILED: Final = ("RunFailedError", "StaleResumeError")
"""Contract errors that say no to a command that could be executed."""
_OURS: Final = frozenset({"actors", "broker", "compose", "persistence"})


def explain_error(exc: Exception) -> tuple[str, Exit]:
    """Return the message of an error on one line, and the exit code."""
    # cyclopts wraps an error of a command's import into an ImportError.
    cause = exc.__cause__ if isinstance(exc, ImportError) else None
    match cause or exc:
        case CycloptsError() as error:
            command = " ".join(("callboard", *(error.command_chain or ())))
            return f"{error} (see `{command} --help`)", Exit.USAGE
        case errors.ActorsError() as error:
            return str(error), _code(error)
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] not in _OURS:
            remedy = f"{name} is not installed: pip install 'callboard[all]'"
            return f"this command needs an extra: {remedy}", Exit.USAGE
        case OSError(strerror=str(problem), filename=file):
            return f"{file}: {problem}" if file else problem, Exit.FAILED
        case error:
            frames = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return f"unexpected {text}{where}; --debug shows the traceback", Exit.FAILED


def _code(exc: errors.ActorsError) -> Exit:
    name = type(exc).__name__
    if getattr(exc, "code", "") in _NO:
        return Exit.FAILED
    if isinstance(exc, _NOT_FOUND) or name in _GONE:
        return Exit.NOT_FOUND
    if name in _UNREACHABLE:
        return Exit.UNREACHABLE
    if name in _USAGE or (isinstance(exc, errors.ContractError) and name not in _FAILED):
        return Exit.USAGE
    return Exit.FAILED
