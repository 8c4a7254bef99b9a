"""A run on its graph: the states of nodes at a step, the path to the step, and pending waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from actors.kernel.workflow.effects import RunStatus, WaitReason, WaitState
from actors.kernel.workflow.run_state import GraphFork, RunState
from actors.workflow.machine.branches import Path, leaves, seen_at
from actors.workflow.machine.variables import NAMESPACES
from compose.web.pages.graphs.drawing import Edge, GraphMarks
from compose.web.pages.graphs.flow_shelf import ShownFlow
from compose.web.pages.graphs.graph_steps import LedgerStep
from compose.web.pages.graphs.node_facts import NodeFacts

NOT_REACHED: Final = "not reached"
OUTSIDE: Final = (WaitReason.USER, WaitReason.EVENT, WaitReason.JOB)
"""Reasons of waits that an answer from outside the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The state of a node at a step of a run.

    Attributes:
        name: The node's name.
        facts: Facts of the node's code; None if the graph no longer has the node.
        word: now, waiting, failed, cancelled, done, or not reached.
        count: How often the node has completed a step.
        until: The instant at which its wait ends.
        runs: The ids of the runs of sub-graphs that it has started, in their order.
    """

    name: str
    facts: NodeFacts | None
    word: str
    count: int
    until: str = ""
    runs: tuple[str, ...] = ()

    @property
    def class_(self) -> str:
        """The CSS class of the state in the drawing."""
        return self.word.replace(" ", "-")

    @property
    def told(self) -> str:
        """The state in words."""
        times = f" \N{MULTIPLICATION SIGN}{self.count}" if self.count > 1 else ""
        if self.word == "done" or not self.count:
            return f"{self.word}{times}"
        return f"{self.word}, done{times}"


@dataclass(slots=True)
class GraphPath:
    """The path of a run up to a step: completed steps per node, and moves, in their order."""

    counts: Counter[str] = field(default_factory=Counter)
    edges: dict[Edge, int] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[LedgerStep]) -> GraphPath:
        """Return the path of these steps."""
        path = cls()
        for step in steps:
            path.take(step)
        return path

    def take(self, step: LedgerStep) -> None:
        """Add a step."""
        node, delta = step.record["node_id"], step.delta
        if step.ends_a_step:
            self.counts[node] += 1
        if "joined" in delta or "seq" not in delta:
            return
        fork = delta.get("fork") or {"branches": []}
        for target in [delta.get("node"), *(one for _, one in fork["branches"])]:
            if target:
                self.edges[node, target] = self.edges.get((node, target), 0) + 1


def node_states(
    flow: ShownFlow | None, path: GraphPath, run: RunState | None, below: Mapping[str, str]
) -> tuple[NodeState, ...]:
    """Return the states of all nodes, the graph's nodes first.

    Args:
        flow: The graph; None if this process no longer has it.
        path: The run's path up to the step.
        run: The run's state after that step; None if the run has not started.
        below: The nodes that have started runs of sub-graphs, by the run's id.
    """
    started: defaultdict[str, list[str]] = defaultdict(list)
    for run_id, node in below.items():
        started[node].append(run_id)
    now = {} if run is None else _present(run)
    facts = {} if flow is None else {one.name: one for one in flow.nodes}
    names = dict.fromkeys([*facts, *path.counts, *now])
    found = []
    for name in names:
        word, until = now.get(name, ("", ""))
        count = path.counts[name]
        word = word or ("done" if count else NOT_REACHED)
        found.append(
            NodeState(
                name=name,
                facts=facts.get(name),
                word=word,
                count=count,
                until=until,
                runs=tuple(started[name]),
            )
        )
    return tuple(found)


def marks_of(
    flow: ShownFlow, states: Sequence[NodeState], path: GraphPath, *, runs_at: str
) -> GraphMarks:
    """Return the marks of a run for the drawing of its graph. `runs_at` is the address of pages of runs."""
    return GraphMarks(
        classes={one.name: one.class_ for one in states},
        notes={one.name: one.told for one in states},
        taken=frozenset(path.edges),
        seen=[one for one in path.edges if one not in flow.edges],
        links={one.name: f"{runs_at}/{quote(one.runs[-1])}" for one in states if one.runs},
    )


def _present(run: RunState) -> dict[str, tuple[str, str]]:
    """Return the state of each node at which the run, or a branch, is now: a word, and a wait's end."""
    if run.status is RunStatus.COMPLETED:
        return {}
    found: dict[str, tuple[str, str]] = {}
    if run.fork is not None:
        found = dict.fromkeys(_failed(run.fork), ("failed", ""))
    if run.status.is_terminal:
        own = {run.current_node: (run.status.value, "")} if run.current_node else {}
        return found or own
    for leaf in leaves(run):
        seen = seen_at(run, leaf.path)
        if seen is not None and seen.current_node:
            node = seen.fork.join if leaf.joins and seen.fork is not None else seen.current_node
            wait = leaf.wait
            found[node] = ("now", "") if wait is None else ("waiting", wait.until or "")
    return found


def _failed(fork: GraphFork) -> list[str]:
    found: list[str] = []
    for one in fork.branches:
        if one.fork is not None:
            found += _failed(one.fork)
        elif one.status is RunStatus.FAILED:
            found.append(one.node)
    return found


def public_vars(variables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flow's own vars, and the runtime's. Empty namespaces of the runtime are left out."""
    own = {
        key: one for key, one in variables.items() if key not in NAMESPACES or _is_used(key, one)
    }
    return own, {key: one for key, one in variables.items() if key not in own and one}


def _is_used(key: str, value: Any) -> bool:
    return not key.startswith("_") and bool(value)


def sub_runs(steps: Iterable[LedgerStep]) -> dict[str, str]:
    """Return the ids of the runs that these steps started, in their order, each with the node of the step."""
    found: dict[str, str] = {}
    for step in steps:
        result = step.record.get("result")
        if isinstance(result, dict):
            wait = result.get("wait")
            details = (wait.get("details") if isinstance(wait, dict) else None) or {}
            for told in (result, details):
                if isinstance(id_ := told.get("sub_run_id"), str) and "agent" not in told:
                    found.setdefault(id_, step.record["node_id"])
    return found


def wait_of_branch(path: Path) -> str:
    """Return the names of the branches on the path to a branch."""
    return ", ".join(one.partition(".")[2] for one in path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWait:
    """A pending wait of a run.

    Attributes:
        wait: The wait.
        node: The node that waits.
        branch: The branch that waits; empty if the run has no branches there.
        takes_answer: True if an answer from outside ends the wait and is accepted now.
        is_unsettled: True if the wait is not open yet, or has an answer that the run has not read yet.
    """

    wait: WaitState
    node: str
    branch: str
    takes_answer: bool
    is_unsettled: bool


def shown_waits(run: RunState, open_: Sequence[WaitState]) -> list[ShownWait]:
    """Return the pending waits of a run.

    Args:
        run: The run.
        open_: The run's waits that accept an answer now.
    """
    keys = {one.wait_key for one in open_}
    found = []
    for leaf in leaves(run):
        seen = seen_at(run, leaf.path)
        if leaf.wait is None or seen is None:
            continue
        is_outside, is_open = leaf.wait.reason in OUTSIDE, leaf.wait.wait_key in keys
        one = ShownWait(
            wait=leaf.wait,
            node=seen.current_node,
            branch=wait_of_branch(leaf.path),
            takes_answer=is_outside and is_open,
            is_unsettled=is_outside and not is_open,
        )
        found.append(one)
    return found
