"""Nodes that compute values: numbers, comparisons, objects, lists, literals, and reads of variables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from actors.kernel.json import unfenced
from actors.workflow.visual.drawing import DrawnNode
from actors.workflow.visual.nodes.texts import (
    TEXTS,
    Given,
    decoded,
    look_up,
    put,
    rendered,
    text_of,
)
from actors.workflow.visual.visits import WHOLE, Compute, Outputs, Visit, VisualNodeError


def _number(given: Given, pin: str, default: float = 0.0) -> float:
    value = given.get(pin, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise VisualNodeError(f"pin {pin!r} needs a number, not {value!r}") from None


def _divisor(given: Given) -> float:
    value = _number(given, "b", 1.0)
    if value == 0:
        raise VisualNodeError("it divides by zero")
    return value


def _power(given: Given) -> Any:
    found = _number(given, "base") ** _number(given, "exp", 1.0)
    if isinstance(found, complex):
        raise VisualNodeError("the power is no real number")
    return found


def _compare(given: Given) -> bool:
    a, b, word = given.get("a"), given.get("b"), text_of(given.get("op", "=="))
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


def _items(given: Given, pin: str = "array") -> list[Any]:
    found = given.get(pin)
    return list(found) if isinstance(found, list) else []


def _object(given: Given, pin: str) -> dict[str, Any]:
    found = given.get(pin)
    return dict(found) if isinstance(found, dict) else {}


def _element(given: Given) -> Outputs:
    items, index = _items(given), given.get("index", 0)
    try:
        place = 0 if isinstance(index, bool) else int(float(index))
    except (TypeError, ValueError):
        place = 0
    is_there = -len(items) <= place < len(items)
    return {"result": items[place] if is_there else given.get("default"), "found": is_there}


def _unique(given: Given) -> list[Any]:
    key, seen, found = text_of(given.get("key")), set[str](), list[Any]()
    for one in _items(given):
        mark = json.dumps(look_up(one, key) if key else one, sort_keys=True)
        if mark not in seen:
            seen.add(mark)
            found.append(one)
    return found


def parsed_json(given: Given) -> Any:
    """Return the value of JSON text. A Markdown fence, and text around an object or a list, are ignored.

    Raises:
        VisualNodeError: The text has no JSON value.
    """
    raw = given.get("text")
    if isinstance(raw, dict | list):
        return raw
    text = unfenced(text_of(raw))
    decoder = json.JSONDecoder()
    begins = [0, *[place for place, char in enumerate(text) if char in "{["][:64]]
    for begin in begins:
        try:
            found, end = decoder.raw_decode(text[begin:])
        except (ValueError, RecursionError):
            continue
        if begin or end == len(text):
            is_whole = isinstance(found, dict | list) or not given.get("wrap_scalar", True)
            return found if is_whole else {"value": found}
    raise VisualNodeError(f"it is no JSON: {text[:60]!r}")


def _as_json(given: Given) -> str:
    value, mode = given.get("value"), text_of(given.get("mode")).lower()
    indent = given.get("indent") if isinstance(given.get("indent"), int) else 2
    is_small = mode in {"minified", "compact"}
    return json.dumps(
        value,
        ensure_ascii=False,
        sort_keys=bool(given.get("sort_keys")),
        indent=None if is_small else indent,
        separators=(",", ":") if is_small else None,
    )


_WHOLES: Final[dict[str, Callable[[Given], Any]]] = {
    "add": lambda given: _number(given, "a") + _number(given, "b"),
    "subtract": lambda given: _number(given, "a") - _number(given, "b"),
    "multiply": lambda given: _number(given, "a") * _number(given, "b"),
    "divide": lambda given: _number(given, "a") / _divisor(given),
    "modulo": lambda given: _number(given, "a") % _divisor(given),
    "power": _power,
    "abs": lambda given: abs(_number(given, "value")),
    "round": lambda given: round(_number(given, "value"), int(_number(given, "decimals"))),
    "compare": _compare,
    "not": lambda given: not given.get("value"),
    "and": lambda given: bool(given.get("a")) and bool(given.get("b")),
    "or": lambda given: bool(given.get("a")) or bool(given.get("b")),
    "merge": lambda given: _object(given, "a") | _object(given, "b"),
    "set": lambda given: put(
        _object(given, "object"), text_of(given.get("key")), given.get("value")
    ),
    "array_length": lambda given: len(_items(given)),
    "array_append": lambda given: [*_items(given), given.get("item")],
    "array_dedup": _unique,
    "array_map": lambda given: [
        look_up(one, text_of(given.get("key"))) for one in _items(given, "items")
    ],
    "array_filter": lambda given: [
        one
        for one in _items(given, "items")
        if look_up(one, text_of(given.get("key"))) == given.get("value")
    ],
    "parse_json": parsed_json,
    "stringify_json": _as_json,
    **TEXTS,
}
"""By type: the function that computes the value of all outputs of a node."""


def _whole(found: Callable[[Given], Any]) -> Compute:
    return lambda _visit, _node, given: {WHOLE: found(given)}


def _ordered(node: DrawnNode, given: Given) -> list[Any]:
    """Return the values of pins in the order of the declared pins.

    Without declared pins the order is by name.
    """
    names = node.pins("inputs") or sorted(given, key=lambda one: (len(one) > 1, one))
    return [given[name] for name in names if name in given]


def _concat(_visit: Visit, node: DrawnNode, given: Given) -> Outputs:
    separator = node.part("concatConfig").get("separator")
    between = decoded(separator) if isinstance(separator, str) else " "
    return {WHOLE: between.join(map(text_of, _ordered(node, given)))}


def _make_array(_visit: Visit, node: DrawnNode, given: Given) -> Outputs:
    return {WHOLE: [one for one in _ordered(node, given) if one is not None]}


def _array_concat(_visit: Visit, node: DrawnNode, given: Given) -> Outputs:
    found: list[Any] = []
    for one in _ordered(node, given):
        found += one if isinstance(one, list) else [] if one is None else [one]
    return {WHOLE: found}


def _coalesce(_visit: Visit, node: DrawnNode, given: Given) -> Outputs:
    return {WHOLE: next((one for one in _ordered(node, given) if one is not None), None)}


def _make_object(_visit: Visit, _node: DrawnNode, given: Given) -> Outputs:
    return {WHOLE: {name: one for name, one in given.items() if not name.startswith("_")}}


def _break_object(_visit: Visit, node: DrawnNode, given: Given) -> Outputs:
    paths = node.part("breakConfig").get("selectedPaths") or node.pins("outputs")
    value = given.get("object")
    if isinstance(value, str) and value.strip():
        try:
            value = parsed_json({"text": value})
        except VisualNodeError:
            value = None
    return {one: look_up(value, one) for one in paths if isinstance(one, str)}


def _get(_visit: Visit, _node: DrawnNode, given: Given) -> Outputs:
    found = look_up(given.get("object"), text_of(given.get("key")))
    return {WHOLE: given.get("default") if found is None else found}


def _get_var(visit: Visit, _node: DrawnNode, given: Given) -> Outputs:
    name = text_of(given.get("name")).strip()
    return {WHOLE: look_up(visit.run.vars, name, given.get("default"))}


def _get_vars(visit: Visit, node: DrawnNode, _given: Given) -> Outputs:
    return {name: look_up(visit.run.vars, name) for name in node.pins("outputs")}


_TYPES: Final[dict[str, tuple[tuple[type, ...], Any]]] = {
    "boolean": ((bool,), False),
    "number": ((int, float), 0),
    "string": ((str,), ""),
    "array": ((list,), []),
    "object": ((dict,), {}),
}


def _var_decl(visit: Visit, node: DrawnNode, _given: Given) -> Outputs:
    """Return the name and value of a variable. A value of another type than declared is ignored."""
    told = node.data.get("literalValue")
    told = told if isinstance(told, dict) else {"name": told}
    kind = "boolean" if node.type == "bool_var" else told.get("type")
    kinds, empty = _TYPES.get(str(kind), ((object,), None))
    name = text_of(told.get("name")).strip()
    for value in (look_up(visit.run.vars, name), told.get("default")):
        is_bool = isinstance(value, bool)
        if isinstance(value, kinds) and not (kind == "number" and is_bool):
            return {"name": name, "value": value}
    return {"name": name, "value": empty}


def _literal(_visit: Visit, node: DrawnNode, _given: Given) -> Outputs:
    return {WHOLE: node.data.get("literalValue")}


def _template(visit: Visit, _node: DrawnNode, given: Given) -> Outputs:
    return {WHOLE: rendered(given, visit.run.vars)}


def _mux(visit: Visit, node: DrawnNode, _given: Given) -> Outputs:
    """Return the value for the route by which the run came.

    A route without a value gets that of all other routes.
    """
    wired = visit.nodes[node.id]
    for pin in (f"in{visit.state.route(node.data['target'])}", "fallback"):
        if pin in wired.inputs:
            found = visit.at_pin(wired, pin)
            return {WHOLE: found[pin]} if found else {}
    defaults = node.part("pinDefaults")
    return {WHOLE: defaults["fallback"]} if "fallback" in defaults else {}


def _allowed_tools(_visit: Visit, node: DrawnNode, _given: Given) -> Outputs:
    told = node.data.get("literalValue")
    names = [
        one.strip() for one in (told if isinstance(told, list) else ()) if isinstance(one, str)
    ]
    return {"tools": list(dict.fromkeys(one for one in names if one))}


def _now(visit: Visit, _node: DrawnNode, _given: Given) -> Outputs:
    return {"iso": visit.now, WHOLE: visit.now}


def _of_element(_visit: Visit, _node: DrawnNode, given: Given) -> Outputs:
    return _element(given)


VALUES: Final[dict[str, Compute]] = {
    **{name: _whole(found) for name, found in _WHOLES.items()},
    **dict.fromkeys(
        [f"literal_{one}" for one in ("string", "number", "boolean", "json", "array")], _literal
    ),
    "json_schema": _literal,
    "tools_allowlist": _allowed_tools,
    "concat": _concat,
    "string_template": _template,
    "make_array": _make_array,
    "array_concat": _array_concat,
    "coalesce": _coalesce,
    "make_object": _make_object,
    "break_object": _break_object,
    "get": _get,
    "get_element": _of_element,
    "get_var": _get_var,
    "get_vars": _get_vars,
    "var_decl": _var_decl,
    "bool_var": _var_decl,
    "path_mux": _mux,
    "system_datetime": _now,
}
"""By type: the function that computes the outputs of a node."""
