"""`callboard approvals list|approve|deny`: list and decide pending approvals."""

from __future__ import annotations

import getpass
from typing import Annotated

from cyclopts import Parameter

from actors.kernel.runtime.communication import ApprovalRequest
from compose.commands.options import HERE, LimitOpt, Target
from compose.commands.output import ago

ApprovalArg = Annotated[str, Parameter(help="The approval's id, or a prefix of it.")]
ByOpt = Annotated[
    str | None, Parameter(help="Name of the person who decides. Default: the user's name.")
]
CommentOpt = Annotated[str, Parameter(help="Text that the run's log keeps.")]


async def list_approvals(*, limit: LimitOpt = 50, target: Target = HERE) -> None:
    """List pending approvals, oldest first.

    Example: `callboard approvals list --json`
    """
    async with target.client() as runtime:
        found = await runtime.approvals.open(limit=limit)
    target.table(
        found,
        lambda one: one.model_dump(mode="json"),
        ("id", "agent", "what", "with", "asked ago", "ends", "run"),
        _row,
        empty="no pending approvals",
    )


def _row(one: ApprovalRequest) -> tuple[object, ...]:
    times = ago(one.since), ago(one.expires_at)
    return one.id, one.agent_id, one.what, one.args, *times, one.run_id


async def approve(
    approval: ApprovalArg, /, *, by: ByOpt = None, comment: CommentOpt = "", target: Target = HERE
) -> int:
    """Approve a request. The run continues, and does once exactly what it asked for.

    Example: `callboard approvals approve 3f2a --comment 'called them back'`
    """
    return await _decide("approved", approval, target, by=by, comment=comment)


async def deny(
    approval: ApprovalArg, /, *, by: ByOpt = None, comment: CommentOpt = "", target: Target = HERE
) -> int:
    """Deny a request. The run continues and receives the refusal.

    Example: `callboard approvals deny 3f2a --by Kim`
    """
    return await _decide("denied", approval, target, by=by, comment=comment)


async def _decide(word: str, approval: str, target: Target, *, by: str | None, comment: str) -> int:
    async with target.client() as runtime:
        found = await runtime.approvals.decide(
            approval, approve=word == "approved", by=by or user_name(), comment=comment
        )
    return target.tell(
        {"id": found.id, "run": found.run_id, "status": word},
        f"{word}: {found.what} of {found.agent_id}; the run continues",
    )


def user_name() -> str:
    """Return the name of the user of this process, or `operator` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return "operator"
