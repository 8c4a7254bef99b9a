"""`callboard runs list|show|log|events`: list runs, show a run, print its log, and its events as they occur."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EXECUTES, RunLogEntry
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.outside import Caller, RunEvent
from actors._kernel.stores.runs import RunFilter
from actors._runtime.replay.history import policy_of
from actors._runtime.replay.verdict import known_id, row_of
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.options import HERE, FollowFlag, FromSeqOpt, RunIdArg, Target
from compose._commands.output import ago, pick, print_json, short
from compose._commands.terminal import console, print_facts, print_table, say
from compose._tools.export import entry_to_json

if TYPE_CHECKING:
    from actors._runtime import Runtime

_ENDS = {K.EFFECT_RESULT, K.TOOL_RESULT, K.LLM_CALL, K.EFFECT_ABANDONED, K.IN_DOUBT_RESOLVED}


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect that was started and has no result."""

    position: str
    verb: str
    name: str
    mode: str
    since: datetime
    seq: int
    """Number of the entry that started the effect."""


async def list_runs(  # noqa: PLR0913 - every filter is an option of its own
    *,
    status: opt.StatusOpt = None,
    agent: str | None = None,
    parked: opt.Flag = False,
    type_: opt.TypeOpt = None,
    tenant: opt.TenantOpt = None,
    since: str | None = None,
    until: str | None = None,
    parent: str | None = None,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    target: Target = HERE,
) -> None:
    """List runs, newest first. A parked run is shown with its reason.

    Examples:
    `callboard runs list --status running --status suspended`;
    `callboard runs list --type desk --since 2h`;
    `callboard runs list --agent acme:desk/main --parked --json`

    Parameters
    ----------
    status
        Only runs in this status: pending, running, suspended, completed, failed or cancelled.
    agent
        Only runs of this agent, TYPE/KEY or TENANT:TYPE/KEY.
    parked
        Only parked runs, which wait for an operator.
    type_
        Only runs of agents of this type.
    since
        Only runs created at this time or later: an instant (ISO 8601, UTC if it has no offset), or a
        span that is subtracted from now, such as 90s, 15m, 12h or 30d.
    until
        Only runs created before this time, given like --since.
    parent
        Only runs that this run spawned.
    after
        Only runs after this run in the list. Give the last run of the page before.
    """
    statuses = [status_of(text) for text in status or ()]
    agent_id = AgentId.parse(agent) if agent is not None else None
    among = RunFilter(
        type=type_,
        tenant=tenant,
        since=opt.instant("--since", since),
        until=opt.instant("--until", until),
        parent=known_id(parent) if parent else None,
        after=known_id(after) if after else None,
    )
    async with target.client() as runtime:
        for run in (parent, after):
            if run is not None:
                await known_run(runtime, run)
        rows = await runtime.store.lists.runs(
            status=statuses,
            agent=agent_id,
            parked=True if parked else None,
            among=among,
            limit=limit,
        )
    target.table(
        rows,
        run_to_json,
        ("run", "agent", "status", "attempt", "waits for", "created ago", "changed ago"),
        lambda row: (
            row.run_id,
            row.agent_id,
            status_text(row),
            row.attempt or "",
            waits_text(row),
            ago(row.created_at),
            ago(row.updated_at),
        ),
        empty_text="no runs",
    )
    if len(rows) == limit and not target.json:
        say(f"there may be more: --after {rows[-1].run_id}")


def status_of(text: str) -> RunStatus:
    """Return the status with the name `text`, in any case.

    Raises:
        ContractError: No status has this name.
    """
    try:
        return RunStatus(text.upper())
    except ValueError:
        names = ", ".join(status.lower() for status in RunStatus)
        raise ContractError(f"--status {text!r}: it has to be one of {names}") from None


def status_text(row: RunRow) -> str:
    """Return the status for people. The status of a parked run is PARKED with the reason."""
    return f"PARKED ({row.parked})" if row.parked else row.status.value


def waits_text(row: RunRow) -> str:
    """Return the text of the waits that can wake the run; empty if it executes or has ended."""
    if row.status.is_terminal or row.status is RunStatus.RUNNING:
        return ""
    if row.parked:
        return "an operator"
    if row.status is RunStatus.PENDING:
        return f"a retry {ago(row.wake_at)}" if row.wake_at is not None else "its agent"
    wake = row.wake
    if wake is None:
        return ""
    parts = [f"signal {name}" for name in wake.signals]
    parts += ["a message"] if wake.message else []
    parts += [f"run {run}" for run in wake.runs]
    parts += [f"time ({ago(wake.at)})"] if wake.at is not None else []
    return " or ".join(parts)


def run_to_json(row: RunRow) -> dict[str, JsonValue]:
    """Return a run as JSON data. Instants are ISO 8601 texts."""
    return {
        **pick(row, "run=run_id agent=agent_id status parked attempt priority"),
        "max_retries": None if row.retry_policy is None else row.retry_policy.max_retries,
        **pick(row, "parent wake wake_at last_seq cancel_requested result error swept"),
        "forked_from": None if row.fork is None else {"run": row.fork.run_id, "seq": row.fork.seq},
        **pick(row, "created_at updated_at"),
    }


async def show(run: opt.RunIdArg, /, *, target: Target = HERE) -> None:
    """Show one run: its waits, its attempts, and its effects in doubt with their positions.

    Example: `callboard runs show 0f3c…`
    """
    async with open_run(target, run) as (runtime, row):
        entries = [entry async for entry in runtime.entries(row.run_id)]
    effects, policy = open_effects(entries), policy_of(row, entries)
    doubtful_effects = in_doubt(row, effects)
    failed_attempts = [entry for entry in entries if entry.kind == K.RUN_ATTEMPT_FAILED]
    park_entries = [entry for entry in entries if entry.kind == K.RUN_PARKED and row.parked]
    detail = str(park_entries[-1].payload.get("detail", "")) if park_entries else ""
    if target.json:
        attempts = [{"at": entry.ts.isoformat(), **entry.payload} for entry in failed_attempts]
        print_json(
            {
                **run_to_json(row),
                "max_retries": policy.max_retries,
                "parked_detail": detail or None,
                "failed_attempts": attempts,
                "open_effects": [asdict(effect) for effect in effects],
                "in_doubt": [asdict(effect) for effect in doubtful_effects],
            }
        )
        return
    print_facts(
        (
            ("run", row.run_id),
            ("agent", row.agent_id),
            ("status", status_text(row)),
            ("why", detail),
            ("waits for", waits_text(row)),
            ("attempt", f"{row.attempt} of {policy.max_retries + 1}"),
            ("log entries", row.last_seq + 1),
            ("kept", "a tombstone: the run was swept" if row.swept else ""),
            ("cancel", row.cancel_requested),
            ("parent", row.parent),
            ("forked from", f"{row.fork.run_id} at {row.fork.seq}" if row.fork else ""),
            ("created", f"{ago(row.created_at)} ago"),
            ("changed", f"{ago(row.updated_at)} ago"),
            ("output", short(row.result) if row.status is RunStatus.COMPLETED else ""),
            ("error", short((row.error or {}).get("message"))),
        )
    )
    for entry in failed_attempts:
        error = entry.payload.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        say(f"attempt {entry.payload.get('attempt')} failed {ago(entry.ts)} ago: {message}")
    for effect in doubtful_effects:
        say(
            f"in doubt: {effect.verb} {effect.name!r} at position {effect.position}, "
            f"started {ago(effect.since)} ago"
        )
        command = f"callboard runs resolve {row.run_id} {effect.position} --seq {effect.seq}"
        say(f"  {command} --value JSON | --retry | --fail")


async def known_run(runtime: Runtime, run_id: str) -> RunRow:
    """Return the run's row.

    Raises:
        UnknownRunError: The store has no such run.
    """
    return await row_of(runtime.store, known_id(run_id))


@asynccontextmanager
async def open_run(target: Target, run_id: str) -> AsyncIterator[tuple[Runtime, RunRow]]:
    """Yield a client and the run's row.

    Raises:
        UnknownRunError: The store has no such run.
    """
    async with target.client() as runtime:
        yield runtime, await known_run(runtime, run_id)


def refuse_swept(row: RunRow) -> None:
    """Raise if the run was swept: its messages are removed, so that no new run can process them.

    Raises:
        ContractError: The run was swept.
    """
    if row.swept:
        raise ContractError(f"run {row.run_id} was swept: its messages are not kept any more")


def open_effects(entries: Iterable[RunLogEntry]) -> list[OpenEffect]:
    """Return the effects that were started and have no result, in the order of the log."""
    effects_by_position: dict[str, OpenEffect] = {}
    for entry in entries:
        if entry.kind in EXECUTES:
            payload = entry.payload
            effects_by_position[entry.position] = OpenEffect(
                entry.position,
                str(payload.get("effect", "")),
                str(payload.get("name", "")),
                str(payload.get("mode", "")),
                entry.ts,
                entry.seq,
            )
        elif entry.kind in _ENDS:
            effects_by_position.pop(entry.position, None)
        # The code starts again with empty positions, and awaits no effect of the generation before.
        elif entry.kind == K.RUN_CONTINUED:
            effects_by_position.clear()
    return list(effects_by_position.values())


def in_doubt(row: RunRow, effects: Iterable[OpenEffect]) -> list[OpenEffect]:
    """Return the open at-most-once effects if the run is parked as in doubt, else an empty list."""
    if row.parked != "in_doubt":
        return []
    return [effect for effect in effects if effect.mode == "at_most_once"]


async def log(
    run: opt.RunIdArg,
    /,
    *,
    follow: opt.FollowFlag = False,
    from_seq: opt.FromSeqOpt = 0,
    target: Target = HERE,
) -> None:
    """Print the log of a run. With `--json` each line is one object.

    Examples: `callboard runs log 0f3c…`;
    `callboard runs log 0f3c… --follow --json`

    Parameters
    ----------
    follow
        Print new entries as they are written, until the run has ended.
    """
    async with open_run(target, run) as (runtime, row):
        read_entries = runtime.tail if follow else runtime.entries
        entries: AsyncIterator[RunLogEntry] = read_entries(row.run_id, from_seq=from_seq)
        if target.json:
            async for entry in entries:
                print_json(entry_to_json(entry), compact=True)
        elif follow:
            async for entry in entries:
                say("  ".join(_cells(entry)))
        else:
            end_text = f"the log ends at {row.last_seq}"
            print_table(
                ("seq", "at (UTC)", "kind", "position", "payload"),
                [_cells(entry) async for entry in entries],
                empty_text=end_text
                if row.last_seq >= 0
                else "the log is empty: the run has not started",
            )


def _cells(entry: RunLogEntry) -> tuple[str, ...]:
    payload = {key: value for key, value in entry.payload.items() if key not in ("hash", "id")}
    instant_text = entry.ts.isoformat(timespec="milliseconds")[:23].replace("T", " ")
    return (
        str(entry.seq),
        instant_text,
        entry.kind,
        entry.position,
        short(payload) if payload else "",
    )


async def events(
    run: RunIdArg, /, *, follow: FollowFlag = False, from_seq: FromSeqOpt = 0, target: Target = HERE
) -> None:
    """Print the events of a run: entries of its log, pieces of models' answers, and its end.

    Without `--follow` the command ends at the present end of the log. To continue after an interruption, give
    `--from-seq` the number after the last entry that was shown. With `--follow`, pieces of an answer
    are shown as they arrive, if CALLBOARD_NATS_URL or the folder names the hosts' NATS server. Pieces are
    never stored. When the attempt number grows, the pieces of the attempt before are void. With `--json`
    each line is one object.

    Examples: `callboard runs events 0f3c… --follow`;
    `callboard runs events 0f3c… -f --from-seq 12 --json`

    Parameters
    ----------
    follow
        Continue until the run has ended.
    """
    client = _watching_client(target) if follow else target.client()
    async with client as runtime:
        row = await known_run(runtime, run)
        caller = Caller(row.agent_id.tenant, "cli", sees="tenant")
        stream = runtime.front.events(caller, row.run_id, from_seq=from_seq)
        print_event = _EventPrinter().show
        async with aclosing(stream if follow else _until_now(row, stream)) as run_events:
            async for event in run_events:
                if target.json:
                    print_json(asdict(event), compact=True)
                else:
                    print_event(event)


@asynccontextmanager
async def _watching_client(target: Target) -> AsyncIterator[Runtime]:
    """Yield a client that receives the pieces of other processes' model calls if a NATS server is known."""
    from compose._assembly.runtime import build_as_set, settings_of_client  # noqa: PLC0415 - as in `client`

    async with (
        settings_of_client(target.client_settings()) as settings,
        build_as_set(settings, client="cli", serve=False) as runtime,
    ):
        yield runtime


async def _until_now(
    row: RunRow, stream: AsyncGenerator[RunEvent, None]
) -> AsyncGenerator[RunEvent, None]:
    """Yield the events up to the end of the log at the time of the read."""
    async with aclosing(stream) as run_events:
        # An empty log has no last entry at which to stop: the stream would wait until the run starts.
        if row.last_seq < 0 and not row.status.is_terminal:
            return
        async for event in run_events:
            if event.kind != "delta":
                yield event
            if event.seq >= row.last_seq and not row.status.is_terminal:
                return


class _EventPrinter:
    """A printer of events for people: the pieces of an answer on one line, each entry on its own line."""

    def __init__(self) -> None:
        self._attempt, self._is_inside = 1, False

    def show(self, event: RunEvent) -> None:
        """Print one event."""
        if event.kind == "delta":
            data = event.data if isinstance(event.data, dict) else {}
            if "data" in data:  # the agent emitted a value that is not text
                self._end_line()
                say(f"{event.name}  {short(data['data'])}")
                return
            style = "dim italic" if event.name == "reasoning.delta" else ""
            out = console()
            out.print(Text(str(data.get("text", ""))), end="", style=style, soft_wrap=True)
            out.file.flush()
            self._is_inside = True
            return
        self._end_line()
        if event.attempt > self._attempt:
            say(f"attempt {event.attempt}")
        self._attempt = event.attempt
        instant_text = event.at[:23].replace("T", " ")
        if event.kind == "end":
            say(f"the run has ended {event.name}: {short(event.data)}")
            return
        payload = event.data
        if isinstance(payload, dict):
            payload = {key: value for key, value in payload.items() if key not in ("hash", "id")}
        say(
            "  ".join(
                (str(event.seq), instant_text, event.name, event.position, short(payload or None))
            )
        )

    def _end_line(self) -> None:
        if self._is_inside:
            say("")
            self._is_inside = False
