"""Handlers of effects: functions of the host, called with copies of the run and of the effect."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from actors._kernel.workflow.durable import plain_copy
from actors._kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.attempts import in_doubt, outcome_of_reconcile
from actors._workflow.machine.plans import settled
from actors._workflow.machine.records import OpenStep
from actors.errors import EffectDidNotHappen, ModelError

Handler: TypeAlias = Callable[..., Any]
"""A function that gets the run, the effect and, with three parameters, the next node.

It returns an `EffectOutcome`. The run and the effect are its own copies. Changes of them are not recorded.

It may be a coroutine function if runs are agents' runs. The embedded driver awaits nothing.
"""

_ALL: Final = 3


@dataclass(frozen=True, slots=True)
class ReconciledHandler:
    """A handler with a function that finds out whether an at-most-once effect happened.

    Attributes:
        handler: The function that executes the effect.
        reconcile: Called with the run, the effect and, with three parameters, the effect's idempotency key,
            when a crash left the effect without a result. It returns the effect's `EffectOutcome`, or None if
            it does not know, or raises `EffectDidNotHappen`: then the handler is called now. If it returns None
            or raises another error, the run waits for a decision. It may be called again after another crash.
    """

    handler: Handler
    reconcile: Handler

    def __call__(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        """Call the handler."""
        return with_three_arguments(self.handler)(run, effect, next_node)


class EffectHandlers:
    """The host's handlers by the type of effect. A handler for a built-in effect replaces it."""

    def __init__(self, handlers: Mapping[EffectType, Handler] | None) -> None:
        handlers_by_type = {EffectType(kind): call for kind, call in (handlers or {}).items()}
        self._handlers = {
            kind: with_three_arguments(call) for kind, call in handlers_by_type.items()
        }
        self._reconciles = {
            kind: with_three_arguments(call.reconcile)
            for kind, call in handlers_by_type.items()
            if isinstance(call, ReconciledHandler)
        }

    def __contains__(self, kind: EffectType) -> bool:
        return kind in self._handlers

    def call(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        """Return the handler's outcome. An exception of the handler becomes a failed attempt."""
        try:
            return settled(self._call_handler(run, effect, next_node))
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return _failure(exc)

    async def call_async(
        self,
        run: RunState,
        effect: Effect,
        next_node: str | None,
        *,
        waiter: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None,
    ) -> Any:
        """Return the same as `call`. The handler may be a coroutine function.

        `waiter` awaits its coroutine. By default it is awaited as it is.
        """
        try:
            answer = self._call_handler(run, effect, next_node)
            if isinstance(answer, EffectOutcome) or not inspect.isawaitable(answer):
                return answer
            return await (answer if waiter is None else waiter(answer))
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return _failure(exc)

    def reconcile_effect(self, run: RunState, open_step: OpenStep) -> EffectOutcome:
        """Return the outcome of an at-most-once effect that a crash left without a result.

        It is the answer of the handler's `reconcile` function, or a wait for a decision.

        Raises:
            EffectDidNotHappen: The effect is to be executed now.
        """
        try:
            return outcome_of_reconcile(open_step, settled(self._call_reconcile(run, open_step)))
        except EffectDidNotHappen:
            raise  # an answer of the function, not its failure: the effect is executed now
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return in_doubt(open_step, _error_text(exc))

    async def reconcile_effect_async(self, run: RunState, open_step: OpenStep) -> EffectOutcome:
        """Return the same as `reconcile_effect`. The function may be a coroutine function."""
        try:
            answer = self._call_reconcile(run, open_step)
            return outcome_of_reconcile(
                open_step, await answer if inspect.isawaitable(answer) else answer
            )
        except EffectDidNotHappen:
            raise
        except Exception as exc:  # noqa: BLE001 - the exception of a host's function is recorded
            return in_doubt(open_step, _error_text(exc))

    def _call_reconcile(self, run: RunState, open_step: OpenStep) -> Any:
        reconcile = self._reconciles.get(open_step.effect.type)
        return (
            None if reconcile is None else reconcile(run, _copy_of(open_step.effect), open_step.key)
        )

    def _call_handler(self, run: RunState, effect: Effect, next_node: str | None) -> Any:
        handler = self._handlers.get(effect.type)
        if handler is not None:
            return handler(run, _copy_of(effect), next_node)
        problem = (
            f"no handler is registered for effect {effect.type.value!r}. "
            f"Pass effect_handlers={{EffectType.{effect.type.name}: handler}}"
        )
        return EffectOutcome.failed(problem, retryable=False)


def _copy_of(effect: Effect) -> Effect:
    """Return the copy of an effect that a function of the host gets."""
    return Effect(effect.type, plain_copy(effect.payload), effect.result_key, effect.mode)


def _error_text(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def _failure(exc: Exception) -> EffectOutcome:
    # The same request to a model would get the same error.
    is_final = isinstance(exc, ModelError) and not exc.retryable
    return EffectOutcome.failed(_error_text(exc), retryable=not is_final)


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
        rows = [_call_tool(tools, call, index) for index, call in enumerate(calls)]
        return EffectOutcome.completed({"mode": "executed", "results": rows})

    return handle


def _call_tool(tools: Mapping[str, Callable[..., Any]], call: Any, index: int) -> dict[str, Any]:
    fields = call if isinstance(call, dict) else {}
    name = str(fields.get("name") or "")
    row = {"call_id": fields.get("call_id") or str(index), "name": name, "success": False}
    if name not in tools:
        return row | {"output": None, "error": f"there is no tool {name!r}"}
    try:
        output = settled(tools[name](**(fields.get("arguments") or {})))
    except Exception as exc:  # noqa: BLE001 - the exception of a tool is recorded
        return row | {"output": None, "error": f"{type(exc).__name__}: {exc}"}
    return row | {"success": True, "output": output, "error": None}


def with_three_arguments(handler: Handler) -> Handler:
    """Return a handler as a function of three arguments. Its signature is inspected; it is not called."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return handler
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if len(positional) >= _ALL or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return handler
    return lambda run, effect, _next_node: handler(run, effect)
