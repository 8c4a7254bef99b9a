"""What a worker may act for, and how far each shard is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest

from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import Lease, ShardLease
from actors._runtime.worker.held_shards import HeldShards, run_lease

AT = datetime(2030, 1, 1, tzinfo=UTC)


def lease(shard: str, epoch: int = 1) -> ShardLease:
    """The lease of one shard."""
    return ShardLease(ShardId(shard), HostIncarnation("h"), epoch, AT)


def holding(*names: str) -> HeldShards:
    """A worker that holds these, read and looked through."""
    shards = HeldShards()
    for name in names:
        shards.grant(lease(name))
        shards.lazy.clear()
        for phase in (shards.loading, shards.unread):
            phase.discard(ShardId(name))
    return shards


def phases(shards: HeldShards, shard: str) -> set[str]:
    """How far a shard is."""
    return {
        name for name in ("loading", "unread", "draining", "lazy") if shard in getattr(shards, name)
    }


def test_a_shard_that_is_granted_has_to_be_read() -> None:
    """Its runs, its mail and its lazy rows; it is on its way out no more."""
    shards = HeldShards()
    shards.draining.add(ShardId("a"))

    shards.grant(lease("a"))

    assert phases(shards, "a") == {"loading", "unread", "lazy"}
    assert ShardId("a") in shards
    assert shards.leases == (lease("a"),)
    assert shards.loaded == ()


def test_only_what_is_loaded_is_served_and_then_scanned() -> None:
    """Mail nobody has heard of is looked for when the runs are known, and once."""
    shards = HeldShards()
    for name in ("a", "b", "c"):
        shards.grant(lease(name))
    shards.loading.discard(ShardId("b"))
    for phase in (shards.loading, shards.unread):
        phase.discard(ShardId("c"))

    assert shards.loaded == (lease("b"), lease("c"))
    assert shards.unscanned == [lease("b")]


def test_a_shard_that_was_lost_and_claimed_again_is_another_lease() -> None:
    """What was decided under the earlier epoch does not touch it."""
    shards = holding("a")
    shards.grant(lease("a", 2))

    assert not shards.holds(lease("a", 1))
    assert not shards.remove(lease("a", 1))
    assert shards.get(ShardId("a")) == lease("a", 2)
    assert shards.holds(replace(lease("a", 2), expires_at=AT.replace(year=2031)))


def test_a_shard_that_is_removed_is_in_no_phase() -> None:
    """Neither is it looked through, nor given back, nor loaded; the others stay as they are."""
    shards = holding("b")
    shards.grant(lease("a"))
    shards.draining.add(ShardId("a"))
    shards.draining.add(ShardId("b"))

    assert shards.remove(lease("a"))
    assert not shards.remove(lease("a"))

    assert phases(shards, "a") == set()
    assert shards.get(ShardId("a")) is None
    assert phases(shards, "b") == {"draining"}
    assert shards.unscanned == []


def test_of_several_shards_those_that_are_held_are_found() -> None:
    """In the order asked for."""
    shards = holding("a", "b", "c")

    assert shards.among([ShardId("c"), ShardId("x"), ShardId("a")]) == [lease("c"), lease("a")]


def test_a_worker_that_forgets_holds_nothing() -> None:
    """Nor does it remember how far a shard was."""
    shards = HeldShards()
    shards.grant(lease("a"))
    shards.draining.add(ShardId("a"))

    shards.clear()

    assert (shards.leases, shards.unscanned, phases(shards, "a")) == ((), [], set())


@pytest.mark.parametrize(
    ("stored", "named_attempt", "is_for"), [(0, None, 1), (3, None, 3), (3, 4, 4), (3, 0, 0)]
)
def test_the_lease_of_a_run_is_its_shards_in_one_attempt(
    stored: int, named_attempt: int | None, is_for: int
) -> None:
    """The present one, which is the first for a run that never began, or the one that is named."""

    class Row:
        run_id, agent_id, attempt = RunId("r"), AgentId("desk", "1"), stored

    attempt_lease = run_lease(lease("a", 7), cast("RunRow", Row()), attempt=named_attempt)

    assert attempt_lease == Lease(
        ShardId("a"), HostIncarnation("h"), 7, AT, RunId("r"), AgentId("desk", "1"), is_for
    )
