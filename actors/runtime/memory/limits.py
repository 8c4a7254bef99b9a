"""Limits in memory: the same rules as in the database, for hosts of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from typing_extensions import override

from actors.kernel.basics import Clock
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import HostIncarnation
from actors.kernel.stores.limits import Claim, Grant, Limit, LimitScope, LimitStore, LimitUse

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_SHARE: Final = timedelta(milliseconds=100)
_LATELY: Final = timedelta(seconds=2)
_SILENT_S: Final = 15.0
"""A host that has said nothing for so long is dead, where no lease says when."""


@dataclass(slots=True)
class _Part:
    """A host's share of a limit, and its request."""

    held: int = 0
    wanted: int = 0
    starts: int = 0
    seen_at: datetime = _LONG_AGO
    got_at: datetime = _LONG_AGO
    started_at: datetime = _LONG_AGO


@dataclass(slots=True)
class _LimitRow:
    limit: Limit
    tokens: float
    filled_at: datetime
    parts: dict[HostIncarnation, _Part] = field(default_factory=dict)


class LimitRows:
    """The limits of one in-memory store, shared by its siblings.

    Args:
        clock: Fills the buckets.
        lease_s: Seconds after which a silent host is dead.
    """

    def __init__(self, clock: Clock, lease_s: float | None) -> None:
        self._clock = clock
        self._lease = timedelta(seconds=lease_s if lease_s is not None else _SILENT_S)
        self._rows: dict[LimitScope, _LimitRow] = {}

    def set(self, limit: Limit) -> None:
        """See `LimitStore.set`."""
        now, row = self._clock.now(), self._rows.get(limit.scope)
        if row is None or row.limit.rate_per_s is None:
            tokens = float(limit.most_starts)
        else:
            tokens = min(limit.most_starts, _filled(row, now))
        parts = row.parts if row is not None and limit.max_concurrent is not None else {}
        self._rows[limit.scope] = _LimitRow(limit, tokens, now, parts)

    def delete(self, scope: LimitScope) -> bool:
        """See `LimitStore.delete`."""
        return self._rows.pop(scope, None) is not None

    def list(self) -> list[LimitUse]:
        """See `LimitStore.list`."""
        now = self._clock.now()
        return [self._use(self._rows[scope], now) for scope in sorted(self._rows, key=str)]

    def _use(self, row: _LimitRow, now: datetime) -> LimitUse:
        self._bury(row, now)
        parts = [part for part in row.parts.values() if part.held + part.wanted + part.starts]
        wanting = sum(max(part.wanted - part.held, part.starts, 0) for part in parts)
        held = sum(part.held for part in parts)
        return LimitUse(limit=row.limit, held=held, wanting=wanting, hosts=len(parts))

    def exchange(
        self, owner: HostIncarnation, claims: Sequence[Claim]
    ) -> tuple[Sequence[Grant], bool]:
        """See `LimitStore.exchange`; also return whether others have to be notified."""
        now, is_news = self._clock.now(), False
        grants = []
        for claim in claims:
            row = self._rows.get(claim.scope)
            if row is None:
                continue
            self._bury(row, now)
            part = row.parts.setdefault(owner, _Part())
            was_held, was_wanted = part.held, part.wanted
            part.held, part.wanted, part.starts = claim.held, claim.wanted, max(claim.starts, 0)
            part.seen_at = now
            grant = _grant(row, owner, claim, now)
            grants.append(grant)
            if row.limit.max_concurrent is not None:
                others = sum(p.held for host, p in row.parts.items() if host != owner)
                is_free = grant.contended and part.held < was_held
                wants_theirs = others > 0 and part.held < part.wanted and was_wanted <= was_held
                is_news = is_news or is_free or wants_theirs
        return grants, is_news

    def _bury(self, row: _LimitRow, now: datetime) -> None:
        """Forget what dead hosts had."""
        for host in [h for h, part in row.parts.items() if part.seen_at < now - self._lease]:
            del row.parts[host]


class MemoryLimits(LimitStore):
    """Limits of rows in memory.

    Args:
        rows: The limits.
        nudge: Function that notifies the runtimes of the same store of a change.
    """

    def __init__(self, rows: LimitRows, nudge: Callable[[Nudge], None]) -> None:
        self._rows, self._nudge = rows, nudge

    @override
    async def set(self, limit: Limit) -> None:
        self._rows.set(limit)
        self._nudge(Nudge("limits"))

    @override
    async def delete(self, scope: LimitScope) -> bool:
        is_gone = self._rows.delete(scope)
        self._nudge(Nudge("limits"))
        return is_gone

    @override
    async def list(self) -> list[LimitUse]:
        return self._rows.list()

    @override
    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """A host is dead when it was silent for the lease time."""
        grants, is_news = self._rows.exchange(owner, claims)
        if is_news:
            self._nudge(Nudge("places"))
        return grants


def _grant(row: _LimitRow, owner: HostIncarnation, claim: Claim, now: datetime) -> Grant:
    part, slots = row.parts[owner], row.limit.max_concurrent
    share, missing = claim.wanted, 0
    if slots is not None:
        others = [p for host, p in row.parts.items() if host != owner]
        missing = sum(max(p.wanted - p.held, 0) for p in others)
        share = fair_places({h: (p.wanted, p.got_at) for h, p in row.parts.items()}, slots, now)[
            owner
        ]
        held = min(share, claim.wanted, slots - sum(p.held for p in others))
        if held > claim.held:
            part.held, part.got_at = held, now
    starts = _take_starts(row, owner, claim.starts, now) if claim.starts else 0
    rate = row.limit.rate_per_s
    next_s = (int(row.tokens) + 1 - row.tokens) / rate if rate and claim.starts else 0.0
    return Grant(
        scope=claim.scope,
        held=part.held,
        share=share,
        contended=missing > 0,
        starts=starts,
        next_start_s=next_s,
    )


def fair_places(
    wanting: dict[HostIncarnation, tuple[int, datetime]], slots: int, now: datetime
) -> dict[HostIncarnation, int]:
    """Return how many slots each host may use, as the SQL function of this name does.

    Args:
        wanting: The number of slots that each wants, and the instant at which it last got one.
        slots: Number of slots.
        now: The present.
    """
    shares: dict[HostIncarnation, int] = {}
    left = sorted(wanting, key=lambda host: (wanting[host][0], host))
    while left and wanting[left[0]][0] * len(left) <= slots:
        shares[left[0]] = wanting[left[0]][0]
        slots -= shares[left.pop(0)]
    if left:
        level, more = divmod(slots, len(left))
        left.sort(key=lambda host: (wanting[host][1] <= now - _SHARE, wanting[host][1], host))
        shares.update({host: level + (index < more) for index, host in enumerate(left)})
    return shares


def _filled(row: _LimitRow, now: datetime) -> float:
    passed_s = max((now - row.filled_at).total_seconds(), 0.0)
    return row.tokens + (row.limit.rate_per_s or 0.0) * passed_s


def _take_starts(row: _LimitRow, owner: HostIncarnation, wanted: int, now: datetime) -> int:
    """Take starts from the bucket, or give unused ones back; return how many were taken."""
    if row.limit.rate_per_s is None:
        return 0
    row.tokens = min(row.limit.most_starts, _filled(row, now) - min(wanted, 0))
    row.filled_at = max(now, row.filled_at)
    if wanted < 0:
        return 0
    lately = [
        (part.started_at, host)
        for host, part in row.parts.items()
        if host == owner or (part.starts > 0 and part.seen_at > now - _LATELY)
    ]
    part = row.parts[owner]
    each, more = divmod(int(row.tokens), len(lately))
    index = sorted(lately).index((part.started_at, owner))
    got = min(wanted, each + (index < more))
    row.tokens -= got
    part.starts = wanted - got
    if got:
        part.started_at = now
    return got
