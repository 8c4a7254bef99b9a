"""The agents that a host serves, as a document: what they are, take, give, follow and may call.

Pure: a registry in, JSON data out. Types become JSON Schemas by pydantic; what an agent does not
declare is left open rather than guessed.
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Iterable
from types import FunctionType
from typing import Any, Final, Literal, cast

from pydantic import TypeAdapter

from actors.kernel.agent.tools import Tool
from actors.kernel.json import JsonValue, recordable
from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors.runtime.registry import Registry, version_of

_log = logging.getLogger("callboard.client")

VERSION: Final = 1
ANY_OBJECT: Final[dict[str, JsonValue]] = {"type": "object"}
"""Schema that every body from outside has to fit."""
EXAMPLE_KEY: Final = "KEY"
"""Key of the agent that a factory makes to be described; it is never run."""
_NOT_DECLARED: Final = object()


def describe(registry: Registry, *, tenant: str | None = None) -> JsonValue:
    """Return ``{"callboard": 1, "agents": [...]}`` with one object for each type or single agent.

    ``type``, ``key`` (None: any), ``tenant`` (None: any), ``description`` (the docstring), ``version``,
    ``input`` and ``output`` (JSON Schemas), ``follows`` and ``tools``. An agent declares its payload
    and result with attributes `input` and `output`, types that pydantic knows; without `output` the
    return annotation of its code counts. `follows` is a list of topics, shown here and used nowhere.

    With `tenant`, single agents of others are left out. A factory is called with the key ``KEY``.
    What cannot be described is left open.
    """
    serves = registry.serves()
    agents: list[JsonValue] = []
    for type_ in serves.types:
        place: dict[str, JsonValue] = {"type": type_, "key": None, "tenant": None}
        agents.append(place | _facts(registry, AgentId(type_, EXAMPLE_KEY, DEFAULT_TENANT)))
    for one in serves.agents:
        if tenant not in {None, one.tenant}:
            continue
        place = {"type": one.type, "key": one.key, "tenant": one.tenant}
        agents.append(place | _facts(registry, one))
    return {"callboard": VERSION, "agents": agents}


def _facts(registry: Registry, agent_id: AgentId) -> dict[str, JsonValue]:
    try:
        found = recordable(_of_agent(registry.find(agent_id)), where=f"agent {agent_id}")
    except Exception as exc:  # noqa: BLE001 - an author's code; the others are described all the same
        _log.warning(
            "an agent cannot be described", extra={"agent": str(agent_id), "problem": repr(exc)}
        )
        return _of_agent(object())
    assert isinstance(found, dict)
    return found


def _of_agent(agent: Any) -> dict[str, JsonValue]:
    output = getattr(agent, "output", _NOT_DECLARED)
    if output is _NOT_DECLARED:
        output = _returned_by(agent)
    wanted = getattr(agent, "input", _NOT_DECLARED)
    return {
        "description": _words_of(agent),
        "version": version_of(agent),
        "input": dict(ANY_OBJECT) if wanted is _NOT_DECLARED else _schema(wanted, "validation"),
        "output": {} if output is _NOT_DECLARED else _schema(output, "serialization"),
        "follows": [str(topic) for topic in getattr(agent, "follows", None) or ()],
        "tools": _tools(getattr(agent, "tools", None) or ()),
    }


def _words_of(agent: object) -> str:
    """Return the agent's docstring; not the one of `object`, or of whatever it is made of."""
    text = vars(agent).get("__doc__") if hasattr(agent, "__dict__") else None
    text = text or (type(agent).__doc__ if type(agent) is not object else None)
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _returned_by(agent: object) -> Any:
    """Return the type that the agent's code says it returns, if it says one."""
    code = getattr(agent, "__wrapped__", None) or getattr(type(agent), "run", None)
    if not isinstance(code, FunctionType) or "return" not in code.__annotations__:
        return _NOT_DECLARED
    # Its other annotations often name what is imported for type checkers only.
    alone = FunctionType(code.__code__, code.__globals__)
    alone.__annotations__ = {"return": code.__annotations__["return"]}
    try:
        found = typing.get_type_hints(alone)["return"]
    except (NameError, TypeError, AttributeError):
        return _NOT_DECLARED
    return _NOT_DECLARED if found is Any else found


def _schema(kind: Any, mode: Literal["validation", "serialization"]) -> dict[str, JsonValue]:
    """Return the JSON Schema of a type; of one that pydantic does not know the empty one."""
    if isinstance(kind, dict):
        return cast("dict[str, JsonValue]", kind)
    try:
        return TypeAdapter(kind).json_schema(mode=mode)
    except Exception as exc:  # noqa: BLE001 - types may bring code of their own
        _log.warning("a type has no JSON Schema", extra={"type": str(kind), "problem": str(exc)})
        return {}


def _tools(tools: Iterable[Tool]) -> list[JsonValue]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "risk": tool.risk.value,
            "idempotent": tool.idempotent,
        }
        for tool in tools
    ]
