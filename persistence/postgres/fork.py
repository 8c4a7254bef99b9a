"""Runs that go on from another run's log."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, LiteralString

from actors.errors import ContractError, UnknownRunError
from actors.kernel.runtime.ids import run_id_of_fork
from actors.kernel.runtime.store import Submitted
from persistence.postgres.answers import own_terms

if TYPE_CHECKING:
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.ids import RunId
    from persistence.postgres.link import Links
    from persistence.postgres.settings import StoreSettings

SQL_FORK_RUN: Final[LiteralString] = (
    "select known, last_seq, local from fork_run($1,$2,$3,$4,$5,$6::interval)"
)


async def fork(
    settings: StoreSettings, links: Links, source: RunRow, *, at_seq: int, copy: int
) -> Submitted:
    """See `RunStore.fork`. Sent again after an unknown outcome it finds the run that it made."""
    run_id: RunId = source.run_id
    new_id = run_id_of_fork(run_id, at_seq, copy)
    terms = own_terms(source.supervision, new_id)
    limit_s = None if terms is None else terms.execution_budget.deadline_s
    rows = await links.fetch(
        "forking a run",
        SQL_FORK_RUN,
        settings.owner,
        run_id,
        at_seq,
        new_id,
        None if terms is None else terms.model_dump_json(),
        None if limit_s is None else timedelta(seconds=limit_s),
    )
    if not rows:
        raise UnknownRunError(run_id)
    row = rows[0]
    if not row["known"] and not 0 <= at_seq <= row["last_seq"]:
        msg = f"run {run_id} has entries 0 to {row['last_seq']}, none with seq {at_seq}"
        raise ContractError(msg)
    return Submitted(new_id, None, row["local"])
