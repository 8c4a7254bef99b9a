"""`callboard runs list|show|log`: looking at runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError, UnknownRunError
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.scheduler import RunStatus
from compose.commands.output import ago, print_facts, print_json, print_table, say
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.log_entry import RunLogEntry
    from actors.runtime import Runtime

_BEGINS = frozenset({EntryKind.EFFECT_INTENT, EntryKind.TOOL_CALLED})
_ENDS = frozenset(
    {
        EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT, EntryKind.LLM_CALL,
        EntryKind.EFFECT_ABANDONED, EntryKind.IN_DOUBT_RESOLVED,
    }
)  # fmt: skip
_CELL = 100


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect that was begun and has no result."""

    position: str
    verb: str
    name: str
    mode: str
    since: datetime

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as JSON data."""
        return {
            "position": self.position, "verb": self.verb, "name": self.name, "mode": self.mode,
            "since": self.since.isoformat(),
        }  # fmt: skip


# --- list -----------------------------------------------------------------------------------------


async def list_runs(
    *,
    status: Annotated[list[str] | None, Parameter(negative="")] = None,
    agent: str | None = None,
    parked: Annotated[bool, Parameter(negative="")] = False,
    limit: int = 50,
    target: Target = HERE,
) -> None:
    """List runs, newest first; a parked one is shown with its reason.

    Examples:
    `callboard runs list --status running --status suspended`;
    `callboard runs list --parked`;
    `callboard runs list --agent desk/main --json`

    Parameters
    ----------
    status
        Only runs in this status: pending, running, suspended, completed, failed or cancelled.
    agent
        Only runs of this agent, TYPE/KEY.
    parked
        Only runs that wait for an operator.
    limit
        At most so many.
    """
    wanted = [_status(text) for text in status or ()]
    agent_id = AgentId.parse(agent) if agent is not None else None
    if limit < 1:
        raise ContractError(f"--limit {limit}: give 1 or more")
    async with target.client() as runtime:
        rows = await runtime.store.list_runs(
            status=wanted, agent=agent_id, parked=True if parked else None, limit=limit
        )
    if target.json:
        print_json([run_to_json(row) for row in rows])
        return
    print_table(
        ("run", "agent", "status", "attempt", "waits for", "created ago", "changed ago"),
        [
            (
                row.run_id, str(row.agent_id), status_text(row), str(row.attempt or ""),
                waits_text(row), ago(row.created_at), ago(row.updated_at),
            )
            for row in rows
        ],
        empty="no runs",
    )  # fmt: skip


def _status(text: str) -> RunStatus:
    try:
        return RunStatus(text.upper())
    except ValueError:
        names = ", ".join(status.lower() for status in RunStatus)
        raise ContractError(f"--status {text!r}: it has to be one of {names}") from None


def status_text(row: RunRow) -> str:
    """Return the status as people read it: a parked run says so, and why."""
    return f"PARKED ({row.parked})" if row.parked else row.status.value


def waits_text(row: RunRow) -> str:
    """Return what would make the run go on."""
    if row.status.is_terminal or row.status is RunStatus.RUNNING:
        return ""
    if row.parked:
        return "an operator"
    if row.status is RunStatus.PENDING:
        return f"a retry {ago(row.wake_at)}" if row.wake_at is not None else "its turn"
    wake = row.wake
    if wake is None:
        return ""
    parts = [f"signal {name}" for name in wake.signals]
    parts += ["a message"] if wake.message else []
    parts += [f"run {run}" for run in wake.runs]
    parts += [f"time ({ago(wake.at)})"] if wake.at is not None else []
    return " or ".join(parts)


def run_to_json(row: RunRow) -> dict[str, JsonValue]:
    """Return a run as JSON data; instants as ISO 8601."""
    return {
        "run": row.run_id, "agent": str(row.agent_id), "status": row.status.value,
        "parked": row.parked, "attempt": row.attempt, "priority": row.priority,
        "max_retries": row.retry_policy.max_retries, "parent": row.parent,
        "wake": row.wake.to_json() if row.wake is not None else None,
        "wake_at": _iso(row.wake_at), "last_seq": row.last_seq,
        "cancel_requested": row.cancel_requested, "result": row.result, "error": row.error,
        "swept": row.swept,
        "created_at": _iso(row.created_at), "updated_at": _iso(row.updated_at),
    }  # fmt: skip


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


# --- show -----------------------------------------------------------------------------------------


async def show(run: str, /, *, target: Target = HERE) -> None:
    """Show one run: what it waits for, its attempts, and effects in doubt with their positions.

    Example: `callboard runs show 0f3c…`

    Parameters
    ----------
    run
        The run's id.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        entries = [entry async for entry in runtime.entries(row.run_id)]
    opened = open_effects(entries)
    doubtful = in_doubt(row, opened)
    failed = [entry for entry in entries if entry.kind == EntryKind.RUN_ATTEMPT_FAILED]
    parked = (
        [entry for entry in entries if entry.kind == EntryKind.RUN_PARKED] if row.parked else []
    )
    detail = str(parked[-1].payload.get("detail", "")) if parked else ""
    if target.json:
        attempts = [{"at": entry.ts.isoformat(), **entry.payload} for entry in failed]
        print_json(
            {
                **run_to_json(row),
                "parked_detail": detail or None,
                "failed_attempts": attempts,
                "open_effects": [one.to_json() for one in opened],
                "in_doubt": [one.to_json() for one in doubtful],
            }
        )
        return
    print_facts(
        (
            ("run", row.run_id), ("agent", str(row.agent_id)), ("status", status_text(row)),
            ("why", detail), ("waits for", waits_text(row)),
            ("attempt", f"{row.attempt} of {row.retry_policy.max_retries + 1}"),
            ("log entries", str(row.last_seq + 1)),
            ("kept", "a tombstone: the run was swept" if row.swept else ""),
            ("cancel", row.cancel_requested or ""), ("parent", row.parent or ""),
            ("created", f"{ago(row.created_at)} ago"), ("changed", f"{ago(row.updated_at)} ago"),
            ("output", _short(row.result) if row.status is RunStatus.COMPLETED else ""),
            ("error", _short((row.error or {}).get("message"))),
        )
    )  # fmt: skip
    for entry in failed:
        error = entry.payload.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        say(f"attempt {entry.payload.get('attempt')} failed {ago(entry.ts)} ago: {message}")
    for one in doubtful:
        say(
            f"in doubt: {one.verb} {one.name!r} at position {one.position}, begun {ago(one.since)} ago"
        )
        say(f"  callboard runs resolve {row.run_id} {one.position} --value JSON | --retry | --fail")


async def known_run(runtime: Runtime, run: str) -> RunRow:
    """Return the run's row.

    Raises:
        UnknownRunError: There is none.
    """
    row = await runtime.store.run(RunId(run))
    if row is None:
        raise UnknownRunError(run)
    return row


def open_effects(entries: Iterable[RunLogEntry]) -> list[OpenEffect]:
    """Return the effects that were begun and have no result, in the order of the log."""
    found: dict[str, OpenEffect] = {}
    for entry in entries:
        if entry.kind in _BEGINS:
            payload = entry.payload
            found[entry.position] = OpenEffect(
                entry.position, str(payload["effect"]), str(payload["name"]), str(payload["mode"]),
                entry.ts,
            )  # fmt: skip
        elif entry.kind in _ENDS:
            found.pop(entry.position, None)
        elif entry.kind == EntryKind.RUN_CONTINUED:
            found.clear()
    return list(found.values())


def in_doubt(row: RunRow, opened: Iterable[OpenEffect]) -> list[OpenEffect]:
    """Return those of which nobody knows whether they happened; none while the run executes."""
    if row.parked != "in_doubt":
        return []
    return [one for one in opened if one.mode == "at_most_once"]


# --- log ------------------------------------------------------------------------------------------


async def log(
    run: str,
    /,
    *,
    follow: Annotated[bool, Parameter(alias="-f", negative="")] = False,
    from_seq: int = 0,
    target: Target = HERE,
) -> None:
    """Print the log of a run: everything that happened in it. With `--json` one object a line.

    Examples:
    `callboard runs log 0f3c…`;
    `callboard runs log 0f3c… --follow --json`

    Parameters
    ----------
    run
        The run's id.
    follow
        Go on with new entries as they come, until the run has ended.
    from_seq
        Start at this entry.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        read = runtime.tail if follow else runtime.entries
        entries: AsyncIterator[RunLogEntry] = read(row.run_id, from_seq=from_seq)
        if target.json:
            async for entry in entries:
                print_json(entry_to_json(entry), compact=True)
        elif follow:
            async for entry in entries:
                say("  ".join(_cells(entry)))
        else:
            print_table(
                ("seq", "at (UTC)", "kind", "position", "payload"),
                [_cells(entry) async for entry in entries],
                empty="the log is empty: the run has not started",
            )


def entry_to_json(entry: RunLogEntry) -> dict[str, JsonValue]:
    """Return a log entry as JSON data."""
    return {
        "seq": entry.seq, "at": entry.ts.isoformat(), "kind": entry.kind,
        "position": entry.position, "payload": entry.payload,
    }  # fmt: skip


def _cells(entry: RunLogEntry) -> tuple[str, ...]:
    shown = {key: value for key, value in entry.payload.items() if key not in ("hash", "id")}
    at = entry.ts.isoformat(timespec="milliseconds")[:23].replace("T", " ")
    return str(entry.seq), at, entry.kind, entry.position, _short(shown) if shown else ""


def _short(value: JsonValue) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
