"""`callboard approvals list|approve|deny`: what runs may do only if a person agrees."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from compose.commands.exits import Exit
from compose.commands.numbers import Limit
from compose.commands.output import ago, print_json, print_table, say
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.runtime.communication import ApprovalRequest


async def list_approvals(*, limit: Limit = 50, target: Target = HERE) -> None:
    """List what waits for a decision, oldest first.

    Example: `callboard approvals list --json`

    Parameters
    ----------
    limit
        At most so many.
    """
    async with target.client() as runtime:
        found = await runtime.approvals.open(limit=limit)
    if target.json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    print_table(
        ("id", "agent", "what", "with", "asked ago", "ends", "run"),
        [
            (
                one.id, one.agent_id, one.what, str(one.args), ago(one.since),
                ago(one.expires_at), one.run_id,
            )
            for one in found
        ],
        empty="nothing waits for a decision",
    )  # fmt: skip


async def approve(
    approval: str, /, *, by: str | None = None, comment: str = "", target: Target = HERE
) -> int:
    """Agree: the run goes on and does exactly what it asked for, once.

    Example: `callboard approvals approve 3f2a --comment 'called them back'`

    Parameters
    ----------
    approval
        Its id, or the beginning of it.
    by
        Who decides; the user's name when left out.
    comment
        Kept in the run's log.
    """
    return await _decide(approval, target, is_approved=True, by=by, comment=comment)


async def deny(
    approval: str, /, *, by: str | None = None, comment: str = "", target: Target = HERE
) -> int:
    """Refuse: the run goes on and is told so.

    Example: `callboard approvals deny 3f2a --by Kim`

    Parameters
    ----------
    approval
        Its id, or the beginning of it.
    by
        Who decides; the user's name when left out.
    comment
        Kept in the run's log.
    """
    return await _decide(approval, target, is_approved=False, by=by, comment=comment)


async def _decide(
    approval: str, target: Target, *, is_approved: bool, by: str | None, comment: str
) -> int:
    async with target.client() as runtime:
        request = await runtime.approvals.decide(
            approval, approve=is_approved, by=by or _user(), comment=comment
        )
    _tell(request, target, is_approved=is_approved)
    return Exit.OK


def _tell(request: ApprovalRequest, target: Target, *, is_approved: bool) -> None:
    word = "approved" if is_approved else "denied"
    if target.json:
        print_json({"id": request.id, "run": request.run_id, "status": word})
    else:
        say(f"{word}: {request.what} of {request.agent_id}; the run goes on")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return "operator"
