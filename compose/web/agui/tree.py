"""Translation of the events of a run and its descendants into one stream of AG-UI events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TokenUsage,
)

from actors.kernel.json import canonical_json
from actors.sessions.events import SessionEvent
from actors.sessions.run import ENDS, RunPhase
from compose.web.agui.run_events import KnownCall, RunEvents, VoidTextEvent
from compose.web.agui.shown import ShownMessages


@dataclass(frozen=True, slots=True)
class Pending:
    """The answers that a tree of runs waits for from its client.

    Attributes:
        interrupts: Pending approvals.
        calls: Ids of pending calls of the client's tools.
    """

    interrupts: tuple[Interrupt, ...] = ()
    calls: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.interrupts or self.calls)


@dataclass(slots=True)
class Subagent:
    """A descendant run.

    Attributes:
        name: The agent's type.
        parent: The run that spawned it.
        is_open: True until the run has ended.
    """

    name: str
    parent: str
    is_open: bool = True


class RunTree:
    """Translates session events of a run and its descendants into AG-UI events.

    Args:
        root: The run.
        shown: The messages that the client shows.
        answered: Ids of interrupts and calls that the client has answered. None of them is pending.

    Attributes:
        subagents: The descendants, by their run ids.
        end: The final phase of the run; None while the run is open.
    """

    def __init__(
        self, root: str, *, shown: ShownMessages | None = None, answered: Iterable[str] = ()
    ) -> None:
        self._root, self._shown = root, shown or ShownMessages()
        self._answered = frozenset(answered)
        self._runs: dict[str, RunEvents] = {root: RunEvents(root)}
        self.subagents: dict[str, Subagent] = {}
        self.end: RunPhase | None = None
        self._result: Any = None

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Ids of the runs, the root first."""
        return (self._root, *self.subagents)

    @property
    def calls(self) -> dict[str, KnownCall]:
        """The root's tool calls, by their ids."""
        return self._runs[self._root].calls

    @property
    def decided(self) -> dict[str, str]:
        """The outcomes of approvals that are no longer pending, by their ids."""
        return {id_: status for run in self._runs.values() for id_, status in run.decided.items()}

    def calls_of(self, interrupts: Collection[str]) -> frozenset[str]:
        """Return the ids of the tool calls that these approvals, pending or decided, are about."""
        runs = self._runs.values()
        open_ = ((id_, one.tool_call_id) for run in runs for id_, one in run.interrupts.items())
        decided = (pair for run in runs for pair in run.decided_calls.items())
        pairs = (*open_, *decided)
        return frozenset(call for id_, call in pairs if id_ in interrupts and call is not None)

    @property
    def asked(self) -> frozenset[str]:
        """Ids of all questions and tool calls that a client may answer, or has answered."""
        open_ = (id_ for run in self._runs.values() for id_ in run.interrupts)
        return frozenset((*open_, *self.decided, *self.calls))

    def of(self, event: SessionEvent) -> list[BaseEvent]:
        """Translate a session event into AG-UI events."""
        found: list[BaseEvent] = []
        for made in self._made(event):
            if isinstance(made, VoidTextEvent):
                void = made.message_id
                snapshot = self._shown.without(void.__eq__)
                found += [] if snapshot is None else [snapshot]
            else:
                self._shown.note(made)
                found.append(made)
        return found

    def _made(self, event: SessionEvent) -> Iterator[BaseEvent]:
        run = self._runs.get(event.run_id)
        said: Any = event.payload
        if run is None:
            return
        yield from run.of(event)
        if event.type == "child_started":
            yield from self._begin(event.run_id, said)
        elif event.type == "child_finished":
            yield from self._finish(said["child"], said)
        elif event.type in ENDS or event.type == "run_dequeued":
            status = ENDS.get(event.type, "cancelled")
            yield from run.close()
            if event.run_id == self._root:
                self.end, self._result = status, said
            else:
                yield from self._finish(event.run_id, {**said, "status": status})

    def _begin(self, parent: str, said: Any) -> Iterator[BaseEvent]:
        child = said["child"]
        self._runs[child] = RunEvents(child, child)
        name = str(said["agent"]).partition("/")[0].rpartition(":")[2]
        self.subagents[child] = Subagent(name, parent)
        yield self._started(child)

    def _started(self, child: str) -> SubagentStartedEvent:
        one = self.subagents[child]
        above = None if one.parent == self._root else one.parent
        return SubagentStartedEvent(
            subagent_run_id=child, name=one.name, parent_subagent_run_id=above
        )

    def _finish(self, child: str, said: Any) -> Iterator[BaseEvent]:
        one = self.subagents.get(child)
        if one is None or not one.is_open:
            return
        for below in self._below(child):
            yield from self._finish(below, {"status": "cancelled"})
        one.is_open = False
        yield from self._runs[child].close()
        if said["status"] == "completed":
            yield SubagentFinishedEvent(subagent_run_id=child, result=said.get("output"))
        else:
            text = _problem_of(said) or f"{one.name} was {said['status']}"
            yield SubagentErrorEvent(subagent_run_id=child, message=text, code=said["status"])

    def _below(self, run: str) -> list[str]:
        """Return the open child runs of a run."""
        return [id_ for id_, one in self.subagents.items() if one.is_open and one.parent == run]

    def pending(self) -> Pending:
        """Return the pending answers, as far as events were read."""
        interrupts = (one for run in self._runs.values() for one in run.interrupts.values())
        calls = (id_ for id_, call in self.calls.items() if call.is_asked and not call.is_done)
        return Pending(
            tuple(one for one in interrupts if one.id not in self._answered),
            tuple(id_ for id_ in calls if id_ not in self._answered),
        )

    def is_idle(self) -> bool:
        """Return True if no run is known to make progress without the pending answers."""
        waiting = self.pending()
        asking = {one.tool_call_id for one in waiting.interrupts} | {*waiting.calls}
        runs = self._runs.values()
        undone = {id_ for run in runs for id_, call in run.calls.items() if not call.is_done}
        is_speaking = any(run.is_speaking for run in runs)
        return not is_speaking and undone <= asking and all(map(self._is_asking, self.subagents))

    def _is_asking(self, child: str) -> bool:
        is_over = not self.subagents[child].is_open
        return is_over or bool(self._runs[child].interrupts or self._below(child))

    def reopened(self) -> Iterator[BaseEvent]:
        """Yield start events of open content, for a client that joins now. Token usage is counted from here."""
        for id_, run in self._runs.items():
            run.usage.clear()
            one = self.subagents.get(id_)
            if one is not None and one.is_open:
                yield self._started(id_)
            yield from run.reopened()

    def closed(self) -> Iterator[BaseEvent]:
        """Yield end events of open content, for a client that leaves now. Open descendants end as suspended."""
        for id_ in reversed(self.run_ids):
            yield from self._runs[id_].close()
            if id_ != self._root and self.subagents[id_].is_open:
                asked = [*self._runs[id_].interrupts]
                outcome = SubagentFinishedSuspendedOutcome(interrupt_ids=asked or None)
                yield SubagentFinishedEvent(subagent_run_id=id_, outcome=outcome)

    def finished(self, thread_id: str, run_id: str) -> RunFinishedEvent | RunErrorEvent:
        """Return the last event of the stream, for a run that has ended or waits for the client."""
        usage = self._usage() or None
        if self.end == "failed":
            text = _problem_of(self._result) or "the run failed"
            return RunErrorEvent(message=text, code=_code_of(self._result), usage=usage)
        outcome: Any = RunFinishedCancelledOutcome()
        waiting = self.pending() if self.end is None else Pending()
        if waiting.interrupts:
            outcome = RunFinishedInterruptOutcome(interrupts=[*waiting.interrupts])
        elif self.end != "cancelled":
            calls = [*waiting.calls] or None
            outcome = RunFinishedSuccessOutcome(pending_tool_call_ids=calls)
        result = self._result.get("output") if self.end == "completed" else None
        return RunFinishedEvent(
            thread_id=thread_id, run_id=run_id, result=result, outcome=outcome, usage=usage
        )

    def _usage(self) -> list[TokenUsage]:
        total: dict[str, Counter[str]] = {}
        for run in self._runs.values():
            for model, used in run.usage.items():
                total.setdefault(model, Counter()).update(used)
        return [
            TokenUsage(
                model=model,
                input_tokens=used["input"],
                output_tokens=used["output"],
                total_tokens=used["input"] + used["output"],
                reasoning_tokens=used["reasoning"] or None,
                cached_input_tokens=used["cached"] or None,
                cache_write_input_tokens=used["cache_written"] or None,
            )
            for model, used in total.items()
        ]


def _problem_of(said: Any) -> str:
    """Return the text of an error, or the reason of a cancel."""
    error = said.get("error") or {}
    return str(
        error.get("message") or said.get("reason") or (error and canonical_json(error)) or ""
    )


def _code_of(said: Any) -> str | None:
    return (said.get("error") or {}).get("type")
