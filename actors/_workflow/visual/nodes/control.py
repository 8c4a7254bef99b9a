"""Nodes that direct execution: start and end, choices, loops, sequences and branches.

A loop, a sequence or a set of branches becomes two nodes of the graph. The first one begins it. The second one,
whose name ends with `RETURN_MARK`, continues it. Execution inside goes to the second one where no wire leads
on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from actors._kernel.workflow.effects import StepPlan
from actors._workflow.machine.variables import branch_of
from actors._workflow.visual.drawing import RETURN_MARK
from actors._workflow.visual.flow_state import FORK, Frame
from actors._workflow.visual.nodes.texts import text_of
from actors._workflow.visual.visits import Visit, VisualNodeError, ending_in

MOST_PASSES: Final = 10_000
"""Maximum number of passes of a loop without a list."""
_MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "on_user_request": {"message": "", "context": {}},
    "on_agent_message": {"sender": "unknown", "message": "", "channel": ""},
}
"""By type of an entry: the vars that are its outputs, with their defaults."""
_THEN: Final = re.compile(r"then:(\d+)")

Decide = Callable[[Visit], StepPlan]


def begin(visit: Visit) -> StepPlan:
    """Set the vars of the run as outputs. Vars that are missing get their defaults."""
    node, values = visit.node.drawn, visit.state.last
    defaults = node.part("pinDefaults")
    names = node.pins("outputs") or [*values, *(n for n in defaults if n not in values)]
    for name in names:
        if name in defaults and name not in values and not name.startswith("_"):
            visit.run.vars[name] = defaults[name]
    outputs = {name: values.get(name, defaults.get(name)) for name in names}
    visit.keep(outputs)
    return visit.plan(result=outputs)


def receive(visit: Visit) -> StepPlan:
    """Give the vars of the run that make up a message as outputs."""
    node, values = visit.node.drawn, visit.state.last
    channel = text_of(node.part("eventConfig").get("channel"))
    outputs = {
        name: {**values, "channel": channel}.get(name, default)
        for name, default in _MESSAGES[node.type].items()
    }
    visit.keep(outputs)
    return visit.plan(result=outputs)


def end(visit: Visit) -> StepPlan:
    """End the run with the values of the pins.

    Without pins the output is the value that the previous node computed.
    """
    values, node = visit.inputs(), visit.node
    pins = node.drawn.pins("inputs") or [*node.inputs]
    result = {name: values.get(name) for name in pins} if pins else visit.state.last
    output = ending_in(result)
    if branch_of(visit.run.vars):  # the other branches continue, and the run ends at the join
        visit.state.end(output)
    return StepPlan(visit.run.current_node, complete_output=output)


def choose(visit: Visit) -> StepPlan:
    """Take the way ``true`` or ``false``."""
    condition = visit.inputs().get("condition")
    out = "true" if condition else "false"
    outputs = {"branch": out, "condition": condition}
    visit.keep(outputs)
    return visit.plan(out, result=outputs)


def switch(visit: Visit) -> StepPlan:
    """Take the way of the first case whose value is equal, as text."""
    value = visit.inputs().get("value")
    cases = visit.node.drawn.part("switchConfig").get("cases")
    for case in cases if isinstance(cases, list) else ():
        case_value = case.get("value") if isinstance(case, dict) else None
        if case_value is not None and str(case_value) == text_of(value):
            out, details = f"case:{case.get('id')}", {"matched": str(case_value)}
            break
    else:
        out, details = "default", {}
    outputs = {"branch": out, "value": value, **details}
    visit.keep(outputs)
    return visit.plan(out, result=outputs)


def limit(visit: Visit) -> StepPlan:
    """Take the way ``again`` as often as the limit says, then once the way ``limit_reached``."""
    maximum = visit.inputs().get("max", 3)
    is_number = isinstance(maximum, int | float) and not isinstance(maximum, bool)
    if not (is_number and -math.inf < maximum < math.inf):  # NaN is not between them
        raise VisualNodeError(f"max needs a whole number, not {maximum!r}")
    maximum = max(0, int(maximum))
    count = visit.state.frames.count(visit.node.drawn.id, maximum)
    out = "limit_reached" if count is None else "again"
    outputs = {"branch": out, "count": maximum if count is None else count}
    visit.keep(outputs)
    return visit.plan(out, result=outputs)


def begin_each(visit: Visit) -> StepPlan:
    """Begin a loop over a list. The loop keeps the list in the run's vars."""
    items = visit.inputs().get("items")
    item_list = items if isinstance(items, list) else [] if items is None else [items]
    visit.state.frames.push(visit.node.drawn.id, "loop", items=item_list, index=0)
    return next_each(visit)


def next_each(visit: Visit) -> StepPlan:
    """Begin the pass of the next item of the list."""
    frame = _frame_of(visit)
    items, index = frame["items"], frame["index"]
    if index >= len(items):
        return _leave_frame(visit)
    return _pass(visit, frame, {"item": items[index], "index": index, "total": len(items)})


def begin_range(visit: Visit) -> StepPlan:
    """Begin a loop over numbers. The end is exclusive."""
    inputs = visit.inputs()
    try:
        first, last, step = (
            float(text_of(inputs.get(name, default)))
            for name, default in (("start", None), ("end", None), ("step", 1))
        )
    except ValueError:
        raise VisualNodeError("start, end and step need numbers") from None
    if step == 0 or not all(map(math.isfinite, (first, last, step))):
        raise VisualNodeError("start, end and step need finite numbers, and a step other than 0")
    passes = (last - first) / step  # infinite if start and end are far from each other
    if passes > MOST_PASSES:
        raise VisualNodeError(f"it has more than {MOST_PASSES} passes")
    total = math.ceil(max(0.0, passes))
    visit.state.frames.push(
        visit.node.drawn.id, "for", start=first, step=step, total=total, index=0
    )
    return next_number(visit)


def next_number(visit: Visit) -> StepPlan:
    """Begin the pass of the next number."""
    frame = _frame_of(visit)
    index, total = frame["index"], frame["total"]
    if index >= total:
        return _leave_frame(visit)
    number = frame["start"] + index * frame["step"]
    return _pass(visit, frame, {"i": number, "index": index, "total": total})


def begin_while(visit: Visit) -> StepPlan:
    """Begin a loop that repeats while a condition holds."""
    visit.state.frames.push(visit.node.drawn.id, "while", index=0)
    return next_while(visit)


def next_while(visit: Visit) -> StepPlan:
    """Begin the next pass if the condition still holds."""
    frame = _frame_of(visit)
    if not visit.inputs().get("condition"):
        return _leave_frame(visit)
    if frame["index"] >= MOST_PASSES:
        raise VisualNodeError(f"it has more than {MOST_PASSES} passes")
    last_value = visit.state.last
    item = last_value.get("item", last_value) if isinstance(last_value, dict) else last_value
    return _pass(visit, frame, {"item": item, "index": frame["index"]})


def _frame_of(visit: Visit) -> Frame:
    frame = visit.state.frames.top()
    assert frame is not None
    return frame


def _pass(visit: Visit, frame: Frame, outputs: dict[str, Any]) -> StepPlan:
    if "loop" not in visit.node.ways:
        return _leave_frame(visit)
    frame["index"] += 1  # before the pass, so that a crash repeats no pass
    last_value = visit.state.last
    result = (last_value if isinstance(last_value, dict) else {"input": last_value}) | outputs
    visit.keep(outputs)
    return visit.plan("loop", result=result)


def _leave_frame(visit: Visit) -> StepPlan:
    visit.state.frames.pop()
    return visit.plan("done")


def thens_of(visit: Visit) -> list[str]:
    """Return the pins ``then:0``, ``then:1``, … that have a wire, by their numbers."""
    pins = [pin for pin in visit.node.ways if _THEN.fullmatch(pin)]
    return sorted(pins, key=lambda pin: int(pin.partition(":")[2]))


def begin_sequence(visit: Visit) -> StepPlan:
    """Begin a sequence of ways, with the first one. Each way is executed to its end."""
    visit.state.frames.push(visit.node.drawn.id, "sequence", done=0)
    return next_of_sequence(visit)


def next_of_sequence(visit: Visit) -> StepPlan:
    """Begin the next way of the sequence."""
    frame, ways = _frame_of(visit), thens_of(visit)
    if frame["done"] >= len(ways):
        return _leave_frame(visit)
    frame["done"] += 1
    return visit.plan(ways[frame["done"] - 1])


def fork(visit: Visit) -> StepPlan:
    """Begin a branch for each way. The branches are joined at the second node of this node."""
    node, join = visit.run.current_node, visit.node.drawn.id + RETURN_MARK
    visit.state.frames.push(visit.node.drawn.id, FORK)
    branches = {pin: visit.go(pin) or join for pin in thens_of(visit)}
    return StepPlan(node, parallel=branches, next_node=join)


def join(visit: Visit) -> StepPlan:
    """Continue after all branches. The run ends if a branch reached an end of the flow."""
    output = visit.state.end_output
    if output is None:
        visit.state.frames.pop()
        return visit.plan("completed")
    visit.state.frames.pop()
    if branch_of(visit.run.vars):
        visit.state.end(output)
    return StepPlan(visit.run.current_node, complete_output=output)


CONTROL: Final[dict[str, tuple[Decide, Decide | None]]] = {
    "on_flow_start": (begin, None),
    **dict.fromkeys(_MESSAGES, (receive, None)),
    "on_flow_end": (end, None),
    "if": (choose, None),
    "switch": (switch, None),
    "loop_limit": (limit, None),
    "loop": (begin_each, next_each),
    "for": (begin_range, next_number),
    "while": (begin_while, next_while),
    "sequence": (begin_sequence, next_of_sequence),
    "parallel": (fork, join),
}
"""By type: the decision of a node, and of the second node that continues it, if there is one."""
