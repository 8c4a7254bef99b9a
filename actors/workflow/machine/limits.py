"""Limits of a run: kept in its vars, so that they survive with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.variables import LIMITS, namespace

_PERCENT = 100
_MOST = 2**63
_NAMES: Final = {
    "iterations": ("current_iteration", "max_iterations", "warn_iterations_pct"),
    "tokens": ("estimated_tokens_used", "max_tokens", "warn_tokens_pct"),
}
"""Of the counter, the limit and the share, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Limits that a new run begins with, in its ``_limits``.

    Attributes:
        max_iterations: Of a loop of an agent; the graph counts in ``current_iteration``.
        max_tokens: Of a context window.
        max_output_tokens: Of an answer of a model; None: not known.
        max_input_tokens: Of a request to a model; None: no limit.
        max_history_messages: Of a conversation; -1: no limit.
        warn_iterations_pct: The share of `max_iterations` from which on there is a warning.
        warn_tokens_pct: The share of `max_tokens` from which on there is a warning.
    """

    max_iterations: int = 20
    max_tokens: int = 32_768
    max_output_tokens: int | None = None
    max_input_tokens: int | None = None
    max_history_messages: int = -1
    warn_iterations_pct: int = 80
    warn_tokens_pct: int = 80

    def to_limits_dict(self) -> dict[str, Any]:
        """Return the limits and the two counters, as a run begins with them."""
        return {**asdict(self), "current_iteration": 0, "estimated_tokens_used": 0}


@dataclass(frozen=True, slots=True)
class LimitWarning:
    """A limit that is near, or reached.

    Attributes:
        limit_type: ``iterations`` or ``tokens``.
        status: ``warning``, or ``exceeded`` from 100 % on.
        current: The counter.
        maximum: The limit.
    """

    limit_type: str
    status: str
    current: int
    maximum: int

    @property
    def pct(self) -> float:
        """The share in percent."""
        return _PERCENT * self.current / self.maximum


def check_limits(run: RunState) -> list[LimitWarning]:
    """Return a warning for each limit of the run that is near or reached."""
    limits = namespace(run.vars, LIMITS)
    found = []
    for kind in _NAMES:
        current, maximum, is_near = _used(limits, kind)
        if is_near:
            status = "exceeded" if current >= maximum else "warning"
            found.append(LimitWarning(kind, status, current, maximum))
    return found


def limit_status(run: RunState) -> dict[str, Any]:
    """Return the limits of a run for people: ``iterations``, ``tokens`` and ``history``."""
    limits = namespace(run.vars, LIMITS)

    def row(kind: str) -> dict[str, Any]:
        current, maximum, is_near = _used(limits, kind)
        return {
            "current": current,
            "max": maximum,
            "pct": round(_PERCENT * current / maximum, 1) if maximum > 0 else 0.0,
            "warning": is_near,
        }

    tokens = row("tokens")
    for name in ("max_input_tokens", "max_output_tokens"):
        tokens[name] = limits.get(name)
    return {
        "iterations": row("iterations"),
        "tokens": tokens,
        "history": {"max_messages": limits.get("max_history_messages", -1)},
    }


def _used(limits: Mapping[str, Any], kind: str) -> tuple[int, int, bool]:
    """Return a counter, its limit (0: none), and whether the counter is near or at it."""
    counter, most, warn = _NAMES[kind]
    current, maximum = _number(limits.get(counter)), _number(limits.get(most))
    is_near = maximum > 0 and _PERCENT * current >= maximum * (_number(limits.get(warn)) or 80)
    return current, maximum, is_near


def _number(value: Any) -> int:
    """Return a limit or a counter; 0, if vars that any client may have written have something else there."""
    try:
        return max(-_MOST, min(int(value or 0), _MOST))
    except (TypeError, ValueError, OverflowError):
        return 0


def known_updates(updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `updates` that are names of limits or counters."""
    known = RuntimeConfig().to_limits_dict()
    return {name: value for name, value in updates.items() if name in known}
