"""Taking away what ended runs leave behind, in small batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, LiteralString

if TYPE_CHECKING:
    from persistence.postgres.link import Links

SQL_SWEEP_RUNS: Final[LiteralString] = "select sweep_runs($1, $2) as n"
SQL_SWEEP_IDS: Final[LiteralString] = "select sweep_ids($1, $2) as n"
IDS_PER_RUN: Final = 50
"""So many ids of messages go with each run that may go."""


async def sweep(links: Links, *, older_than_s: float, limit: int) -> int:
    """See `RunStore.sweep`. Handled message ids go in the same call, after 8 days at least."""
    older = timedelta(seconds=older_than_s)
    rows = await links.fetch("sweeping runs", SQL_SWEEP_RUNS, older, limit)
    await links.fetch("sweeping ids", SQL_SWEEP_IDS, older, limit * IDS_PER_RUN)
    swept: int = rows[0]["n"]
    return swept
