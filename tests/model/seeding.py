"""Puts the first part of a log into a fresh store, as a host would have left it that died there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import CONTINUE, DELETED, Commit, Committed, Retry
from actors._kernel.runtime.ids import HostIncarnation, run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.shards import Serves
from tests.model.agent import AGENT
from tests.model.completions import policy_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.runtime.commit import Then
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.stores.run_store import RunStore
    from tests.model.program import Case

SUBMITTER: Final = "submit:local"


async def seed_store(store: RunStore, case: Case, prefix: Sequence[RunLogEntry], boot: str) -> None:
    """Write the run with the prefix as its whole log and leave its shard without an owner."""
    run_id = run_id_of_submit(AGENT, SUBMITTER, boot)
    message = Message.of(AGENT, {"boot": True}, id=boot).sent_by(SUBMITTER)
    serves, owner = Serves(agents=(AGENT,)), HostIncarnation("seeder")
    await store.shards.declare(serves)
    (shard,) = await store.shards.claim(owner=owner, serves=serves, limit=1)
    await store.arrivals.submit(NewRun(run_id, AGENT, retry_policy=policy_of(case.retry)), message)
    lease = Lease(shard.shard, owner, shard.epoch, shard.expires_at, run_id, AGENT, 1)
    entries = tuple(NewEntry(EntryKind(e.kind), e.position, e.payload) for e in prefix)
    outcome = await store.commits.commit(
        Commit(lease, -1, entries, _then(prefix[-1]), state=_state(prefix))
    )
    assert isinstance(outcome, Committed), outcome
    await store.shards.release([shard])


def _then(last: RunLogEntry) -> Then:
    if last.kind != EntryKind.RUN_ATTEMPT_FAILED:
        return CONTINUE
    payload: Any = last.payload
    return Retry(datetime.fromisoformat(payload["at"]), payload["error"], payload["retry_from"])


def _state(prefix: Sequence[RunLogEntry]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for entry in prefix:
        if entry.kind == EntryKind.STATE_SET:
            deleted = entry.payload.get("deleted")
            state[str(entry.payload["key"])] = DELETED if deleted else entry.payload["value"]
    return state
