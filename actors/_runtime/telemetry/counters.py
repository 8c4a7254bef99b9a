"""Counters of one host, in its memory: read by the metrics page, never written to a store.

Plain numbers: an increment is one addition, so they are kept with and without a reader. Those of model calls
are by model: tokens, time, windows and what of them came from a provider's cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from actors._kernel.histogram import SECONDS, SIZES, Histogram
from actors._kernel.json import JsonValue, number_of
from actors._kernel.runtime.commit import Finish, Park, Retry, Suspend, Then
from actors._kernel.runtime.effects import EffectCall
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.run_store import RunStore
from actors._runtime.telemetry.span_attributes import provider_and_model, receipt_steps

TOKENS: Final = tuple(4**n for n in range(14))
"""Buckets for tokens, as OpenTelemetry's ``gen_ai.client.token.usage`` has them."""
CALL_SECONDS: Final = tuple(round(0.01 * 2**n, 2) for n in range(14))
"""Buckets for calls, as OpenTelemetry's ``gen_ai.client.operation.duration`` has them."""
SHARES: Final = tuple(n / 10 for n in range(1, 11))
MAX_NAMES: Final = 100
OTHER: Final = "other"
"""Name under which models and strategies after the first hundred are counted together."""


@dataclass(slots=True)
class ModelHistograms:
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

    models: dict[tuple[str, str], ModelHistograms] = field(default_factory=dict)
    compactions: dict[str, int] = field(default_factory=dict)

    def count_call(self, model: str, payload: Mapping[str, JsonValue], took_s: float) -> None:
        """Count a call that was made; `payload` is that of its entry in the log."""
        key = provider_and_model(model)
        # Each name is a time series of the metrics page, and an agent may name any model.
        if key not in self.models and len(self.models) >= MAX_NAMES:
            key = ("", OTHER)
        histograms = self.models.get(key)
        if histograms is None:
            histograms = self.models[key] = ModelHistograms()
        if payload.get("status") != "ok":
            histograms.failed_s.observe(took_s)
            return
        histograms.duration_s.observe(took_s)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            input_tokens = number_of(usage.get("input"))
            histograms.input.observe(input_tokens)
            histograms.output.observe(number_of(usage.get("output")))
            if input_tokens:
                histograms.cache_share.observe(number_of(usage.get("cached")) / input_tokens)
        receipt = payload.get("receipt")
        if isinstance(receipt, dict):
            histograms.window.observe(number_of(receipt.get("tokens")))
            for step in receipt_steps(receipt):
                name = str(step.get("strategy"))
                if name not in self.compactions and len(self.compactions) >= MAX_NAMES:
                    name = OTHER
                self.compactions[name] = self.compactions.get(name, 0) + 1


@dataclass(slots=True)
class Counters:
    """Counters and histograms since the process began. A new process begins at 0.

    Attributes:
        executions: Executions that began.
        recovered: Executions of runs whose previous execution was broken off.
        suspends: Executions that ended with the run out of memory, waiting.
        retries: Attempts that failed and are tried again.
        parks: Runs that wait for an operator.
        completed: Runs that ended here with an output.
        failed: Runs that failed for good here.
        cancelled: Runs that ended here on request.
        broken_off: Executions that could not be written: lease lost, or the store away.
        dead_letters: Runs that failed here and left their messages as dead letters.
        effects: Effects that executed, by verb and status (``ok``, ``error``); no replayed ones.
        input_tokens: Tokens that models were given, as their usage says.
        output_tokens: Tokens that they answered.
        calls: Calls of models, by model.
        received: Messages that came from the broker and were new.
        undecodable: Messages from the broker that were none.
        wake_s: Seconds from the moment an agent could go on until it did.
        group_size: Commits that were committed in one transaction.
    """

    executions: int = 0
    recovered: int = 0
    suspends: int = 0
    retries: int = 0
    parks: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    broken_off: int = 0
    dead_letters: int = 0
    effects: dict[tuple[str, str], int] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    calls: ModelCounters = field(default_factory=ModelCounters)
    received: int = 0
    undecodable: int = 0
    wake_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    group_size: Histogram = field(default_factory=lambda: Histogram(SIZES))

    @classmethod
    def of(cls, store: RunStore) -> Counters:
        """Return new ones; a store that writes in groups counts their sizes itself."""
        sizes = getattr(store, "group_size", None)
        return cls(group_size=sizes) if isinstance(sizes, Histogram) else cls()

    def count_start(self, *, recovered: bool) -> None:
        """Count an execution."""
        self.executions += 1
        self.recovered += recovered

    def count_end(self, then: Then | None) -> None:
        """Count how an execution ended, or with None that its end could not be written."""
        match then:
            case None:
                self.broken_off += 1
            case Suspend():
                self.suspends += 1
            case Retry():
                self.retries += 1
            case Park():
                self.parks += 1
            case Finish(status=status):
                self.completed += status is RunStatus.COMPLETED
                self.failed += status is RunStatus.FAILED
                self.cancelled += status is RunStatus.CANCELLED
                self.dead_letters += then.dead_letter is not None
            case _:
                pass  # it goes on at once

    def count_effect(
        self, call: EffectCall, payload: dict[str, JsonValue], *, now_s: float
    ) -> None:
        """Count an effect that executed until now; `payload` is that of its entry."""
        key = (call.verb, str(payload["status"]))
        self.effects[key] = self.effects.get(key, 0) + 1
        if call.asked_at is None:
            return
        self.calls.count_call(call.name, payload, now_s - call.asked_at)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self.input_tokens += int(number_of(usage.get("input")))
            self.output_tokens += int(number_of(usage.get("output")))
