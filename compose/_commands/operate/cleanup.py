"""`callboard cleanup` and `erase`: remove stored data of sessions, agents, tenants and subjects.

`cleanup tasks|artifacts` shows the candidates first, and removes them with `--apply`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors._kernel.stores.administration import EraseReport
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.options import HERE, Target
from compose._commands.output import Exit, pick, print_json
from compose._commands.terminal import print_table, say, working
from compose._host.logs import visible

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from actors.sessions import AgentRuntime, ArtifactCleanup, TaskCleanup

ApplyFlag = Annotated[
    opt.Flag,
    Parameter(name=["--apply", "--yes"], help="Remove the candidates. Default: only show them."),
]
AppOpt = Annotated[str, Parameter(help="The app of the sessions, which is their agents' type.")]
OlderOpt = Annotated[
    str | None, Parameter(help="Only candidates older than a span such as 90s, 15m, 12h or 30d.")
]
BytesOpt = Annotated[int, opt.within(0, 2**63 - 1)]
OwnerOpt = Annotated[str, Parameter(help="The owner of the sessions.")]


async def artifacts(
    *,
    session: str | None = None,
    app: AppOpt = "session",
    tenant: OwnerOpt = DEFAULT_TENANT,
    apply: ApplyFlag = False,
    include_all: opt.Flag = False,
    older_than: OlderOpt = None,
    max_bytes: BytesOpt | None = None,
    target: Target = HERE,
) -> int:
    """Show or remove debug and raw artifacts of sessions.

    A removed artifact loses its name at once, and its bytes are removed a day later. Memories, nodes and
    boards stay.

    Examples: `callboard cleanup artifacts`; `callboard cleanup artifacts --session s1 --include-all --apply`;
    `callboard cleanup artifacts --max-bytes 1000000000 --older-than 7d --yes --json`

    Parameters
    ----------
    session
        Only artifacts of this session. Default: of all sessions of the app.
    include_all
        Also show or remove ordinary artifacts.
    max_bytes
        Remove the oldest artifacts of these kinds until the remaining ones have at most this number of bytes.
    """
    age = _age(older_than)
    async with target.client() as runtime:
        report = await _agent_runtime(runtime, app, tenant).cleanup_artifacts(
            session, not apply, include_all, age, max_bytes
        )
    columns_text = "session=session_id name kind run_id artifact_id bytes=size_bytes at reason"
    rows = [pick(candidate, columns_text) for candidate in report.candidates]
    return _show(target, report, rows, "session name kind bytes at reason")


async def tasks(
    project: Annotated[Path, Parameter(help="The project's folder, or the label of its sessions.")],
    *,
    app: AppOpt = "session",
    tenant: OwnerOpt = DEFAULT_TENANT,
    apply: ApplyFlag = False,
    include_failed: opt.Flag = False,
    include_cancelled: opt.Flag = False,
    older_than: OlderOpt = None,
    target: Target = HERE,
) -> int:
    """Show or remove logs of completed tasks of a project's sessions.

    A task is a run that was spawned for a card of a task board. The task's row, nodes and card stay.

    Examples: `callboard cleanup tasks .`; `callboard cleanup tasks . --include-failed --older-than 30d --apply`

    Parameters
    ----------
    include_failed
        Also show or remove logs of failed tasks.
    include_cancelled
        Also show or remove logs of cancelled tasks.
    """
    age = _age(older_than)
    async with target.client() as runtime:
        report = await _agent_runtime(runtime, app, tenant).cleanup_project_tasks(
            project, not apply, include_failed, include_cancelled, age
        )
    columns_text = (
        "session=session_id task run_id agent=agent_id "
        "status entries bytes=size_bytes ended_at reason"
    )
    rows = [pick(candidate, columns_text) for candidate in report.candidates]
    return _show(target, report, rows, "session task run_id status entries bytes reason")


def _agent_runtime(runtime: Runtime, app: str, tenant: str) -> AgentRuntime:
    from actors.sessions import AgentRuntime  # noqa: PLC0415 - `erase` needs no sessions

    return AgentRuntime(runtime=runtime, app=app, tenant=tenant)


def _age(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(seconds=opt.span_s(text))


def _show(
    target: Target,
    report: ArtifactCleanup | TaskCleanup,
    candidates: Sequence[dict[str, JsonValue]],
    columns_text: str,
) -> int:
    """Print candidates: as JSON with all attributes, or as a table with the columns `columns_text`."""
    if target.json:
        size = report.size_bytes
        print_json({"dry_run": report.is_dry_run, "bytes": size, "candidates": [*candidates]})
        return Exit.OK
    column_names = columns_text.split()
    rows = [[candidate[column] for column in column_names] for candidate in candidates]
    print_table(column_names, rows, empty_text="there is nothing to remove")
    if candidates:
        is_dry_run = report.is_dry_run
        outcome = "would be removed: give --apply to do it" if is_dry_run else "were removed"
        say(f"{len(candidates)} with {report.size_bytes:,} bytes {outcome}")
    return Exit.OK


async def erase(  # noqa: PLR0913 - the parts of a request, and how it is done
    *,
    tenant: str,
    agent: str | None = None,
    session: str | None = None,
    about: str | None = None,
    cancel: opt.Flag = False,
    dry_run: opt.Flag = False,
    yes: Annotated[opt.Flag, Parameter(help="Do not ask.")] = False,
    wait: opt.Seconds = 30.0,
    target: Target = HERE,
) -> int:
    """Remove all stored data of a tenant, an agent, one of its sessions, or a subject for good.

    The command removes conversations, task boards, files, artifacts, documents, entities, state, messages and
    logs of ended runs in small batches. It is refused while an open run holds such data. If the command
    dies before its end, call it again. Totals of usage stay. The command prints the places that it does not
    reach, each with the date until which it has the data.

    Examples:
    `callboard erase --tenant acme --agent desk/anna --dry-run`;
    `callboard erase --tenant acme --agent desk/anna --session main --yes`;
    `callboard erase --tenant acme --about user:7 --yes`

    Parameters
    ----------
    tenant
        Owner of the data. Without another option: all data of this tenant. `default` is the tenant of
        agents whose id names none.
    agent
        Only data of this agent, TYPE/KEY.
    session
        With --agent: only this conversation, and the ended runs that wrote it.
    about
        Without --agent: memories, documents and entities of this subject.
    cancel
        Stop open runs first, and drop the messages that wait for their agents.
    dry_run
        Count the rows that would be removed, and remove nothing.
    wait
        With --cancel: longest wait for the end of open runs, in seconds.
    """
    agent_id = None if agent is None else _agent_of(tenant, agent)
    if not yes and not dry_run:
        _ask(tenant, agent_id, session, about)
    async with target.client() as runtime:
        with working("counting" if dry_run else "erasing") as count:
            report = await runtime.erase(
                tenant=tenant,
                agent=agent_id,
                session=session,
                about=about,
                cancel=cancel,
                dry_run=dry_run,
                wait_s=wait,
                on_progress=count,
            )
    if target.json:
        print_json(_to_json(report))
    else:
        _print(report)
    return Exit.OK


def _agent_of(tenant: str, text: str) -> AgentId:
    """Return the agent of the text. If the text names no tenant, the agent is of `tenant`."""
    is_whole = ":" in text.partition("/")[0]
    return AgentId.parse(text if is_whole or tenant == DEFAULT_TENANT else f"{tenant}:{text}")


def _ask(tenant: str, agent: AgentId | None, session: str | None, about: str | None) -> None:
    """Ask a person at the terminal to confirm.

    Raises:
        ContractError: There is no terminal to ask at, or the user does not agree.
    """
    parts = (("tenant", tenant), ("agent", agent), ("session", session), ("about", about))
    request_text = ", ".join(f"{name} {value}" for name, value in parts if value is not None)
    remedy = f"check with --dry-run, then give --yes to erase {request_text} for good"
    if not sys.stdin.isatty():
        raise ContractError(f"there is no terminal to ask at: {remedy}")
    sys.stderr.write(visible(f"Erase {request_text} for good? Type the tenant's name: "))
    sys.stderr.flush()
    if sys.stdin.readline().strip() != tenant:
        raise ContractError(f"nothing was erased: {remedy}")


def _print(report: EraseReport) -> None:
    rows = [
        (store, kind, number)
        for store, kinds in report.counts.items()
        for kind, number in kinds.items()
        if number
    ]
    is_dry_run = report.is_dry_run
    print_table(("store", "what", "number"), rows, empty_text="there is no such data")
    if not is_dry_run:
        say(f"erased {report.total} row(s); {len(report.cancelled)} run(s) were cancelled first")
    say("")
    location_rows = [
        (
            location.name,
            location.problem,
            "" if location.gone_by is None else f"{location.gone_by:%Y-%m-%d}",
        )
        for location in report.unreached
    ]
    print_table(("not reached", "why", "gone by"), location_rows, empty_text="")


def _to_json(report: EraseReport) -> dict[str, JsonValue]:
    request = report.what
    return {
        "tenant": request.tenant,
        "agent": None if request.agent is None else str(request.agent),
        "session": request.session,
        "about": request.about,
        "dry_run": report.is_dry_run,
        "counts": {store: dict(kinds) for store, kinds in report.counts.items()},
        "total": report.total,
        "batches": report.batches,
        "cancelled": list(report.cancelled),
        "unreached": [
            {
                "name": location.name,
                "problem": location.problem,
                "gone_by": None if location.gone_by is None else location.gone_by.isoformat(),
            }
            for location in report.unreached
        ],
    }
