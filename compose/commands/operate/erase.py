"""`callboard erase`: remove all stored data of a tenant, an agent, a session or a subject for good."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors.kernel.stores.administration import EraseReport
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import Exit, print_json
from compose.commands.terminal import print_table, say, working
from compose.host.visible import visible


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
    chosen = None if agent is None else _agent_of(tenant, agent)
    if not yes and not dry_run:
        _ask(tenant, chosen, session, about)
    async with target.client() as runtime:
        with working("counting" if dry_run else "erasing") as count:
            report = await runtime.erase(
                tenant=tenant,
                agent=chosen,
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
    what = ", ".join(f"{name} {value}" for name, value in parts if value is not None)
    remedy = f"check with --dry-run, then give --yes to erase {what} for good"
    if not sys.stdin.isatty():
        raise ContractError(f"there is no terminal to ask at: {remedy}")
    sys.stderr.write(visible(f"Erase {what} for good? Type the tenant's name: "))
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
    is_dry = report.is_dry_run
    print_table(("store", "what", "number"), rows, empty="there is no such data")
    if not is_dry:
        say(f"erased {report.total} row(s); {len(report.cancelled)} run(s) were cancelled first")
    say("")
    places = [
        (one.name, one.problem, "" if one.gone_by is None else f"{one.gone_by:%Y-%m-%d}")
        for one in report.unreached
    ]
    print_table(("not reached", "why", "gone by"), places, empty="")


def _to_json(report: EraseReport) -> dict[str, JsonValue]:
    what = report.what
    return {
        "tenant": what.tenant,
        "agent": None if what.agent is None else str(what.agent),
        "session": what.session,
        "about": what.about,
        "dry_run": report.is_dry_run,
        "counts": {store: dict(kinds) for store, kinds in report.counts.items()},
        "total": report.total,
        "batches": report.batches,
        "cancelled": list(report.cancelled),
        "unreached": [
            {
                "name": one.name,
                "problem": one.problem,
                "gone_by": None if one.gone_by is None else one.gone_by.isoformat(),
            }
            for one in report.unreached
        ],
    }
