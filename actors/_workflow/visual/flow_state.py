"""The state of a run of a drawn flow between its steps, as JSON data in ``vars["_temp"]["flow"]``.

It has the outputs of nodes, and frames: the loops, sequences and branches that contain the run's current node,
the innermost last.
"""

from __future__ import annotations

from typing import Any, Final

from actors._workflow.machine.variables import TEMP

FORK: Final = "parallel"

Frame = dict[str, Any]
"""The node and kind of a frame, and its progress. A loop has the `index` of its next pass."""


class FrameStack:
    """The frames of a run, and the counts of its limits. Both are stored in `data`, which is changed."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def _frames(self) -> list[Frame]:
        frames = self._data.get("frames") or {}
        return [frames[str(depth)] for depth in range(len(frames))]

    def _leave(self, depth: int) -> None:
        """Leave all frames at or below a depth."""
        frames = self._data.get("frames") or {}
        for above in range(depth, len(frames)):
            del frames[str(above)]

    def top(self) -> Frame | None:
        """Return the innermost frame, which may be changed, or None if there is no frame."""
        return next(reversed(self._frames()), None)

    def push(self, node_id: str, kind: str, **progress: Any) -> None:
        """Begin a frame. A frame of the same node in this branch is left first, with all frames within it."""
        frames = self._frames()
        for depth in reversed(range(len(frames))):
            if frames[depth]["kind"] == FORK:
                break
            if frames[depth]["node"] == node_id:
                self._leave(depth)
                break
        limits = self._data.get("limits", {})
        for name in [n for n, counter in limits.items() if node_id in counter["scope"]]:
            del limits[name]
        frames_data = self._data.setdefault("frames", {})
        frames_data[str(len(frames_data))] = {"node": node_id, "kind": kind, **progress}

    def pop(self) -> None:
        """Leave the innermost frame."""
        self._leave(len(self._frames()) - 1)

    def leave_branch(self) -> None:
        """Leave all frames that began in this branch."""
        frames = self._frames()
        forks = [depth for depth, frame in enumerate(frames) if frame["kind"] == FORK]
        self._leave(forks[-1] + 1 if forks else 0)

    def count(self, node_id: str, maximum: int) -> int | None:
        """Count a pass of a limit; return the count. At the limit return None and start the count again.

        A count belongs to the current passes of the loops that contain the limit.
        """
        scope = {frame["node"]: frame["index"] for frame in self._frames() if "index" in frame}
        limits = self._data.setdefault("limits", {})
        counter = limits.get(node_id) or {}
        passes = counter["count"] if counter.get("scope") == scope else 0
        is_reached = passes >= maximum
        limits[node_id] = {"scope": scope, "count": 0 if is_reached else passes + 1}
        return None if is_reached else passes + 1


FLOW: Final = "flow"
PLACE: Final = f"{TEMP}.{FLOW}"
_BY_NODE: Final = frozenset({"outputs", "results", "routes", "limits", "frames"})


def result_key_of(node_id: str) -> str:
    """Return the place of the result of a node's effect. Dots in the node's name do not nest."""
    return f"{PLACE}.results.{_escape(node_id)}"


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


# The text of this function is a part of the hash of each graph with branches: any change of it, even of a name,
# makes another graph, and snapshots of runs of the graph before are refused.
def in_turn(before: Any, values: list[Any]) -> Any:
    """Return the state after a join: the changes of the branches, applied one after the other, node by node.

    If several branches reached an end of the flow, the output of the first one is taken.
    """
    start: dict[str, Any] = before or {}
    found = dict(start)
    for value in values:
        for part in {**start, **value}:
            if part in _BY_NODE:
                old, new = start.get(part, {}), value.get(part, {})
                found[part] = _changed(old, new, found.get(part, {}))
            elif part != "ended" or "ended" not in found:
                old, new = ({part: one[part]} if part in one else {} for one in (start, value))
                found = _changed(old, new, found)
    return found


def _changed(
    before: dict[str, Any], after: dict[str, Any], target: dict[str, Any]
) -> dict[str, Any]:
    """Return `target` with the changes from `before` to `after`."""
    remaining = {
        name: value for name, value in target.items() if name in after or name not in before
    }
    new = {
        name: value
        for name, value in after.items()
        if name not in before or (type(before[name]), before[name]) != (type(value), value)
    }
    return remaining | new


class FlowState:
    """The state of a run, as a node reads it. `variables` is a copy of the run's vars, and is changed."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._vars = variables
        self._data: dict[str, Any] = variables.setdefault(TEMP, {}).setdefault(FLOW, {})

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._data.setdefault(name, {})
        return part

    @property
    def frames(self) -> FrameStack:
        """The loops, sequences and branches that contain the run's current node."""
        return FrameStack(self._data)

    @property
    def last(self) -> Any:
        """The value that the last node computed.

        Before the first one: the run's vars without the runtime's vars.
        """
        if "last" in self._data:
            return self._data["last"]
        empty = {"context", "scratchpad"}
        return {
            name: value
            for name, value in self._vars.items()
            if not name.startswith("_") and not (name in empty and not value)
        }

    @last.setter
    def last(self, value: Any) -> None:
        self._data["last"] = value

    @property
    def end_output(self) -> Any:
        """The output of an end that a branch reached, or None if no branch reached one."""
        return self._data.get("ended")

    def end(self, output: Any) -> None:
        """Store the output of an end that is reached in a branch, and leave the frames within the branch."""
        self._data["ended"] = output
        self.frames.leave_branch()

    def outputs(self, node_id: str) -> dict[str, Any] | None:
        """Return the outputs of a node, or None if it was not executed or no node reads them."""
        outputs = self._data.get("outputs", {}).get(node_id)
        return outputs if isinstance(outputs, dict) else None

    def keep(self, node_id: str, outputs: dict[str, Any]) -> None:
        """Store the outputs of a node, in place of the result of its effect."""
        self._data.get("results", {}).pop(_escape(node_id), None)
        self._part("outputs")[node_id] = outputs

    def result(self, node_id: str) -> Any:
        """Return the result of a node's effect, or `...` if it has none: a result may be None."""
        return self._data.get("results", {}).get(_escape(node_id), ...)

    def route(self, node_id: str) -> int | None:
        """Return the number of the way by which a node was reached, or None if the way has no number."""
        number = self._data.get("routes", {}).get(node_id)
        return number if isinstance(number, int) else None

    def take_route(self, node_id: str, number: int) -> None:
        """Store the number of the way by which a node is reached next."""
        self._part("routes")[node_id] = number
