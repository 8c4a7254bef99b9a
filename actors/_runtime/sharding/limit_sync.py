"""Limits of a running host: read when they change, claimed for in groups, and set by people."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.stores.limits import Limit, LimitScope, LimitStore, LimitUse
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import happens, until_free
from actors._runtime.worker.dispatcher import Dispatcher
from actors.errors import ActorsError

_log = logging.getLogger("callboard.sharding")

READ_S: Final = 5.0
"""Seconds between polls of limits that no hint announced."""
PAUSE_S: Final = 0.005
"""Pause after each exchange: what comes meanwhile goes with the next."""
AGAIN_S: Final = 1.0
"""Pause after the store could not be asked."""
LEAVE_LIMIT_S: Final = 1.0


class Limiting:
    """Keeps one host's `Admission` supplied. Costs one small read in five seconds without limits.

    Args:
        store: The limits of the deployment.
        owner: The host that claims.
        dispatcher: The dispatcher whose admission is supplied; starts runs that are back in the ready queue.
        notifications: The source of hints of changes, and of slots that are free or wanted elsewhere.
    """

    def __init__(
        self,
        store: LimitStore,
        owner: HostIncarnation,
        dispatcher: Dispatcher,
        notifications: Notifications,
    ) -> None:
        self._store, self._owner = store, owner
        self._admission, self._on_admitted = dispatcher.admission, dispatcher.start_ready
        self._changed = asyncio.Event()
        self._read_at = 0.0
        self._reads = self._read_last = 0
        self._is_started = self._is_stopping = False
        self._asking = asyncio.Lock()
        self._admission.on_change = self._changed.set
        notifications.subscribe(self._follow, "limits", "slots", "incarnation")

    async def start(self) -> None:
        """Read all limits. Nothing is executed before."""
        self._is_started = True
        await self._read()

    async def run(self) -> None:
        """Read limits and exchange claims when due, until cancelled."""
        while True:
            await self._until_due()
            try:
                if self._now() >= self._read_at:
                    await self._read()
                await self._exchange()
            except ActorsError as exc:
                _log.warning("limits are asked for again", extra={"problem": str(exc)})
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(PAUSE_S)

    def _follow(self, nudge: Nudge) -> None:
        # Limits changed, or the store lost commits: the used slots are reported again.
        if nudge.kind != "slots":
            self._read_at = 0.0
            self._changed.set()
        self._admission.refresh()

    async def read_now(self) -> None:
        """Read the limits as they are now, if anything is executed here."""
        if self._is_started:
            await self._read()

    async def ask_no_more(self) -> None:
        """Claim nothing from now on, and let an exchange under way come to its end.

        Cut off, it could still be executed, behind `stop`: its slots would be held for a lease.
        """
        self._is_stopping = True
        await until_free(self._asking, limit_s=LEAVE_LIMIT_S)

    async def stop(self) -> None:
        """Release all slots, when nothing executes any more; if that fails they go with the lease."""
        claims = self._admission.release_all()
        if not claims:
            return
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._store.exchange(self._owner, claims)
        except (ActorsError, TimeoutError) as exc:
            _log.warning("slots are released with the lease", extra={"problem": str(exc)})

    async def _until_due(self) -> None:
        while True:
            self._changed.clear()
            due_at = self._admission.due_at()
            until = self._read_at if due_at is None else min(due_at, self._read_at)
            wait_s = until - self._now()
            if wait_s <= 0 or not await happens(self._changed, within_s=wait_s):
                return

    async def _read(self) -> None:
        # Before it is asked: what changes meanwhile is read again.
        self._read_at = self._now() + READ_S
        self._reads = number = self._reads + 1
        try:
            limits = [use.limit for use in await self._store.list()]
        except ActorsError:
            self._read_at = 0.0
            raise
        if number < self._read_last:
            return  # a later request was answered before
        self._read_last = number
        self._admission.define(limits)
        self._on_admitted()

    async def _exchange(self) -> None:
        # `ask_no_more` waits for this lock: an exchange that is cut off may still be executed.
        async with self._asking:
            claims = () if self._is_stopping else self._admission.claims()
            if not claims:
                return
            try:
                grants = await self._store.exchange(self._owner, claims)
            # Also a cancellation: the store may have granted slots, and the answer that says so is lost.
            except BaseException:
                self._admission.mark_unanswered(claims)
                raise
            self._admission.apply(grants)
        self._on_admitted()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class Limits:
    """The limits of the deployment, as people set them. Hosts hear of a change within a moment.

    Args:
        store: The store of the limits.
        on_change: Function that notifies this host, because a host gets no nudge for its own change.
    """

    def __init__(self, store: LimitStore, *, on_change: Callable[[], Awaitable[None]]) -> None:
        self._store, self._on_change = store, on_change

    async def set(
        self,
        scope: str,
        *,
        max_concurrent: int | None = None,
        rate_per_s: float | None = None,
        burst: int | None = None,
        weight: int = 1,
    ) -> Limit:
        """Make or replace the limit of a scope as a whole, and return it. See `Limit`.

        What executes already goes on. This host obeys it on return, others a moment later.
        `scope` is ``deployment``, ``tenant:NAME``, ``type:NAME``, ``flow:APP/FLOW`` or
        ``agent:TYPE/KEY``.

        Raises:
            ContractError: No such scope, or a number out of its range.
        """
        limit = Limit(
            scope=LimitScope.parse(scope),
            max_concurrent=max_concurrent,
            rate_per_s=rate_per_s,
            burst=burst,
            weight=weight,
        )
        await self._store.set(limit)
        await self._on_change()
        return limit

    async def delete(self, scope: str) -> bool:
        """Delete the limit of a scope; return False if there is none.

        Raises:
            ContractError: No such scope.
        """
        is_deleted = await self._store.delete(LimitScope.parse(scope))
        await self._on_change()
        return is_deleted

    async def list(self) -> list[LimitUse]:
        """Return all limits with their use, by scope."""
        return await self._store.list()
