"""Tool calls in one form, from the forms in which models and nodes write them."""

from __future__ import annotations

import json
from typing import Any, Final

from actors.errors import NotSerializableError
from actors.kernel.json_data import clean_text
from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.durable import MAX_DEPTH, durable_copy
from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.deltas import ShownRun
from actors.workflow.machine.variables import place_of, seq_of

_DEEPEST: Final = MAX_DEPTH - 16
"""Maximum depth of a value. The rest of the depth is for the effect's result and the path in the vars."""


def calls_in(told: Any) -> list[dict[str, Any]]:
    """Return calls in any form as objects with ``call_id``, ``name`` and ``arguments``.

    Ids are unique among them. A call that cannot be read also has ``error``.
    """
    seen: set[str] = set()
    found = []
    for place, one in enumerate(told if isinstance(told, list) else ()):
        call = _call(one, place)
        while call["call_id"] in seen:
            call["call_id"] = f"{call['call_id']}~{place}"
        seen.add(call["call_id"])
        found.append(call)
    return found


def effect_place(run: RunState) -> str:
    """Return the id of the effect that a run, or a branch of it, is at.

    It is the same for each attempt, also if the effect is executed again after it was in doubt.
    """
    seq = run.effect_seq if isinstance(run, ShownRun) else seq_of(run.vars)
    return derive_id(place_of(run.run_id, run.vars), seq)


def unfit(value: Any) -> str | None:
    """Return the reason why a value of a model or a tool cannot be stored in a run. None: it can."""
    try:
        durable_copy(value, "value", deepest=_DEEPEST)
    except NotSerializableError as exc:
        return clean_text(str(exc))[:500]
    return None


def _call(told: Any, place: int) -> dict[str, Any]:
    given = told if isinstance(told, dict) else {}
    function = given.get("function")
    inner = function if isinstance(function, dict) else given
    id_ = given.get("call_id") or given.get("id")
    name = clean_text(str(inner.get("name") or ""))
    call = {"call_id": clean_text(str(id_ or place)), "name": name, "arguments": {}}
    arguments = inner.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return call | {
                "error": clean_text(f"the arguments are no JSON object: {arguments[:200]}")
            }
    if arguments in (None, ""):
        arguments = {}
    if not isinstance(arguments, dict):
        return call | {"error": f"the arguments are a {type(arguments).__name__}, not an object"}
    if (problem := unfit(arguments)) is not None:
        return call | {"error": f"the arguments cannot be kept: {problem}"}
    if given.get("error"):
        return call | {"error": clean_text(str(given["error"]))}
    return call | {"arguments": arguments}
