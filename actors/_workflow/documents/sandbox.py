"""The sandbox for code of flow documents: a subset of Python, interpreted in worker processes.

The workers are processes of `pydantic-monty`. They have no access to files, the network or the host's
environment. A worker that dies is replaced. The result of code is recorded with its step, so code may read a
clock or a random number.

Code of authors may execute for seconds. Hosts evaluate it in threads, and it has workers of its own, so that it
delays neither the event loop nor the small expressions that are evaluated there.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors._runtime.loop.tasks import is_abandoned
from actors.errors import ActorsError, Facts

_WAIT_S: Final = 30.0
"""Seconds that an evaluation of a small expression waits for an idle worker."""
MOST_CODE: Final = max(2, os.cpu_count() or 1)
"""Maximum number of workers that execute code at once. Further code waits for an idle one."""


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


def evaluate(
    code: str, inputs: Mapping[str, Any], limits: SandboxLimits, *, quick: bool = False
) -> Any:
    """Return the value of the last expression of `code`.

    Args:
        code: Statements.
        inputs: The code's global names with their values, which are JSON data.
        limits: The limits.
        quick: The code has no loops and no calls: it does not wait for a turn of other code.

    Raises:
        SandboxError: The code raised, exceeded a limit, or `pydantic-monty` is not installed.
    """
    pool = (_EXPRESSIONS if quick else _CODE).start()
    import pydantic_monty as monty  # noqa: PLC0415 - an optional dependency

    bounds: monty.ResourceLimits = {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_mib * 2**20,
        "max_recursion_depth": 200,
    }
    printed_text = monty.CollectString(limits.printed_kib * 1024)
    try:
        with pool.checkout(limits=bounds) as session:
            # Otherwise the code of a few cancelled runs would occupy the workers, one after the other.
            if is_abandoned():
                raise SandboxError("the run was cancelled before its code began")
            return session.feed_run(code, inputs=dict(inputs), print_callback=printed_text)
    except monty.MontyRuntimeError as exc:
        frames = exc.traceback()
        location = f" (line {frames[-1].line})" if frames else ""
        problem = _HEAP_SIZE.sub("more than ", exc.display("type-msg"))
        raise SandboxError(f"{problem}{location}") from None
    except monty.MontyError as exc:
        raise SandboxError(f"{type(exc).__name__.removeprefix('Monty')}: {exc}") from None
    except (TimeoutError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise SandboxError(f"{type(exc).__name__}: {exc}") from None


_HEAP_SIZE: Final = re.compile(r"\d+ bytes > (?=\d+ bytes)")
"""The size counts the worker's own heap: with it, two evaluations of the same code differ in their error."""


def unreadable(code: str) -> str | None:
    """Return the reason why the sandbox can never execute code, with the line, or None if it can read the code.

    Only the imports at its head are executed, since a module that the sandbox lacks is found in no other way.
    """
    problem = _error_of(f"raise {_FIRST}\n{code}", before=1)  # the whole code is parsed first
    if problem is not None:
        return problem
    for line, source in _imports_in(code):
        problem = _error_of(f"{source}\nraise {_FIRST}", before=1 - line)
        if problem is not None:
            return problem
    return None


_FIRST: Final = "ZeroDivisionError"
"""An error that no parser raises."""


def _error_of(code: str, *, before: int) -> str | None:
    """Return the error of the sandbox at code that raises `_FIRST`; None if it raised that.

    `before` is the number of lines that the author's code has not.
    """
    pool = _EXPRESSIONS.start()
    import pydantic_monty as monty  # noqa: PLC0415 - an optional dependency

    try:
        with pool.checkout(limits={"max_feed_duration_secs": 1.0}) as session:
            session.feed_run(code)
    except (monty.MontySyntaxError, monty.MontyRuntimeError) as exc:
        if isinstance(exc.exception(), ZeroDivisionError):
            return None
        frames = exc.traceback()
        location = f" (line {frames[-1].line - before})" if frames else ""
        return f"{_NO_PARSER.sub('the sandbox does not support', exc.display('msg'))}{location}"
    except monty.MontyError as exc:
        return f"{type(exc).__name__.removeprefix('Monty')}: {exc}"
    return None


_NO_PARSER: Final = re.compile("^The monty syntax parser does not yet support")


def _imports_in(code: str) -> Iterator[tuple[int, str]]:
    """Yield the imports that are always executed, with their lines.

    They are the statements of the code, and of the function that its last line calls.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # syntax of a newer Python, which the sandbox has read
    last_statement = body[-1] if body else None
    callee = (
        last_statement.value.func
        if isinstance(last_statement, ast.Expr) and isinstance(last_statement.value, ast.Call)
        else None
    )
    name = callee.id if isinstance(callee, ast.Name) else None
    functions = [f for f in body if isinstance(f, ast.FunctionDef) and f.name == name]
    for node in [*body, *(inner for function in functions[-1:] for inner in function.body)]:
        if isinstance(node, ast.Return | ast.Raise):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, ast.unparse(node)


class _Pool:
    """Workers of this process. They start with the first evaluation and end with the process.

    Args:
        max_workers: Maximum number of workers, or None for the number of CPUs.
        wait_s: Seconds that an evaluation waits for an idle worker, or None if it waits until there is one.
    """

    def __init__(self, max_workers: int | None, wait_s: float | None) -> None:
        self._max_workers, self._wait_s = max_workers, wait_s
        self._lock = threading.Lock()
        self._pool: Any = None
        self._owner = 0
        os.register_at_fork(after_in_child=self._renew_lock)
        atexit.register(self._end)

    def start(self) -> Any:
        """Return the pool.

        Raises:
            SandboxError: `pydantic-monty` is not installed, or this process is the fork of one whose pool had
                started.
        """
        with self._lock:
            if self._pool is None:
                try:
                    from pydantic_monty import Monty  # noqa: PLC0415 - an optional dependency
                except ImportError:
                    problem = "expressions and code need pydantic-monty. Install callboard[flows]"
                    raise SandboxError(problem) from None
                pool = Monty(
                    min_processes=1, max_processes=self._max_workers, checkout_timeout=self._wait_s
                )
                self._pool, self._owner = pool.__enter__(), os.getpid()
            # The pool's threads stay in the parent, so a call in its fork would never return.
            elif self._owner != os.getpid():
                problem = "the process was forked after its parent evaluated code. Use the start method spawn"
                raise SandboxError(problem)
            return self._pool

    def _renew_lock(self) -> None:
        # A thread of the parent may have held the lock at the fork. No thread of this process would release it.
        self._lock = threading.Lock()

    def _end(self) -> None:
        if self._pool is not None and self._owner == os.getpid():
            self._pool.__exit__(None, None, None)
            self._pool = None


_EXPRESSIONS: Final = _Pool(None, _WAIT_S)
_CODE: Final = _Pool(MOST_CODE, None)
