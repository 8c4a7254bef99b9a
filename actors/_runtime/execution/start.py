"""The start of an execution: its agent, its first entries, and the messages that the code is given.

A session has an agent for each mode; the run's mode, in its first message or its log, says which one
executes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeGuard

from actors._context.turns import turn_of
from actors._inmemory.sessions import AgentIdentity
from actors._kernel.agent.agent import (
    DEFAULT_MODE,
    MODE_KEY,
    PARENT_NODE_KEY,
    Agent,
    CancellationToken,
    ModalAgent,
    RunMeta,
    SessionChange,
    Supervision,
)
from actors._kernel.agent.message import ChatMessage, Message, MessageKey
from actors._kernel.agent.tools import client_tools_in
from actors._kernel.agent.transcript import NewTurn, turn_id
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Finish, Spawned
from actors._kernel.runtime.ids import AgentId, derive_id
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, NewRun, RunRow
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.stores.runs import Blocking
from actors._kernel.tracing import trace_id_of
from actors._runtime.execution.suspects import Standing
from actors._runtime.journal.amendments import Refusal
from actors._runtime.journal.run_log import RunLog
from actors._runtime.registry import retry_of, version_of
from actors._runtime.replay.branches import Branch
from actors._runtime.replay.history import History, retry_in
from actors._runtime.replay.verdict import Verdict, parked_verdict
from actors._runtime.telemetry.span_attributes import executing
from actors._runtime.telemetry.spans import ExecutionSpans
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.conversation.sessions import Sessions, SessionTerms
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.waits import message_of, message_payload
from actors.errors import ContractError, RunSuspended

_SPAWNED_BY: Final = "spawn:"
"""Prefix of the senders of first messages that `ctx.spawn` has written."""


def meta_of(row: RunRow, attempt: int, token: CancellationToken) -> RunMeta:
    """Return what an agent's code may know of the run."""
    supervision = row.supervision or Supervision(
        run_id=row.run_id,
        root_id=row.root or row.run_id,
        parent_id=row.parent,
        depth=row.depth,
        priority=row.priority,
    )
    deadline_at, trace_id = row.deadline_at, trace_id_of(row)
    return RunMeta(row.run_id, row.agent_id, attempt, token, supervision, deadline_at, trace_id)


MAX_BLOCKED: Final = 2
"""A run that so many hosts in a row gave up because it blocked their event loop is parked."""


def begin(
    run: RunState,
    loaded_run: LoadedRun,
    agent: Agent,
    mail: tuple[Arrived, ...],
    *,
    create: NewRun | None,
    mark: dict[str, JsonValue] | None,
    sessions: Sessions,
) -> list[Message]:
    """Record how this execution begins, note its messages and its session, and return the messages."""
    inbox = inbox_of(run, loaded_run, agent, mail, create=create, mark=mark)
    for message in inbox:
        run.give(message)
    begin_session(run, sessions, inbox)
    return inbox


def verdict_without_code(
    run: RunState, refusal: Refusal | None, blocking: Blocking | None
) -> Verdict | None:
    """Return what becomes of a run whose code must not be called, or None if it may be called.

    Args:
        run: The run.
        refusal: Reason to park the run, for example because the store refuses every next entry.
        blocking: How often hosts gave the run up because its code blocked them.
    """
    if refusal is not None:
        return parked_verdict(refusal.reason, refusal.detail)
    blocked_count = 0 if blocking is None else run.history.without_progress(blocking.seqs)
    if blocking is None or blocked_count < MAX_BLOCKED:
        return None
    detail = f"{blocked_count} hosts gave it up because it blocked them: {blocking.place}"
    return parked_verdict("blocked", detail)


async def write_mark(log: RunLog, standing: Standing) -> bool:
    """Make durable how an execution begins, before its code is called; return False if it was broken off.

    Else a death in the code would leave no trace, and the run would be tried for ever.
    """
    # The code is not at its waits yet: the rows of an earlier execution stay as they are.
    waits_of, log.waits_of = log.waits_of, lambda _: log.known_waits
    try:
        await log.durable(Branch(""), log.last_seq)
    except RunSuspended:
        return False
    log.waits_of, standing.is_marked = waits_of, True
    return True


def spans_of(
    env: HostServices,
    loaded_run: LoadedRun,
    lease: Lease,
    mail: tuple[Arrived, ...],
    *,
    was_running: bool,
) -> ExecutionSpans | None:
    """Return the spans of an execution, or None if the host makes none."""
    if env.tracing is None:
        return None
    mail = mail or loaded_run.messages
    clock = env.clock
    return ExecutionSpans(
        env.tracing, loaded_run, lease, clock=clock, was_running=was_running, mail=mail
    )


def inbox_of(
    run: RunState,
    loaded_run: LoadedRun,
    agent: Agent,
    mail: tuple[Arrived, ...],
    *,
    create: NewRun | None,
    mark: dict[str, JsonValue] | None,
) -> list[Message]:
    """Record how this execution begins and return the messages the code is given.

    Args:
        run: The run in whose log the messages are recorded.
        loaded_run: The run; its messages, if it was queued.
        agent: The agent that executes.
        mail: The messages that start it.
        create: The run, when waiting messages start it.
        mark: Payload of the entry that counts an execution which was broken off before, or None if none was.
    """
    log, history = run.log, run.history
    if not history.has_started:
        payload = {"agent": str(loaded_run.row.agent_id), **facts_of_agent(agent, loaded_run.row)}
        history.retry = retry_in(payload)
        arrived = mail or loaded_run.messages
        parent_agent = loaded_run.row.parent_agent
        if parent_agent is not None and not _names_parent([item.message for item in arrived]):
            payload["parent"] = history.parent_agent = str(parent_agent)
        if run.mode is not None:
            payload["mode"] = run.mode
            log.writes.facts.append("started")
            if arrived:
                log.writes.head = arrived[0].message.metadata.get(PARENT_NODE_KEY)
        log.record(EntryKind.RUN_STARTED, "", payload)
        if create is not None:
            log.writes.create = create
        for index, item in enumerate(arrived):
            log.record(EntryKind.MSG_RECEIVED, f"in.{index}", message_payload(item))
            if item.run_id is None:
                log.writes.bind.append(MessageKey(item.agent_id, item.sender, item.message.id))
        _record_mark(run, mark)
        # What the code does to its messages changes neither the log nor what others were given.
        return [item.message.copied() for item in arrived]
    if mark is not None:
        _record_mark(run, mark)
    elif loaded_run.row.status is RunStatus.SUSPENDED:
        log.record(EntryKind.RUN_RESUMED, "", {"reason": "woken"})
    return [message.copied() for message in recorded_inbox(history, loaded_run)]


def _record_mark(run: RunState, mark: dict[str, JsonValue] | None) -> None:
    if mark is not None:
        run.log.record(EntryKind.RUN_RESUMED, "", mark)
        run.history.recoveries += 1


def session_named_in(inbox: Sequence[Message]) -> str | None:
    """Return the conversation that a run's first message names, or None if it names none.

    A message of an external client names a conversation of its publisher: no publisher writes into another's.
    """
    marks = inbox[0].metadata if inbox else {}
    name, publisher = marks.get("session"), marks.get("publisher")
    if not name:
        return None
    return name if publisher is None else f"{publisher}/{name}"


def begin_session(run: RunState, sessions: Sessions, inbox: Sequence[Message]) -> None:
    """Note the run's conversation, the tools of its client and the agent that spawned it.

    All are in its log, so that replay finds the same.

    The sender of a run's first message names the agent that spawned it. If there is none, or the log of
    that message is history, the first entry of the generation does.
    """
    run.client_tools = tuple(tool for message in inbox for tool in client_tools_in(message.payload))
    run.parent_agent = run.history.parent_agent
    if run.parent_agent is None and _names_parent(inbox):
        run.parent_agent = str(inbox[0].sender).removeprefix(_SPAWNED_BY)
    sessions.begin(session_named_in(inbox))


def enter_code(run: RunState, meta: RunMeta, sessions: Sessions) -> None:
    """Set the context variables of the present task, in which the agent's code is called next."""
    executing.set(meta)
    identity = AgentIdentity(
        agent_id=run.agent_id, thread_id=sessions.name_of(None), parent_agent_id=run.parent_agent
    )
    identity.enter()
    if run.spans is not None:
        run.spans.enter()


def _names_parent(inbox: Sequence[Message]) -> bool:
    return bool(inbox) and (inbox[0].sender or "").startswith(_SPAWNED_BY)


def facts_of_agent(agent: Agent, run: RunRow) -> dict[str, JsonValue]:
    """Return what a run keeps of the agent that begins it, whatever is registered later."""
    facts: dict[str, JsonValue] = {}
    if (version := version_of(agent)) is not None:
        facts["version"] = version
    if run.retry_policy is None and (policy := retry_of(agent)) is not None:
        facts["retry"] = policy.model_dump(mode="json")
    return facts


def recorded_inbox(history: History, loaded_run: LoadedRun) -> list[Message]:
    """Return the messages with which the run's current generation started, as its log has them."""
    continuation = history.continuation
    if continuation is not None:
        row, session = loaded_run.row, continuation.payload.get("session")
        return [
            Message(
                id=derive_id("continued", row.run_id, history.generation),
                target=row.agent_id,
                payload=continuation.payload["input"],
                sender=f"agent:{row.agent_id}",
                created_at=continuation.ts,
                metadata={} if session is None else {"session": str(session)},
            )
        ]
    messages = (message_of(entry.payload) for entry in history.inputs)
    return [message for message in messages if message is not None]


def key_of_input(entry: RunLogEntry, agent_id: AgentId) -> MessageKey:
    """Return the key of a message that a run was given, by its log."""
    message = message_of(entry.payload)
    assert message is not None, "written by `message_payload`"
    return MessageKey(agent_id, message.sender or "", message.id)


def row_of(run: NewRun) -> RunRow:
    """Return the row of a run that was created just now."""
    return RunRow(
        run.run_id,
        run.agent_id,
        RunStatus.PENDING,
        priority=run.priority,
        retry_policy=run.retry_policy,
        parent=run.parent,
        root=run.root,
        depth=run.depth,
        deadline_at=run.deadline_at,
        version=run.version,
        trace=run.trace,
        supervision=run.supervision,
    )


def queue_item_of_child(child: Spawned, arrival: int) -> Arrived:
    """Return the item of its agent's queue for a run that was spawned just now."""
    run, boot = child.run, child.boot
    if boot is None:
        return queue_item_of(replace(row_of(run), arrival=arrival))
    return Arrived(boot, boot.sender or "", run.agent_id, arrival, run.run_id)


def queue_item_of(run: RunRow) -> Arrived:
    """Return the item of its agent's queue for a run that has no message."""
    empty_message = Message(run.run_id, run.agent_id, None)
    return Arrived(empty_message, f"submit:{run.run_id}", run.agent_id, run.arrival, run.run_id)


ENDED: Final = SessionChange(("ended",))
_SAYING: Final = (EntryKind.LLM_CALL, EntryKind.RUN_CONTINUED)
"""Kinds of entries that show that the run has written turns, with the entry or before it."""


def agent_of_run(
    agent: Agent, history: History, loaded_run: LoadedRun, mail: Sequence[Arrived]
) -> tuple[Agent, str | None]:
    """Return the agent that executes a run, and the run's mode, as its first message or its log names it.

    The agent itself, and None, unless it is a session. Where the session has no such mode, the run fails with
    the error that says so.
    """
    if not is_session(agent):
        return agent, None
    mode = _mode_of(history, loaded_run, mail) or DEFAULT_MODE
    try:
        return agent.of_mode(mode), mode
    except ContractError as exc:
        return _NoAgent(agent.id, exc), mode


def _mode_of(history: History, loaded_run: LoadedRun, mail: Sequence[Arrived]) -> str | None:
    """Return the mode that the run has begun in, else the one that its first message names."""
    if history.has_started:
        return history.mode
    arrived = mail or loaded_run.messages
    return arrived[0].message.metadata.get(MODE_KEY) if arrived else None


def terms_of(agent: Agent, mode: str | None, agent_id: AgentId) -> SessionTerms:
    """Return what an agent declares about its conversations; that of a session has the name of its key."""
    terms = SessionTerms.of(agent)
    return terms if mode is None else replace(terms, session=agent_id.key)


def is_session(agent: Agent | None) -> TypeGuard[ModalAgent]:
    """Return whether an agent is a session."""
    return getattr(agent, "of_mode", None) is not None


def with_inbox_turns(
    verdict: Verdict, loaded_run: LoadedRun, history: History, mail: Sequence[Arrived] = ()
) -> tuple[Verdict, tuple[NewTurn, ...]]:
    """Return the verdict on a run of a session that ends without success, and the turns its end writes.

    These are its messages, as the model would have been shown them, if none of its turns is in the log yet: a
    user's message is a node of the session also when no run answered it. The end names their ids.
    """
    is_success = not isinstance(verdict.then, Finish) or verdict.then.status is RunStatus.COMPLETED
    if is_success or any(
        entry.kind in _SAYING or entry.payload.get("effect") == "history.append"
        for entry in loaded_run.entries
    ):
        return verdict, ()
    run = loaded_run.row
    messages = recorded_inbox(history, loaded_run) or [
        arrived.message for arrived in mail or loaded_run.messages
    ]
    user_turns: list[ChatMessage] = []
    for message in messages:
        with suppress(ValueError):  # no client of sessions makes such blocks
            user_turns.append(turn_of(message.payload))
    turns = tuple(
        NewTurn(run.agent_id.key, turn_id(run.run_id, "in", n), turn)
        for n, turn in enumerate(user_turns)
    )
    if not turns:
        return verdict, ()
    *other_entries, end = verdict.entries
    ids: list[JsonValue] = [turn.id for turn in turns]
    end_with_ids = replace(end, payload={**end.payload, "turns": ids})
    return replace(verdict, entries=(*other_entries, end_with_ids)), turns


class _NoAgent:
    """Fails every run."""

    def __init__(self, id_: AgentId, error: ContractError) -> None:
        self.id, self._error = id_, error

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        raise self._error
