"""Nodes that change variables of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from actors._kernel.workflow.effects import StepPlan
from actors._workflow.visual.nodes.texts import look_up, text_of, with_value
from actors._workflow.visual.visits import Visit, VisualNodeError

_EMPTY: Final[dict[str, Any]] = {"boolean": False, "number": 0, "string": ""}


def _name(value: Any) -> str:
    # Without empty parts, as `put` reads it: `._runtime` is `_runtime`.
    name = ".".join(part for part in text_of(value).strip().split(".") if part)
    if not name:
        raise VisualNodeError("it needs the name of a variable")
    if name.startswith("_"):
        raise VisualNodeError(f"names that begin with _ are reserved: {name!r} is one")
    return name


def names_set(kind: str, values: Mapping[str, Any], computed_pins: Collection[str]) -> list[str]:
    """Return the names of variables that a node always sets, as far as its data says.

    Args:
        kind: The node's type.
        values: The values of its pins.
        computed_pins: The pins whose values are computed.
    """
    if kind != "set_vars":
        name = None if "name" in computed_pins else values.get("name")
        return [name] if isinstance(name, str) else []
    updates = None if "updates" in computed_pins else values.get("updates")
    if isinstance(updates, str):
        # The run reports a text that is no JSON; here it only names no variables.
        with suppress(ValueError, RecursionError):
            updates = json.loads(updates)
    names = [name for name in values if name != "updates"]
    return [*names, *(updates if isinstance(updates, dict) else ())]


def set_var(visit: Visit) -> StepPlan:
    """Set a variable. A value that is not given is the empty value of the pin's type."""
    inputs = visit.inputs()
    pins = visit.node.drawn.data.get("inputs")
    kinds = {
        pin["id"]: pin.get("type")
        for pin in (pins if isinstance(pins, list) else ())
        if isinstance(pin, dict) and "id" in pin
    }
    value = inputs.get("value", _EMPTY.get(str(kinds.get("value"))))
    visit.run.vars = with_value(visit.run.vars, _name(inputs.get("name")), value)
    visit.keep({"value": value})
    return visit.plan()


def set_vars(visit: Visit) -> StepPlan:
    """Set several variables: the names of the object at pin ``updates``, and each pin by its name."""
    inputs = visit.inputs()
    updates = inputs.pop("updates", None)
    if isinstance(updates, str) and updates.strip():
        try:
            updates = json.loads(updates)
        except ValueError as exc:
            raise VisualNodeError(f"updates are no JSON: {exc}") from None
    values = (updates if isinstance(updates, dict) else {}) | inputs
    variables = {_name(name): value for name, value in values.items()}
    for name, value in variables.items():
        visit.run.vars = with_value(visit.run.vars, name, value)
    visit.keep({"updates": variables})
    return visit.plan()


def set_property(visit: Visit) -> StepPlan:
    """Set a name in the object that is the value of a variable."""
    inputs = visit.inputs()
    name, key = _name(inputs.get("name")), text_of(inputs.get("key")).strip(".")
    if not key:
        raise VisualNodeError("it needs a key")
    visit.run.vars = with_value(visit.run.vars, f"{name}.{key}", inputs.get("value"))
    visit.keep({"value": look_up(visit.run.vars, name)})
    return visit.plan()


def add_to_list(visit: Visit) -> StepPlan:
    """Append an item and a list of items to a variable that is a list."""
    inputs = visit.inputs()
    name, items = _name(inputs.get("name")), inputs.get("items")
    stored_list = look_up(visit.run.vars, name)
    if items is not None and not isinstance(items, list):
        raise VisualNodeError(f"items must be a list, not a {type(items).__name__}")
    if stored_list is not None and not isinstance(stored_list, list):
        raise VisualNodeError(f"{name!r} holds a {type(stored_list).__name__}, not a list")
    item = inputs.get("item")
    new_list = [*(stored_list or []), *([] if item is None else [item]), *(items or [])]
    visit.run.vars = with_value(visit.run.vars, name, new_list)
    visit.keep({"list": new_list})
    return visit.plan()


VARIABLES: Final[dict[str, Callable[[Visit], StepPlan]]] = {
    "set_var": set_var,
    "set_vars": set_vars,
    "set_var_property": set_property,
    "add_to_list": add_to_list,
}
"""By type: the decision of a node."""
