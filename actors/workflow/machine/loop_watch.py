"""A watch for loops of nodes that can have no end."""

from __future__ import annotations

from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.records import Transition, failed
from actors.workflow.machine.variables import BRANCH, RUNTIME, namespace

BEGIN = 64


class LoopWatch:
    """A memory of one state of a run of pure steps, a later one each time twice as many are done (Brent's way).

    A node that comes again with the same vars, and no effect between, does the same for ever.
    """

    def __init__(self) -> None:
        self._steps, self._next = 0, BEGIN
        self._seen: tuple[object, ...] | None = None

    def is_endless(self, state: RunState) -> bool:
        """Return whether this state was there before; called behind each pure step."""
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
        """Start again: something happened that may be another the next time."""
        self._steps, self._next, self._seen = 0, BEGIN, None

    def _picture(self, state: RunState) -> tuple[object, ...]:
        own = {name: value for name, value in state.vars.items() if name != RUNTIME}
        branch = namespace(state.vars, RUNTIME).get(BRANCH)
        return state.current_node, state.status, branch, own


def endless(state: RunState, *, at: str) -> Transition:
    """Decide on a run that goes round for ever: it fails."""
    problem = (
        f"node {state.current_node!r} comes again with the same vars and without an effect: "
        "an endless loop"
    )
    return failed(state, problem, at=at)
