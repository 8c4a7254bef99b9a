"""The memory that runs share, in runs of the store that hold memory only, or in runs that a request names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.effects import RunStatus
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.stores import LedgerStore
from actors.workflow.embedded.other_runs import Change
from actors.workflow.handlers import EffectHandlers
from actors.workflow.machine.records import Transition, noted
from actors.workflow.machine.starting import start_record
from actors.workflow.machine.variables import RUNTIME, ensure_namespaces, with_item
from actors.workflow.notes.compaction import summarizing
from actors.workflow.notes.effects import MemoryEffects
from actors.workflow.notes.spans import GLOBAL, SPAN_ID, SPANS, SPANS_PATH, Span, spans_of

GLOBAL_RUN: Final = "global_memory"
SESSION_RUN: Final = "session_memory_"
"""The prefix of the id of the run that holds the memory of a session."""
_NODE: Final = "memory"
"""The graph and the node of a run that holds memory only. No node is ever called for it."""
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,160}")


class MemoryHost(Protocol):
    """The parts of the runtime that memory needs; see `WorkflowRuntime`."""

    run_store: Any
    ledger_store: LedgerStore
    artifact_store: Any

    def now(self) -> str:
        """Return the instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRuns:
    """See `actors.workflow.notes.spans.SharedMemory`.

    Attributes:
        host: The runtime.
        change: See `Change`.
    """

    host: MemoryHost
    change: Change

    def owner(self, run: RunState, scope: str) -> RunState:
        """See `SharedMemory.owner`. If the run has no session, its owner is the root of its tree."""
        if scope == GLOBAL:
            return self._made(GLOBAL_RUN, None)
        if not run.session_id:
            return self._root(run)
        name = run.session_id
        safe = name if _SAFE.fullmatch(name) else derive_id("session", name)
        return self._made(SESSION_RUN + safe, name)

    def named(self, run: RunState, run_id: str) -> RunState:
        """See `SharedMemory.named`."""
        del run
        found: RunState | None = self.host.run_store.load(run_id)
        if found is None:
            raise GraphError(f"run {run_id!r}", "the store has no such run for the memory")
        return found

    def put(self, owner: RunState, span: Span) -> None:
        """See `SharedMemory.put`.

        Raises:
            StoreBusyError: Another caller drives the owner now, and the owner is not a run that holds memory
                only.
        """

        def decide(state: RunState) -> Transition | None:
            if span in spans_of(state.vars):
                return None
            after = with_item(state.vars, SPANS_PATH, SPAN_ID, span)
            return noted(state, "memory", SPANS_PATH, after[RUNTIME][SPANS], at=self.host.now())

        is_memory = owner.current_node == _NODE
        self.change(owner.run_id, decide, wait=is_memory)

    def _root(self, run: RunState) -> RunState:
        seen = {run.run_id}
        while run.parent_run_id and run.parent_run_id not in seen:
            above: RunState | None = self.host.run_store.load(run.parent_run_id)
            if above is None:
                break
            run = above
            seen.add(run.run_id)
        return run

    def _made(self, run_id: str, session_id: str | None) -> RunState:
        """Return a run that holds memory only. If it does not exist, create it with status COMPLETED."""
        found: RunState | None = self.host.run_store.load(run_id)
        if found is not None:
            return found
        new = RunState.new(
            workflow_id=_NODE,
            entry_node=_NODE,
            vars=ensure_namespaces({}),
            run_id=run_id,
            session_id=session_id,
            at=self.host.now(),
        )
        new.status = RunStatus.COMPLETED
        create = getattr(self.host.run_store, "create_if_absent", None)
        made, is_new = create(new) if create is not None else (new, True)
        if is_new:
            if create is None:
                self.host.run_store.save(new)
            self.host.ledger_store.append(start_record(new))
        return made


def memory_effects(
    host: MemoryHost, change: Change, handlers: EffectHandlers, chat_summarizer: Any
) -> MemoryEffects:
    """Return the effects of memory of a runtime."""
    return MemoryEffects(
        store=lambda: host.artifact_store,
        shared=MemoryRuns(host=host, change=change),
        handlers=handlers,
        summarizer=None if chat_summarizer is None else summarizing(chat_summarizer),
    )
