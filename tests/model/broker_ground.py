"""A ground of real servers: rows in PostgreSQL, messages by NATS or by rows, both in virtual time.

The database's functions read the time from a table of one row. Another thread writes it, while the
loop stands still, before the first query after a jump. All cases of a run share one schema, in
which only the id of the deployment is left between them; each has streams of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import asyncpg
import nats
from nats.errors import NoRespondersError
from typing_extensions import override

from actors._kernel.runtime.commit import Committed
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.stores.shards import Serves
from broker import JetStreamTransport, Subjects
from persistence._postgres.connection.listener import PostgresClock, Reading
from persistence.postgres import PostgresStore, StoreSettings, open_store
from tests.harness.faulty_store import Faults, Manner
from tests.harness.heldloop import PATIENCE_S
from tests.harness.simloop import EPOCH
from tests.model.agent import SINK
from tests.model.crowd import Crowd
from tests.model.drive import Stage
from tests.model.ground import OUTSIDER, SENDER, Stead, message_of, run_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from nats.aio.client import Client

    from actors._kernel.runtime.commit import Commit, CommitOutcome
    from actors._kernel.runtime.hints import Nudge
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.stores.run_store import RunStore
    from actors._kernel.stores.transport import (
        IngestOutcome,
        MailBatch,
        MailConnection,
        OutboxRow,
        Transport,
    )
    from tests.harness.heldloop import Held, HeldLoop
    from tests.model.drive import Observed
    from tests.model.program import Case

T = TypeVar("T")

ERRORS: Final = (Manner.ERROR_BEFORE, Manner.ERROR_AFTER)
HEARTBEAT_S: Final = 3.0
FOR_EVER_S: Final = 1e6
"""Virtual time jumps: leases and pings that expire in between would be meaningless."""

# `clock_timestamp()` of these functions is found in the schema before pg_catalog.
_TAKE_THE_CLOCK: Final = """
create table clock (at timestamptz not null);
insert into clock values (clock_timestamp());
create function clock_timestamp() returns timestamptz language sql volatile
  as $$ select at from {schema}.clock $$;
do $$ declare f regprocedure; begin
  for f in select p.oid from pg_proc p where p.pronamespace = '{schema}'::regnamespace
      and p.prosrc like '%clock_timestamp()%' loop
    execute format('alter function %s set search_path = {schema}, pg_catalog', f);
  end loop;
end $$;
create table buried (owner text primary key);
create function not_by_the_dead() returns trigger language plpgsql as $$ begin
  return case when new.owner in (select owner from {schema}.buried) then null else new end;
end $$;
create trigger not_by_the_dead before update on shards
  for each row execute function not_by_the_dead();
create table room (gone timestamptz not null, back timestamptz not null);
create function find_room() returns trigger language plpgsql as $$ begin
  if exists (select 1 from {schema}.room r, {schema}.clock c where c.at >= r.gone and c.at < r.back) then
    raise exception 'could not extend file: No space left on device' using errcode = 'disk_full';
  end if;
  return null;
end $$;
create trigger find_room before insert on event_log
  for each statement execute function find_room();
"""
_TABLES: Final = """
select string_agg('delete from ' || tablename, ';') from pg_tables where schemaname = $1
  and tablename not in ('buried', 'clock', 'deployment', 'schema_functions', 'schema_migrations',
    'store_tables')
"""


# Its crash may have interrupted a claim, whose result is unknown here.
_BURY: Final = (
    "insert into buried values ('{owner}')",
    """
begin;
lock table shards in share row exclusive mode;
update shards set owner = null, free_since = present() where owner = '{owner}';
commit
""",
)


class DatabaseClock:
    """Sets the database's time; usable from a loop that must not go on meanwhile."""

    def __init__(self, url: str, schema: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._told: float | None = None
        connecting = asyncpg.connect(url, server_settings={"search_path": schema})
        self._connection = self._run(_opened(connecting))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def tell(self, virtual_s: float) -> None:
        """Set the time, unless it is set already."""
        if virtual_s != self._told:
            at = EPOCH + timedelta(seconds=virtual_s)
            self._run(self._connection.execute("update clock set at = $1", at))
            self._told = virtual_s

    def execute(self, sql: str) -> None:
        """Execute statements."""
        self._run(self._connection.execute(sql))

    def value(self, sql: str, *args: object) -> Any:
        """Return one value."""
        return self._run(self._connection.fetchval(sql, *args))

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _opened(connecting: Any) -> Any:
    return await connecting


class _HeldTransport:
    """A transport during whose connects and closes time stands still."""

    def __init__(self, transport: JetStreamTransport, held: Held) -> None:
        self._transport, self._held = transport, held

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[MailConnection]:
        async with AsyncExitStack() as stack:
            opening = self._transport.connect(**options)
            with self._held.call():
                connection = await stack.enter_async_context(opening)
            try:
                yield connection
            finally:
                with self._held.call():
                    await stack.aclose()


class _TellingStore(PostgresStore):
    """Says what came by the broker; whether it could be written does not matter for the time.

    Attributes:
        is_mute: Nobody hears of outbox rows, as if every host died right after its commits.
    """

    def __init__(
        self, settings: StoreSettings, *, held: Held, is_mute: bool, is_brokered: bool
    ) -> None:
        super().__init__(settings, PostgresClock(Reading(EPOCH, 0.0, 0.0)))
        self.held, self.is_mute, self.is_brokered = held, is_mute, is_brokered
        self._commit, self._ingest = self.commits.commit, self.mail.ingest
        self._set_hook = self.outbox.set_hook
        self.commits.commit = self._telling_commit  # type: ignore[method-assign]
        self.mail.ingest = self._telling_ingest  # type: ignore[method-assign]
        self.outbox.set_hook = self._outbox_hook  # type: ignore[method-assign]

    @override
    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        def forward(nudge: Nudge) -> None:
            self.held.came(f"{nudge.kind} {nudge.run_id or nudge.agent_id}")
            if hook is not None:
                hook(nudge)

        super().set_nudge_hook(None if hook is None else forward)

    def _outbox_hook(self, hook: Callable[[Sequence[OutboxRow]], None] | None) -> None:
        self._set_hook(None if self.is_mute else hook)

    async def _telling_commit(self, commit: Commit) -> CommitOutcome:
        outcome = await self._commit(commit)
        if isinstance(outcome, Committed) and self.is_brokered:
            for out in commit.outgoing:
                if isinstance(out.target, AgentId) and out.target.type != SINK.type:
                    self.held.expect(out.message.id)
        return outcome

    async def _telling_ingest(self, batch: MailBatch) -> IngestOutcome:
        try:
            return await self._ingest(batch)
        finally:
            for item in batch.received:
                self.held.came(item.message_id)


@dataclass
class BrokerGround:
    """See `Ground`. Made by `theatre`, for one case.

    Attributes:
        store: For onlookers.
        settings: Of the stores of hosts.
        nats_url: Where the broker is.
        subjects: Of this case's streams.
        outside: A connection of an outside service.
        names: Numbers that no other host has.
        is_mute: See `_TellingStore`.
    """

    store: RunStore
    settings: StoreSettings
    clock: DatabaseClock
    nats_url: str | None
    subjects: Subjects | None
    outside: Client | None
    held: Held
    names: itertools.count[int]
    is_mute: bool

    async def begin(self, cases: Sequence[Case], full: tuple[float, float] | None) -> None:
        """Delete the cases before, and let messages to sinks have a shard that any host reads.

        From the first time to the second the disk is `full`.
        """
        tables = self.clock.value(_TABLES, self.settings.schema)
        self.clock.execute(tables)
        if full is not None:
            full_at, back = (EPOCH + timedelta(seconds=at) for at in full)
            self.clock.execute(f"insert into room values ('{full_at}', '{back}')")
        await self.store.shards.declare(
            Serves(agents=tuple(AgentId.parse(case.sink) for case in cases))
        )

    async def end(self) -> None:
        """Delete the streams."""
        if self.subjects is None:
            return
        names = await self._ask("$JS.API.STREAM.NAMES", {})
        for name in names["streams"] or ():
            if name.startswith(f"{self.subjects.namespace}_"):
                await self._ask(f"$JS.API.STREAM.DELETE.{name}", {})

    @property
    def elsewhere(self) -> RunStore:
        """See `Ground`."""
        return self.store

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Stead]:
        """See `Ground.host`."""
        owner = HostIncarnation(f"host-{next(self.names)}")
        settings = replace(self.settings, owner=owner)
        is_brokered = self.subjects is not None
        store = _TellingStore(
            settings, held=self.held, is_mute=self.is_mute, is_brokered=is_brokered
        )
        if self.subjects is None:
            async with store.running():
                yield Stead(store, owner, None, HEARTBEAT_S)
            self._bury(owner)
            return
        namespace = self.subjects.namespace
        assert self.nats_url is not None
        transport = JetStreamTransport(self.nats_url, namespace=namespace, owner=owner)
        async with store.running():
            held = cast("Transport", _HeldTransport(transport, self.held))
            yield Stead(store, owner, held, HEARTBEAT_S)
        self._bury(owner)

    def _bury(self, owner: HostIncarnation) -> None:
        """Release what the dead host owns, and what a claim that it had started gets it."""
        for statements in _BURY:
            self.clock.execute(statements.format(owner=owner))

    async def send(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """See `Ground.send`. Time stands still until a host has read it."""
        if self.subjects is None:
            self.held.expect(f"mail {agent}")
            await self.store.arrivals.deliver([message_of(agent, payload, id)])
            return
        await self._publish(self.subjects.external(agent, OUTSIDER), payload, id)

    async def submit(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """See `Ground.submit`. Time stands still until the agent's host has been notified."""
        run, message = run_of(agent, payload, id)
        self.held.expect(f"run {run.run_id}")
        if (await self.store.arrivals.submit(run, message)).arrived is None:
            self.held.came(f"run {run.run_id}")

    async def signal(
        self,
        agent: AgentId,
        run_id: RunId,
        name: str,
        payload: dict[str, Any],
        *,
        id: str,  # noqa: A002
    ) -> None:
        """See `Ground.signal`. Time stands still until a host has read it."""
        if self.subjects is None:
            self.held.expect(f"signal {run_id}")
            answer = await self.store.arrivals.signal(
                run_id, name, payload, message_id=id, sender=SENDER
            )
            if not answer.accepted:
                self.held.came(f"signal {run_id}")
            return
        await self._publish(self.subjects.signal(agent, OUTSIDER, run_id, name), payload, id)

    async def is_settled(self) -> bool:
        """See `Ground.is_settled`."""
        return bool(self.clock.value("select not exists (select 1 from outbox)"))

    async def _publish(self, subject: str, payload: dict[str, Any], id: str) -> None:  # noqa: A002
        while True:
            self.held.expect(id)
            try:
                answer = await self._ask(subject, payload, {"Nats-Msg-Id": id})
            except NoRespondersError:  # no host has created the streams so far
                self.held.came(id)
                await asyncio.sleep(0.01)
            else:
                assert "seq" in answer, answer
                return

    async def _ask(
        self, subject: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        assert self.outside is not None
        with self.held.call():
            data = json.dumps(body).encode()
            answer = await self.outside.request(subject, data, timeout=60, headers=headers)
        parsed: dict[str, Any] = json.loads(answer.data)
        return parsed


class Theatre:
    """Runs cases one after the other on the same servers. Made by `theatre`.

    Attributes: is_mute: Messages of agents are sent only because hosts poll for them.
    """

    def __init__(
        self,
        loop: HeldLoop,
        store: PostgresStore,
        clock: DatabaseClock,
        *,
        nats_url: str | None,
        namespace: str,
        outside: Client | None,
    ) -> None:
        self._loop, self._store, self._clock = loop, store, clock
        self._nats_url, self._namespace, self._outside = nats_url, namespace, outside
        self.is_mute = False
        self._cases, self._hosts = itertools.count(), itertools.count()

    def play(
        self, case: Case, *, seed: int, suspend_after: float, until: float, faults: Faults | None
    ) -> Observed:
        """Return the runtime's results for a case; see `drive.play`."""
        self._begin(seed)
        if faults is not None:
            # After an error the expected event comes with the next retry, for which time has to
            # pass.
            self._loop.patience_s = 0.3 if faults.manner in ERRORS else 2.0
        return self._loop.run_until_complete(
            self._play(case, suspend_after, until, faults or Faults())
        )

    def play_crowd(
        self, cases: Sequence[Case], untils: Sequence[float], *, seed: int, suspend_after: float
    ) -> list[Observed]:
        """Return the runtime's results for many cases at a time, each in its own tenant."""
        self._begin(seed)
        return self._loop.run_until_complete(
            self._on_new_ground(
                cases,
                lambda ground: Crowd(cases, self._loop, ground, suspend_after, untils).play(),
                lambda: f"{len(cases)} cases",
            )
        )

    def _begin(self, seed: int) -> None:
        self._loop.seed, self._loop.forced, self._loop._virtual = seed, 0, 0.0
        self._loop.held.forget()
        self._loop.patience_s = PATIENCE_S

    async def _play(
        self, case: Case, suspend_after: float, until: float, faults: Faults
    ) -> Observed:
        if faults.full is not None:
            until = max(until, faults.full[1])
        return await self._on_new_ground(
            [case],
            lambda ground: Stage(case, self._loop, ground, suspend_after, faults, until).play(),
            lambda: str(faults.calls),
            faults.full,
        )

    async def _on_new_ground(
        self,
        cases: Sequence[Case],
        play: Callable[[BrokerGround], Coroutine[Any, Any, T]],
        describe: Callable[[], str],
        full: tuple[float, float] | None = None,
    ) -> T:
        ground = BrokerGround(
            self._store,
            self._store.settings,
            self._clock,
            self._nats_url,
            Subjects(f"{self._namespace}-{next(self._cases)}") if self._nats_url else None,
            self._outside,
            self._loop.held,
            self._hosts,
            self.is_mute,
        )
        await ground.begin(cases, full)
        playing = asyncio.ensure_future(play(ground))
        self._loop.on_stuck = playing.cancel
        try:
            return await playing
        except asyncio.CancelledError:
            held = self._loop.held
            raise AssertionError(f"it never ends: {held}; {describe()}") from None
        finally:
            self._loop.held.forget()
            await ground.end()


@asynccontextmanager
async def theatre(
    loop: HeldLoop, *, postgres_url: str, schema: str, nats_url: str | None, namespace: str
) -> AsyncIterator[Theatre]:
    """A theatre, closed at the end of the block."""
    settings = StoreSettings(
        url=postgres_url,
        schema=schema,
        owner=HostIncarnation("onlooker"),
        lease_s=FOR_EVER_S,
        brokered=nats_url is not None,
        local_delivery=nats_url is None,
    )
    async with AsyncExitStack() as stack:
        with loop.held.call():
            store = await stack.enter_async_context(open_store(settings))
            await store.listening()
            clock = DatabaseClock(postgres_url, schema)
            stack.callback(clock.close)
            clock.execute(_TAKE_THE_CLOCK.format(schema=schema))
            loop.held.before_ask = lambda: clock.tell(loop.time())
            outside = None
            if nats_url is not None:
                outside = await nats.connect(
                    nats_url,
                    allow_reconnect=False,
                    connect_timeout=20,
                    ping_interval=int(FOR_EVER_S),
                )
                stack.push_async_callback(outside.close)
        yield Theatre(loop, store, clock, nats_url=nats_url, namespace=namespace, outside=outside)
