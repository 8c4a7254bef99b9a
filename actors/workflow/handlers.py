"""Handlers of effects: functions of the host, called with copies of the run and of the effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from actors.kernel.workflow.durable import plain_copy
from actors.kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.asking import settled

Handler: TypeAlias = Callable[..., Any]
"""A function that gets the run, the effect and, with three parameters, the next node.

It returns an `EffectOutcome`. The run and the effect are its own copies. Changes of them are not recorded.

It may be a coroutine function if runs are agents' runs. The embedded driver awaits nothing.
"""

_ALL: Final = 3


class EffectHandlers:
    """The host's handlers by the type of effect. A handler for a built-in effect replaces it."""

    def __init__(self, handlers: Mapping[EffectType, Handler] | None) -> None:
        self._handlers = {EffectType(one): fitted(call) for one, call in (handlers or {}).items()}

    def __contains__(self, kind: EffectType) -> bool:
        return kind in self._handlers

    def call(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        """Return the handler's outcome. An exception of the handler becomes a failed attempt."""
        try:
            return settled(self._begun(run, effect, next_node))
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return _raised(exc)

    async def awaited(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        """Return the same as `call`. The handler may be a coroutine function."""
        try:
            answer = self._begun(run, effect, next_node)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return _raised(exc)

    def _begun(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        handler = self._handlers.get(effect.type)
        if handler is not None:
            own = Effect(effect.type, plain_copy(effect.payload), effect.result_key, effect.mode)
            return handler(run, own, next_node)
        problem = (
            f"no handler is registered for effect {effect.type.value!r}. "
            f"Pass effect_handlers={{EffectType.{effect.type.name}: handler}}"
        )
        return EffectOutcome.failed(problem, retryable=False)


def _raised(exc: Exception) -> EffectOutcome:
    return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")


def tool_calls(tools: Mapping[str, Callable[..., Any]]) -> Handler:
    """Return a handler of TOOL_CALLS that calls Python functions by name.

    The payload's ``tool_calls`` are objects with ``name``, ``arguments`` and ``call_id``. The result has an
    object for each in ``results``, in their order: ``call_id``, ``name``, ``success``, ``output``, ``error``. A
    tool that raises is an unsuccessful call, not a failed effect.
    """

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        del run
        calls = effect.payload.get("tool_calls")
        if not isinstance(calls, list):
            return EffectOutcome.failed(
                "tool_calls needs payload.tool_calls, a list", retryable=False
            )
        rows = [_called(tools, call, index) for index, call in enumerate(calls)]
        return EffectOutcome.completed({"mode": "executed", "results": rows})

    return handle


def _called(tools: Mapping[str, Callable[..., Any]], call: Any, index: int) -> dict[str, Any]:
    told = call if isinstance(call, dict) else {}
    name = str(told.get("name") or "")
    row = {"call_id": told.get("call_id") or str(index), "name": name, "success": False}
    if name not in tools:
        return row | {"output": None, "error": f"there is no tool {name!r}"}
    try:
        output = settled(tools[name](**(told.get("arguments") or {})))
    except Exception as exc:  # noqa: BLE001 - the exception of a tool is recorded
        return row | {"output": None, "error": f"{type(exc).__name__}: {exc}"}
    return row | {"success": True, "output": output, "error": None}


def fitted(handler: Handler) -> Handler:
    """Return a handler as a function of three arguments. Its signature is inspected; it is not called."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return handler
    places = [
        one for one in parameters if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]
    if len(places) >= _ALL or any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return handler
    return lambda run, effect, _next_node: handler(run, effect)
