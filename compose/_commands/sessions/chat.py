"""`callboard chat`: talk to an agent in a session that continues after the process ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from actors._kernel.agent.agent import DEFAULT_MODE
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._runtime.loop.tasks import start_task
from actors._sessions.artifacts import project_folder
from actors._sessions.errors import UnknownModeError
from actors._sessions.runtime import AgentRuntime
from actors.errors import ContractError
from compose._assembly.settings import Settings, read_settings
from compose._commands import options as opt
from compose._commands.messages.topics import user_name
from compose._commands.options import CLIENT_WAIT_S, HERE, Target
from compose._commands.output import Exit
from compose._commands.sessions.screen import (
    ChatScreen,
    JsonScreen,
    Keyboard,
    TextScreen,
    restore_terminal,
)
from compose._commands.sessions.talk import Chat, Commands, say_all, talk_with
from compose._commands.terminal import console
from compose._host.collector import loading
from compose._host.loader import ServeError, check_spec, find_served, serve_app
from compose._host.process import opened

DATA: Final = Path(".callboard")
"""Default folder of the embedded servers, the same as that of `callboard dev`."""
LEASE_S: Final = 3.0
"""Default lease in seconds on servers of a folder. After it another process takes over a killed chat's runs."""


async def chat(  # noqa: PLR0913 - each is an option
    module_app: Annotated[str, Parameter(name="MODULE:APP")],
    /,
    *,
    session: str | None = None,
    new: opt.Flag = False,
    message: Annotated[list[str] | None, Parameter(negative="")] = None,
    mode: str = DEFAULT_MODE,
    project: Path | None = None,
    app: str | None = None,
    tenant: str = DEFAULT_TENANT,
    nats_url: str | None = None,
    namespace: opt.NamespaceOpt = None,
    target: Target = HERE,
) -> int:
    """Talk to an agent at the terminal, in a session that continues after a restart.

    A message is durable when its run is started. If this process is killed, the run continues when the session
    is opened again. Ctrl-C stops the open runs, and a second Ctrl-C ends the command. `/help` lists
    commands of the chat. Without a terminal the message is `--message`, or all of standard input, and the exit
    code is 1 if the message's run does not complete. If no servers are named, the command runs embedded
    servers in the folder `.callboard`.

    Examples:
    `callboard chat shop.agents:app --session s1 --data ./data`;
    `callboard chat examples.helpdesk.helpdesk:app --mode orchestrator`;
    `callboard chat shop.agents:app --message 'Where is my order?' --json`;
    `git diff | callboard chat shop.agents:reviewer --new`

    Parameters
    ----------
    module_app
        MODULE:ATTR of an agent, a list of agents, an agent class with `id`, a mapping {type: factory},
        a SessionAgent, a mapping {mode: agent}, or a function app(runtime) that returns one of these or
        registers the type of a SessionAgent.
    session
        The session's id. Default: the last session of the project, or a new session.
    new
        Begin a new session.
    message
        Send this message, and end the command after the answer. Several messages are sent one after the other.
    mode
        Name of the mode, which chooses the agent that answers.
    project
        Folder of the project, which labels the session. Default: the current folder.
    app
        Type of the sessions' agents. Default: the type of a SessionAgent, else `session`.
    tenant
        The owner of the session.
    nats_url
        nats://user:password@host:port of the broker. With --postgres-url the command needs it to show live
        pieces of answers of other hosts. [env: CALLBOARD_NATS_URL]
    """
    check_spec(module_app)
    folder, settings = project_folder(project), _settings(target, nats_url, namespace)
    messages = _messages(message, target)
    logging.getLogger("callboard.models").setLevel(logging.INFO)  # shows the load of a model
    async with AsyncExitStack() as stack:
        opening = _open_app(settings, module_app, folder, app=app, tenant=tenant)
        with _show_opening(settings):
            agents, modes = await stack.enter_async_context(opening)
        if modes and mode not in modes:
            raise UnknownModeError(mode, ", ".join(modes))
        session_id = await _session_of(agents, session, is_new=new)
        person = None
        if not target.json and sys.stdin.isatty():
            stack.enter_context(restore_terminal())
            person = Keyboard()
        screen = _screen(target, settings)
        talk = Chat(agents, session_id, screen, person=person, by=user_name(), mode=mode)
        stack.push_async_callback(talk.close)
        return await _until_left(talk, _talk(talk, messages, modes))


async def _talk(talk: Chat, messages: list[str], modes: tuple[str, ...]) -> Exit:
    """Open the session, send the messages or the lines that a person types, and return the exit code."""
    if messages:
        await talk.open(shows_past=False)
        return await say_all(talk, messages)
    talk.note(f"session {talk.session_id} of {talk.agents.app}; /help, or Ctrl-D to leave")
    await talk.open()
    return await talk_with(talk, Commands(talk, modes))


def _settings(target: Target, nats_url: str | None, namespace: str | None) -> Settings:
    """Return the settings of a host that waits 5 s for its servers unless CALLBOARD_START_WAIT_S is set.

    If neither the options nor the environment name a server, the host uses the folder `DATA`.
    """
    options = {"nats_url": nats_url, "namespace": namespace}
    environment = read_settings()
    servers = target.data, target.postgres_url, environment.data_dir, environment.postgres_url
    if all(p is None for p in servers):
        target = replace(target, data=DATA)
    settings = target.settings(**options)
    changes: dict[str, object] = {}
    if settings.start_wait_s is None:
        changes["start_wait_s"] = CLIENT_WAIT_S
    if settings.postgres_url is None and "lease_s" not in settings.model_fields_set:
        changes |= {"lease_s": LEASE_S, "heartbeat_s": LEASE_S / 4}
    return settings.model_copy(update=changes)


def _messages(texts: list[str] | None, target: Target) -> list[str]:
    """Return the messages of `--message` or of standard input; empty if a person types at the terminal.

    Raises:
        ContractError: The given text is empty, or `--json` is given and there is no text.
    """
    if texts is None and not sys.stdin.isatty():
        texts = [sys.stdin.read()]
    messages = [text.strip() for text in texts or () if text.strip()]
    if texts is not None and not messages:
        raise ContractError(
            "there is nothing to say: give --message TEXT, or text on standard input"
        )
    if not messages and target.json:
        raise ContractError(
            "--json is for programs: give --message TEXT, or text on standard input"
        )
    return messages


@contextmanager
def _show_opening(settings: Settings) -> Iterator[None]:
    """Show on standard error that servers start, if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    where = "the servers" if settings.postgres_url is not None else f"{settings.data_dir}"
    with console(stderr=True).status(f"opening {where}…"):
        yield


@asynccontextmanager
async def _open_app(
    settings: Settings, spec: str, folder: Path, *, app: str | None, tenant: str
) -> AsyncIterator[tuple[AgentRuntime, tuple[str, ...]]]:
    """Yield the sessions of an application and the names of its modes. This process executes its runs."""
    async with AsyncExitStack() as stack:
        opening = await stack.enter_async_context(opened(settings))
        with loading():  # while the servers start
            served_object = find_served(spec)
            from compose._assembly.runtime import build_as_set  # noqa: PLC0415
        building = build_as_set(settings, client="chat", opening=opening)
        runtime = await stack.enter_async_context(building)
        served = await serve_app(runtime, spec, served_object, app=app)
        if not (served.modes or served.known_modes):
            remedy = "callboard host executes flows, and callboard graphs starts their runs"
            raise ServeError(spec, "it has flows, and no sessions", remedy)
        agents = AgentRuntime(
            folder,
            agents=served.modes,
            runtime=runtime,
            app=served.app,
            tenant=tenant,
            version=served.version,
            retry=served.retry,
        )
        yield await stack.enter_async_context(agents), served.known_modes


async def _session_of(agents: AgentRuntime, session: str | None, *, is_new: bool) -> str:
    """Return the given session's id, else the id of the project's last session, else a new id.

    Raises:
        ContractError: `is_new` is True, and the given session exists.
    """
    store = agents.runtime.store.data.sessions
    if session is not None:
        if is_new and await store.get(agents.agent_id(session)) is not None:
            remedy = "leave --new out to continue it, or --session for an id of its own"
            raise ContractError(f"session {session} of {agents.app} exists already: {remedy}")
        return session
    if not is_new:
        for row in await agents.sessions():
            if row.project == str(agents.project):
                return row.agent_id.key
    return secrets.token_hex(6)


def _screen(target: Target, settings: Settings) -> ChatScreen:
    if target.json:
        return JsonScreen()
    where = ""
    if target.postgres_url is None and settings.data_dir is not None:
        where = f" --data {shlex.quote(str(settings.data_dir))}"

    def decide(approval_id: str) -> str:
        return f"callboard approvals approve {approval_id[:8]}{where} (or deny)"

    return TextScreen(console(), decide)


async def _until_left(talk: Chat, work: Coroutine[Any, Any, Exit]) -> Exit:
    """Return the exit code of the chat. A second Ctrl-C or SIGTERM ends it with INTERRUPTED."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, talk.interrupt)
    loop.add_signal_handler(signal.SIGTERM, talk.has_left.set)
    talk_task = start_task(work, name="talk", done=lambda _: talk.has_left.set())
    try:
        await talk.has_left.wait()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
        # Read before the cancel, after which the task is done in any case.
        has_ended = talk_task.done()
        talk_task.cancel()
        await asyncio.wait({talk_task})
    if has_ended:
        code: Exit = talk_task.result()
        return code
    if talk.has_open_runs:
        talk.note("left before the run ended; open the session again to continue it")
    return Exit.INTERRUPTED
