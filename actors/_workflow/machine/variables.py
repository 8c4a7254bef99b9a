"""The names in a run's vars: dotted paths, the namespaces of the runtime, and the limits of the run.

Limits are in the vars, so they survive a crash with the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState

CONTEXT: Final = "context"
SCRATCHPAD: Final = "scratchpad"
RUNTIME: Final = "_runtime"
TEMP: Final = "_temp"
LIMITS: Final = "_limits"
NAMESPACES: Final = (CONTEXT, SCRATCHPAD, RUNTIME, TEMP, LIMITS)
SEQ: Final = "effect_seq"
"""Name in `_runtime`. Its value is the number of the next change of the state; 0 if it is absent."""
RECORDS: Final = "ledger_records"
"""Name in `_runtime`. Its value is the number of ledger records that the state includes."""
BRANCH: Final = "branch"
"""Name in `_runtime` of a branch. Its value is the path to the branch in the run; see `branch_of`."""
DEPTH: Final = "depth"
"""Name in `_runtime`. Its value is the number of runs above this run."""
STREAK: Final = "wait_until_streak"
"""Name in `_runtime`. Its value is the number of WAIT_UNTIL that waited since the last other effect.

It is absent until the first one. By it a host finds a run that only polls without a look at its ledger.
"""
_MACHINES: Final = frozenset(
    (
        SEQ,
        RECORDS,
        BRANCH,
        DEPTH,
        STREAK,
        "answers",
        "control",
        "events_seen",
        "events_heard",
        "scheduled_at",
        "bundle",
        "node_traces",
    )
)
"""The names in `_runtime` that only decisions of the machine write: not callers, not parents, not nodes."""
_MEMORY: Final = "memory_spans"
"""The name in `_runtime` of a run's memory, which can refer to artifacts of another run."""
_RUNTIMES: Final = _MACHINES | frozenset(
    (_MEMORY, "inbox", "evidence_warnings", "workflow_snapshot")
)
"""The names in `_runtime` that a run begins without, also if its caller gives them."""

_MISSING: Final = object()
_INDEX: Final = re.compile(r"\[(-?\d+)\]")


def ensure_namespaces(variables: dict[str, Any]) -> dict[str, Any]:
    """Add the missing namespaces as empty objects; return `variables`."""
    for name in NAMESPACES:
        if not isinstance(variables.setdefault(name, {}), dict):
            raise GraphError(
                f"vars[{name!r}]", "the runtime needs an object there. Use another name"
            )
    return variables


def check_callers(names: Iterable[str]) -> None:
    """Check that a caller that starts a run may give vars of these names.

    Raises:
        GraphError: A name belongs to the runtime.
    """
    reserved_names = sorted(name for name in names if str(name).startswith("_") and name != LIMITS)
    if reserved_names:
        remedy = "Names with an underscore are the runtime's: leave it out, or give it another name"
        raise GraphError("vars", f"{reserved_names[0]} is the runtime's. {remedy}")


def initial_vars(variables: Mapping[str, Any], *, with_memory: bool = False) -> dict[str, Any]:
    """Return the vars that a caller or a parent gives a run, without the names of the runtime.

    With `with_memory` the memory of the run is kept: its caller is a program that has the stores itself.

    Values there would decide for the runtime: an answer in `_runtime` would approve a tool call of the run.
    `_runtime` keeps the names of the application, such as ``provider`` and ``model``, and the depth of a
    sub-graph. `_limits` is kept, `_temp` is not.
    """
    own_vars = {name: value for name, value in variables.items() if name != TEMP}
    if isinstance(own_vars.get(RUNTIME), dict):
        excluded_names = _RUNTIMES - {_MEMORY} if with_memory else _RUNTIMES
        runtime = {
            name: value for name, value in own_vars[RUNTIME].items() if name not in excluded_names
        }
        depth = own_vars[RUNTIME].get(DEPTH)
        if type(depth) is int and depth > 0:
            runtime[DEPTH] = depth
        own_vars[RUNTIME] = runtime
    return own_vars


def is_runtimes(path: Sequence[str]) -> bool:
    """Return True if a path in the vars leads to a value that only the runtime writes."""
    return path[0] == RUNTIME and (len(path) == 1 or path[1] in _MACHINES)


def without_answers(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the vars without the answers that came before their waits, and without the path of a branch.

    The answers were given to another run, or are in a file that anybody may have written. No whole run is a
    branch: with a path that is none, it could not even be cancelled.
    """
    return without_path(without_path(variables, [RUNTIME, "answers"]), [RUNTIME, BRANCH])


def namespace(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a namespace, or an empty object if it is missing or not an object."""
    value = variables.get(name)
    return value if isinstance(value, dict) else {}


def seq_of(variables: Mapping[str, Any]) -> int:
    """Return the number of the next change of the state."""
    return int(namespace(variables, RUNTIME).get(SEQ) or 0)


def branch_of(variables: Mapping[str, Any]) -> list[str]:
    """Return the names of the branches that a node is called in, the outermost first.

    Empty: it is in no branch.
    """
    return [key.partition(".")[2] for key in namespace(variables, RUNTIME).get(BRANCH) or ()]


def place_of(run_id: str, variables: Mapping[str, Any]) -> str:
    """Return the id of the run with the path of its branch. The ids of steps are derived from it."""
    return "/".join([run_id, *(namespace(variables, RUNTIME).get(BRANCH) or ())])


def with_path(variables: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return `variables` with a value at a path. `variables` is not changed; unchanged parts are shared.

    Raises:
        GraphError: The path leads through a value that is not an object.
    """
    head, *rest = path
    if not rest:
        return {**variables, head: value}
    return {**variables, head: with_path(object_at(variables, path), rest, value)}


def object_at(variables: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the object with the first name of a path, or an empty one if there is none.

    Raises:
        GraphError: Another value has the name.
    """
    value = variables.get(path[0])
    if value is None:
        return {}
    if not isinstance(value, dict):
        problem = (
            f"{path[0]!r} is a {type(value).__name__}, not an object. Choose another result_key"
        )
        raise GraphError(f"vars path {'.'.join(path)!r}", problem)
    return value


def with_item(
    variables: dict[str, Any], path: list[str], name: str, item: dict[str, Any]
) -> dict[str, Any]:
    """Return `variables` with an object in the list at a path. `variables` is not changed.

    It replaces the object with the same value of `name`. If there is none, it is appended.

    Raises:
        GraphError: The value at the path is not a list, or the path leads through a value that is not an
            object.
    """
    value: Any = variables
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if not isinstance(value, list | None):
        problem = f"it is a {type(value).__name__}, not a list"
        raise GraphError(f"vars path {'.'.join(path)!r}", problem)
    items = [*(value or ())]
    candidates = [i for i, other in enumerate(items) if isinstance(other, dict) and name in other]
    index = next((i for i in candidates if items[i][name] == item[name]), len(items))
    items[index : index + 1] = [item]
    return with_path(variables, path, items)


def without_path(variables: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return `variables` without a path. If the path does not exist, the result is equal."""
    head, *rest = path
    if head not in variables:
        return variables
    if not rest:
        return {name: value for name, value in variables.items() if name != head}
    child = variables[head]
    return {**variables, head: without_path(child, rest)} if isinstance(child, dict) else variables


def split_key(result_key: str) -> list[str]:
    """Return the path of a `result_key`, whose dots nest.

    Raises:
        GraphError: A part of it is empty.
    """
    path = result_key.split(".")
    if not all(path):
        raise GraphError(f"result_key {result_key!r}", "a part of it is empty")
    return path


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[list[str], Any, bool]]:
    """Return path, new value and True for each added or changed value.

    For each removed value the items are path, None and False. Objects are compared name by name.
    """
    differences: list[tuple[list[str], Any, bool]] = []
    _compare(before, after, [], differences)
    return differences


def _compare(
    before: dict[str, Any],
    after: dict[str, Any],
    path: list[str],
    differences: list[tuple[list[str], Any, bool]],
) -> None:
    added_count = 0
    for name, value in after.items():
        previous = before.get(name, _MISSING)
        # Values that nobody changed are shared by the two states, so large ones are not compared.
        if previous is value:
            continue
        if previous is _MISSING:
            added_count += 1
            differences.append(([*path, name], value, True))
        elif isinstance(value, dict) and isinstance(previous, dict):
            _compare(previous, value, [*path, name], differences)
        elif _differs(previous, value):
            differences.append(([*path, name], value, True))
    # Only then a name was removed. Most steps remove none, and pay for no second loop.
    if len(before) + added_count != len(after):
        differences += [([*path, name], None, False) for name in before if name not in after]


def _differs(before: Any, after: Any) -> bool:
    try:
        # 1, 1.0 and True are equal in Python, but not in JSON.
        return type(before) is not type(after) or bool(before != after)
    # A node may leave anything in the vars, and its comparison may raise. The check of the change refuses it.
    except Exception:  # noqa: BLE001 - it counts as changed
        return True


def parse_path(path: str) -> list[str | int]:
    """Return the steps of ``a.b[1]`` or of a JSON pointer ``/a/b/1``.

    Raises:
        GraphError: The path is empty or cannot be read.
    """
    if path.startswith("/"):
        parts = path[1:].split("/")
        return [part.replace("~1", "/").replace("~0", "~") for part in parts]
    steps: list[str | int] = []
    for part in path.split("."):
        name = part.partition("[")[0]
        indexes = part[len(name) :]
        if (not name and not indexes) or _INDEX.sub("", indexes):
            raise GraphError(f"path {path!r}", "write a.b[1] or /a/b/1")
        steps += [name] if name else []
        steps += [int(number) for number in _INDEX.findall(indexes)]
    return steps


def value_at(variables: Any, path: str) -> Any:
    """Return the value at a path.

    Raises:
        GraphError: The path cannot be read.
        LookupError: The path does not exist; the message has its first missing part.
    """
    value = variables
    for step in parse_path(path):
        if isinstance(value, dict):
            if str(step) not in value:
                raise LookupError(f"Missing key {str(step)!r} in {path!r}")
            value = value[str(step)]
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", str(step)):
            if not -len(value) <= int(step) < len(value):
                raise LookupError(f"Missing index {step} in {path!r}: the list has {len(value)}")
            value = value[int(step)]
        else:
            raise LookupError(f"Missing key {str(step)!r} in {path!r}: {type(value).__name__}")
    return value


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
        max_output_tokens: Tokens of a model's answer, or None if they are not known.
        max_input_tokens: Tokens of a request to a model, or None if there is no limit.
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
    warnings = []
    for kind in _NAMES:
        current, maximum, is_near = _usage_of(limits, kind)
        if is_near:
            status = "exceeded" if current >= maximum else "warning"
            warnings.append(LimitWarning(kind, status, current, maximum))
    return warnings


def limit_status(run: RunState) -> dict[str, Any]:
    """Return the limits of a run for a person to read: ``iterations``, ``tokens`` and ``history``."""
    limits = namespace(run.vars, LIMITS)

    def row(kind: str) -> dict[str, Any]:
        current, maximum, is_near = _usage_of(limits, kind)
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


def _usage_of(limits: Mapping[str, Any], kind: str) -> tuple[int, int, bool]:
    """Return a counter, its limit (0: no limit), and True if the counter gives a warning."""
    counter_name, limit_name, share_name = _NAMES[kind]
    current, maximum = _number(limits.get(counter_name)), _number(limits.get(limit_name))
    is_near = maximum > 0 and _PERCENT * current >= maximum * (
        _number(limits.get(share_name)) or 80
    )
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
    limit_names = RuntimeConfig().to_limits_dict()
    return {name: value for name, value in updates.items() if name in limit_names}
