"""Detection of endless loops of nodes."""

from __future__ import annotations

from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.records import Transition, failed
from actors.workflow.machine.variables import BRANCH, RUNTIME, namespace

BEGIN = 64


class LoopWatch:
    """A watch of the pure steps of a run for a state that comes again (Brent's algorithm).

    It keeps one state, and replaces it each time the number of steps has doubled. If a node is called again
    with the same vars and without an effect in between, the loop is endless.
    """

    def __init__(self) -> None:
        self._steps, self._next = 0, BEGIN
        self._seen: tuple[object, ...] | None = None

    def is_endless(self, state: RunState) -> bool:
        """Return True if the kept state comes again. Called after each pure step."""
        self._steps += 1
        if self._seen is None and self._steps < BEGIN:
            return False
        now = self._picture(state)
        if now == self._seen:
            return True
        if self._steps >= self._next:
            self._seen, self._next = now, self._next * 2
        return False

    def forget(self) -> None:
        """Start again, since an effect or a wait may change the next steps."""
        self._steps, self._next, self._seen = 0, BEGIN, None

    def _picture(self, state: RunState) -> tuple[object, ...]:
        own = {name: value for name, value in state.vars.items() if name != RUNTIME}
        branch = namespace(state.vars, RUNTIME).get(BRANCH)
        return state.current_node, state.status, branch, own


def endless(state: RunState, *, at: str) -> Transition:
    """Decide on a run in an endless loop: it fails."""
    problem = (
        f"node {state.current_node!r} is called again with the same vars and without an effect: "
        "an endless loop"
    )
    return failed(state, problem, at=at)
