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
    held = HeldShards()
    for name in names:
        held.grant(lease(name))
        held.lazy.clear()
        for phase in (held.loading, held.unread):
            phase.discard(ShardId(name))
    return held


def phases(held: HeldShards, shard: str) -> set[str]:
    """How far a shard is."""
    return {
        name for name in ("loading", "unread", "draining", "lazy") if shard in getattr(held, name)
    }


def test_a_shard_that_is_granted_has_to_be_read() -> None:
    """Its runs, its mail and its lazy rows; it is on its way out no more."""
    held = HeldShards()
    held.draining.add(ShardId("a"))

    held.grant(lease("a"))

    assert phases(held, "a") == {"loading", "unread", "lazy"}
    assert ShardId("a") in held
    assert held.leases == (lease("a"),)
    assert held.loaded == ()


def test_only_what_is_loaded_is_served_and_then_scanned() -> None:
    """Mail nobody has heard of is looked for when the runs are known, and once."""
    held = HeldShards()
    for name in ("a", "b", "c"):
        held.grant(lease(name))
    held.loading.discard(ShardId("b"))
    for phase in (held.loading, held.unread):
        phase.discard(ShardId("c"))

    assert held.loaded == (lease("b"), lease("c"))
    assert held.unscanned == [lease("b")]


def test_a_shard_that_was_lost_and_claimed_again_is_another_lease() -> None:
    """What was decided under the earlier epoch does not touch it."""
    held = holding("a")
    held.grant(lease("a", 2))

    assert not held.holds(lease("a", 1))
    assert not held.remove(lease("a", 1))
    assert held.get(ShardId("a")) == lease("a", 2)
    assert held.holds(replace(lease("a", 2), expires_at=AT.replace(year=2031)))


def test_a_shard_that_is_removed_is_in_no_phase() -> None:
    """Neither is it looked through, nor given back, nor loaded; the others stay as they are."""
    held = holding("b")
    held.grant(lease("a"))
    held.draining.add(ShardId("a"))
    held.draining.add(ShardId("b"))

    assert held.remove(lease("a"))
    assert not held.remove(lease("a"))

    assert phases(held, "a") == set()
    assert held.get(ShardId("a")) is None
    assert phases(held, "b") == {"draining"}
    assert held.unscanned == []


def test_of_several_shards_those_that_are_held_are_found() -> None:
    """In the order asked for."""
    held = holding("a", "b", "c")

    assert held.among([ShardId("c"), ShardId("x"), ShardId("a")]) == [lease("c"), lease("a")]


def test_a_worker_that_forgets_holds_nothing() -> None:
    """Nor does it remember how far a shard was."""
    held = HeldShards()
    held.grant(lease("a"))
    held.draining.add(ShardId("a"))

    held.clear()

    assert (held.leases, held.unscanned, phases(held, "a")) == ((), [], set())


@pytest.mark.parametrize(
    ("stored", "asked", "is_for"), [(0, None, 1), (3, None, 3), (3, 4, 4), (3, 0, 0)]
)
def test_the_lease_of_a_run_is_its_shards_in_one_attempt(
    stored: int, asked: int | None, is_for: int
) -> None:
    """The present one, which is the first for a run that never began, or the one that is named."""

    class Row:
        run_id, agent_id, attempt = RunId("r"), AgentId("desk", "1"), stored

    found = run_lease(lease("a", 7), cast("RunRow", Row()), attempt=asked)

    assert found == Lease(
        ShardId("a"), HostIncarnation("h"), 7, AT, RunId("r"), AgentId("desk", "1"), is_for
    )
