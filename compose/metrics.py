"""What Prometheus reads of a host: the deployment's totals, the host's own counters, its process.

Labels are bounded: agent types, of which the first hundred have their own, statuses and reasons.
Keys, runs and tenants are never labels.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from typing_extensions import override

from actors.errors import ActorsError
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.scheduler import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from actors.kernel.clock import Clock
    from actors.kernel.histogram import Histogram
    from actors.kernel.runtime.insight import Totals
    from actors.runtime import Runtime
    from actors.runtime.meters import Meters

_log = logging.getLogger("callboard.host")

TOTALS_EVERY_S: Final = 5.0
"""Totals are counted at most so often, however often and by how many they are read."""
ANSWER_LIMIT_S: Final = 2.0
"""How long the database may take; then the host counts as not ready, and totals are left out."""
MAX_TYPES: Final = 100
OTHER: Final = "other"
_PROBE: Final = RunId("~probe")


class HostProbes:
    """Health and metrics of one host process; see `compose.http.Probes`.

    Attributes:
        phase: ``starting``, ``serving`` or ``draining``.
        runtime: None until it serves.
        clock: The machine's.
        totals: What was counted last; None: the database did not tell.
    """

    def __init__(self, clock: Clock) -> None:
        self.phase = "starting"
        self.runtime: Runtime | None = None
        self.clock = clock
        self._counting = asyncio.Lock()
        self.totals: Totals | None = None
        self._counted_at = -TOTALS_EVERY_S
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_HostCollector(self))

    def serving(self, runtime: Runtime) -> None:
        """See `compose.host.Watcher.serving`."""
        self.phase, self.runtime = "serving", runtime

    def draining(self) -> None:
        """See `compose.host.Watcher.draining`."""
        self.phase = "draining"

    async def reasons(self) -> list[dict[str, str]]:
        """See `Probes.reasons`."""
        if self.phase != "serving" or self.runtime is None:
            return [{"check": "host", "problem": f"is {self.phase}"}]
        found = []
        if not await self._database_answers(self.runtime):
            problem = f"did not answer within {ANSWER_LIMIT_S:g} s"
            found.append({"check": "postgres", "problem": problem})
        elif (trouble := getattr(self.runtime.store, "trouble", None)) is not None:
            # Stores without a server have none. What the server says is for the log, not for strangers.
            found.append({"check": "postgres", "problem": str(trouble).partition(" (")[0]})
        if not self.runtime.worker.may_act:
            found.append({"check": "lease", "problem": "was not renewed in time"})
        if not self.is_connected:
            found.append({"check": "nats", "problem": "no guarded connection to the broker"})
        return found

    @property
    def is_connected(self) -> bool:
        """Whether mail moves; without a broker it always does."""
        mail = self.runtime.mail if self.runtime is not None else None
        return mail is None or mail.connected.is_set()

    async def _database_answers(self, runtime: Runtime) -> bool:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await runtime.store.run(_PROBE)
        except (ActorsError, TimeoutError):
            return False
        return True

    async def metrics(self) -> tuple[bytes, str]:
        """See `Probes.metrics`."""
        await self._count()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    async def _count(self) -> None:
        """Have totals that are at most `TOTALS_EVERY_S` old, or none when the database is silent."""
        if self.runtime is None:
            return
        async with self._counting:
            if self.clock.monotonic() - self._counted_at < TOTALS_EVERY_S:
                return
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    self.totals = await self.runtime.store.insight.totals()
            except (ActorsError, TimeoutError) as exc:
                problem = str(exc) or f"no answer within {ANSWER_LIMIT_S:g} s"
                _log.warning("totals could not be counted", extra={"problem": problem})
                self.totals = None
            self._counted_at = self.clock.monotonic()


class _HostCollector(Collector):
    def __init__(self, probes: HostProbes) -> None:
        self._probes = probes

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is known yet when this is registered

    @override
    def collect(self) -> Iterable[Metric]:
        probes = self._probes
        is_draining, is_serving = probes.phase == "draining", probes.phase == "serving"
        yield _gauge("host_draining", "Whether this host gives up its agents.", is_draining)
        yield _gauge("host_serving", "Whether this host serves.", is_serving)
        totals = probes.totals
        yield _gauge("totals_up", "Whether the database gave the totals below.", totals is not None)
        if totals is not None:
            yield from _of_totals(totals)
        if probes.runtime is not None:
            yield from _of_host(probes.runtime, connected=probes.is_connected)
            ahead = probes.clock.now() - probes.runtime.clock.now()
            text = "How far this machine's clock is ahead of the database's."
            yield _gauge("host_clock_offset_seconds", text, ahead.total_seconds())


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"callboard_{name}", text, value=float(value))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"callboard_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def bounded(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the first hundred names, and the sum of all others under ``other``."""
    names = sorted(values)
    kept = {name: float(values[name]) for name in names[:MAX_TYPES]}
    if len(names) > MAX_TYPES:
        kept[OTHER] = kept.get(OTHER, 0.0) + sum(values[name] for name in names[MAX_TYPES:])
    return kept


def _of_totals(totals: Totals) -> Iterator[Metric]:
    """Of the whole deployment: every host says the same, so take the maximum, not the sum."""
    open_runs = {status.lower(): 0.0 for status in RunStatus if not status.is_terminal}
    open_runs |= {status.lower(): float(n) for status, n in totals.runs.items()}
    unserved = dict.fromkeys(totals.unserved, 1.0)
    yield _gauges("runs", "Open runs.", "status", open_runs)
    yield _gauges("runs_parked", "Runs that wait for an operator.", "reason", dict(totals.parked))
    pending = "Messages that belong to no run yet."
    yield _gauges("inbox_pending", pending, "type", bounded(totals.pending))
    yield _gauges(
        "type_unserved", "Has work, and no live host serves it.", "type", bounded(unserved)
    )
    for name, text, value in (
        ("inbox_oldest_pending_seconds", "Age of the oldest of them.", totals.oldest_pending_s),
        ("outbox_messages", "Committed and not brought yet.", totals.outbox),
        ("dead_letters", "Given up and not redriven.", totals.dead_letters),
        ("timers_overdue", "Timers that should have fired.", totals.timers_overdue),
        ("shards", "How many shards there are.", totals.shards),
        ("shards_unowned", "Shards that nobody owns.", totals.unowned),
        ("hosts", "Hosts that live.", totals.hosts),
        ("approvals_waiting", "What waits for a person's decision.", totals.approvals),
    ):
        yield _gauge(name, text, value)


def _of_host(runtime: Runtime, *, connected: bool) -> Iterator[Metric]:
    info = InfoMetricFamily("callboard_host", "Which host this is.")
    info.add_metric([], {"host": runtime.owner, "version": version("callboard")})
    yield info
    worker = runtime.worker
    yield _gauge("host_runs_in_memory", "Runs in this host's memory.", worker.load)
    yield _gauge("host_shards", "Shards of this host.", len(worker.shards))
    yield _gauge("host_lease_good", "Whether this host may act.", worker.may_act)
    yield _gauge("host_broker_connected", "Whether mail moves.", connected)
    yield from _of_meters(runtime.meters)


def _of_meters(meters: Meters) -> Iterator[Metric]:
    """Of this host alone and since its process began: sum over hosts."""
    runs = {"completed": meters.completed, "failed": meters.failed, "cancelled": meters.cancelled}
    yield _counters("runs_ended", "Runs that ended on this host.", "status", runs)
    tokens = {"input": meters.input_tokens, "output": meters.output_tokens}
    yield _counters("llm_tokens", "Tokens of model calls.", "direction", tokens)
    effects = CounterMetricFamily(
        "callboard_effects", "Effects that executed.", labels=["verb", "status"]
    )
    for (verb, status), count in sorted(meters.effects.items()):
        effects.add_metric([verb, status], count)
    yield effects
    for name, text, value in (
        ("turns", "Executions that began.", meters.turns),
        ("turns_recovered", "Those after an execution that was broken off.", meters.recovered),
        ("turns_broken_off", "Executions that could not be written.", meters.broken_off),
        ("suspends", "Runs that left memory to wait.", meters.suspends),
        ("retries", "Attempts that failed and are tried again.", meters.retries),
        ("parks", "Runs that came to wait for an operator.", meters.parks),
        ("dead_lettered_runs", "Runs that failed with dead letters.", meters.dead_letters),
        ("messages_received", "Messages from the broker that were new.", meters.received),
        ("messages_undecodable", "Messages that were none.", meters.undecodable),
    ):
        yield CounterMetricFamily(f"callboard_{name}", text, value=value)
    yield _histogram("wake_seconds", "From when an agent could go on until it did.", meters.wake_s)
    yield _histogram("commit_group_turns", "Turns in one transaction.", meters.group_size)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"callboard_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, values: Histogram) -> HistogramMetricFamily:
    sums = list(accumulate(values.counts))
    bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, sums), strict=True))
    return HistogramMetricFamily(f"callboard_{name}", text, buckets=buckets, sum_value=values.total)
