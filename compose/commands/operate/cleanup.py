"""`callboard cleanup tasks|artifacts`: show task logs and artifacts of sessions, or remove them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.sessions import (
    AgentRuntime,
    ArtifactCandidate,
    ArtifactCleanup,
    TaskCandidate,
    TaskCleanup,
)
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import Exit, picked, print_json
from compose.commands.terminal import print_table, say

if TYPE_CHECKING:
    from actors.runtime import Runtime

ApplyFlag = Annotated[
    opt.Flag,
    Parameter(name=["--apply", "--yes"], help="Remove the candidates. Default: only show them."),
]
AppOpt = Annotated[str, Parameter(help="The app of the sessions, which is their agents' type.")]
OlderOpt = Annotated[
    str | None, Parameter(help="Only candidates older than a span such as 90s, 15m, 12h or 30d.")
]
BytesOpt = Annotated[int, opt.within(0, 2**63 - 1, "Give 0 or more.")]
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
        found = await _of(runtime, app, tenant).cleanup_artifacts(
            session, not apply, include_all, age, max_bytes
        )
    return _show(
        target, found, [*map(_artifact, found.candidates)], "session name kind bytes at reason"
    )


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
        found = await _of(runtime, app, tenant).cleanup_project_tasks(
            project, not apply, include_failed, include_cancelled, age
        )
    return _show(
        target,
        found,
        [*map(_task, found.candidates)],
        "session task run_id status entries bytes reason",
    )


def _of(runtime: Runtime, app: str, tenant: str) -> AgentRuntime:
    return AgentRuntime(runtime=runtime, app=app, tenant=tenant)


def _age(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(seconds=opt.span_s(text))


def _artifact(one: ArtifactCandidate) -> dict[str, JsonValue]:
    return picked(one, "session=session_id name kind run_id artifact_id bytes=size_bytes at reason")


def _task(one: TaskCandidate) -> dict[str, JsonValue]:
    return picked(
        one,
        "session=session_id task run_id agent=agent_id status entries bytes=size_bytes ended_at reason",
    )


def _show(
    target: Target,
    found: ArtifactCleanup | TaskCleanup,
    shown: Sequence[dict[str, JsonValue]],
    names: str,
) -> int:
    """Print candidates: as JSON with all attributes, or as a table with the columns `names`."""
    if target.json:
        size = found.size_bytes
        print_json({"dry_run": found.is_dry_run, "bytes": size, "candidates": [*shown]})
        return Exit.OK
    columns = names.split()
    rows = [[one[column] for column in columns] for one in shown]
    print_table(columns, rows, empty="there is nothing to remove")
    if shown:
        dry = found.is_dry_run
        done = "would be removed: give --apply to do it" if dry else "were removed"
        say(f"{len(shown)} with {found.size_bytes:,} bytes {done}")
    return Exit.OK
