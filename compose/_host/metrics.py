"""Metrics of a host for Prometheus: the deployment's totals, the host's counters, its process, and model calls.

The values of labels are bounded: statuses, reasons and agent types, of which at most 100 have a label of their
own. Types that a host serves come first. Keys, runs and tenants are never labels. Metrics of model calls are
OpenTelemetry's two of GenAI clients, with Prometheus names, and Callboard's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Final, TypeAlias

import prometheus_client as prometheus
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from typing_extensions import override

from actors._kernel.basics import Clock
from actors._kernel.histogram import Histogram
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.insight import InsightStore, KnownTotals, Totals
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import MailService
from actors._runtime.delivery.stream_guard import StreamRolledBackError
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.runtime import host_of
from actors._runtime.telemetry.counters import Counters, ModelCounters
from actors.errors import ActorsError

_Key: TypeAlias = str | tuple[str, ...]

_log = logging.getLogger("callboard.host")

TOTALS_EVERY_S: Final = 5.0
"""Least time in seconds between two counts of the totals by all hosts, for any number of reads."""
ANSWER_LIMIT_S: Final = 2.0
"""Seconds that the database may take to answer. After them the host is not ready, and totals are left out."""
COUNT_WAIT_S: Final = 2.0
"""Seconds that a request for metrics waits for the count that it started. After them it gets the last count."""
MAX_TYPES: Final = 100
OTHER: Final = "other"
_PROBE: Final = RunId("~probe")
_MODEL: Final = ("gen_ai_provider_name", "gen_ai_request_model")
_CALL: Final = ("gen_ai_operation_name", *_MODEL)


class HostProbes:
    """Health and metrics of one process: the `Probes` of its HTTP address.

    A process without agents has no lease.

    Attributes:
        phase: ``starting``, ``serving`` or ``draining``.
        runtime: The runtime; None until the process serves.
        clock: The machine's clock.
        totals: The last count of the totals; None before the first one and if the database did not answer.
    """

    def __init__(self, clock: Clock) -> None:
        self.phase = "starting"
        self.runtime: Runtime | None = None
        self.clock = clock
        self._counting = asyncio.Lock()
        self.totals: KnownTotals | None = None
        self._tasks = TaskScope()
        self._counted_at = -TOTALS_EVERY_S
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        prometheus.GCCollector(registry=self._registry)
        self._registry.register(_HostCollector(self))

    def serving(self, runtime: Runtime) -> None:
        """Set the phase to ``serving``. Called when the host has registered its agents."""
        self.phase, self.runtime = "serving", runtime

    def draining(self) -> None:
        """Set the phase to ``draining``. Called before a stopping host releases its agents."""
        self.phase = "draining"
        self._tasks.cancel()

    async def reasons(self) -> list[dict[str, str]]:
        """Return why the host is not ready, each reason with `check` and `problem`; empty if it is ready."""
        if self.phase != "serving" or self.runtime is None:
            return [{"check": "host", "problem": f"is {self.phase}"}]
        reasons = []
        if not await self._database_answers(self.runtime):
            problem = f"did not answer within {ANSWER_LIMIT_S:g} s"
            reasons.append({"check": "postgres", "problem": problem})
        elif (trouble := getattr(self.runtime.store, "trouble", None)) is not None:
            # Stores without a server have no `trouble`. The server's own text is left out, because clients of
            # this address are not trusted.
            reasons.append({"check": "postgres", "problem": str(trouble).partition(" (")[0]})
        parts = host_of(self.runtime)
        if parts.serves and not parts.worker.env.may_act():
            reasons.append({"check": "lease", "problem": "was not renewed in time"})
        if parts.mail is not None and (problem := _broker_problem(parts.mail)):
            reasons.append({"check": "nats", "problem": problem})
        return reasons

    @property
    def is_connected(self) -> bool:
        """True if the host is connected to the broker, or has none."""
        mail = host_of(self.runtime).mail if self.runtime is not None else None
        return mail is None or mail.connected.is_set()

    async def _database_answers(self, runtime: Runtime) -> bool:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await runtime.store.reads.run(_PROBE)
        except (ActorsError, TimeoutError):
            return False
        return True

    async def metrics(self) -> tuple[bytes, str]:
        """Return the metrics in Prometheus's form, and their media type."""
        await self._count()
        return prometheus.generate_latest(self._registry), CONTENT_TYPE_LATEST

    async def _count(self) -> None:
        """Read the last count of the totals, or set None if the database does not answer.

        If a count is due, this host starts it as a task, which may take longer than the request.
        """
        if self.runtime is None:
            return
        # Concurrent requests wait for one count, instead of one count each.
        async with self._counting:
            if self.clock.monotonic() - self._counted_at < TOTALS_EVERY_S:
                return
            insight = self.runtime.store.insight
            try:
                self.totals = await _read_totals(insight)
                if self.totals.is_due:
                    self._tasks.start(_count(insight), name="count totals")
                    await self._tasks.settle(limit_s=COUNT_WAIT_S)
                    self.totals = await _read_totals(insight)
            except (ActorsError, TimeoutError) as exc:
                _log_failure(exc)
                self.totals = None
            # Set after a failure, too: otherwise each request would wait for a database that does not answer.
            self._counted_at = self.clock.monotonic()


def bounded(values: Mapping[str, float], last_names: Sequence[str] = ()) -> dict[str, float]:
    """Return the values of the first 100 names, and the sum of all others under ``other``.

    Args:
        values: The values by name.
        last_names: Names that come after all others, in this order.
    """
    position = {name: n for n, name in enumerate(last_names)}
    names = sorted(values, key=lambda name: (position.get(name, -1), name))
    values_by_name = {name: float(values[name]) for name in names[:MAX_TYPES]}
    if len(names) > MAX_TYPES:
        values_by_name[OTHER] = values_by_name.get(OTHER, 0.0) + sum(
            values[name] for name in names[MAX_TYPES:]
        )
    return values_by_name


def of_model_calls(calls: ModelCounters) -> Iterator[Metric]:
    """Yield the metrics of one host's model calls since the start of its process: take the sum over hosts."""
    tokens = HistogramMetricFamily(
        "gen_ai_client_token_usage",
        "Tokens of each request and each answer.",
        labels=(*_CALL, "gen_ai_token_type"),
    )
    duration = HistogramMetricFamily(
        "gen_ai_client_operation_duration_seconds",
        "Time of each call of a model.",
        labels=(*_CALL, "error_type"),
    )
    window = HistogramMetricFamily(
        "callboard_window_tokens", "Tokens of windows, without instructions.", labels=_MODEL
    )
    share = HistogramMetricFamily(
        "callboard_model_cache_share", "Part of a request read from a cache.", labels=_MODEL
    )
    for model, histograms in sorted(calls.models.items()):
        _add(tokens, ("chat", *model, "input"), histograms.input)
        _add(tokens, ("chat", *model, "output"), histograms.output)
        _add(duration, ("chat", *model, ""), histograms.duration_s)
        _add(duration, ("chat", *model, "_OTHER"), histograms.failed_s)
        _add(window, model, histograms.window)
        _add(share, model, histograms.cache_share)
    yield from (tokens, duration, window, share)
    compactions = CounterMetricFamily(
        "callboard_context_compactions", "Windows that a strategy changed.", labels=["strategy"]
    )
    for strategy, count in sorted(calls.compactions.items()):
        compactions.add_metric([strategy], count)
    yield compactions


def cumulative(values: Histogram) -> list[tuple[str, float]]:
    """Return the buckets of a histogram for Prometheus, each with the number of values up to its bound."""
    bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(values.counts)), strict=True))


async def _read_totals(insight: InsightStore) -> KnownTotals:
    async with asyncio.timeout(ANSWER_LIMIT_S):
        return await insight.known_totals(every_s=TOTALS_EVERY_S)


async def _count(insight: InsightStore) -> None:
    try:
        await insight.count_totals()
    except ActorsError as exc:
        _log_failure(exc)


def _log_failure(exc: Exception) -> None:
    problem = str(exc) or f"no answer within {ANSWER_LIMIT_S:g} s"
    _log.warning("totals could not be counted", extra={"problem": problem})


def _broker_problem(mail: MailService) -> str:
    """Return the broker's problem; empty without one. The server's own text goes only to the log."""
    from broker import JetStreamOffError  # noqa: PLC0415 - a host with a broker has NATS's client

    match mail.trouble:
        case JetStreamOffError() as off:
            return f"JetStream is off, or stores nothing. {off.remedy}"
        case StreamRolledBackError():
            return "the stream MAIL has to be recreated: callboard migrate --streams"
    return "" if mail.connected.is_set() else "no guarded connection to the broker"


class _HostCollector(Collector):
    def __init__(self, probes: HostProbes) -> None:
        self._probes = probes

    def describe(self) -> Iterable[prometheus.Metric]:
        return []  # no metrics are known at the registration

    @override
    def collect(self) -> Iterable[prometheus.Metric]:
        probes = self._probes
        is_draining = probes.phase == "draining"
        is_host = probes.runtime is not None and host_of(probes.runtime).serves
        is_serving = is_host and probes.phase == "serving"
        yield _gauge("host_draining", "1 if this host drains: it releases its shards.", is_draining)
        yield _gauge("host_serving", "1 if this host serves.", is_serving)
        known_totals = probes.totals
        yield _gauge(
            "totals_up", "1 if the database returned the totals below.", known_totals is not None
        )
        if known_totals is not None:
            yield _gauge("totals_age_seconds", "Age of the totals.", known_totals.age_s)
        if known_totals is not None and known_totals.totals is not None:
            yield from _totals_metrics(known_totals.totals)
        if probes.runtime is not None and is_host:
            yield from _host_metrics(probes.runtime, is_connected=probes.is_connected)
            ahead = probes.clock.now() - probes.runtime.clock.now()
            text = "Seconds that this machine's clock is ahead of the database's."
            yield _gauge("host_clock_offset_seconds", text, ahead.total_seconds())


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"callboard_{name}", text, value=float(value))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> prometheus.Metric:
    family = GaugeMetricFamily(f"callboard_{name}", text, labels=[label])
    return _fill_family(family, sorted(values.items()))


def _counters(
    name: str, text: str, labels_text: str, values: Iterable[tuple[_Key, float]]
) -> prometheus.Metric:
    family = CounterMetricFamily(f"callboard_{name}", text, labels=labels_text.split())
    return _fill_family(family, values)


def _fill_family(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[_Key, float]]
) -> prometheus.Metric:
    for key, value in values:
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def _totals_metrics(totals: Totals) -> Iterator[prometheus.Metric]:
    """Yield metrics of the whole deployment. Every host reports the same values: take their maximum."""
    open_runs = {status.lower(): 0.0 for status in RunStatus if not status.is_terminal}
    open_runs |= {status.lower(): float(n) for status, n in totals.runs.items()}
    unserved_types = dict.fromkeys(totals.unserved, 1.0)
    yield _gauges("runs", "Open runs.", "status", open_runs)
    yield _gauges("runs_parked", "Runs that wait for an operator.", "reason", dict(totals.parked))
    pending_text = "Messages in inboxes that no run has taken."
    yield _gauges("inbox_pending", pending_text, "type", bounded(totals.pending, totals.unserved))
    no_host = "1 for a type of agents that has work and no live host."
    yield _gauges("type_unserved", no_host, "type", bounded(unserved_types, totals.unserved))
    for name, text, value in (
        (
            "inbox_oldest_pending_seconds",
            "Age of the oldest message that no run has taken.",
            totals.oldest_pending_s,
        ),
        ("outbox_messages", "Messages that are committed and not delivered.", totals.outbox),
        ("dead_letters", "Dead letters that were not redriven.", totals.dead_letters),
        ("timers_overdue", "Timers that are overdue.", totals.timers_overdue),
        ("shards", "Number of shards.", totals.shards),
        ("shards_unowned", "Shards without an owner.", totals.unowned),
        ("hosts", "Live hosts.", totals.hosts),
        ("approvals_waiting", "Pending approvals.", totals.approvals),
    ):
        yield _gauge(name, text, value)


def _host_metrics(runtime: Runtime, *, is_connected: bool) -> Iterator[prometheus.Metric]:
    info = InfoMetricFamily("callboard_host", "Name and version of this host.")
    info.add_metric([], {"host": runtime.owner, "version": version("callboard")})
    yield info
    worker = host_of(runtime).worker
    yield _gauge("host_runs_in_memory", "Runs in this host's memory.", worker.dispatcher.load)
    help_text = "Runs in this host's memory that wait, and hold no slot."
    yield _gauge("host_runs_resting", help_text, worker.env.idle.count)
    yield _gauge("host_shards", "Shards that this host owns.", len(worker.held.leases))
    yield _gauge(
        "host_lease_good",
        "1 if this host's lease is good, so that it may act.",
        worker.env.may_act(),
    )
    yield _gauge(
        "host_broker_connected", "1 if this host is connected to the broker.", is_connected
    )
    yield from _counter_metrics(runtime.meters)


def _counter_metrics(counters: Counters) -> Iterator[prometheus.Metric]:
    """Yield counters of this host since the start of its process: take the sum over hosts."""
    runs = [
        ("completed", counters.completed),
        ("failed", counters.failed),
        ("cancelled", counters.cancelled),
    ]
    yield _counters("runs_ended", "Runs that ended on this host.", "status", runs)
    tokens = [("input", counters.input_tokens), ("output", counters.output_tokens)]
    yield _counters("llm_tokens", "Tokens of model calls.", "direction", tokens)
    effects = sorted(counters.effects.items())
    yield _counters("effects", "Effects that executed.", "verb status", effects)
    for name, text, value in (
        ("turns", "Executions that started.", counters.executions),
        (
            "turns_recovered",
            "Executions that started after an interrupted one.",
            counters.recovered,
        ),
        ("turns_broken_off", "Executions whose commit failed.", counters.broken_off),
        ("suspends", "Runs that were evicted to wait.", counters.suspends),
        ("retries", "Attempts that failed and are tried again.", counters.retries),
        ("parks", "Runs that were parked for an operator.", counters.parks),
        ("dead_lettered_runs", "Runs that failed with dead letters.", counters.dead_letters),
        ("messages_received", "New messages from the broker.", counters.received),
        (
            "messages_undecodable",
            "Bodies from the broker that are not a message.",
            counters.undecodable,
        ),
    ):
        yield CounterMetricFamily(f"callboard_{name}", text, value=value)
    yield _histogram(
        "wake_seconds", "Seconds from when an agent could continue until it did.", counters.wake_s
    )
    yield _histogram("commit_group_turns", "Commits in one transaction.", counters.group_size)
    yield from of_model_calls(counters.calls)


def _histogram(name: str, text: str, values: Histogram) -> HistogramMetricFamily:
    buckets = cumulative(values)
    return HistogramMetricFamily(f"callboard_{name}", text, buckets=buckets, sum_value=values.total)


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], values: Histogram) -> None:
    if values.count:
        family.add_metric(labels, cumulative(values), values.total)
