"""Which shards this host acts for: claims them, reads what is in them, keeps them, gives them up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from actors.errors import ActorsError, ContractError
from actors.kernel.runtime.decisions import RESERVED
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.shards import scope_of
from actors.kernel.runtime.store import Nudge, Serves
from actors.kernel.runtime.wakeup import WakeSet
from actors.runtime.handover import DRAIN_S, Handover
from actors.runtime.tasks import TaskScope, until_free
from actors.runtime.timers import HORIZON_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.runtime.commit import HostReport, RunRow
    from actors.kernel.runtime.ids import HostIncarnation, RunId, ShardId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.shards import ShardScope
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.registry import Registry
    from actors.runtime.worker import Worker

_log = logging.getLogger(__name__)

SCAN_S: Final = 5.0
"""How often the store is asked for timers, shards and mail that no nudge told of."""

CIRCLE_S: Final = 15.0
"""Age of the waits that a scan looks at for circles which two commits closed at one moment."""

_ANY_AGE_S: Final = 1e9

UNNOTICED_S: Final = 20.0
"""Age of what a scan looks at because its hint may have been lost: several scans."""

PAGE: Final = 500
READ_AGAIN_S: Final = 1.0
"""Pause before mail is looked through again that the store could not give."""
LEAVE_LIMIT_S: Final = 1.0
CLAIM_LIMIT_S: Final = 5.0
"""How long a host that stops waits for the answer to a claim under way."""
_CLAIM_LIMIT: Final = 10_000
_SIGNALS_LIMIT_S: Final = 120.0
"""Longer than a store waits for its server before it gives up."""


class Ownership:
    """The shards of one host incarnation.

    Args:
        heartbeat_s: Seconds between heartbeats from the event loop; None when leases do not
            expire or somebody else (a thread) sends them and calls `on_report`.
        drain_s: How long executions of a shard that is given back may take to end by themselves.
    """

    def __init__(
        self,
        store: RunStore,
        owner: HostIncarnation,
        registry: Registry,
        worker: Worker,
        *,
        heartbeat_s: float | None,
        drain_s: float = DRAIN_S,
    ) -> None:
        self.owner = owner
        self._store = store
        self._registry = registry
        self._worker = worker
        self._heartbeat_s = heartbeat_s
        self._tasks: TaskScope | None = None
        self._claiming = asyncio.Lock()
        self._arrival = self._before = -1
        self._declared: Serves | None = None
        self._is_looking = self._is_leaving = False
        self._lives = 0
        self._handover = Handover(worker, self._release, drain_s=drain_s)
        self.on_shards: Callable[[], None] = lambda: None
        """Called when shards are ready to get mail, and when some were lost or given up."""
        self.on_schedule: Callable[[], None] = lambda: None
        """Called when a schedule of an agent here was written by another process."""
        self.on_limits: Callable[[Nudge], None] = lambda _: None
        """Called when another process has changed limits, or wants or has given back places."""
        self.on_life: Callable[[], None] = lambda: None
        """Called when the store may be behind what it said before."""
        self.on_fanout: Callable[[ShardId], None] = lambda _: None
        """Called when a shard of this host has followers of a new post."""
        self.also_serves: tuple[str, ...] = ()
        """Types whose shards hold no agents; claimed by a host that serves any agent."""
        worker.on_lost = self._on_lost

    async def start(self, tasks: TaskScope) -> None:
        """Claim what this host serves and keep it; hints of other processes are heard from now on."""
        self._tasks = tasks
        self._store.set_nudge_hook(self.follow)
        await self.claim()
        tasks.keep(self._scan_for_ever, name="scan")
        if self._heartbeat_s is not None:
            tasks.keep(partial(self._beat_for_ever, self._heartbeat_s), name="heartbeat")

    async def leave(self) -> None:
        """Want no shards any more: heartbeats then name them all as surplus, idle ones go at once."""
        await self.claim_no_more(limit_s=LEAVE_LIMIT_S)
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._serve_nothing()
                self.on_report(await self._store.heartbeat(self.owner, self._worker.shards))
        except (ActorsError, TimeoutError) as exc:
            _log.warning("other hosts are not told that this one leaves", exc_info=exc)

    async def claim_no_more(self, *, limit_s: float = CLAIM_LIMIT_S) -> None:
        """Claim nothing from now on, and let a claim under way come to its end.

        Cut off, it could still be executed, behind `stop`: the shards would be nobody's for a lease.
        """
        self._is_leaving = True
        await until_free(self._claiming, limit_s=limit_s)

    async def stop(self) -> None:
        """Give all shards up. Other hosts no longer count on this one, also if it had none."""
        self._store.set_nudge_hook(None)
        if self._declared is not None:
            await self._serve_nothing()
        await self._store.release_shards(self._worker.shards)

    async def _serve_nothing(self) -> None:
        await self._store.claim_shards(owner=self.owner, serves=Serves(), limit=0)

    async def claim(self) -> None:
        """Declare what is registered, take free shards, and read what is in them."""
        async with self._claiming:
            serves = self._registry.serves()
            if self._is_leaving or not (serves.types or serves.agents):
                return
            serves = replace(serves, types=(*serves.types, *self.also_serves))
            if serves != self._declared:
                await self._store.declare(serves)
                self._meet(serves)
            leases = await self._store.claim_shards(
                owner=self.owner, serves=serves, limit=_CLAIM_LIMIT
            )
            for lease in leases:
                self._worker.grant(lease)
            if self._is_leaving:
                return
            await self._load()
        self._look_for_mail()

    def _meet(self, serves: Serves) -> None:
        """Read anew what this host owned for want of anybody who serves it, and serves itself now."""
        known, self._declared = self._declared or Serves(), serves
        types, agents = set(serves.types) - set(known.types), set(serves.agents) - set(known.agents)
        for lease in self._worker.shards:
            scope = _scope_of(lease.shard)
            if scope is not None and (scope.type in types or scope.agent in agents):
                self._worker.held.read_anew(lease.shard)

    async def _load(self) -> None:
        """Read what runs in shards that are new here; what failed before is read again."""
        while shards := self._worker.begin_adoption():
            life = self._lives
            for blocking in await self._store.blockings(shards):
                self._worker.gave_up(blocking)
            await self._read_runs(shards)
            await self._read_timers(shards)
            if life != self._lives:
                continue  # what was read first may be forgotten
            self._worker.loaded(shards)
            await self._look_for_circles(shards, younger_than_s=_ANY_AGE_S)
            self.on_shards()

    def _on_lost(self) -> None:
        self.on_shards()

    async def _release(self, leases: Sequence[ShardLease]) -> None:
        # Not while claiming: a shard that is no longer known here, and still ours, would be taken up.
        async with self._claiming:
            await self._store.release_shards(self._worker.give_up(leases))

    async def _read_runs(self, shards: Sequence[ShardId], *, is_new: bool = True) -> None:
        """Read open runs: all of shards that are new here, else those no hint may have told of."""
        after: RunId | None = None
        while True:
            page = await self._store.open_runs(shards, after=after, limit=PAGE)
            queued = [run.run_id for run in page if self._is_to_start(run)]
            boot = {found.row.run_id: found.messages for found in await self._store.load(queued)}
            for row in page:
                # A run that this worker holds already may be further than its row says.
                if is_new or row.run_id in boot:
                    self._worker.adopt(row, boot.get(row.run_id, ()))
                elif row.cancel_requested is not None:
                    self._worker.cancel(row.run_id, row.agent_id, row.cancel_requested)
            await self._read_signals(page)
            if len(page) < PAGE:
                return
            after = page[-1].run_id

    def _is_to_start(self, run: RunRow) -> bool:
        is_queued = run.status is RunStatus.PENDING and run.last_seq < 0
        return is_queued and self._registry.is_served(run.agent_id)

    async def _read_signals(self, runs: Sequence[RunRow]) -> None:
        """Wake runs whose signal or answer came while nobody owned them."""
        async with TaskScope() as scope:
            for run in runs:
                wake = run.wake
                if run.parked is not None or (wake is not None and (wake.signals or wake.runs)):
                    scope.start(self._look_for_signals(run), name=f"signals of {run.run_id}")
            await scope.settle(limit_s=_SIGNALS_LIMIT_S)

    async def _look_for_signals(self, run: RunRow) -> None:
        wake = run.wake or WakeSet()
        awaited = (*wake.signals, *wake.runs)
        try:
            found = []
            if wake.signals or run.parked is not None:
                found += [signal.name for signal in await self._store.signals(run.run_id)]
            if wake.runs:
                found += [answer.key for answer in await self._store.answers(run.run_id)]
        except ActorsError:
            found = list(awaited)  # a replay looks again, and writes nothing when there is none
        is_parked = run.parked is not None
        if any(name in awaited or (is_parked and name.startswith(RESERVED)) for name in found):
            self._worker.signalled(run.run_id, run.agent_id)

    async def _look_for_circles(self, shards: Sequence[ShardId], *, younger_than_s: float) -> None:
        """Let waits fail that can never end, where no commit has seen that."""
        if shards:
            for cycle in await self._store.wait_cycles(shards, younger_than_s=younger_than_s):
                self._worker.in_circle(cycle)

    async def _look_for_lost_hints(self, shards: Sequence[ShardId]) -> None:
        if shards:
            for nudge in await self._store.unnoticed(shards, younger_than_s=UNNOTICED_S):
                self.follow(nudge)

    # --- waiting mail ---------------------------------------------------------------------------

    def _look_for_mail(self) -> None:
        """Look through the mail that waits in shards that are new here, beside what starts there."""
        if self._tasks is not None and not self._is_looking and self._worker.held.to_look_through:
            self._is_looking = True
            self._tasks.start(self._look_through(), name="look for mail")

    async def _look_through(self) -> None:
        try:
            while leases := self._worker.held.to_look_through:
                life = self._lives
                try:
                    await self._read_mail([lease.shard for lease in leases])
                except ActorsError as exc:
                    _log.warning("mail is looked through again", exc_info=exc)
                    await asyncio.sleep(READ_AGAIN_S)
                else:
                    if life == self._lives:
                        self._worker.looked_through(leases)
        finally:
            self._is_looking = False

    async def _read_mail(self, shards: Sequence[ShardId], after: int = -1) -> None:
        """Tell the worker which agents have mail; the messages stay where they are.

        Pages of one shard come by its index, those of several are sorted from all that waits: where
        much waits, shards are read one by one.
        """
        while shards:
            page = await self._store.pending_mail(shards=shards, after=after, limit=PAGE)
            for arrived in page:
                self._arrival = max(self._arrival, arrived.arrival)
                self._worker.mail_waits(arrived.agent_id, arrived.arrival)
            if len(page) < PAGE or (len(shards) == 1 and _is_one_agent(shards[0])):
                return
            if len(shards) > 1:
                half = len(shards) // 2
                await self._read_mail(shards[:half], after)
                shards = shards[half:]
            else:
                after = page[-1].arrival

    async def _read_timers(self, shards: Sequence[ShardId]) -> None:
        if shards:
            for timer in await self._store.due(shards, within_s=HORIZON_S):
                self._worker.remind(timer.agent_id)

    # --- keeping --------------------------------------------------------------------------------

    async def _scan_for_ever(self) -> None:
        """Backstop of the nudges.

        Mail is read again from where the scan before the last one ended: numbers are drawn before
        they commit, and no transaction lives as long as two scans.
        """
        last = -1
        while True:
            await asyncio.sleep(SCAN_S)
            try:
                shards = [lease.shard for lease in self._worker.loaded_shards]
                await self.claim()
                await self._read_timers(shards)
                await self._look_for_circles(shards, younger_than_s=CIRCLE_S)
                await self._look_for_lost_hints(shards)
                if self._is_looking:
                    continue
                if last < 0:
                    self._before = last = self._arrival
                await self._read_mail(shards, self._before)
                self._before, last = last, self._arrival
            except ActorsError as exc:
                _log.warning("the scan is tried again", exc_info=exc)

    async def _beat_for_ever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                report = await self._store.heartbeat(self.owner, self._worker.shards)
            except ActorsError as exc:
                _log.warning("a heartbeat failed and is tried again", exc_info=exc)
                continue
            self.on_report(report)

    def on_report(self, report: HostReport) -> None:
        """Act on what a heartbeat said: stop acting for lost shards first."""
        lost = self._worker.give_up(report.lost)
        if lost:
            shards = [lease.shard for lease in lost]
            _log.warning("shards were lost to other hosts", extra={"shards": shards})
        if self._tasks is None:
            return
        if report.unknown or report.lost:
            self._tasks.start(self.claim(), name="claim after a heartbeat")
        if report.surplus:
            self._handover.follow(report.surplus, self._tasks)

    # --- hints ----------------------------------------------------------------------------------

    def follow(self, nudge: Nudge) -> None:
        """Read what a hint is about and act on it, soon."""
        if self._tasks is None:
            return
        agent_id, run_id = nudge.agent_id, nudge.run_id
        if nudge.kind == "mail" and agent_id is not None:
            self._worker.mail_waits(agent_id)
        elif nudge.kind == "signal" and agent_id is not None and run_id is not None:
            self._worker.signalled(run_id, agent_id)
        elif nudge.kind == "fanout" and nudge.shard is not None:
            self.on_fanout(nudge.shard)
        elif nudge.kind == "life":
            self._begin_anew(self._tasks)
        elif nudge.kind == "schedule":
            self.on_schedule()
        elif nudge.kind in ("limits", "places"):
            self.on_limits(nudge)
        else:
            if nudge.kind == "cancel" and run_id is not None:
                self._worker.look_before_start(run_id)
            self._tasks.start(self._follow_or_wait(nudge), name=f"nudge {nudge.kind}")

    def _begin_anew(self, tasks: TaskScope) -> None:
        """Trust nothing that is remembered of rows; what is durable of what executes goes on."""
        self._lives += 1
        self._declared = None
        self._worker.doubt()
        self.on_life()
        tasks.start(self._follow_or_wait(Nudge("shards")), name="read what another server has")

    async def _follow_or_wait(self, nudge: Nudge) -> None:
        try:
            await self._follow(nudge)
        except ActorsError as exc:
            _log.warning("a hint is left to the next scan", extra={"problem": str(exc)})

    async def _follow(self, nudge: Nudge) -> None:
        """Read what a hint is about."""
        agent_id, run_id = nudge.agent_id, nudge.run_id
        match nudge.kind:
            case "shards":
                # Also said when hints are heard again: some were lost while nobody listened.
                await self.claim()
                held = [lease.shard for lease in self._worker.loaded_shards]
                await self._read_runs(held, is_new=False)
                await self._read_mail(held, self._before)
            case "run" if run_id is not None:
                for found in await self._store.load([run_id]):
                    self._worker.adopt(found.row, found.messages)
            case "cancel" if run_id is not None and agent_id is not None:
                row = await self._store.run(run_id)
                if row is not None and row.cancel_requested is not None:
                    self._worker.cancel(run_id, agent_id, row.cancel_requested)
            case _:
                _log.debug("a hint without a name", extra={"kind": nudge.kind})


def _is_one_agent(shard: ShardId) -> bool:
    scope = _scope_of(shard)
    return scope is not None and scope.agent is not None


def _scope_of(shard: ShardId) -> ShardScope | None:
    try:
        return scope_of(shard)
    except ContractError:
        return None  # a store may have names of its own
