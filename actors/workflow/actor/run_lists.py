"""Lists of the runs of an app's flows, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.stores.runs import ListStore, RunFilter
from actors.workflow.actor.flow_address import flow_and_id

PAGE: Final = 500
"""Number of rows per read when the runs of one flow are listed."""
MOST_READ: Final = 5_000
"""Maximum number of rows that are read for one page."""


class FlowRunPage(NamedTuple):
    """A page of runs.

    `next` is the run after which the next page starts. None: there are no more runs.
    """

    rows: list[RunRow]
    next: RunId | None


def flow_of(row: RunRow) -> str:
    """Return the name of a run's flow."""
    return flow_and_id(row.agent_id)[0]


async def run_of_id(lists: ListStore, agent_id: AgentId) -> RunRow | None:
    """Return the newest run of the agent of a graph's run. None: there is none."""
    return next(iter(await lists.runs(agent=agent_id, limit=1)), None)


async def flow_runs(
    lists: ListStore,
    among: RunFilter,
    *,
    flow: str | None = None,
    status: Sequence[RunStatus] = (),
    limit: int = 100,
) -> FlowRunPage:
    """Return a page of the runs of an app, of one flow or of all.

    The runs of one flow are found by reading all runs of the app, at most 5,000 rows for a page. So such a page
    may have few runs or none and still have a `next`.

    Args:
        lists: The store of the rows.
        among: The filter: the app as `type`, the tenant, and `next` of the previous page as `after`.
        flow: The name of the flow. None: all flows.
        status: The statuses of the rows. Empty: any status.
        limit: Maximum number of runs on the page.
    """
    size = limit + 1 if flow is None else PAGE
    found: list[RunRow] = []
    for _ in range(MOST_READ // PAGE):
        rows = await lists.runs(status=status, among=among, limit=size)
        found += [row for row in rows if flow in (None, flow_of(row))]
        if len(found) > limit:
            return FlowRunPage(found[:limit], found[limit - 1].run_id)
        if len(rows) < size:
            return FlowRunPage(found, None)
        among = replace(among, after=rows[-1].run_id)
    return FlowRunPage(found, among.after)
