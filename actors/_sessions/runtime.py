"""AgentRuntime: the sessions of a project, for use in a program."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Self

from actors._kernel.agent.agent import (
    DEFAULT_MODE,
    MODE_KEY,
    PARENT_NODE_KEY,
    ROOT,
    Agent,
    ExpectedSession,
    NewSession,
)
from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.transcript import Turn
from actors._kernel.basics import check_number
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, RunId, check_name
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.stores.conversations import SessionRow
from actors._kernel.stores.errors import UnknownNodeError, UnknownSessionError
from actors._kernel.stores.outside import Caller, Order
from actors._kernel.stores.runs import OnConflict
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.replay.verdict import row_of
from actors._runtime.runtime import Runtime, host_of
from actors._sessions import cleanup
from actors._sessions.agent import Approving, OnApproval, SessionAgent, close, resources_of
from actors._sessions.artifacts import (
    SessionArtifacts,
    UserMessage,
    artifacts_of,
    project_folder,
    project_label,
)
from actors._sessions.cleanup import delete_session, keep_deleting_idle, ttl_of
from actors._sessions.errors import ClosedError, UnknownModeError
from actors._sessions.events import EventCursor, SessionEvent
from actors._sessions.feed import SessionFeed
from actors._sessions.run import SessionRun
from actors.errors import UnknownRunError

APP: Final = "session"
"""The default type of sessions' agents."""


class AgentRuntime:
    """Runtime of sessions, which are durable conversations.

    A session is a serial agent ``<app>/<session id>`` of one tenant. Its runs execute one at a time, in the
    order in which they were started. Runs of different sessions execute at the same time. With a durable
    `runtime`, a run continues in another process if this process dies.

    Args:
        project_dir: The project's folder, whose path is a label of its sessions. Default: the current folder. A
            file stands for its folder.
        agents: The agents by mode, or one agent for the mode ``normal``. None if this is a client, and other
            processes execute its runs.
        runtime: The runtime that stores and executes runs. Default: a new one in memory. A given runtime is not
            stopped by this object.
        app: The type of the sessions' agents. Each app has its own sessions.
        tenant: The owner.
        principal: The principal that starts runs here. Each principal has its own ids of messages.
        on_approval: The callback that decides approvals of runs that are started here. A plain function is
            called in a thread.
        version: The version of the agents' code, see `SessionAgent`.
        retry: The retry policy, see `SessionAgent`.
        resources: Objects with `aclose` or `close` that are closed with this object, in reverse order, in
            addition to models, tools and hooks of the agents.
        ttl_days: Days since its last fact after which a session without an open run is deleted, as by
            `delete_session`. Processes that serve the app delete it. None if sessions stay.

    Raises:
        ContractError: `ttl_days` is not above 0.
        ProjectError: The folder does not exist. Nothing was created.
    """

    app: str
    tenant: str

    def __init__(  # noqa: PLR0913 - the parts of a program
        self,
        project_dir: str | os.PathLike[str] | None = None,
        *,
        agents: Mapping[str, Agent] | Agent | None = None,
        runtime: Runtime | None = None,
        app: str = APP,
        tenant: str = DEFAULT_TENANT,
        principal: str = "local",
        on_approval: OnApproval | None = None,
        version: str | None = None,
        retry: RetryPolicy | None = None,
        resources: Sequence[object] = (),
        ttl_days: float | None = None,
    ) -> None:
        self.project: Path = project_folder(project_dir)
        self.app, self.tenant = check_name("app", app), check_name("tenant", tenant)
        self.runtime: Runtime = Runtime() if runtime is None else runtime
        self._owns_runtime = runtime is None
        if agents is not None and not isinstance(agents, Mapping):
            agents = {DEFAULT_MODE: agents}
        self._modes: dict[str, Agent] = dict(agents or {})
        # Only for its checks: a mode that is no agent of a session is an error here, not at its first run.
        if self._modes:
            SessionAgent(AgentId(app, "check", tenant), self._modes)
        self._version, self._retry = version, retry
        self._caller = Caller(tenant, principal, sees="tenant", kind="session")
        self._tasks = TaskScope()
        self._approving = on_approval and Approving(self.runtime, on_approval, self._tasks)
        self._resources = (*resources_of(self._modes), *resources)
        self._ttl = ttl_of(ttl_days)
        self._is_open = self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin to serve the agents. A second call does nothing."""
        if self._is_closed:
            raise ClosedError("this AgentRuntime was closed: make another one")
        if self._is_open:
            return
        self._is_open = True
        if self._modes:
            await self.runtime.register_type(self.app, self._agent)
            host_of(self.runtime).prepare_models(self._modes.values())
        if self._owns_runtime:
            await self.runtime.start()
        if self._ttl is not None and self._modes:
            deletes = partial(
                keep_deleting_idle, self.runtime, self.tenant, self.app, ttl=self._ttl
            )
            self._tasks.keep(deletes, name="idle sessions")

    async def close(self) -> None:
        """Stop this object's tasks, and close each resource once. A second call does nothing.

        Durable runs continue in other processes that serve the app. Runs in memory are lost.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # A stack, since each resource has to be closed even if another one raises.
        async with AsyncExitStack() as stack:
            for resource in self._resources:
                stack.push_async_callback(close, resource)
            if self._owns_runtime and self._is_open:
                stack.push_async_callback(self.runtime.stop)
            stack.push_async_callback(self._tasks.close)

    async def start(
        self,
        message: UserMessage | str | Sequence[ContentBlock],
        *,
        session_id: str | None = None,
        mode: str = DEFAULT_MODE,
        parent_node: str | None = None,
        on_conflict: OnConflict = "queue",
        priority: int = 5,
        expected: ExpectedSession | None = None,
    ) -> SessionRun:
        """Start a run for a message. The run is durable on return and may not have begun.

        Args:
            message: The user's message. A second message with the same id in the same session means the same
                run, even if that run was deleted.
            session_id: The session. Default: a new one.
            mode: The mode whose agent executes the run.
            parent_node: The node after which the run continues, for an edit or a regeneration. Default: the
                active node. `ROOT`: the run starts the conversation again.
            on_conflict: The rule if the session has an open run: wait for it, join it, be rejected, or cancel
                it first.
            priority: The priority among runs of different sessions. Lower numbers execute first.
            expected: Refuse the message, also a known one, unless this holds. Default: create what is missing.

        Raises:
            UnknownSessionError: The session does not exist, is being deleted, or is not as `expected`.
            UnknownModeError: This runtime does not have the mode.
            UnknownNodeError: The session has no such node.
            SessionDeletingError: The session is being deleted.
            RunConflictError: `on_conflict="reject"` and the session has an open run.
            ContractError: `on_conflict` is no rule.
            MessageTooLargeError: The message has more than 256 KiB as JSON.
        """
        self._refuse_closed()
        if self._modes and mode not in self._modes:
            raise UnknownModeError(mode, ", ".join(self._modes))
        user_message = UserMessage.of(message)
        agent = self.agent_id(session_id or secrets.token_hex(16))
        metadata = {MODE_KEY: mode}
        sessions = self.runtime.store.data.sessions
        if parent_node is not None:
            if parent_node != ROOT and not await sessions.nodes(agent, [parent_node]):
                raise UnknownNodeError(str(agent), parent_node)
            metadata[PARENT_NODE_KEY] = parent_node
        order = Order(
            agent_id=agent,
            payload=user_message.payload(),
            message_id=user_message.id,
            on_conflict=on_conflict,
            priority=priority,
            metadata=metadata,
            session=NewSession(str(self.project), expected, is_followed=True),
        )
        run_id = await self.runtime.front.submit(self._caller, order)
        if self._approving is not None:
            self._approving.watch(run_id)
        queued_fact = await sessions.queued(agent, run_id)
        return SessionRun(self.runtime, agent, run_id, queued=queued_fact)

    def agent_id(self, session_id: str) -> AgentId:
        """Return the id of a session's agent.

        Raises:
            InvalidNameError: The id is not valid.
        """
        return AgentId(self.app, session_id, self.tenant)

    async def run(self, run_id: RunId | str) -> SessionRun:
        """Return a run of a session of this app, also a run that another client started.

        Raises:
            UnknownRunError: The tenant and app have no such run.
        """
        row = await self._row(run_id)
        queued_fact = await self.runtime.store.data.sessions.queued(row.agent_id, row.run_id)
        return SessionRun(self.runtime, row.agent_id, row.run_id, queued=queued_fact)

    def tail_session(
        self, session_id: str, *, cursor: str | None = None, live: bool = True
    ) -> AsyncGenerator[SessionEvent, None]:
        """Yield the events of a session after a cursor, then new events, until closed.

        There may be any number of readers in any process. A reader that continues with the `event_id` of its
        last event as the cursor gets each stored event exactly once.

        Args:
            session_id: The session. It may not exist yet.
            cursor: The `event_id` of an event, or None to begin with the first event.
            live: True if pieces of answers are yielded, too, while a model answers. They are not stored.

        Raises:
            CursorError: The session has no such event. The first step raises it.
        """
        return self._feed(session_id, cursor, live=live).follow()

    def replay_session(
        self, session_id: str, *, cursor: str | None = None
    ) -> AsyncGenerator[SessionEvent, None]:
        """Yield the stored events of a session after a cursor, up to now."""
        return self._feed(session_id, cursor, live=False).past()

    async def replay_run(self, run_id: RunId | str) -> AsyncGenerator[SessionEvent, None]:
        """Yield the stored events of one run of a session, up to now.

        Raises:
            UnknownRunError: There is no such run.
        """
        row = await self._row(run_id)
        feed = SessionFeed(self.runtime, row.agent_id, EventCursor(), only=row.run_id)
        async for event in feed.past():
            yield event

    async def session(self, session_id: str) -> SessionRow:
        """Return the row of a session.

        Raises:
            UnknownSessionError: There is no such session.
        """
        agent = self.agent_id(session_id)
        row = await self.runtime.store.data.sessions.get(agent)
        if row is None:
            raise UnknownSessionError(str(agent))
        return row

    async def sessions(
        self, *, limit: int = 100, before: datetime | None = None
    ) -> list[SessionRow]:
        """Return the sessions of the app. The session that changed last comes first."""
        check_number("limit", limit, low=0)
        return await self.runtime.store.data.sessions.recent(
            self.tenant, self.app, limit=limit, before=before
        )

    def artifacts(self, session_id: str) -> SessionArtifacts:
        """Return the artifacts of a session, by name. The session may not exist yet.

        Raises:
            InvalidNameError: The id is not valid.
        """
        return artifacts_of(self.runtime.store, self.agent_id(session_id))

    async def path(self, session_id: str) -> list[Turn]:
        """Return the nodes from the first to the active one: the conversation that the next run gets."""
        return await self.runtime.store.data.sessions.path(self.agent_id(session_id))

    async def switch_context(self, session_id: str, node_id: str) -> None:
        """Make a node the active one.

        The next run continues after it, or from the start for `ROOT`. All nodes stay.

        Raises:
            UnknownSessionError: There is no such session.
            UnknownNodeError: The session has no such node.
            SessionActiveError: A run of the session is open.
        """
        self._refuse_closed()
        await self.runtime.store.data.sessions.switch(self.agent_id(session_id), node_id)

    async def delete_session(self, session_id: str) -> dict[str, dict[str, int]]:
        """Delete a session with its nodes, events, runs, state and artifacts; return the deleted rows by kind.

        The deletion works in batches. If the process dies before the last batch, the session takes no runs
        until the deletion is repeated.

        Raises:
            UnknownSessionError: There is no such session.
            SessionActiveError: A run of the session is open. Cancel it and wait for its end first.
        """
        self._refuse_closed()
        agent = self.agent_id(session_id)
        row_counts = await delete_session(self.runtime, agent)
        if row_counts is None:
            raise UnknownSessionError(str(agent))
        return row_counts

    async def cleanup_artifacts(  # noqa: PLR0917 - the interface of others
        self,
        session_id: str | None = None,
        dry_run: bool = True,
        include_all: bool = False,
        older_than: timedelta | None = None,
        max_bytes: int | None = None,
    ) -> cleanup.ArtifactCleanup:
        """Delete names of artifacts, or list them.

        Bytes that then have no pin are garbage-collected a day later.

        Args:
            session_id: The session, or None for all sessions of the app.
            dry_run: True if nothing is deleted.
            include_all: True if artifacts of kind ``ordinary`` count, too, not only ``debug`` and ``raw``.
            older_than: Only artifacts that were put longer ago than this.
            max_bytes: Delete, the oldest first, only until the artifacts that stay have at most so many bytes.
                Artifacts that are too young to be deleted count, too.

        Raises:
            ContractError: A span or a number is negative.
        """
        choice = cleanup.ArtifactChoice(include_all, older_than, max_bytes)
        only = None if session_id is None else self.agent_id(session_id)
        sessions = cleanup.sessions_of(self.runtime.store, self.tenant, self.app, only=only)
        return await cleanup.clean_artifacts(self.runtime, sessions, choice, dry_run=dry_run)

    async def cleanup_project_tasks(  # noqa: PLR0917 - the interface of others
        self,
        project: str | os.PathLike[str],
        dry_run: bool = True,
        include_failed: bool = False,
        include_cancelled: bool = False,
        older_than: timedelta | None = None,
    ) -> cleanup.TaskCleanup:
        """Remove the logs of ended tasks of a project's sessions, or list them. Rows and nodes stay.

        A task is a run that was spawned for a card: ``ctx.spawn(…, task=card.id)``.

        Args:
            project: The folder, or the label of sessions whose folder is not here.
            dry_run: True if nothing is removed.
            include_failed: True if tasks that failed count, too, not only completed ones.
            include_cancelled: True if tasks that were cancelled count, too.
            older_than: Only tasks that ended longer ago than this.

        Raises:
            ContractError: The span is negative.
        """
        choice = cleanup.TaskChoice(include_failed, include_cancelled, older_than)
        label = project_label(project)
        sessions = cleanup.sessions_of(self.runtime.store, self.tenant, self.app, project=label)
        return await cleanup.clean_tasks(self.runtime, sessions, choice, dry_run=dry_run)

    async def _row(self, run_id: RunId | str) -> RunRow:
        row = await row_of(self.runtime.store, RunId(str(run_id)))
        if (row.agent_id.tenant, row.agent_id.type) != (self.tenant, self.app):
            raise UnknownRunError(row.run_id)
        return row

    def _agent(self, agent_id: AgentId) -> SessionAgent:
        return SessionAgent(agent_id, self._modes, version=self._version, retry=self._retry)

    def _feed(self, session_id: str, cursor: str | None, *, live: bool) -> SessionFeed:
        agent = self.agent_id(session_id)
        position = EventCursor() if cursor is None else EventCursor.parse(cursor, session_id)
        return SessionFeed(self.runtime, agent, position, live=live)

    def _refuse_closed(self) -> None:
        if self._is_closed or not self._is_open:
            state = "was closed" if self._is_closed else "is not open"
            raise ClosedError(f"this AgentRuntime {state}: use it in `async with`")
