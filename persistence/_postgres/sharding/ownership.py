"""Shards: who may act for which agents, and how the agents of a dead host go on here.

Another host's death is seen as soon as its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.basics import Backoff
from actors._kernel.runtime.ids import (
    AgentId,
    HostIncarnation,
    ShardId,
    instance_shard,
    partition_hash,
    partition_shard,
    scope_of,
)
from actors._kernel.runtime.rows import HostReport, Surplus
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.shards import Serves, ShardStore
from actors.errors import ContractError, RegistrationError
from persistence._postgres.commits.encode import lease_columns
from persistence._postgres.connection.link import Link, Links, Row, ServerOutage, StoreSettings
from persistence._postgres.connection.listener import PostgresClock, Reading
from persistence.errors import RefusedError

_log = logging.getLogger("callboard.postgres")

SQL_DECLARE_AGENTS: Final[LiteralString] = (
    "select type, partitions from declare_agents($1,$2,$3,$4)"
)
SQL_CLAIM_SHARDS: Final[LiteralString] = (
    "select shard, epoch, expires_at, late, broken_at from claim_shards($1,$2,$3,$4,$5,$6,$7,$8)"
    " order by shard"
)
SQL_RELEASE_SHARDS: Final[LiteralString] = "select release_shards($1,$2,$3,$4)"
SQL_HEARTBEAT: Final[LiteralString] = (
    "select shard, epoch, now, surplus from heartbeat($1,$2,$3,$4)"
)
SQL_GIVE_UP_BLOCKED: Final[LiteralString] = "select give_up_blocked($1,$2,$3,$4,$5)"
_OTHER_MODE: Final = "CB002"
_OTHER_TRANSPORT: Final = "CB003"
_LOCK_NOT_AVAILABLE: Final = "55P03"


class ShardLeases(ShardStore):
    """Claims and gives up shards, and remembers which answers it has seen."""

    def __init__(self, settings: StoreSettings, links: Links, clock: PostgresClock) -> None:
        self._settings, self._links, self._clock = settings, links, clock
        self._owned_epochs: dict[HostIncarnation, dict[ShardId, int]] = {}
        self._modes: dict[str, str] = {}
        self._partitions: dict[str, int] = {}

    @override
    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """A type that is known keeps its number of partitions."""
        types = sorted(set(serves.types))
        agents = sorted(set(serves.agents))
        modes = {agent.type: "instance" for agent in agents}
        for type_ in types:
            if modes.setdefault(type_, "partitioned") == "instance":
                raise _mode_error(type_, "instance")
        for type_, mode in modes.items():
            if self._modes.get(type_, mode) != mode:
                raise _mode_error(type_, self._modes[type_])
        texts, hashes = [str(agent) for agent in agents], [partition_hash(a) for a in agents]
        try:
            rows = await self._links.fetch(
                "declaring agents", SQL_DECLARE_AGENTS, types, partitions, texts, hashes
            )
        except RefusedError as exc:
            if exc.sqlstate == _OTHER_MODE:
                raise _mode_error(*exc.problem.split("|")) from exc
            raise
        self._modes.update(modes)
        self._partitions.update({row["type"]: row["partitions"] for row in rows})

    @override
    def shard_of(self, agent_id: AgentId) -> ShardId:
        """Return the agent's shard, the same one as the SQL function `shard_of`.

        Raises:
            RegistrationError: The type was not declared through this store.
        """
        mode = self._modes.get(agent_id.type)
        if mode == "instance":
            return instance_shard(agent_id)
        if mode is None:
            msg = f"agent type {agent_id.type!r} was not declared through this store"
            raise RegistrationError(msg)
        return partition_shard(
            agent_id.type, partition_hash(agent_id) % self._partitions[agent_id.type]
        )

    @override
    async def claim(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """A shard whose answer was lost comes with the next call.

        Raises:
            ContractError: Messages in this database go another way than this host's.
        """
        owned_epochs = self._owned_epochs.setdefault(owner, {})
        try:
            rows = await self._links.fetch(
                "claiming shards",
                SQL_CLAIM_SHARDS,
                owner,
                self._settings.lease,
                list(serves.types),
                [instance_shard(agent) for agent in serves.agents],
                list(owned_epochs),
                limit,
                self._settings.capacity,
                self._settings.brokered,
            )
        except RefusedError as exc:
            if exc.sqlstate == _OTHER_TRANSPORT:
                raise _other_transport(is_brokered=exc.problem == "brokered") from exc
            if exc.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            # Another session has locked the rows: the next scan claims them.
            _log.warning("shards are busy; claiming them with the next try")
            return []
        leases = [
            ShardLease(
                ShardId(row["shard"]), owner, row["epoch"], row["expires_at"], row["broken_at"]
            )
            for row in rows
        ]
        owned_epochs.update({lease.shard: lease.epoch for lease in leases})
        if late_shards := [row["shard"] for row in rows if row["late"]]:
            _log.warning(
                "took shards above this host's share: nobody else came for them",
                extra={"shards": late_shards, "owner": owner},
            )
        return leases

    @override
    async def release(self, leases: Sequence[ShardLease]) -> None:
        if not leases:
            return
        await self._links.fetch(
            "releasing shards", SQL_RELEASE_SHARDS, self._settings.owner, *lease_columns(leases)
        )
        # Only after the statement: a claim under way would otherwise enter the shards again as owned.
        for lease in leases:
            owned_epochs = self._owned_epochs.get(lease.owner, {})
            if owned_epochs.get(lease.shard) == lease.epoch:
                del owned_epochs[lease.shard]

    @override
    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        asked_at = self._clock.monotonic()
        rows = await self._links.fetch(
            "heartbeat", SQL_HEARTBEAT, owner, self._settings.lease, None, None
        )
        report = host_report(rows, known)
        self._clock.observe(Reading(report.now, asked_at, self._clock.monotonic()))
        self.apply_report(owner, report)
        return report

    def apply_report(self, owner: HostIncarnation, report: HostReport) -> None:
        """Note what a heartbeat said: what was lost or dropped here may be claimed again."""
        owned_epochs = self._owned_epochs.get(owner, {})
        for shard in (*report.unknown, *(lease.shard for lease in report.lost)):
            owned_epochs.pop(shard, None)


def host_report(rows: Sequence[Row], host_leases: Sequence[ShardLease]) -> HostReport:
    """Compare what the database says this host owns with what the host thinks."""
    now: datetime = rows[0]["now"]
    epochs_by_shard = {
        ShardId(row["shard"]): row["epoch"] for row in rows if row["shard"] is not None
    }
    return HostReport(
        unknown=tuple(sorted(ShardId(row["shard"]) for row in _unread_rows(rows, host_leases))),
        lost=tuple(
            lease for lease in host_leases if epochs_by_shard.get(lease.shard) != lease.epoch
        ),
        now=now,
        surplus=_surplus(rows),
    )


def unread_leases(
    rows: Sequence[Row], host_leases: Sequence[ShardLease], owner: HostIncarnation, lease: timedelta
) -> list[ShardLease]:
    """Return the leases of shards that the database gave to this host, and the host does not know yet."""
    return [
        ShardLease(ShardId(row["shard"]), owner, row["epoch"], row["now"] + lease)
        for row in _unread_rows(rows, host_leases)
    ]


def _unread_rows(rows: Sequence[Row], host_leases: Sequence[ShardLease]) -> list[Row]:
    """Return the rows of shards that the host does not know."""
    known_shards = {None, *(lease.shard for lease in host_leases)}
    return [row for row in rows if row["shard"] not in known_shards]


def _surplus(rows: Sequence[Row]) -> tuple[Surplus, ...]:
    """Group by type the shards of which some are to be given back."""
    surplus_by_type: dict[str, tuple[list[ShardId], int]] = {}
    for row in rows:
        if (count := row["surplus"]) is not None:
            shard = ShardId(row["shard"])
            surplus_by_type.setdefault(scope_of(shard).type, ([], count))[0].append(shard)
    return tuple(
        Surplus(tuple(sorted(shards)), count) for shards, count in surplus_by_type.values()
    )


def _mode_error(type_: str, present_mode: str) -> RegistrationError:
    present_use, refused_use = ("single agents", "a whole type")[
        :: 1 if present_mode == "instance" else -1
    ]
    return RegistrationError(
        f"agent type {type_!r} is in use as {present_use} and cannot be registered as {refused_use}: a type "
        "is one or the other. Use another type name, or let its runs and messages end and stop "
        "its hosts"
    )


def _other_transport(*, is_brokered: bool) -> ContractError:
    if is_brokered:
        return ContractError(
            "messages in this database travel by a broker, and this host has none: its agents would "
            "not get theirs. Set CALLBOARD_NATS_URL as its other hosts have it"
        )
    return ContractError(
        "hosts without a broker serve in this database: they would not get this host's messages. "
        "Stop them first, then start all with CALLBOARD_NATS_URL"
    )


SQL_NEXT_DEATH: Final[LiteralString] = """
select coalesce(min(extract(epoch from h.expires_at - clock_timestamp()))::float8, 1e9) as left_s
  from hosts h where h.incarnation <> $1
    and exists (select 1 from shards s where s.owner = h.incarnation)
"""
JUST_AFTER_S: Final = 0.02
"""Seconds after the end of a lease, by the database's clock, at which its shards are asked for."""

AGAIN_S: Final = 0.1
LONGEST_AGAIN_S: Final = 1.0
"""Bounds in seconds of the doubling pause before shards that another survivor may claim are asked for again."""


class Takeover:
    """Claims the shards of hosts that died, within milliseconds of the end of their lease.

    One small question per heartbeat interval; the runtime's own scan is the backstop.

    Args:
        settings: Settings of the store.
        claim: Claims what is free, for example `HostParts.claim`.
    """

    def __init__(self, settings: StoreSettings, claim: Callable[[], Awaitable[None]]) -> None:
        self._settings, self._claim = settings, claim
        self._link = Link(settings, ServerOutage(settings))

    async def run(self) -> None:
        """Watch until cancelled."""
        interval_s = self._settings.heartbeat_s
        claim_backoff = Backoff(AGAIN_S, LONGEST_AGAIN_S)
        try:
            while True:
                wait_s = interval_s
                try:
                    # The seconds left of the lease of the host with the oldest heartbeat.
                    me = self._settings.owner
                    [row] = await self._link.fetch("looking for dead hosts", SQL_NEXT_DEATH, me)
                    left_s = float(row["left_s"])
                    if left_s <= 0:
                        await self._claim()
                        wait_s = claim_backoff.next_s()
                    else:
                        wait_s = min(left_s + JUST_AFTER_S, interval_s)
                        claim_backoff.reset()
                except Exception as exc:  # noqa: BLE001 - nobody else takes over within milliseconds
                    _log.warning("looking for dead hosts is tried again", exc_info=exc)
                await asyncio.sleep(wait_s)
        finally:
            await self._link.close()
