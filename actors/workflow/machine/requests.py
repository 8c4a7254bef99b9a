"""The effects that need no I/O: waits, questions, answers to users, and reads of the vars."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from actors.kernel.workflow.durable import normalize_utc_iso
from actors.kernel.workflow.effects import (
    EffectOutcome,
    EffectType,
    WaitReason,
    WaitState,
    details_of_node,
)
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.event_keys import key_of_payload
from actors.workflow.machine.variables import value_at

LONGEST_VALUE: Final = 200_000
"""Maximum length of a value that a read of the vars returns, in characters."""


def outcome_of(run: RunState, opened: OpenStep, at: str) -> EffectOutcome | None:
    """Return the outcome of an effect that the machine executes itself. None: a handler has to execute it."""
    answer = _ANSWERS.get(opened.effect.type)
    if answer is None:
        return None
    try:
        return answer(run, opened, at)
    except (GraphError, LookupError) as exc:
        return EffectOutcome.failed(str(exc), retryable=False)


def _wait_event(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    payload = opened.effect.payload
    key = payload.get("wait_key") or key_of_payload(run, payload)
    until = deadline_of(payload, at)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.EVENT,
            wait_key=str(key),
            until=until,
            prompt=payload.get("prompt"),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _wait_until(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run
    until = deadline_of(opened.effect.payload, at)
    if until is None:
        return EffectOutcome.failed(
            "wait_until needs payload.until, an ISO timestamp, or payload.timeout_s",
            retryable=False,
        )
    if until <= at:
        return EffectOutcome.completed({"waited_until": until})
    key = opened.effect.payload.get("wait_key") or f"until:{opened.key}"
    return EffectOutcome.waiting(WaitState(WaitReason.UNTIL, wait_key=str(key), until=until))


def _ask_user(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run
    payload = opened.effect.payload
    if not payload.get("prompt"):
        return EffectOutcome.failed("ask_user needs payload.prompt", retryable=False)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.USER,
            wait_key=str(payload.get("wait_key") or f"user:{opened.key}"),
            until=deadline_of(payload, at),
            prompt=str(payload["prompt"]),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _answer_user(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run, at
    payload = opened.effect.payload
    if "message" not in payload:
        return EffectOutcome.failed("answer_user needs payload.message", retryable=False)
    level = str(payload.get("level") or "message")
    return EffectOutcome.completed({"message": payload["message"], "level": level})


def _vars_query(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del at
    path = str(opened.effect.payload.get("path") or "")
    row: dict[str, Any] = {"name": "vars_query", "call_id": opened.effect.payload.get("call_id")}
    try:
        found = value_at(run.vars, path) if path else run.vars
        told: dict[str, Any] = {"path": path, "type": type(found).__name__}
        if opened.effect.payload.get("keys_only"):
            keys = [*found] if isinstance(found, dict) else None
            told |= {"keys": keys, "length": len(found) if hasattr(found, "__len__") else None}
        else:
            told["value"] = found
        text = json.dumps(told, ensure_ascii=False)
        long = f"{path!r} has {len(text)} characters. Read a part, or use keys_only"
        fits = len(text) <= LONGEST_VALUE
        row |= {"success": fits, "output": text if fits else None, "error": None if fits else long}
    except (GraphError, LookupError) as exc:
        problem = exc.args[0] if isinstance(exc, LookupError) else str(exc)
        row |= {"success": False, "output": None, "error": problem}
    return EffectOutcome.completed({"mode": "executed", "results": [row]})


def deadline_of(payload: dict[str, Any], at: str) -> str | None:
    """Return the instant of a payload's `until`, or the instant `timeout_s` seconds after `at`.

    None: the payload has neither.

    Raises:
        GraphError: The value cannot be read.
    """
    if payload.get("until") is not None:
        until = normalize_utc_iso(payload["until"])
        if until is None:
            raise GraphError("payload.until", f"{payload['until']!r} is not a valid ISO timestamp")
        return until
    if payload.get("timeout_s") is None:
        return None
    seconds = payload["timeout_s"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise GraphError("payload.timeout_s", f"{seconds!r} is not a number of seconds")
    try:
        return (datetime.fromisoformat(at) + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise GraphError("payload.timeout_s", f"{seconds!r} is too long a time") from None


_ANSWERS: Final[dict[EffectType, Callable[[RunState, OpenStep, str], EffectOutcome]]] = {
    EffectType.WAIT_EVENT: _wait_event,
    EffectType.WAIT_UNTIL: _wait_until,
    EffectType.ASK_USER: _ask_user,
    EffectType.ANSWER_USER: _answer_user,
    EffectType.VARS_QUERY: _vars_query,
}
ANSWERED: Final = frozenset(_ANSWERS)
"""The effects that `outcome_of` executes."""
