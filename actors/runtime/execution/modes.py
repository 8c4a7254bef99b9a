"""The mode of a run: which of a session's agents executes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeGuard

from actors.context.turns import turn_of
from actors.errors import ContractError
from actors.kernel.agent.agent import DEFAULT_MODE, MODE_KEY, Agent, ModalAgent, SessionChange
from actors.kernel.agent.message import ChatMessage, Message
from actors.kernel.agent.transcript import NewTurn, turn_id
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Finish
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors.kernel.runtime.rows import Arrived, LoadedRun
from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.context.conversation.sessions import SessionTerms
from actors.runtime.execution.start import recorded_inbox
from actors.runtime.replay.history import History
from actors.runtime.replay.verdict import Verdict

ENDED: Final = SessionChange(("ended",))
_SAYING: Final = (EntryKind.LLM_CALL, EntryKind.RUN_CONTINUED)
"""Kinds of entries that show that the run has written turns, with the entry or before it."""


def agent_of_run(
    agent: Agent, history: History, loaded: LoadedRun, mail: Sequence[Arrived]
) -> tuple[Agent, str | None]:
    """Return the agent that executes a run, and the run's mode, as its first message or its log names it.

    The agent itself, and None, unless it is a session. Where the session has no such mode, the run fails with
    the error that says so.
    """
    if not is_session(agent):
        return agent, None
    mode = _mode_of(history, loaded, mail) or DEFAULT_MODE
    try:
        return agent.of_mode(mode), mode
    except ContractError as exc:
        return _NoAgent(agent.id, exc), mode


def _mode_of(history: History, loaded: LoadedRun, mail: Sequence[Arrived]) -> str | None:
    """Return the mode that the run has begun in, else the one that its first message names."""
    if history.started:
        return history.mode
    arrived = mail or loaded.messages
    return arrived[0].message.metadata.get(MODE_KEY) if arrived else None


def terms_of(agent: Agent, mode: str | None, agent_id: AgentId) -> SessionTerms:
    """Return what an agent declares about its conversations; that of a session has the name of its key."""
    terms = SessionTerms.of(agent)
    return terms if mode is None else replace(terms, session=agent_id.key)


def is_session(agent: Agent | None) -> TypeGuard[ModalAgent]:
    """Return whether an agent is a session."""
    return getattr(agent, "of_mode", None) is not None


def with_heard(
    verdict: Verdict, loaded: LoadedRun, history: History, given: Sequence[Arrived] = ()
) -> tuple[Verdict, tuple[NewTurn, ...]]:
    """Return the verdict on a run of a session that ends without success, and the turns its end writes.

    These are its messages, as the model would have been shown them, if none of its turns is in the log yet: a
    user's message is a node of the session also when no run answered it. The end names their ids.
    """
    is_success = not isinstance(verdict.then, Finish) or verdict.then.status is RunStatus.COMPLETED
    if is_success or any(map(_has_turns, loaded.entries)):
        return verdict, ()
    run = loaded.row
    messages = recorded_inbox(history, loaded) or [one.message for one in given or loaded.messages]
    said = [turn for one in messages if (turn := _turn_of(one)) is not None]
    turns = tuple(
        NewTurn(run.agent_id.key, turn_id(run.run_id, "in", n), message)
        for n, message in enumerate(said)
    )
    if not turns:
        return verdict, ()
    *before, end = verdict.entries
    ids: list[JsonValue] = [turn.id for turn in turns]
    told = replace(end, payload={**end.payload, "turns": ids})
    return replace(verdict, entries=(*before, told)), turns


def _has_turns(entry: RunLogEntry) -> bool:
    return entry.kind in _SAYING or entry.payload.get("effect") == "history.append"


def _turn_of(message: Message) -> ChatMessage | None:
    try:
        return turn_of(message.payload)
    except ValueError:  # no client of sessions makes such blocks
        return None


class _NoAgent:
    """Fails every run."""

    def __init__(self, id_: AgentId, error: ContractError) -> None:
        self.id, self._error = id_, error

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        raise self._error
