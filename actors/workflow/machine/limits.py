"""The limits of a run. They are in its vars, so they survive a crash with the run."""

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
"""By kind: the names of the counter, of the limit and of the share that gives a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """The limits of a new run, which are written to its ``_limits``.

    Attributes:
        max_iterations: Iterations of an agent's loop. The graph counts them in ``current_iteration``.
        max_tokens: Tokens of a context window.
        max_output_tokens: Tokens of a model's answer. None: not known.
        max_input_tokens: Tokens of a request to a model. None: no limit.
        max_history_messages: Messages of a conversation. -1: no limit.
        warn_iterations_pct: The share of `max_iterations`, in percent, from which on there is a warning.
        warn_tokens_pct: The share of `max_tokens`, in percent, from which on there is a warning.
    """

    max_iterations: int = 20
    max_tokens: int = 32_768
    max_output_tokens: int | None = None
    max_input_tokens: int | None = None
    max_history_messages: int = -1
    warn_iterations_pct: int = 80
    warn_tokens_pct: int = 80

    def to_limits_dict(self) -> dict[str, Any]:
        """Return the limits and the two counters with which a run begins."""
        return {**asdict(self), "current_iteration": 0, "estimated_tokens_used": 0}


@dataclass(frozen=True, slots=True)
class LimitWarning:
    """A limit that a run has nearly or fully used.

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
        """The counter's share of the limit, in percent."""
        return _PERCENT * self.current / self.maximum


def check_limits(run: RunState) -> list[LimitWarning]:
    """Return a warning for each limit that the run has nearly or fully used."""
    limits = namespace(run.vars, LIMITS)
    found = []
    for kind in _NAMES:
        current, maximum, is_near = _used(limits, kind)
        if is_near:
            status = "exceeded" if current >= maximum else "warning"
            found.append(LimitWarning(kind, status, current, maximum))
    return found


def limit_status(run: RunState) -> dict[str, Any]:
    """Return the limits of a run for a person to read: ``iterations``, ``tokens`` and ``history``."""
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
    """Return a counter, its limit (0: no limit), and True if the counter gives a warning."""
    counter, most, warn = _NAMES[kind]
    current, maximum = _number(limits.get(counter)), _number(limits.get(most))
    is_near = maximum > 0 and _PERCENT * current >= maximum * (_number(limits.get(warn)) or 80)
    return current, maximum, is_near


def _number(value: Any) -> int:
    """Return a limit or a counter as a number.

    It is 0 if the vars, which any client may have written, have another value there.
    """
    try:
        return max(-_MOST, min(int(value or 0), _MOST))
    except (TypeError, ValueError, OverflowError):
        return 0


def known_updates(updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of `updates` whose names are limits or counters."""
    known = RuntimeConfig().to_limits_dict()
    return {name: value for name, value in updates.items() if name in known}
