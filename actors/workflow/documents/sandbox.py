"""The sandbox for code of flow documents: a subset of Python, interpreted in worker processes.

The workers are processes of `pydantic-monty`. They have no access to files, the network or the host's
environment. A worker that dies is replaced. The result of code is recorded with its step, so code may read a
clock or a random number.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors.errors import ActorsError, Facts

_WAIT_S: Final = 30.0
"""Seconds that an evaluation waits for an idle worker."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one evaluation.

    Attributes:
        seconds: Time of execution.
        memory_mib: Size of the heap.
        printed_kib: Size of printed text. The text is dropped.
    """

    seconds: float = 1.0
    memory_mib: int = 32
    printed_kib: int = 64


class SandboxError(Facts, ActorsError):
    """Code of a flow document failed or exceeded its limits. Nothing outside of the sandbox was changed."""

    text = "{problem}"
    problem: str


def is_available() -> bool:
    """Return True if `pydantic-monty` is installed."""
    try:
        import pydantic_monty  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        return False
    return True


def evaluate(code: str, inputs: Mapping[str, Any], limits: SandboxLimits) -> Any:
    """Return the value of the last expression of `code`.

    Args:
        code: Statements.
        inputs: The code's global names with their values, which are JSON data.
        limits: The limits.

    Raises:
        SandboxError: The code raised, exceeded a limit, or `pydantic-monty` is not installed.
    """
    pool = _POOL.started()
    import pydantic_monty as monty  # noqa: PLC0415 - an optional dependency

    bounds: monty.ResourceLimits = {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_mib * 2**20,
        "max_recursion_depth": 200,
    }
    printed = monty.CollectString(limits.printed_kib * 1024)
    try:
        with pool.checkout(limits=bounds) as session:
            return session.feed_run(code, inputs=dict(inputs), print_callback=printed)
    except monty.MontyRuntimeError as exc:
        raise SandboxError(_located(exc)) from None
    except monty.MontyError as exc:
        raise SandboxError(f"{type(exc).__name__.removeprefix('Monty')}: {exc}") from None
    except (TimeoutError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise SandboxError(f"{type(exc).__name__}: {exc}") from None


def unreadable(code: str) -> str | None:
    """Return the reason why the sandbox cannot read code, with the line. None: it can. No code is executed."""
    pool = _POOL.started()
    import pydantic_monty as monty  # noqa: PLC0415 - an optional dependency

    try:
        with pool.checkout() as session:
            session.feed_run(f"raise ValueError\n{code}")  # the whole code is parsed first
    except monty.MontySyntaxError as exc:
        frames = exc.traceback()
        place = f" (line {frames[-1].line - 1})" if frames else ""
        return f"{exc.display('msg')}{place}"
    except monty.MontyRuntimeError:
        return None
    return None


def _located(exc: Any) -> str:
    frames = exc.traceback()
    place = f" (line {frames[-1].line})" if frames else ""
    return f"{exc.display('type-msg')}{place}"


class _Pool:
    """The workers of this process. They start with the first evaluation and end with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Any = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def started(self) -> Any:
        """Return the pool.

        Raises:
            SandboxError: `pydantic-monty` is not installed.
        """
        with self._lock:
            if self._pool is None:
                try:
                    from pydantic_monty import Monty  # noqa: PLC0415 - an optional dependency
                except ImportError:
                    problem = "expressions and code need pydantic-monty. Install callboard[flows]"
                    raise SandboxError(problem) from None
                pool = Monty(min_processes=1, checkout_timeout=_WAIT_S)
                self._pool = pool.__enter__()
            return self._pool

    def _forget(self) -> None:
        self._lock, self._pool = threading.Lock(), None

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.__exit__(None, None, None)
            self._pool = None


_POOL: Final = _Pool()
