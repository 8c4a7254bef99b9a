"""A program of graphs that crashes at each of its persistence points in turn, and is started again.

`python -m tests.system.workflow.dying_graphs KIND FOLDER` prints a JSON line for each point: the
state that the second process found, and its outcome. Each of the two is a process of its own,
forked from this one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    RunStatus,
    StaleResumeError,
    StepPlan,
    WorkflowSpec,
)
from tests.conformance.workflow.stores import Stores, effect_then, end_node, one_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.workflow import RunState


def begin(run: RunState, _ctx: Any) -> StepPlan:
    """Move on."""
    run.vars["begun"] = run.vars.get("begun", 0) + 1
    return StepPlan("begin", next_node="pay")


def once(run: RunState, _ctx: Any) -> StepPlan:
    """Request an at-most-once effect."""
    effect = Effect(EffectType.LLM_CALL, {"n": 2}, "once", EffectMode.AT_MOST_ONCE)
    return StepPlan(run.current_node, effect, next_node="split")


def split(_run: RunState, _ctx: Any) -> StepPlan:
    """Start two branches."""
    return StepPlan("split", next_node="ask", parallel={"l": "left", "r": "right"})


CHILD = one_effect(EffectType.TOOL_CALLS, {"n": 3}, name="child")
EAR = one_effect(EffectType.WAIT_EVENT, {"name": "paid", "scope": "global"}, name="ear")
MAIN = WorkflowSpec(
    "main",
    "begin",
    {
        "begin": begin,
        "pay": effect_then(EffectType.TOOL_CALLS, {"n": 1}, key="paid", after="once"),
        "once": once,
        "split": split,
        "left": effect_then(EffectType.TOOL_CALLS, {"n": 4}, key="did.l", after="ask"),
        "right": effect_then(EffectType.TOOL_CALLS, {"n": 5}, key="did.r", after="ask"),
        "ask": effect_then(
            EffectType.ASK_USER, {"prompt": "?", "wait_key": "k"}, key="answer", after="sub"
        ),
        "sub": effect_then(
            EffectType.START_SUBWORKFLOW, {"workflow_id": "child"}, key="sub", after="tell"
        ),
        "tell": effect_then(
            EffectType.EMIT_EVENT, {"name": "paid", "scope": "global"}, key="told", after="end"
        ),
        "end": end_node,
    },
)


def program(
    kind: str,
    folder: Path,
    fault: Callable[[str], None],
    *,
    prepare: Callable[[Stores], None] = lambda _stores: None,
) -> Stores:
    """Execute all effects, or the remaining ones; `prepare` gets the stores before."""

    def handler(run: RunState, effect: Effect) -> EffectOutcome:
        line = f"{run.run_id} {effect.payload['n']} {effect.mode}\n".encode()
        world = os.open(folder / "world", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(world, line)
        os.close(world)
        return EffectOutcome.completed({"n": effect.payload["n"]})

    stores = Stores(kind, folder, fault)
    prepare(stores)
    kinds = (EffectType.TOOL_CALLS, EffectType.LLM_CALL)
    runtime = stores.runtime(
        MAIN, CHILD, EAR, effect_handlers=dict.fromkeys(kinds, handler), fault=fault
    )
    runtime.start(EAR, run_id="ear")
    runtime.tick(EAR, "ear")
    runtime.start(MAIN, run_id="main")
    state = runtime.tick(MAIN, "main")
    if state.waiting is not None and str(state.waiting.wait_key).startswith("in_doubt:"):
        happened = "main 2 at_most_once" in world_of(folder)
        decision = {"result": {"n": 2}} if happened else {"execute": True}
        state = runtime.resume(MAIN, "main", state.waiting.wait_key, decision)
    if state.waiting is not None and state.waiting.wait_key == "k":
        try:
            runtime.resume(MAIN, "main", "k", "yes")
        except StaleResumeError:
            runtime.tick(MAIN, "main")
    runtime.tick(EAR, "ear")
    return stores


def world_of(folder: Path) -> list[str]:
    """Return the effects that were executed, a line for each."""
    world = folder / "world"
    return world.read_text(encoding="utf-8").split("\n")[:-1] if world.exists() else []


def state_of(stores: Stores) -> dict[str, Any]:
    """Return the present state."""
    runs = stores.runs.list_runs(limit=99)
    return {
        "world": world_of(stores.folder),
        "runs": {run.run_id: run.to_dict() for run in runs},
        "ledgers": {run.run_id: stores.ledger.list(run.run_id) for run in runs},
        "running": [run.run_id for run in runs if run.status is RunStatus.RUNNING],
    }


def forked(work: Callable[[], None]) -> int:
    """Call a function in a process of its own; return its exit status, as `os.waitpid` gives it."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001 - told by the exit code
            print(f"{type(exc).__name__}: {exc}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


class Points:
    """A hook that counts, and crashes at one of the points."""

    def __init__(self, last: int | None = None) -> None:
        self.seen: list[str] = []
        self.last = last

    def __call__(self, point: str) -> None:
        """Count, and crash if this is the chosen one."""
        self.seen.append(point)
        if len(self.seen) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(kind: str, folder: Path) -> None:
    """Print a line for each point."""
    counted = folder / "counted"

    def count() -> None:
        (folder / "0").mkdir()
        points = Points()
        program(kind, folder / "0", points)
        counted.write_text(json.dumps(points.seen), encoding="utf-8")

    assert forked(count) == 0
    for number, point in enumerate(json.loads(counted.read_text(encoding="utf-8")), 1):
        run_folder = folder / str(number)
        run_folder.mkdir()
        first = forked(lambda path=run_folder, n=number: _done(kind, path, Points(n)))  # type: ignore[misc]
        assert first == signal.SIGKILL, first
        second = forked(lambda path=run_folder: _done(kind, path, Points(), tell=True))  # type: ignore[misc]
        assert second == 0, (number, point)
        outcome = json.loads((run_folder / "told").read_text(encoding="utf-8"))
        line = json.dumps({"number": number, "point": point, **outcome})
        print(line, flush=True)  # noqa: T201


def _done(kind: str, folder: Path, fault: Points, *, tell: bool = False) -> None:
    stores = program(kind, folder, fault)
    if tell:
        (folder / "told").write_text(json.dumps(state_of(stores)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
