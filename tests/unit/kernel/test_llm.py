"""Values that models give: usage, errors, and facts about models."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from actors._kernel.agent.models import LLMResponse, ModelFacts, ModelRegistry, Usage
from actors._kernel.json_data import clean_text
from actors._runtime.replay.failures import rebuild_error, record_error
from actors.errors import TRANSIENT_MODEL_ERRORS, ModelError, ModelErrorKind, RunError


def test_usage_of_an_old_log_is_read() -> None:
    """A log from before `cache_written` has no such field; it counts as 0."""
    old = {"input": 7, "cached": 2, "output": 3, "reasoning": 0, "cost_usd": None}

    usage = Usage.model_validate(old)

    assert usage == Usage(input=7, cached=2, output=3)
    assert usage.model_dump(mode="json") == old
    assert LLMResponse(usage=usage).model_dump(mode="json")["usage"] == old


def test_tokens_written_to_the_cache_are_recorded_and_added() -> None:
    """They come back from a log, and totals have them."""
    usage = Usage(input=7, cache_written=5, cost_usd=0.25)
    total = usage + Usage(input=1, cached=1, cache_written=2)

    assert Usage.model_validate(usage.model_dump(mode="json")) == usage
    assert total == Usage(input=8, cached=1, cache_written=7, cost_usd=0.25)
    assert total.total == 8


@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
@pytest.mark.parametrize("retry_after", [None, 30.0, 0.25])
def test_a_model_error_survives_recording(kind: ModelErrorKind, retry_after: float | None) -> None:
    """With kind, wait and text, from a log as well as from another process."""
    exc = ModelError(kind, retry_after, clean_text("gpt: \x00 said \ud800 no"))

    for again in (rebuild_error(record_error(exc)), pickle.loads(pickle.dumps(exc))):
        assert isinstance(again, ModelError)
        assert (again.kind, again.retry_after) == (kind, retry_after)
        assert str(again) == str(exc)
        assert again.retryable is (kind in TRANSIENT_MODEL_ERRORS)


def test_a_model_error_names_the_way_out() -> None:
    """The wait, or what to change."""
    assert str(ModelError("rate_limited", 30, "gpt-5")) == "rate_limited: gpt-5; again after 30 s"
    assert "provider's key" in str(ModelError("auth", problem="gpt-5"))
    assert str(ModelError("connection")) == "connection"


def test_a_model_error_is_no_error_of_the_run() -> None:
    """A tool that asks a model and gets none returns a result that the model reads, as for other errors."""
    assert not issubclass(ModelError, RunError)


@pytest.mark.item(341)
def test_a_registry_knows_models_by_name() -> None:
    """By the full name, without the provider, and without the date of a version; unknown is None."""
    registry = ModelRegistry()
    registry.register("gpt-5", ModelFacts(context_window=400_000))
    registry.register("local:tiny", ModelFacts(context_window=2_048))

    windows = [
        registry.context_window(name)
        for name in (
            "gpt-5",
            "openai:gpt-5",
            "openai:gpt-5-2025-08-07",
            "gpt-5-latest",
            "gpt-5-mini",
        )
    ]

    assert windows == [400_000, 400_000, 400_000, 400_000, None]
    assert (registry.context_window("local:tiny"), registry.find("tiny")) == (2_048, None)


@pytest.mark.item(341)
def test_registered_facts_go_before_those_of_sources() -> None:
    """Sources are asked in their order, with the name as it was given."""
    names: list[str] = []

    def empty(name: str) -> None:
        names.append(name)

    def full(name: str) -> ModelFacts:
        return ModelFacts(context_window=len(name))

    registry = ModelRegistry(empty, full)
    registry.register("mine", ModelFacts(context_window=7))

    assert registry.context_window("mine") == 7
    assert registry.context_window("other:model") == 11
    assert names == ["other:model"]


@pytest.mark.item(341)
def test_a_registry_tells_the_cost_of_a_call() -> None:
    """Cached tokens by their own price; a model without prices costs nobody knows what."""
    registry = ModelRegistry()
    registry.register("a", ModelFacts(input_usd=2, cached_usd=0.5, output_usd=10))
    registry.register("b", ModelFacts(input_usd=2, cache_written_usd=4, output_usd=10))
    registry.register("c", ModelFacts(context_window=1))
    usage = Usage(input=1_000_000, cached=500_000, output=100_000)

    assert registry.cost_usd("a", usage) == pytest.approx(1 + 0.25 + 1)
    assert registry.cost_usd("b", Usage(input=1_000_000, cache_written=500_000)) == pytest.approx(3)
    assert registry.cost_usd("c", usage) is None
    assert registry.cost_usd("d", usage) is None
