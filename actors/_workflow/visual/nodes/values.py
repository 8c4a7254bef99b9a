"""Nodes that compute values: numbers, comparisons, objects, lists, literals, and reads of variables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from actors._kernel.json import unfenced
from actors._workflow.visual.drawing import DrawnNode
from actors._workflow.visual.nodes.texts import (
    TEXTS,
    Pins,
    decode_escapes,
    look_up,
    render,
    text_of,
    with_value,
)
from actors._workflow.visual.visits import WHOLE, Compute, Outputs, Visit, VisualNodeError


def _number(pins: Pins, pin: str, default: float = 0.0) -> float:
    value = pins.get(pin, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise VisualNodeError(f"pin {pin!r} needs a number, not {value!r}") from None
    except OverflowError:
        raise VisualNodeError(f"pin {pin!r} needs a number up to 1.8e308") from None


def _round(pins: Pins) -> float:
    decimals = _number(pins, "decimals")
    if not math.isfinite(decimals):
        raise VisualNodeError(f"pin 'decimals' needs a whole number, not {decimals}")
    return round(_number(pins, "value"), int(decimals))


def _divisor(pins: Pins) -> float:
    value = _number(pins, "b", 1.0)
    if value == 0:
        raise VisualNodeError("it divides by zero")
    return value


def _power(pins: Pins) -> Any:
    try:
        power = _number(pins, "base") ** _number(pins, "exp", 1.0)
    except OverflowError:
        raise VisualNodeError("the power is more than 1.8e308") from None
    if isinstance(power, complex):
        raise VisualNodeError("the power is no real number")
    return power


def _compare(pins: Pins) -> bool:
    a, b, word = pins.get("a"), pins.get("b"), text_of(pins.get("op", "=="))
    if word not in _ORDERS:
        raise VisualNodeError(f"op {word!r} is none of {', '.join(_ORDERS)}")
    try:
        return bool(_ORDERS[word](a, b))
    except TypeError:  # values of two types have no order
        return False


_ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _items(pins: Pins, pin: str = "array") -> list[Any]:
    items = pins.get(pin)
    return list(items) if isinstance(items, list) else []


def _object(pins: Pins, pin: str) -> dict[str, Any]:
    properties = pins.get(pin)
    return dict(properties) if isinstance(properties, dict) else {}


def _unique(pins: Pins) -> list[Any]:
    key, marks, items = text_of(pins.get("key")), set[str](), list[Any]()
    for item in _items(pins):
        mark = json.dumps(look_up(item, key) if key else item, sort_keys=True)
        if mark not in marks:
            marks.add(mark)
            items.append(item)
    return items


def parse_json(pins: Pins) -> Any:
    """Return the value of JSON text. A Markdown fence, and text around an object or a list, are ignored.

    Raises:
        VisualNodeError: The text has no JSON value.
    """
    raw = pins.get("text")
    if isinstance(raw, dict | list):
        return raw
    text = unfenced(text_of(raw))
    decoder = json.JSONDecoder()
    # At most 64 attempts: each may read all of the text, and a long text may be full of brackets.
    begins = [0, *[offset for offset, char in enumerate(text) if char in "{["][:64]]
    for begin in begins:
        try:
            value, end = decoder.raw_decode(text[begin:])
        except (ValueError, RecursionError):
            continue
        if begin or end == len(text):
            is_whole = isinstance(value, dict | list) or not pins.get("wrap_scalar", True)
            return value if is_whole else {"value": value}
    raise VisualNodeError(f"it is no JSON: {text[:60]!r}")


def _as_json(pins: Pins) -> str:
    value, mode = pins.get("value"), text_of(pins.get("mode")).lower()
    number = pins.get("indent")
    # Each line of the text begins with that many spaces: a large number would take all memory.
    indent = min(number, _MOST_INDENT) if isinstance(number, int) else 2
    is_small = mode in {"minified", "compact"}
    return json.dumps(
        value,
        ensure_ascii=False,
        sort_keys=bool(pins.get("sort_keys")),
        indent=None if is_small else indent,
        separators=(",", ":") if is_small else None,
    )


_MOST_INDENT: Final = 100

_OF_PINS: Final[dict[str, Callable[[Pins], Any]]] = {
    "add": lambda pins: _number(pins, "a") + _number(pins, "b"),
    "subtract": lambda pins: _number(pins, "a") - _number(pins, "b"),
    "multiply": lambda pins: _number(pins, "a") * _number(pins, "b"),
    "divide": lambda pins: _number(pins, "a") / _divisor(pins),
    "modulo": lambda pins: _number(pins, "a") % _divisor(pins),
    "power": _power,
    "abs": lambda pins: abs(_number(pins, "value")),
    "round": _round,
    "compare": _compare,
    "not": lambda pins: not pins.get("value"),
    "and": lambda pins: bool(pins.get("a")) and bool(pins.get("b")),
    "or": lambda pins: bool(pins.get("a")) or bool(pins.get("b")),
    "merge": lambda pins: _object(pins, "a") | _object(pins, "b"),
    "make_object": lambda pins: {
        name: value for name, value in pins.items() if not name.startswith("_")
    },
    "get": lambda pins: (
        pins.get("default")
        if (value := look_up(pins.get("object"), text_of(pins.get("key")))) is None
        else value
    ),
    "set": lambda pins: with_value(
        _object(pins, "object"), text_of(pins.get("key")), pins.get("value")
    ),
    "array_length": lambda pins: len(_items(pins)),
    "array_append": lambda pins: [*_items(pins), pins.get("item")],
    "array_dedup": _unique,
    "array_map": lambda pins: [
        look_up(item, text_of(pins.get("key"))) for item in _items(pins, "items")
    ],
    "array_filter": lambda pins: [
        item
        for item in _items(pins, "items")
        if look_up(item, text_of(pins.get("key"))) == pins.get("value")
    ],
    "parse_json": parse_json,
    "stringify_json": _as_json,
    **TEXTS,
}
"""By type: the function that computes the value of all outputs of a node from its pins."""

_OF_VALUES: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "make_array": lambda values: [value for value in values if value is not None],
    "array_concat": lambda values: [
        item
        for value in values
        if value is not None
        for item in (value if isinstance(value, list) else [value])
    ],
    "coalesce": lambda values: next((value for value in values if value is not None), None),
}
"""By type: the function that computes the value of all outputs of a node from the values in order."""


def _from_pins(value_of: Callable[[Pins], Any]) -> Compute:
    return lambda _visit, _node, pins: {WHOLE: value_of(pins)}


def _from_values(value_of: Callable[[list[Any]], Any]) -> Compute:
    return lambda _visit, node, pins: {WHOLE: value_of(_in_order(node, pins))}


def _in_order(node: DrawnNode, pins: Pins) -> list[Any]:
    """Return the values of pins in the order of the declared pins.

    Without declared pins the order is by name.
    """
    names = node.pins("inputs") or sorted(pins, key=lambda name: (len(name) > 1, name))
    return [pins[name] for name in names if name in pins]


def _concat(_visit: Visit, node: DrawnNode, pins: Pins) -> Outputs:
    separator = node.part("concatConfig").get("separator")
    joiner = decode_escapes(separator) if isinstance(separator, str) else " "
    return {WHOLE: joiner.join(map(text_of, _in_order(node, pins)))}


def _element(_visit: Visit, _node: DrawnNode, pins: Pins) -> Outputs:
    items, number = _items(pins), pins.get("index", 0)
    try:
        position = 0.0 if isinstance(number, bool) else float(number)
    except (TypeError, ValueError):
        position = 0.0
    except OverflowError:  # an integer that is larger than all floats
        position = math.inf
    index = int(position) if math.isfinite(position) else len(items)
    is_inside = -len(items) <= index < len(items)
    return {"result": items[index] if is_inside else pins.get("default"), "found": is_inside}


def _break_object(_visit: Visit, node: DrawnNode, pins: Pins) -> Outputs:
    paths = node.part("breakConfig").get("selectedPaths") or node.pins("outputs")
    value = pins.get("object")
    if isinstance(value, str) and value.strip():
        try:
            value = parse_json({"text": value})
        except VisualNodeError:
            value = None
    return {path: look_up(value, path) for path in paths if isinstance(path, str)}


_TYPES: Final[dict[str, tuple[tuple[type, ...], Any]]] = {
    "boolean": ((bool,), False),
    "number": ((int, float), 0),
    "string": ((str,), ""),
    "array": ((list,), []),
    "object": ((dict,), {}),
}


def _var_decl(visit: Visit, node: DrawnNode, _pins: Pins) -> Outputs:
    """Return the name and value of a variable. A value of another type than declared is ignored."""
    literal = node.data.get("literalValue")
    declaration = literal if isinstance(literal, dict) else {"name": literal}
    kind = "boolean" if node.type == "bool_var" else declaration.get("type")
    kinds, empty = _TYPES.get(str(kind), ((object,), None))
    name = text_of(declaration.get("name")).strip()
    for value in (look_up(visit.run.vars, name), declaration.get("default")):
        is_bool = isinstance(value, bool)
        if isinstance(value, kinds) and not (kind == "number" and is_bool):
            return {"name": name, "value": value}
    return {"name": name, "value": empty}


def _literal(_visit: Visit, node: DrawnNode, _pins: Pins) -> Outputs:
    return {WHOLE: node.data.get("literalValue")}


def _mux(visit: Visit, node: DrawnNode, _pins: Pins) -> Outputs:
    """Return the value for the route by which the run came.

    A route without a value gets that of all other routes.
    """
    wired_node = visit.nodes[node.id]
    for pin in (f"in{visit.state.route(node.data['target'])}", "fallback"):
        if pin in wired_node.inputs:
            values = visit.at_pin(wired_node, pin)
            return {WHOLE: values[pin]} if values else {}
    defaults = node.part("pinDefaults")
    return {WHOLE: defaults["fallback"]} if "fallback" in defaults else {}


def _allowed_tools(_visit: Visit, node: DrawnNode, _pins: Pins) -> Outputs:
    literal = node.data.get("literalValue")
    items = literal if isinstance(literal, list) else []
    names = [name.strip() for name in items if isinstance(name, str)]
    return {"tools": list(dict.fromkeys(filter(None, names)))}


VALUES: Final[dict[str, Compute]] = {
    **{kind: _from_pins(value_of) for kind, value_of in _OF_PINS.items()},
    **{kind: _from_values(value_of) for kind, value_of in _OF_VALUES.items()},
    **dict.fromkeys(
        [f"literal_{kind}" for kind in ("string", "number", "boolean", "json", "array")], _literal
    ),
    "json_schema": _literal,
    "tools_allowlist": _allowed_tools,
    "concat": _concat,
    "string_template": lambda visit, _node, pins: {WHOLE: render(pins, visit.run.vars)},
    "break_object": _break_object,
    "get_element": _element,
    "get_var": lambda visit, _node, pins: {
        WHOLE: look_up(visit.run.vars, text_of(pins.get("name")).strip(), pins.get("default"))
    },
    "get_vars": lambda visit, node, _pins: {
        name: look_up(visit.run.vars, name) for name in node.pins("outputs")
    },
    "var_decl": _var_decl,
    "bool_var": _var_decl,
    "path_mux": _mux,
    "system_datetime": lambda visit, _node, _pins: {"iso": visit.now, WHOLE: visit.now},
}
"""By type: the function that computes the outputs of a node."""
