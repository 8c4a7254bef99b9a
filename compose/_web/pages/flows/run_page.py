"""The page of a flow run: its drawing, one step, its waits, and its ledger.

A step is a record of the run's ledger, with the run's state before and after it. The drawing has the states of
nodes at the step, the path to the step, and pending waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.flows import SnapshotFilter
from actors._kernel.workflow.effects import RunStatus, WaitReason, WaitState
from actors._kernel.workflow.errors import NoSuchRunError
from actors._kernel.workflow.run_state import GraphFork, RunState
from actors._kernel.workflow.step_record import verify_ledger_chain
from actors._runtime.runtime import Runtime
from actors._workflow.hosted.ledger_feed import BEGIN, LedgerPlace, begin_of_generation, flow_of
from actors._workflow.hosted.step_entry import Folded
from actors._workflow.machine.branches import Path, find_branch_state, leaves
from actors._workflow.machine.records import is_paused
from actors._workflow.machine.variables import LIMITS, NAMESPACES, RUNTIME, changes
from compose._web.endpoint import Endpoints, StrictModel, WebCall, thing_of_run
from compose._web.flows.flows import flows_of, installed_spec
from compose._web.flows.runs import flow_run_of, graph_run, state_and_waits
from compose._web.pages.flows.drawing import Edge, GraphMarks, NodeFacts, svg_of
from compose._web.pages.flows.evidence import shown_evidence
from compose._web.pages.flows.flows import ShownFlow, shelf_of
from compose._web.pages.html import PageEndpoint, page
from compose._web.resources.access import changes_of
from compose._web.resources.events import parse_log_place

endpoint: Final = Endpoints(PageEndpoint)

_MOST_ABOVE: Final = 16
_LISTED: Final = 20
"""Maximum number of snapshots that are listed."""
_AROUND: Final = 60
"""Maximum number of records of the ledger that are listed before, and after, the shown record."""
WHOLE: Final = 2_000
"""A log of up to this many entries is read whole; of a longer one, a part between ``run.continued`` entries."""
_OWN: Final = (RUNTIME, LIMITS)
NOT_REACHED: Final = "not reached"
OUTSIDE: Final = (WaitReason.USER, WaitReason.EVENT, WaitReason.JOB)
"""Reasons of waits that an answer from outside the run ends."""


class StepQuery(StrictModel):
    """The query of a run's page: the position in the log of the step to show; by default the current state."""

    step: str | None = None


@endpoint.get("/graph-runs/{graph_run}", scope="flows:run")
async def show_graph_run(call: WebCall, query: StepQuery) -> Response:
    """Return the page of a run.

    The current state is read last. The page therefore receives later records as events and misses none.
    """
    row = await graph_run(call)
    position = None
    if query.step is not None:
        position = LedgerPlace(*parse_log_place(query.step, f"run {row.run_id}"))
    part = await read_part(call.runtime, row, position)
    state, pending_waits = await state_and_waits(call, row)
    flow = await _flow_view(call, row)
    values = _step_values(part, position, flow, state)
    svg = None
    if flow is not None and flow.layout is not None:
        base = str(call.request.scope.get("root_path", ""))
        marks = marks_of(flow, values["nodes"], values["path"], runs_at=f"{base}/graph-runs")
        title = "Drawing of the run on its flow; the list of nodes has the same content"
        svg = svg_of(flow.layout, marks, title=title)
    snapshot_filter = SnapshotFilter(apps=[row.agent_id.type], run=row.run_id)
    snapshot_store = call.runtime.store.data.run_snapshots
    return page(
        call.request,
        "flows/run.html",
        row=row,
        app=row.agent_id.type,
        flow_name=flow_of(row),
        flow=flow,
        state=state,
        part=part,
        chain=part.chain(),
        waits=shown_waits(state, pending_waits),
        is_paused=is_paused(state),
        may_operate="flows:operate" in call.principal.scopes,
        cursor=_cursor(row, part),
        children=sub_runs(part.steps),
        evidence=shown_evidence(call, row, state),
        above=await _parent_runs(call, row),
        snapshots=await snapshot_store.list(call.principal.tenant, snapshot_filter, limit=_LISTED),
        most_snapshots=_LISTED,
        svg=svg,
        **values,
        **await changes_of(call, thing_of_run(row.run_id)),
    )


async def _flow_view(call: WebCall, row: RunRow) -> ShownFlow | None:
    """Return the flow of a run; None if this process no longer has it."""
    app, flow = row.agent_id.type, flow_of(row)
    app_flows = flows_of(call.runtime).get(app)
    if app_flows is not None:
        return await shelf_of(call).find_served(app_flows, flow)
    spec = await installed_spec(call, flow)
    return None if spec is None else await shelf_of(call).find_installed(spec)


def _step_values(
    part: LedgerPart, position: LedgerPlace | None, flow: ShownFlow | None, state: RunState
) -> dict[str, Any]:
    """Return the values of one step and of the steps around it, for the template."""
    steps = part.steps
    index = len(steps) - 1
    if position is not None:
        index = max(0, bisect_right(steps, position, key=lambda s: s.position) - 1)
    is_present = position is None or (index == len(steps) - 1 and part.later is None)
    run = state if is_present or not steps else steps[index].after
    path = GraphPath.of(steps[: index + 1])
    nodes = node_states(flow, path, run, sub_runs(steps[: index + 1]))
    step = steps[index] if steps else None
    own_vars, runtime_vars = public_vars(
        run.vars if step is None or position is None else step.vars
    )
    low, high = max(0, index - _AROUND), index + _AROUND + 1
    return {
        "nodes": nodes,
        "path": path,
        "dashed": flow is not None and not flow.edges.issuperset(path.edges),
        "step": step,
        "index": index,
        "is_present": is_present,
        "listed": [*enumerate(steps)][low:high],
        "vars": own_vars,
        "runtime_vars": runtime_vars,
    }


async def _parent_runs(call: WebCall, row: RunRow) -> list[tuple[str, str]]:
    """Return flow and id of the runs of flows above a run, the highest first."""
    parents: list[tuple[str, str]] = []
    while row.parent is not None and len(parents) < _MOST_ABOVE:
        try:
            row = await flow_run_of(call, row.parent)
        except NoSuchRunError:  # an agent's run, or a run of an app that is not served here
            break
        parents.insert(0, (flow_of(row), row.run_id))
    return parents


def _cursor(row: RunRow, part: LedgerPart) -> str:
    """Return the cursor after which the page receives new records; empty if there are no records yet."""
    if part.later is not None:
        return f"{row.last_seq}.0"
    last = part.steps[-1].position if part.steps else BEGIN
    return "" if last == BEGIN else str(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStep:
    """A record of the ledger.

    Attributes:
        position: The record's position in the log.
        record: The complete step record, in the form of the ledger.
        before: The run's state before the record; None if the record starts the run.
        after: The run's state after the record.
    """

    position: LedgerPlace
    record: dict[str, Any]
    before: RunState | None
    after: RunState

    @property
    def delta(self) -> dict[str, Any]:
        """The change of the run's state."""
        return self.record.get("delta") or {}

    @property
    def effect(self) -> str:
        """The type of the record's effect; empty if it has none."""
        return str((self.record.get("effect") or {}).get("type") or "")

    @property
    def is_start(self) -> bool:
        """True if the record starts the run."""
        return "start" in self.delta

    @property
    def ends_a_step(self) -> bool:
        """True if the record completes a node's step."""
        is_move = "seq" in self.delta and "joined" not in self.delta
        return is_move and self.record["status"] == "completed"

    @property
    def vars(self) -> dict[str, Any]:
        """The vars after the record, as its branch sees them."""
        return _branch_vars(self.after, self.delta)

    def changed_vars(self) -> list[tuple[str, bool, Any, bool, Any]]:
        """Return the changed vars: path, and whether the path existed before and after, with which values."""
        before = {} if self.before is None else _branch_vars(self.before, self.delta)
        return [
            (".".join(path), _has(before, path), _value_at(before, path), is_there, value)
            for path, value, is_there in changes(before, self.vars)
            if path[0] not in _OWN
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """Consecutive steps of a run.

    Attributes:
        steps: The steps.
        prior: The entry before the part; None if the part starts the run.
        later: The entry after the part; None if the part has the run's last step.
    """

    steps: tuple[LedgerStep, ...]
    prior: int | None
    later: int | None

    def chain(self) -> tuple[bool, int | None]:
        """Return whether the records' hash chain is intact, and the index of the first bad record, from 0."""
        report = verify_ledger_chain([step.record for step in self.steps])
        # The record before a part is not read, so the first one has nothing to compare with.
        bad_indices = [
            error["index"]
            for error in report["errors"]
            if self.prior is None or error["index"] > 0 or error["type"] != "prev_hash_mismatch"
        ]
        return not bad_indices, bad_indices[0] if bad_indices else None


async def read_part(runtime: Runtime, row: RunRow, position: LedgerPlace | None) -> LedgerPart:
    """Return all steps of a run, or of a long run the part around a position; by default its end.

    Raises:
        RunSweptError: The run's log was deleted.
    """
    if row.last_seq < WHOLE:
        return await _read(runtime, row.run_id, 0, is_long=False)
    seq = row.last_seq if position is None else min(position.seq, row.last_seq)
    part = await _read_generation(runtime, row.run_id, seq)
    if not part.steps and part.prior is not None:  # the generation has no step yet
        part = replace(await _read_generation(runtime, row.run_id, part.prior), later=None)
    return part


async def _read_generation(runtime: Runtime, run_id: RunId, seq: int) -> LedgerPart:
    begin = await begin_of_generation(runtime, run_id, seq)
    return await _read(runtime, run_id, begin, is_long=True)


async def _read(runtime: Runtime, run_id: RunId, begin: int, *, is_long: bool) -> LedgerPart:
    """Return the steps from an entry on; of a long run up to the next ``run.continued``."""
    fold, steps, later = Folded(), list[LedgerStep](), None
    async for entry in runtime.entries(run_id, from_seq=begin):
        if is_long and entry.seq > begin and entry.kind == K.RUN_CONTINUED:
            later = entry.seq
            break
        before = fold.state
        for n, record in enumerate(fold.fold(entry)):
            assert fold.state is not None
            position, after = LedgerPlace(entry.seq, n), fold.state
            steps.append(LedgerStep(position=position, record=record, before=before, after=after))
            before = after
    return LedgerPart(steps=tuple(steps), prior=begin - 1 if begin else None, later=later)


def _branch_vars(state: RunState, delta: dict[str, Any]) -> dict[str, Any]:
    return (find_branch_state(state, tuple(delta.get("branch") or ())) or state).vars


def _value_at(variables: dict[str, Any], path: list[str]) -> Any:
    value: Any = variables
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _has(variables: dict[str, Any], path: list[str]) -> bool:
    *parent_path, last = path
    parent = _value_at(variables, parent_path)
    return isinstance(parent, dict) and last in parent


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
    def label(self) -> str:
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
        node_id, delta = step.record["node_id"], step.delta
        if step.ends_a_step:
            self.counts[node_id] += 1
        if "joined" in delta or "seq" not in delta:
            return
        fork = delta.get("fork") or {"branches": []}
        for target in [delta.get("node"), *(name for _, name in fork["branches"])]:
            if target:
                self.edges[node_id, target] = self.edges.get((node_id, target), 0) + 1


def node_states(
    flow: ShownFlow | None, path: GraphPath, run: RunState | None, node_by_run: Mapping[str, str]
) -> tuple[NodeState, ...]:
    """Return the states of all nodes, the graph's nodes first.

    Args:
        flow: The graph; None if this process no longer has it.
        path: The run's path up to the step.
        run: The run's state after that step; None if the run has not started.
        node_by_run: The nodes that have started runs of sub-graphs, by the run's id.
    """
    runs_by_node: defaultdict[str, list[str]] = defaultdict(list)
    for run_id, node in node_by_run.items():
        runs_by_node[node].append(run_id)
    present_states = {} if run is None else _present_states(run)
    facts = {} if flow is None else {node.name: node for node in flow.nodes}
    names = dict.fromkeys([*facts, *path.counts, *present_states])
    states = []
    for name in names:
        word, until = present_states.get(name, ("", ""))
        count = path.counts[name]
        word = word or ("done" if count else NOT_REACHED)
        states.append(
            NodeState(
                name=name,
                facts=facts.get(name),
                word=word,
                count=count,
                until=until,
                runs=tuple(runs_by_node[name]),
            )
        )
    return tuple(states)


def marks_of(
    flow: ShownFlow, states: Sequence[NodeState], path: GraphPath, *, runs_at: str
) -> GraphMarks:
    """Return the marks of a run for the drawing of its graph. `runs_at` is the address of pages of runs."""
    return GraphMarks(
        classes={state.name: state.class_ for state in states},
        notes={state.name: state.label for state in states},
        taken_edges=frozenset(path.edges),
        unnamed_edges=[edge for edge in path.edges if edge not in flow.edges],
        links={state.name: f"{runs_at}/{quote(state.runs[-1])}" for state in states if state.runs},
    )


def _present_states(run: RunState) -> dict[str, tuple[str, str]]:
    """Return the state of each node at which the run, or a branch, is now: a word, and a wait's end."""
    if run.status is RunStatus.COMPLETED:
        return {}
    states_by_node: dict[str, tuple[str, str]] = {}
    if run.fork is not None:
        states_by_node = dict.fromkeys(_failed_nodes(run.fork), ("failed", ""))
    if run.status.is_terminal:
        end_state = {run.current_node: (run.status.value, "")} if run.current_node else {}
        return states_by_node or end_state
    for leaf in leaves(run):
        branch_state = find_branch_state(run, leaf.path)
        if branch_state is not None and branch_state.current_node:
            node = (
                branch_state.fork.join
                if leaf.joins and branch_state.fork is not None
                else branch_state.current_node
            )
            wait = leaf.wait
            states_by_node[node] = ("now", "") if wait is None else ("waiting", wait.until or "")
    return states_by_node


def _failed_nodes(fork: GraphFork) -> list[str]:
    nodes: list[str] = []
    for branch in fork.branches:
        if branch.fork is not None:
            nodes += _failed_nodes(branch.fork)
        elif branch.status is RunStatus.FAILED:
            nodes.append(branch.node)
    return nodes


def public_vars(variables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flow's own vars, and the runtime's. Empty namespaces of the runtime are left out."""
    own_vars = {
        key: value
        for key, value in variables.items()
        if key not in NAMESPACES or (value and not key.startswith("_"))
    }
    return own_vars, {
        key: value for key, value in variables.items() if key not in own_vars and value
    }


def sub_runs(steps: Iterable[LedgerStep]) -> dict[str, str]:
    """Return the ids of the runs that these steps started, in their order, each with the node of the step."""
    node_by_run: dict[str, str] = {}
    for step in steps:
        result = step.record.get("result")
        if isinstance(result, dict):
            wait = result.get("wait")
            details = (wait.get("details") if isinstance(wait, dict) else None) or {}
            for data in (result, details):
                # An agent's run that takes the place of a sub-graph's has no page of a graph.
                if isinstance(id_ := data.get("sub_run_id"), str) and "agent" not in data:
                    node_by_run.setdefault(id_, step.record["node_id"])
    return node_by_run


def wait_of_branch(path: Path) -> str:
    """Return the names of the branches on the path to a branch."""
    return ", ".join(part.partition(".")[2] for part in path)


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


def shown_waits(run: RunState, pending_waits: Sequence[WaitState]) -> list[ShownWait]:
    """Return the pending waits of a run.

    Args:
        run: The run.
        pending_waits: The run's waits that accept an answer now.
    """
    keys = {wait.wait_key for wait in pending_waits}
    waits = []
    for leaf in leaves(run):
        branch_state = find_branch_state(run, leaf.path)
        if leaf.wait is None or branch_state is None:
            continue
        is_outside, is_open = leaf.wait.reason in OUTSIDE, leaf.wait.wait_key in keys
        shown_wait = ShownWait(
            wait=leaf.wait,
            node=branch_state.current_node,
            branch=wait_of_branch(leaf.path),
            takes_answer=is_outside and is_open,
            is_unsettled=is_outside and not is_open,
        )
        waits.append(shown_wait)
    return waits
