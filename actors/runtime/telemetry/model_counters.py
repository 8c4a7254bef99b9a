"""Counters of model calls, by model: tokens, time, windows and what of them came from a provider's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.kernel.histogram import Histogram
from actors.kernel.json import JsonValue, number_of
from actors.runtime.telemetry.span_attributes import provider_and_model, receipt_steps

TOKENS: Final = tuple(4**n for n in range(14))
"""Buckets for tokens, as OpenTelemetry's ``gen_ai.client.token.usage`` has them."""
CALL_SECONDS: Final = tuple(round(0.01 * 2**n, 2) for n in range(14))
"""Buckets for calls, as OpenTelemetry's ``gen_ai.client.operation.duration`` has them."""
SHARES: Final = tuple(n / 10 for n in range(1, 11))
MAX_NAMES: Final = 100
OTHER: Final = "other"
"""Name under which models and strategies after the first hundred are counted together."""


@dataclass(slots=True)
class ModelMeters:
    """Histograms of one model.

    Attributes:
        input: Tokens of each request, those from the cache included.
        output: Tokens of each answer.
        duration_s: Seconds of each call that was answered.
        failed_s: Seconds of each call that failed.
        cache_share: The cached part of each request's tokens, 0 to 1.
        window: Tokens of each window, without instructions and tools.
    """

    input: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    duration_s: Histogram = field(default_factory=lambda: Histogram(CALL_SECONDS))
    failed_s: Histogram = field(default_factory=lambda: Histogram(CALL_SECONDS))
    cache_share: Histogram = field(default_factory=lambda: Histogram(SHARES))
    window: Histogram = field(default_factory=lambda: Histogram(TOKENS))


@dataclass(slots=True)
class ModelCounters:
    """Model calls of one host since its process began.

    Attributes:
        models: By provider and model; the provider is empty if the model's name has none.
        compactions: Windows that a strategy changed, by the strategy's class.
    """

    models: dict[tuple[str, str], ModelMeters] = field(default_factory=dict)
    compactions: dict[str, int] = field(default_factory=dict)

    def called(self, model: str, payload: Mapping[str, JsonValue], took_s: float) -> None:
        """Count a call that was made; `payload` is that of its entry in the log."""
        key = provider_and_model(model)
        if key not in self.models and len(self.models) >= MAX_NAMES:
            key = ("", OTHER)
        meters = self.models.get(key)
        if meters is None:
            meters = self.models[key] = ModelMeters()
        if payload.get("status") != "ok":
            meters.failed_s.observe(took_s)
            return
        meters.duration_s.observe(took_s)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            given = number_of(usage.get("input"))
            meters.input.observe(given)
            meters.output.observe(number_of(usage.get("output")))
            if given:
                meters.cache_share.observe(number_of(usage.get("cached")) / given)
        receipt = payload.get("receipt")
        if isinstance(receipt, dict):
            meters.window.observe(number_of(receipt.get("tokens")))
            for step in receipt_steps(receipt):
                name = str(step.get("strategy"))
                if name not in self.compactions and len(self.compactions) >= MAX_NAMES:
                    name = OTHER
                self.compactions[name] = self.compactions.get(name, 0) + 1
