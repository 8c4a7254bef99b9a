"""Random graphs: generated, compiled to nodes, and driven over stores, with pauses, cancels and crashes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors._kernel.workflow.stores import no_fault
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    RetryPolicy,
    StaleResumeError,
    StepPlan,
    WaitReason,
    WorkflowSpec,
    open_waits,
)
from tests.model.graphs import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.workflow import RunState, WaitState, WorkflowRuntime
    from tests.conformance.workflow.stores import Stores


class Death(BaseException):
    """The crash of a driver."""


@dataclass
class Weather:
    """The disturbances of a run.

    Attributes: steps: Nodes for each tick. dies: The crash is at this point of those of the driver
    and the store; 0: never. pauses: Whether it is paused and resumed between ticks. cancels: The
    tick after which it is cancelled; 0: never. written: Whether the program is ``written`` as flow
    documents, ``drawn`` as VisualFlow, or neither.
    """

    steps: int
    dies: int = 0
    pauses: bool = False
    cancels: int = 0
    written: str = ""


def program_of(
    rng: random.Random, depth: int = 3, length: int = 5, *, top: bool = True
) -> list[Any]:
    """Return a program of a few statements; `top`: with sub-graphs."""
    return [_statement(rng, depth, top) for _ in range(rng.randint(0, length))]


def _statement(rng: random.Random, depth: int, top: bool) -> Any:  # noqa: PLR0911
    kinds = ["add", "add", "work", "work", "wait", "wait", "emit"]
    if depth:
        kinds += ["loop", "switch", "sub", "par", "par"]
    kinds += ["end", "raise"] if rng.random() < 0.15 else []
    kind = rng.choice(kinds)
    if kind == "add":
        return (kind, rng.choice("ab"), rng.randint(1, 9))
    if kind == "work":
        fails = rng.choice([0, 0, 0, 0, 1, 1, 2, ATTEMPTS if rng.random() < 0.2 else 0])
        once = rng.random() < 0.3
        return (kind, 0 if once and rng.random() < 0.9 else fails, rng.randint(0, 99), once)
    if kind == "wait":
        reason = rng.choice(["user", "event", "until", "deadline"])
        return (kind, reason, "timer" if reason in {"until", "deadline"} else rng.randint(0, 99))
    if kind == "emit":
        return (kind, rng.randint(0, 1) if top else 0)
    if kind == "loop":
        return (kind, rng.randint(0, 3), program_of(rng, depth - 1, 3, top=top))
    if kind == "switch":
        ways = [program_of(rng, depth - 1, 2, top=top) for _ in range(rng.randint(1, 3))]
        return (kind, rng.choice("ab"), ways)
    if kind == "par":
        many = rng.choice([0, 2, 2, 3, 3, 4])
        blocks = [program_of(rng, depth - 1, 3, top=top) for _ in range(many)]
        return (kind, blocks)
    if kind == "sub":
        return (kind, program_of(rng, depth - 1, 3, top=False), rng.random() < 0.3)
    return (kind,)


def smaller(program: list[Any]) -> Iterator[list[Any]]:
    """Yield programs with one statement less, or with a smaller one."""
    for index, statement in enumerate(program):
        yield program[:index] + program[index + 1 :]
        kind, *words = statement
        if kind == "loop":
            yield program[:index] + words[1] + program[index + 1 :]
            for body in smaller(words[1]):
                yield [*program[:index], (kind, words[0], body), *program[index + 1 :]]
        elif kind == "sub":
            for body in smaller(words[0]):
                yield [*program[:index], (kind, body, words[1]), *program[index + 1 :]]
        elif kind == "par":
            for number, block in enumerate(words[0]):
                others = words[0][:number], words[0][number + 1 :]
                yield program[:index] + block + program[index + 1 :]
                yield [*program[:index], (kind, [*others[0], *others[1]]), *program[index + 1 :]]
                for body in smaller(block):
                    blocks = [*others[0], body, *others[1]]
                    yield [*program[:index], (kind, blocks), *program[index + 1 :]]
        elif kind == "switch":
            for number, way in enumerate(words[1]):
                for body in smaller(way):
                    ways = [*words[1][:number], body, *words[1][number + 1 :]]
                    yield [*program[:index], (kind, words[0], ways), *program[index + 1 :]]


@dataclass
class Compiled:
    """A program as graphs.

    Attributes: specs: By name; that of the program and those of its sub-graphs. ears: Names of
    events with a listener. answers: Of persons and events, by node. timeout_s: Of timers and
    deadlines. once: The nodes with an at-most-once effect. joins: The nodes that a program does not
    have: joins of branches that are drawn.
    """

    specs: dict[str, WorkflowSpec] = field(default_factory=dict)
    ears: list[str] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 500
    once: set[str] = field(default_factory=set)
    joins: set[str] = field(default_factory=set)

    def graph(self, name: str, program: list[Any]) -> WorkflowSpec:
        """Return the graph of a program, and store those of its sub-graphs."""
        nodes: dict[str, Any] = {"end": _end}
        entry = self._block(nodes, program, name, "end")
        self.specs[name] = WorkflowSpec(name, entry, nodes, {"a": summed})
        return self.specs[name]

    def _block(self, nodes: dict[str, Any], block: list[Any], path: str, after: str) -> str:
        for index in reversed(range(len(block))):
            node = f"{path}.{index}"
            nodes[node] = self._node(nodes, block[index], node, after)
            after = node
        return after

    def _node(self, nodes: dict[str, Any], statement: Any, node: str, after: str) -> Any:
        kind, *words = statement
        if kind == "add":
            return _adding(words[0], words[1], after)
        if kind == "end":
            return _ending(node)
        if kind == "raise":
            return _raising
        if kind == "loop":
            return _looping(words[0], self._block(nodes, words[1], f"{node}.body", node), after)
        if kind in {"par", "switch"}:
            ways = [
                self._block(nodes, way, f"{node}.{number}{kind[0]}", after)
                for number, way in enumerate(words[-1])
            ]
            return _forking(ways, after) if kind == "par" else _choosing(words[0], ways)
        return self._asking(kind, words, node, after)

    def _asking(self, kind: str, words: list[Any], node: str, after: str) -> Any:
        mode = EffectMode.IDEMPOTENT
        key = f"r.{node.replace('.', '_')}"
        payload: dict[str, Any] = {"node": node}
        if kind == "work":
            what = EffectType.LLM_CALL
            payload |= {"fails": words[0], "value": words[1]}
            mode = EffectMode.AT_MOST_ONCE if words[2] else mode
            self.once |= {node} if words[2] else set()
        elif kind == "wait":
            what, more = _waiting(words[0], node, self.timeout_s)
            payload |= more
            self.answers[node] = words[1]
        elif kind == "emit":
            what = EffectType.EMIT_EVENT
            payload |= {"name": node, "scope": "global"}
            if words[0]:
                self.ears.append(node)
        else:
            what = EffectType.START_SUBWORKFLOW
            child = self.graph(f"{node}s", words[0])
            payload |= {"workflow_id": child.workflow_id, "async": words[1]}
        return _requesting(what, payload, key=key, mode=mode, after=after)


def _end(run: RunState, _ctx: Any) -> StepPlan:
    names = ("a", "b", "r")
    return StepPlan(run.current_node, complete_output={name: run.vars[name] for name in names})


def summed(before: int, values: list[int]) -> int:
    """Return a number plus the increments of all branches."""
    return before + sum(value - before for value in values)


def _ending(path: str) -> Any:
    """Return the end of a program, or of the branch at a place; it drops the counts of its loops."""
    branch = path.rpartition("p.")[0]

    def node(run: RunState, ctx: Any) -> StepPlan:
        counts = run.vars["_temp"]
        for name in [count for count in counts if branch and count.startswith(f"{branch}p.")]:
            del counts[name]
        return _end(run, ctx)

    return node


def _raising(_run: RunState, _ctx: Any) -> StepPlan:
    raise ValueError("on purpose")


def _adding(name: str, amount: int, after: str) -> Any:
    def node(run: RunState, _ctx: Any) -> StepPlan:
        run.vars[name] += amount
        return StepPlan(run.current_node, next_node=after)

    return node


def _looping(times: int, body: str, after: str) -> Any:
    def node(run: RunState, _ctx: Any) -> StepPlan:
        counts = run.vars["_temp"]
        done = counts.get(run.current_node, 0)
        if done == times:
            counts.pop(run.current_node, None)
            return StepPlan(run.current_node, next_node=after)
        counts[run.current_node] = done + 1
        return StepPlan(run.current_node, next_node=body)

    return node


def _choosing(name: str, ways: list[str]) -> Any:
    return lambda run, _ctx: StepPlan(run.current_node, next_node=ways[run.vars[name] % len(ways)])


def _forking(ways: list[str], after: str) -> Any:
    parallel = {str(number): way for number, way in enumerate(ways)}
    return lambda run, _ctx: StepPlan(run.current_node, next_node=after, parallel=parallel)


def _waiting(reason: str, node: str, timeout_s: float) -> tuple[EffectType, dict[str, Any]]:
    if reason == "user":
        return EffectType.ASK_USER, {"prompt": "?", "wait_key": node}
    if reason == "until":
        return EffectType.WAIT_UNTIL, {"timeout_s": timeout_s}
    more = {"timeout_s": timeout_s} if reason == "deadline" else {}
    return EffectType.WAIT_EVENT, {"wait_key": node} | more


def _requesting(
    what: EffectType, payload: dict[str, Any], *, key: str, mode: EffectMode, after: str
) -> Any:
    def node(run: RunState, _ctx: Any) -> StepPlan:
        effect_payload = dict(payload)
        if what is EffectType.START_SUBWORKFLOW:
            effect_payload["vars"] = {"a": run.vars["a"], "b": 1, "r": {}}
        return StepPlan(run.current_node, Effect(what, effect_payload, key, mode), next_node=after)

    return node


def ear_of(name: str) -> WorkflowSpec:
    """Return a graph that waits for an event."""
    payload = {"name": name, "scope": "global"}
    node = _requesting(
        EffectType.WAIT_EVENT, payload, key="e", mode=EffectMode.IDEMPOTENT, after="end"
    )
    end = lambda run, _ctx: StepPlan("end", complete_output=run.vars["e"]["name"])  # noqa: E731
    return WorkflowSpec(f"ear {name}", "hear", {"hear": node, "end": end})


def decision_of(wait: WaitState, executed: set[str]) -> dict[str, Any]:
    """Return what happened to the effect in doubt for which a run waits, as the decision on it.

    Args: executed: The idempotency keys with which the handler was called.
    """
    details = wait.details or {}
    payload = details["effect"]["payload"]
    if details["idempotency_key"] not in executed:
        return {"execute": True}
    return {"error": "no luck"} if payload["fails"] else {"result": payload["value"]}


class World:
    """The effects on the outside world, and the driver that causes them.

    Attributes: died_at: The point of the crash. doubts: How often a decision was given on an effect
    in doubt; it is what happened.

    Args: stores: Stores of the runs. compiled: The graphs. weather: The disturbances.
    """

    def __init__(self, stores: Stores, compiled: Compiled, weather: Weather) -> None:
        self.executions: list[tuple[str, str, int]] = []
        self.executed: set[str] = set()
        self.died_at, self.doubts = "", 0
        self._stores, self.compiled, self._weather = stores, compiled, weather
        self._left, self._ticks = weather.dies, 0
        self._runtime = self._opened(self._fault if weather.dies else no_fault)

    def run(self, name: str, run_id: str = "main") -> None:
        """Start the graph of this name as this run, and drive all runs to their ends."""
        for ear in self.compiled.ears:
            spec = ear_of(ear)
            self.compiled.specs[f"ear {ear}"] = spec
        self._surviving(self._ears)
        variables = {"a": 0, "b": 1, "r": {}}
        spec = self.compiled.specs[name]
        self._surviving(lambda: self._runtime.start(spec, run_id=run_id, vars=variables))
        while (run := self._next()) is not None:
            self._ticks += 1
            if self._ticks == self._weather.cancels:
                self._surviving(lambda: self._runtime.cancel_run("main", "enough"))
            elif self._weather.pauses and self._ticks % 2:
                self._surviving(lambda run=run: self._runtime.pause_run(run.run_id))  # type: ignore[misc]
                self._surviving(lambda run=run: self._drive(run))  # type: ignore[misc]
                self._surviving(lambda run=run: self._runtime.resume_run(run.run_id))  # type: ignore[misc]
            else:
                self._surviving(lambda run=run: self._drive(run))  # type: ignore[misc]
            assert self._ticks < 3000, "it does not end"

    def _ears(self) -> None:
        for ear in self.compiled.ears:
            spec, run_id = self.compiled.specs[f"ear {ear}"], f"ear-{ear.replace('.', '-')}"
            self._runtime.start(spec, run_id=run_id)
            self._runtime.tick(spec, run_id)

    def _next(self) -> RunState | None:
        """Return a run that can continue: the deepest of those that wait for each other."""
        runs = [run for run in self._stores.runs.list_runs(limit=999) if not run.status.is_terminal]
        able = [
            run for run in runs if not run.workflow_id.startswith("ear ") or run.status == "running"
        ]
        return max(able, key=lambda run: (len(run.workflow_id), run.run_id), default=None)

    def _drive(self, run: RunState) -> None:
        spec = self.compiled.specs[run.workflow_id]
        waits = open_waits(run) if run.status == "waiting" else []
        wait = waits[self._ticks % len(waits)] if waits else None
        if wait is None or wait.reason is WaitReason.SUBWORKFLOW:
            self._runtime.tick(spec, run.run_id, self._weather.steps)
        elif wait.until is not None:
            self._stores.clock.advance(501)
            self._runtime.tick(spec, run.run_id, self._weather.steps)
        else:
            if str(wait.wait_key).startswith("in_doubt:"):
                self.doubts += 1
                answer = decision_of(wait, self.executed)
            else:
                answer = self.compiled.answers[str(wait.wait_key)]
            try:
                self._runtime.resume(spec, run.run_id, wait.wait_key, answer, self._weather.steps)
            except StaleResumeError:
                self._runtime.tick(spec, run.run_id, self._weather.steps)

    def _surviving(self, work: Callable[[], object]) -> None:
        """Call a function; if the driver crashes, call it again with a new one."""
        try:
            work()
        except Death:
            self._stores = self._stores.reopen()
            self._runtime = self._opened(no_fault)
            work()

    def _fault(self, point: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.died_at = point
            raise Death

    def _handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        trace = effect.payload["params"]["trace_metadata"]
        attempt = trace["attempt"]
        self.executed.add(trace["effect_idempotency_key"])
        self.executions.append((run.run_id, effect.payload["node"], attempt))
        if attempt <= effect.payload["fails"]:
            return EffectOutcome.failed("no luck")
        return EffectOutcome.completed(effect.payload["value"])

    def _opened(self, fault: Callable[[str], None]) -> WorkflowRuntime:
        return self._stores.runtime(
            *self.compiled.specs.values(),
            effect_handlers={EffectType.LLM_CALL: self._handle},
            effect_policy=RetryPolicy(llm_max_attempts=ATTEMPTS),
            fault=fault,
        )
