"""The decisions of one execution: those that the log has, and new ones, which the machine makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from actors.kernel.json import canonical_json
from actors.kernel.workflow.effects import RunStatus
from actors.kernel.workflow.errors import NodeMissingError
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import StepRecord
from actors.runtime.context.graphs.verbs import GraphVerbs
from actors.workflow.actor.step_entry import NOTE, START, linked, packed, unpacked, with_note
from actors.workflow.machine.asking import NodeContext, asked
from actors.workflow.machine.branches import Path, joined, put, records_at, seen_at
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.loop_watch import LoopWatch, endless
from actors.workflow.machine.records import Transition, noted
from actors.workflow.machine.recovery import behind_record
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.starting import start_record

Decide: TypeAlias = Callable[[RunState, str], Transition]
"""Gets a branch as it is, and the instant; returns what is decided."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that is to be made.

    Attributes:
        make: Makes it; None: the next one is what the branch's node answers, or the join.
        result_at: The position of the effect whose entry has the result of its first record; empty: none has.
        result: That result.
    """

    make: Decide | None = None
    result_at: str = ""
    result: Any = None


NEXT: Final = Decision()
"""Decision without an effect: the branch's node, or the join, says what is next."""
MOST_NODES: Final = 32
"""Number of nodes that are called for one entry of the log, at most."""


class Decisions:
    """The state of a run of a graph, and the records that lead to it.

    Attributes:
        state: The state now.
        opened: The effects that have begun and have no end, by branch.
        head: The hash of the last record.
        entries: How many entries they take in this generation.
        size_bytes: How many bytes, as JSON.
    """

    def __init__(self, verbs: GraphVerbs, spec: WorkflowSpec, artifacts: Any) -> None:
        self._verbs, self._spec = verbs, spec
        self._context = NodeContext(now=self.now, artifacts=artifacts)
        self._watches: dict[Path, LoopWatch] = {}
        self._noted: dict[tuple[str, ...], int] = {}
        """The entries of the last notes, by path."""
        self.state: RunState
        self.opened: dict[Path, OpenStep] = {}
        self.head: str | None = None
        self.entries = self.size_bytes = 0

    def now(self) -> str:
        """Return the instant, for a record: ISO 8601 in UTC."""
        return self._verbs.now().isoformat()

    def begin(self, new: Callable[[str], RunState], restored_from: str | None = None) -> None:
        """Begin with the state that the log has, or with a new one."""
        step = self._verbs.step()
        if step.known is None:
            self.state = new(self.now())
            first = start_record(self.state, restored_from=restored_from)
            step.record([self._linked(first)])
        else:
            self.state = RunState.from_dict(step.known[0]["delta"][START])
            self._find_head()

    def go_on(self, state: RunState, opened: dict[Path, OpenStep], head: str | None) -> None:
        """Go on with the state of the generation before."""
        self.state, self.opened, self.head = state, opened, head
        self._find_head()

    def _find_head(self) -> None:
        """Let the chain go on behind the last record of the log: branches do not replay in its order."""
        last = self._verbs.last_record()
        self.head = self.head if last is None else last["record_hash"]

    def seen(self, path: Path) -> RunState | None:
        """Return a branch as a run of its own; None: the run has no such branch now."""
        return seen_at(self.state, path)

    def is_over(self, path: Path) -> bool:
        """Return whether a branch has come to its end, or the run has."""
        if not path:
            return self.state.status.is_terminal
        around = self.seen(path[:-1])
        fork = None if around is None else around.fork
        place = None if fork is None else fork.place(path[-1])
        return fork is None or place is None or not fork.is_open(fork.branches[place])

    def note(self, kind: str, path: list[str], value: Any) -> None:
        """Change one value of the vars from outside, with a record of this kind."""
        step, place = self._verbs.step(), tuple(path)
        self.entries += 1
        if step.known is None:
            decided = noted(self.state, kind, path, value, at=self.now())
            made = [{**self._linked(one), NOTE: path} for one in decided.records]
            self._noted[place] = step.record(made)
            self.state = decided.state
        elif step.seq > self._noted.get(place, -1):  # not in the order of the log: as `_find_head`
            self._noted[place] = step.seq
            for told in step.known:
                self._take(told, {})

    def advance(self, path: Path, first: Decision) -> None:
        """Decide and call nodes until something has to be waited for: one entry of the log."""
        step = self._verbs.step()
        self.entries += 1
        if step.known is None:
            step.record(self._made(path, first))
            return
        for told in step.known:
            self.size_bytes += len(canonical_json(told))
            self._take(told, {first.result_at: first.result})

    def _made(self, path: Path, first: Decision) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        decide, effect = first.make or self._next(path), first
        for _ in range(MOST_NODES):
            seen = self.seen(path)
            if decide is None or seen is None:
                break
            decided, opened = decide(seen, self.now()), self.opened.pop(path, None)
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
        """Return a record as the log keeps it: the next link of the chain."""
        whole, size_bytes = linked(record, self.head)
        self.head = whole["record_hash"]
        self.size_bytes += size_bytes
        return packed(whole, opened, effect.result_at if whole["result"] == effect.result else "")

    def _take(self, told: dict[str, Any], results: dict[str, Any]) -> None:
        """Apply a record that the log has."""
        record = unpacked(told, self.state, self.opened, results)
        self.state = with_note(behind_record(self.state, self.opened, record), told)

    def _next(self, path: Path) -> Decide | None:
        """Return the next decision in a branch; None: it waits for something, or ended."""
        seen = self.seen(path)
        watch = self._watches.setdefault(path, LoopWatch())
        is_resting = seen is None or seen.status is not RunStatus.RUNNING
        if seen is None or is_resting or path in self.opened or self.is_over(path):
            watch.forget()
            return None
        if seen.fork is not None:
            return None if seen.fork.has_open else self._join
        return self._endless if watch.is_endless(seen) else self._ask

    def _ask(self, seen: RunState, at: str) -> Transition:
        del at
        if (
            seen.current_node not in self._spec.nodes
        ):  # plans were checked: another graph's was followed
            raise NodeMissingError("", repr(seen.current_node), self._spec.title)
        return asked(self._spec, seen, self._context, self.now)

    def _join(self, seen: RunState, at: str) -> Transition:
        return joined(self._spec, seen, at=at)

    @staticmethod
    def _endless(seen: RunState, at: str) -> Transition:
        return endless(seen, at=at)
