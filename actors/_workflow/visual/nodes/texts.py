"""Texts and paths of the nodes of drawings: the values that nodes compute from texts, and values at paths.

A path is names with dots, and indexes of items.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final

from actors._workflow.machine.variables import with_path
from actors._workflow.visual.visits import VisualNodeError

_HOLE: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_JOIN: Final = re.compile(r"join(?:\((.*)\))?")
_STEPS: Final = re.compile(r"[^.\[\]]+")
_MOST_DIGITS: Final = 18
_CONTROLS: Final = (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"))

Pins = dict[str, Any]
"""The values of a node's pins by name."""


def text_of(value: Any) -> str:
    """Return a value as text. The text of None is empty."""
    return "" if value is None else str(value)


def decode_escapes(text: str) -> str:
    r"""Return a separator with ``\n``, ``\t`` and ``\r`` replaced by the characters that they stand for."""
    for escape, control in _CONTROLS:
        text = text.replace(escape, control)
    return text


def split(pins: Pins) -> list[str]:
    """Return the parts of a text. By default spaces around them are removed, and empty parts are left out."""
    text, separator = text_of(pins.get("text")), decode_escapes(text_of(pins.get("delimiter", ",")))
    maxsplit = pins.get("maxsplit")
    count = min(maxsplit, len(text)) if isinstance(maxsplit, int) and maxsplit >= 0 else -1
    parts = text.split(separator, count) if separator else [text]
    if pins.get("trim", True):
        parts = [part.strip() for part in parts]
    return list(filter(None, parts)) if pins.get("drop_empty", True) else parts


def join(pins: Pins) -> str:
    """Return the items of a list as one text."""
    items = pins.get("items")
    texts = items if isinstance(items, list) else [] if items is None else [items]
    return decode_escapes(text_of(pins.get("delimiter", ","))).join(map(text_of, texts))


def substring(pins: Pins) -> str:
    """Return a part of a text."""
    return text_of(pins.get("text"))[_offset(pins, "start") : _offset(pins, "end")]


def _offset(pins: Pins, pin: str) -> int | None:
    """Return an offset in a text, or None if the pin has no value.

    An infinite offset is beyond the text, as any other that is too large.

    Raises:
        VisualNodeError: The value is not a number.
    """
    value = pins.get(pin)
    if value in (None, ""):
        return None
    if isinstance(value, float) and math.isinf(value):
        return sys.maxsize if value > 0 else -sys.maxsize
    try:
        return int(value)
    except (TypeError, ValueError):
        raise VisualNodeError(f"pin {pin!r} needs a whole number, not {value!r:.60}") from None


def contains(pins: Pins) -> bool:
    """Return True if a text contains another text. The result for an empty text is False."""
    pattern = text_of(pins.get("pattern"))
    return bool(pattern) and pattern in text_of(pins.get("text"))


def replace(pins: Pins) -> str:
    """Return a text with a part replaced: everywhere, once, or as often as the number ``mode`` says."""
    text, pattern = text_of(pins.get("text")), text_of(pins.get("pattern"))
    if not pattern:
        return text
    mode = text_of(pins.get("mode")).strip().lower()
    count = 1 if mode in {"first", "once"} else _whole_number(mode, -1)
    return text.replace(pattern, text_of(pins.get("replacement")), count)


def render(pins: Pins, variables: dict[str, Any]) -> str:
    """Return a template with values for ``{{path | filter}}``.

    A path is looked up in the pins, then in the object at pin ``vars``, then in the run's vars.
    """
    run_vars = {name: value for name, value in variables.items() if not name.startswith("_")}
    object_vars = pins.get("vars")
    pin_values = {name: value for name, value in pins.items() if name not in {"template", "vars"}}
    scope = run_vars | (object_vars if isinstance(object_vars, dict) else {}) | pin_values
    return _HOLE.sub(lambda hole: _fill(hole[1], scope), text_of(pins.get("template")))


def _fill(inner: str, scope: dict[str, Any]) -> str:
    path, *filters = (word.strip() for word in inner.split("|"))
    value = look_up(scope, path)
    if value is None:
        return ""
    if not filters and isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    for word in filters:
        value = _apply_filter(value, word)
    return text_of(value)


def _apply_filter(value: Any, word: str) -> Any:
    if word == "json":
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    if word in _PLAIN:
        return _PLAIN[word](text_of(value))
    if (match := _JOIN.fullmatch(word)) is not None:
        separator = ", " if match[1] is None else match[1].strip().strip("\"'")
        return separator.join(map(text_of, value)) if isinstance(value, list) else text_of(value)
    return value


_PLAIN: Final[dict[str, Callable[[str], str]]] = {
    "trim": str.strip,
    "lower": str.lower,
    "upper": str.upper,
}

TEXTS: Final[dict[str, Callable[[Pins], Any]]] = {
    "split": split,
    "join": join,
    "uppercase": lambda pins: text_of(pins.get("text")).upper(),
    "lowercase": lambda pins: text_of(pins.get("text")).lower(),
    "trim": lambda pins: text_of(pins.get("text")).strip(),
    "substring": substring,
    "length": lambda pins: len(text_of(pins.get("text"))),
    "is_empty_string": lambda pins: not text_of(pins.get("text")),
    "contains": contains,
    "replace": replace,
}
"""By type of node: the function that computes its output."""


def look_up(value: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path such as ``a.b`` or ``a[0].b``. If there is none, return `default`."""
    steps = _STEPS.findall(path)
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := _whole_number(step, len(value))) < len(value):
            value = value[index]
        else:
            return default
    return value if steps else default


def _whole_number(text: str, default: int) -> int:
    """Return the number of a text of digits, or `default` if it is another text or has over 18 digits."""
    digits = text.lstrip("0") or "0"
    return int(digits) if text.isdecimal() and len(digits) <= _MOST_DIGITS else default


def with_value(variables: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return objects with a value at a path.

    Values on the path that are not objects are replaced by objects.
    """
    steps = [step for step in path.split(".") if step]
    current: Any = variables
    for number, step in enumerate(steps[:-1], 1):
        current = current.get(step)
        if not isinstance(current, dict):
            variables = with_path(variables, steps[:number], {})
            current = {}
    return with_path(variables, steps, value)
