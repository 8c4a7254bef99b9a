"""Functions that code and expressions of a drawing may call; their code is executed in the sandbox, too."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

SANDBOX_FUNCTIONS: Final = {
    "parse_json": """\
def parse_json(value):
    import json
    return json.loads(value) if isinstance(value, str) else value
""",
    "to_json": """\
def to_json(value):
    import json
    return json.dumps(value)
""",
    "shq": """\
def shq(value):
    return "" if value is None else str(value).replace("'", "'\\\\''")
""",
    "text_of": """\
def text_of(value):
    found, left, steps = [], [value], 0
    while left and steps < 100:
        one, steps = left.pop(), steps + 1
        if isinstance(one, str):
            found.append(one)
        if isinstance(one, dict):
            texts = [one.get(name) or one.get(name + "_preview") for name in ("stdout", "stderr")]
            found.extend([text for text in texts if isinstance(text, str)])
            left.append(one.get("output"))
            left.extend(one["results"] if isinstance(one.get("results"), list) else [])
    return "\\n".join([text for text in found if text])
""",
}
"""The code of each function by its name.

``parse_json`` and ``to_json`` read and write JSON. ``shq`` returns a text for a place between single quotes
in a command of a shell. ``text_of`` returns the text in the result of a tool.
"""


def called_in(code: str) -> frozenset[str]:
    """Return the names of these functions that are in `code`."""
    return frozenset(name for name in SANDBOX_FUNCTIONS if re.search(rf"\b{name}\b", code))


def code_of(names: Collection[str]) -> str:
    """Return the code of functions."""
    return "".join(text for name, text in SANDBOX_FUNCTIONS.items() if name in names)


def functions_for(code: str) -> str:
    """Return the code of the functions whose names are in `code`."""
    return code_of(called_in(code))
