"""Lists of the runs of an app's flows, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.store.lists import ListStore, RunFilter
from actors.workflow.actor.flow_address import flow_and_id

PAGE: Final = 500
"""Number of rows that are read at once for the runs of one flow."""
MOST_READ: Final = 5_000
"""Number of rows that are read for a page of them, at most."""


class FlowRunPage(NamedTuple):
    """A page of runs. `next` is the run to go on behind; None: there are no more."""

    rows: list[RunRow]
    next: RunId | None


def flow_of(row: RunRow) -> str:
    """Return the name of the flow that a run is of."""
    return flow_and_id(row.agent_id)[0]


async def run_of_id(lists: ListStore, agent_id: AgentId) -> RunRow | None:
    """Return the run of the agent of a graph's run; None: there is none."""
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

    Those of one flow are found by reading those of the app, 5,000 rows for a page at most. So such a page may
    have few runs, or none, and a `next`.

    Args:
        lists: Where the rows are.
        among: The app as `type`, the tenant, and the run of the page before as `after`.
        flow: The name of the flow; None: all.
        status: Of the rows; none: any.
        limit: Of the page.
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
