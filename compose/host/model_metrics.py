"""Metrics of model calls: OpenTelemetry's two of GenAI clients, with Prometheus names, and Callboard's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from actors.kernel.histogram import Histogram
from actors.runtime.telemetry.counters import ModelCounters

_MODEL: Final = ("gen_ai_provider_name", "gen_ai_request_model")
_CALL: Final = ("gen_ai_operation_name", *_MODEL)


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
    for model, meters in sorted(calls.models.items()):
        _add(tokens, ("chat", *model, "input"), meters.input)
        _add(tokens, ("chat", *model, "output"), meters.output)
        _add(duration, ("chat", *model, ""), meters.duration_s)
        _add(duration, ("chat", *model, "_OTHER"), meters.failed_s)
        _add(window, model, meters.window)
        _add(share, model, meters.cache_share)
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


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], values: Histogram) -> None:
    if values.count:
        family.add_metric(labels, cumulative(values), values.total)
