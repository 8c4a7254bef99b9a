"""Hosts that share shards on a real PostgreSQL, each doing what the runtime does when told to."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import HostIncarnation, ShardId, scope_of
from actors._kernel.stores.runs import Blocker
from actors._kernel.stores.shards import Serves
from actors._runtime.loop.clock import SystemClock
from persistence._postgres.sharding.ownership import Takeover
from persistence.postgres import Heartbeat, Host, StoreSettings, open_store
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.runtime.rows import HostReport
    from actors._kernel.runtime.scheduler import ShardLease
    from persistence.postgres import PostgresStore

DESKS: Final = Serves(types=("desk",))


@dataclass
class Member:
    """A host that does what the runtime does about shards, when the test says so."""

    store: PostgresStore
    serves: Serves
    leases: dict[ShardId, ShardLease] = field(default_factory=dict)

    @property
    def owner(self) -> HostIncarnation:
        """This life of the host."""
        return self.store.settings.owner

    async def claim(self, limit: int = 10_000) -> list[ShardLease]:
        """Take what falls to this host."""
        leases = await self.store.shards.claim(owner=self.owner, serves=self.serves, limit=limit)
        self.leases.update({lease.shard: lease for lease in leases})
        return leases

    async def beat(self) -> HostReport:
        """Say that it is alive; drop what is lost and give back what is too much."""
        report = await self.store.shards.heartbeat(self.owner, list(self.leases.values()))
        for lease in report.lost:
            del self.leases[lease.shard]
        for surplus in report.surplus:
            await self.give_up(*surplus.shards[: surplus.count])
        return report

    async def give_up(self, *shards: ShardId) -> None:
        """Give these shards up, or all of them."""
        leases = [self.leases.pop(shard) for shard in shards or list(self.leases)]
        await self.store.shards.release(leases)

    async def leave(self) -> None:
        """Say that this host wants nothing any more."""
        self.serves = Serves()
        await self.claim()

    def beating(self) -> Heartbeat:
        """The thread that keeps this host alive."""
        host = Host(
            known=lambda: tuple(self.leases.values()),
            on_report=lambda _: None,
            blocker=lambda _: Blocker(place="a test"),
            machine=SystemClock(),
        )
        return Heartbeat(self.store.settings, self.owner, host, self.store.clock)

    async def watch(self) -> None:
        """Claim when another host dies, until cancelled."""

        async def claim() -> None:
            await self.claim()

        await Takeover(self.store.settings, claim).run()

    def count(self, type_: str = "desk") -> int:
        """How many shards of a type it holds."""
        return sum(scope_of(shard).type == type_ for shard in self.leases)


@dataclass
class Fleet:
    """Hosts on one schema."""

    url: str
    schema: str
    stack: AsyncExitStack
    members: dict[str, Member] = field(default_factory=dict)

    async def arrive(self, name: str, serves: Serves = DESKS, **settings: Any) -> Member:
        """A host that declares what it serves and claims once."""
        store_settings = StoreSettings(
            url=self.url,
            schema=self.schema,
            owner=HostIncarnation(name),
            **{"lease_s": 60.0, **settings},
        )
        store: AbstractAsyncContextManager[PostgresStore] = open_store(store_settings)
        member = Member(await self.stack.enter_async_context(store), serves)
        self.members[name] = member
        await member.store.shards.declare(serves)
        await member.claim()
        return member

    async def round(self) -> None:
        """Every host beats and claims, all at once; what is given back calls them to claim again."""

        async def beat_and_claim(member: Member) -> bool:
            report = await member.beat()
            await member.claim()
            return bool(report.surplus)

        if any(await asyncio.gather(*map(beat_and_claim, self.members.values()))):
            await asyncio.gather(*(member.claim() for member in self.members.values()))

    async def die(self, name: str) -> Member:
        """The host's lease runs out; it never speaks again."""
        await self.sql(
            "update hosts set expires_at = clock_timestamp() - interval '1 ms'"
            " where incarnation = $1",
            name,
        )
        return self.members.pop(name)

    async def years_pass(self) -> None:
        """All that happened so far was long ago; those alive are alive."""
        await self.sql("update shards set free_since = free_since - interval '1 year'")
        await self.sql("update hosts set started_at = started_at - interval '1 year'")

    async def stay_a_moment(self) -> None:
        """What is free became so just now, for an hour: others do not take it, however slow this is."""
        await self.sql("update shards set free_since = free_since + interval '1 hour'")

    async def sql(self, statement: str, *args: object) -> list[Any]:
        """The rows of a statement."""
        return await sql(self.url, self.schema, statement, *args)

    async def owners(self) -> dict[ShardId, str | None]:
        """Every shard's owner as the database has it; agrees with what the hosts think."""
        rows = await self.sql("select shard, owner from shards")
        owners = {row["shard"]: row["owner"] for row in rows}
        for name, member in self.members.items():
            assert set(member.leases) == {shard for shard, owner in owners.items() if owner == name}
        return owners

    def counts(self, type_: str = "desk") -> list[int]:
        """How many shards of the type each host holds, most first."""
        return sorted((member.count(type_) for member in self.members.values()), reverse=True)


@asynccontextmanager
async def fleet_on(url: str, schema: str) -> AsyncIterator[Fleet]:
    """Hosts that are closed at the end of the block."""
    async with AsyncExitStack() as stack:
        yield Fleet(url, schema, stack)
