"""The decisions of one execution: decisions that the log has, and new decisions of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from actors._kernel.workflow.effects import RunStatus
from actors._kernel.workflow.errors import NodeMissingError
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import StepRecord, hashed_text
from actors._runtime.loop.tasks import in_thread
from actors._runtime.verbs.graph import GraphVerbs
from actors._workflow.documents.nodes import DocumentNode
from actors._workflow.hosted.step_entry import NOTE, START, apply_note, chain, compact, expand
from actors._workflow.machine.branches import (
    Path,
    find_branch_state,
    join_branches,
    records_of_branch,
    with_branch,
)
from actors._workflow.machine.plans import LoopWatch, NodeContext, call_node, fail_endless_loop
from actors._workflow.machine.records import OpenStep, Transition, note_value
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
        make: Makes the decision; None if the branch's node, or the join, makes it.
        result_at: The position of the effect whose entry has the result of its first record; empty if no entry
            has it.
        result: That result.
    """

    make: Decide | None = None
    result_at: str = ""
    result: Any = None


NEXT: Final = Decision()
"""A decision that follows no effect. The branch's node, or the join, makes it."""
MAX_NODES_PER_ENTRY: Final = 32
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
        self._note_seqs: dict[tuple[str, ...], int] = {}
        """By path: the number of the last log entry that noted a value."""
        self.state: RunState
        self.opened: dict[Path, OpenStep] = {}
        self.head: str | None = None
        self.entries = self.size_bytes = 0

    def begin(
        self, make_state: Callable[[str], RunState], restored_from: str | None = None
    ) -> None:
        """Begin with the state that the log has. If the log has none, begin with a new state."""
        step = self._verbs.step()
        if step.recorded is None:
            self.state = make_state(self.now())
            first = start_record(self.state, restored_from=restored_from)
            step.record([self._chain(first)])
        else:
            self.state = RunState.from_dict(step.recorded[0]["delta"][START])
            self._expand(step.recorded[0], {})
            self._find_head()

    def continue_from(
        self, state: RunState, open_steps: dict[Path, OpenStep], head: str | None
    ) -> None:
        """Continue with the state of the previous generation."""
        self.state, self.opened, self.head = state, open_steps, head
        self._find_head()

    def _find_head(self) -> None:
        """Set the chain's head to the last record of the log. Branches do not replay in the log's order."""
        last_record = self._verbs.last_record()
        self.head = self.head if last_record is None else last_record["record_hash"]

    def branch(self, path: Path) -> RunState | None:
        """Return a branch as a run of its own, or None if the run has no such branch now."""
        return find_branch_state(self.state, path)

    def has_ended(self, path: Path) -> bool:
        """Return True if the branch or the whole run has ended."""
        if not path:
            return self.state.status.is_terminal
        outer = self.branch(path[:-1])
        fork = None if outer is None else outer.fork
        index = None if fork is None else fork.place(path[-1])
        return fork is None or index is None or not fork.is_open(fork.branches[index])

    def note(self, kind: str, path: list[str], value: Any) -> None:
        """Change one value of the vars on behalf of a control signal, and write a record of this kind."""
        step, key = self._verbs.step(), tuple(path)
        self.entries += 1
        if step.recorded is None:
            transition = note_value(self.state, kind, path, value, at=self.now())
            log_records = [{**self._chain(r), NOTE: path} for r in transition.records]
            self._note_seqs[key] = step.record(log_records)
            self.state = transition.state
            return
        records = [(self._expand(r, {}), r) for r in step.recorded]
        # A replay is not in the log's order (see `_find_head`): an older note does not replace a newer one.
        if step.seq > self._note_seqs.get(key, -1):
            self._note_seqs[key] = step.seq
            for record, log_record in records:
                self._apply(record, log_record)

    async def advance(self, path: Path, first: Decision) -> None:
        """Decide and call nodes until the branch has to wait. The decisions become one entry of the log.

        No other branch decides meanwhile, also if a node evaluates code beside the event loop.
        """
        step = self._verbs.step()
        self.entries += 1
        if step.recorded is None:
            step.record(await self._decide_until_wait(path, first))
            return
        for log_record in step.recorded:
            record = self._expand(log_record, {first.result_at: first.result})
            self._apply(record, log_record)

    async def _decide_until_wait(self, path: Path, first: Decision) -> list[dict[str, Any]]:
        log_records: list[dict[str, Any]] = []
        decide, source = first.make or self._next_decision(path), first
        # A loop of nodes without effects never waits. After each entry the run takes signals, lets other runs
        # proceed and may continue as new; without a bound it would do none of it, and the entry would grow.
        for _ in range(MAX_NODES_PER_ENTRY):
            branch = self.branch(path)
            if decide is None or branch is None:
                break
            node = self._spec.nodes.get(branch.current_node)
            if decide == self._ask and isinstance(node, DocumentNode) and node.is_code:
                # Code in the sandbox may take seconds, and would stop all other runs on the event loop.
                transition = await self._verbs.boundaries.beside(
                    in_thread(decide, branch, self.now)
                )
            else:
                transition = decide(branch, self.now)
            open_step = self.opened.pop(path, None)
            for record in records_of_branch(path, transition):
                log_records.append(self._chain(record, open_step, source))
                source = NEXT  # only the first record carries the effect's result
            self.state = with_branch(self.state, path, transition.state)
            if transition.opened is not None:
                self.opened[path] = transition.opened
            decide = self._next_decision(path)
        assert log_records, f"nothing is decided in {path} of a run that {self.state.status.value}"
        return log_records

    def _chain(
        self, record: StepRecord, open_step: OpenStep | None = None, source: Decision = NEXT
    ) -> dict[str, Any]:
        """Return a record in the form that the log keeps, linked to the chain."""
        full_record, size_bytes = chain(record, self.head)
        self.head = full_record["record_hash"]
        self.size_bytes += size_bytes
        return compact(
            full_record,
            open_step,
            source.result_at if full_record["result"] == source.result else "",
        )

    def _expand(self, log_record: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
        """Return the whole record of one that the log has.

        Its size is counted as `_chain` counts it, so that a run continues as new after the same step, whether
        it stayed in memory or was loaded.
        """
        record = expand(log_record, self.state, self.opened, results)
        self.size_bytes += len(hashed_text(record))
        return record

    def _apply(self, record: dict[str, Any], log_record: dict[str, Any]) -> None:
        """Apply a record that the log has."""
        self.state = apply_note(behind_record(self.state, self.opened, record), log_record)

    def _next_decision(self, path: Path) -> Decide | None:
        """Return the next decision in a branch, or None if the branch waits or has ended."""
        branch = self.branch(path)
        watch = self._watches.get(path) or self._watches.setdefault(path, LoopWatch())
        is_waiting = branch is None or branch.status is not RunStatus.RUNNING
        if branch is None or is_waiting or path in self.opened or self.has_ended(path):
            watch.forget()
            return None
        if branch.fork is not None:
            return None if branch.fork.has_open else self._join
        return self._endless if watch.is_endless(branch) else self._ask

    def _ask(self, branch: RunState, now: Now) -> Transition:
        if branch.current_node not in self._spec.nodes:  # the log was written with another graph
            raise NodeMissingError("", repr(branch.current_node), self._spec.title)
        return call_node(self._spec, branch, self._context, now)

    def _join(self, branch: RunState, now: Now) -> Transition:
        return join_branches(self._spec, branch, at=now())

    @staticmethod
    def _endless(branch: RunState, now: Now) -> Transition:
        return fail_endless_loop(branch, at=now())
