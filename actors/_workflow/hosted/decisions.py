"""The decisions of one execution: decisions that the log has, and new decisions of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from actors._kernel.json import text_bytes
from actors._kernel.workflow.effects import RunStatus
from actors._kernel.workflow.errors import NodeMissingError
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import StepRecord
from actors._runtime.loop.tasks import in_thread
from actors._runtime.verbs.graph import GraphVerbs
from actors._workflow.documents.nodes import DocumentNode
from actors._workflow.hosted.step_entry import NOTE, START, linked, packed, unpacked, with_note
from actors._workflow.machine.branches import Path, joined, put, records_at, seen_at
from actors._workflow.machine.plans import LoopWatch, NodeContext, asked, endless
from actors._workflow.machine.records import OpenStep, Transition, noted
from actors._workflow.machine.recovery import behind_record
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.starting import start_record

Now: TypeAlias = Callable[[], str]
"""Function that returns the instant: ISO 8601 in UTC."""
Decide: TypeAlias = Callable[[RunState, Now], Transition]
"""Function that gets the state of a branch, and returns the transition that it decides."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that has not been made yet.

    Attributes:
        make: Makes the decision. None: the branch's node, or the join, makes it.
        result_at: The position of the effect whose entry has the result of its first record; empty: no entry
            has it.
        result: That result.
    """

    make: Decide | None = None
    result_at: str = ""
    result: Any = None


NEXT: Final = Decision()
"""A decision that follows no effect. The branch's node, or the join, makes it."""
MOST_NODES: Final = 32
"""Maximum number of nodes that are called for one entry of the log."""


class Decisions:
    """The state of a run of a graph, and the records that lead to it.

    Attributes:
        state: The state now.
        opened: The effects that have started and have not ended, by branch.
        head: The hash of the last record.
        entries: Number of log entries that the decisions take in this generation.
        size_bytes: Size of their records as JSON, in bytes.
        now: Returns the instant, for a record.
    """

    def __init__(self, verbs: GraphVerbs, spec: WorkflowSpec, artifacts: Any) -> None:
        self._verbs, self._spec = verbs, spec
        # No method: the context would refer to this object, and the collector alone would free the run.
        self.now: Now = lambda: verbs.now().isoformat()
        self._context = NodeContext(now=self.now, artifacts=artifacts)
        self._watches: dict[Path, LoopWatch] = {}
        self._noted: dict[tuple[str, ...], int] = {}
        """By path: the number of the last log entry that noted a value."""
        self.state: RunState
        self.opened: dict[Path, OpenStep] = {}
        self.head: str | None = None
        self.entries = self.size_bytes = 0

    def begin(self, new: Callable[[str], RunState], restored_from: str | None = None) -> None:
        """Begin with the state that the log has. If the log has none, begin with a new state."""
        step = self._verbs.step()
        if step.known is None:
            self.state = new(self.now())
            first = start_record(self.state, restored_from=restored_from)
            step.record([self._linked(first)])
        else:
            self.state = RunState.from_dict(step.known[0]["delta"][START])
            self._find_head()

    def go_on(self, state: RunState, opened: dict[Path, OpenStep], head: str | None) -> None:
        """Continue with the state of the previous generation."""
        self.state, self.opened, self.head = state, opened, head
        self._find_head()

    def _find_head(self) -> None:
        """Set the chain's head to the last record of the log. Branches do not replay in the log's order."""
        last = self._verbs.last_record()
        self.head = self.head if last is None else last["record_hash"]

    def seen(self, path: Path) -> RunState | None:
        """Return a branch as a run of its own; None: the run has no such branch now."""
        return seen_at(self.state, path)

    def is_over(self, path: Path) -> bool:
        """Return True if the branch or the whole run has ended."""
        if not path:
            return self.state.status.is_terminal
        around = self.seen(path[:-1])
        fork = None if around is None else around.fork
        place = None if fork is None else fork.place(path[-1])
        return fork is None or place is None or not fork.is_open(fork.branches[place])

    def note(self, kind: str, path: list[str], value: Any) -> None:
        """Change one value of the vars on behalf of a control signal, and write a record of this kind."""
        step, place = self._verbs.step(), tuple(path)
        self.entries += 1
        if step.known is None:
            decided = noted(self.state, kind, path, value, at=self.now())
            made = [{**self._linked(one), NOTE: path} for one in decided.records]
            self._noted[place] = step.record(made)
            self.state = decided.state
        elif step.seq > self._noted.get(place, -1):  # replay is not in log order, see `_find_head`
            self._noted[place] = step.seq
            for told in step.known:
                self._take(told, {})

    async def advance(self, path: Path, first: Decision) -> None:
        """Decide and call nodes until the branch has to wait. The decisions become one entry of the log.

        No other branch decides meanwhile, also if a node evaluates code beside the event loop.
        """
        step = self._verbs.step()
        self.entries += 1
        if step.known is None:
            step.record(await self._made(path, first))
            return
        for told in step.known:
            self.size_bytes += text_bytes(told)
            self._take(told, {first.result_at: first.result})

    async def _made(self, path: Path, first: Decision) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        decide, effect = first.make or self._next(path), first
        for _ in range(MOST_NODES):
            seen = self.seen(path)
            if decide is None or seen is None:
                break
            node = self._spec.nodes.get(seen.current_node)
            if decide == self._ask and isinstance(node, DocumentNode) and node.is_code:
                # A node of code is called beside the event loop.
                decided = await self._verbs.boundaries.beside(in_thread(decide, seen, self.now))
            else:
                decided = decide(seen, self.now)
            opened = self.opened.pop(path, None)
            for record in records_at(path, decided):
                made.append(self._linked(record, opened, effect))
                effect = NEXT
            self.state = put(self.state, path, decided.state)
            if decided.opened is not None:
                self.opened[path] = decided.opened
            decide = self._next(path)
        assert made, f"nothing is decided in {path} of a run that {self.state.status.value}"
        return made

    def _linked(
        self, record: StepRecord, opened: OpenStep | None = None, effect: Decision = NEXT
    ) -> dict[str, Any]:
        """Return a record in the form that the log keeps, linked to the chain."""
        whole, size_bytes = linked(record, self.head)
        self.head = whole["record_hash"]
        self.size_bytes += size_bytes
        return packed(whole, opened, effect.result_at if whole["result"] == effect.result else "")

    def _take(self, told: dict[str, Any], results: dict[str, Any]) -> None:
        """Apply a record that the log has."""
        record = unpacked(told, self.state, self.opened, results)
        self.state = with_note(behind_record(self.state, self.opened, record), told)

    def _next(self, path: Path) -> Decide | None:
        """Return the next decision in a branch; None: the branch waits, or has ended."""
        seen = self.seen(path)
        watch = self._watches.get(path) or self._watches.setdefault(path, LoopWatch())
        is_resting = seen is None or seen.status is not RunStatus.RUNNING
        if seen is None or is_resting or path in self.opened or self.is_over(path):
            watch.forget()
            return None
        if seen.fork is not None:
            return None if seen.fork.has_open else self._join
        return self._endless if watch.is_endless(seen) else self._ask

    def _ask(self, seen: RunState, now: Now) -> Transition:
        if seen.current_node not in self._spec.nodes:  # the log was written with another graph
            raise NodeMissingError("", repr(seen.current_node), self._spec.title)
        return asked(self._spec, seen, self._context, now)

    def _join(self, seen: RunState, now: Now) -> Transition:
        return joined(self._spec, seen, at=now())

    @staticmethod
    def _endless(seen: RunState, now: Now) -> Transition:
        return endless(seen, at=now())
