"""The bag that an agent is handed."""

from __future__ import annotations

import inspect

import pytest

from actors import (
    CompactionPipeline,
    CompactionStrategy,
    ContextConfig,
    HistoryRetention,
    InMemoryHistoryProvider,
    Runtime,
    SlidingWindowCompaction,
    StoreHistory,
    TruncationStrategy,
)
from actors.errors import ContractError


@pytest.mark.item(262)
def test_a_config_takes_a_history_a_pipeline_and_by_name_a_retention() -> None:
    """The history is required; turns are permanent unless the retention says otherwise."""
    signature = inspect.signature(ContextConfig)
    history, pipeline, retention = signature.parameters.values()

    assert (history.name, history.default) == ("history", inspect.Parameter.empty)
    assert (pipeline.name, pipeline.default) == ("pipeline", None)
    assert (retention.name, retention.default) == ("retention", HistoryRetention.PERMANENT)
    assert history.kind == pipeline.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert retention.kind == inspect.Parameter.KEYWORD_ONLY
    provider = InMemoryHistoryProvider()
    config = ContextConfig(provider, retention=HistoryRetention.RUN)
    assert (config.history, config.retention) == (provider, HistoryRetention.RUN)
    with pytest.raises(TypeError):
        ContextConfig()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ContextConfig(provider, None, HistoryRetention.RUN)  # type: ignore[call-arg]


@pytest.mark.item(263)
def test_without_a_pipeline_there_is_one_sliding_window() -> None:
    """Of a hundred turns."""
    [only] = ContextConfig(InMemoryHistoryProvider()).pipeline.strategies

    assert isinstance(only, SlidingWindowCompaction)
    assert (only.max_messages, only.slack) == (100, 0)


@pytest.mark.item(264)
def test_the_default_needs_no_argument() -> None:
    """It keeps turns in this process, for good, each config its own."""
    config = ContextConfig.default()
    [only] = config.pipeline.strategies

    assert isinstance(config.history, InMemoryHistoryProvider)
    assert isinstance(only, SlidingWindowCompaction)
    assert config.retention is HistoryRetention.PERMANENT
    assert ContextConfig.default().history is not config.history


@pytest.mark.item(290, 291)
def test_a_strategy_need_not_be_wrapped_and_a_pipeline_is_taken_as_it_is() -> None:
    """An empty pipeline is a choice: it is not replaced by the default."""
    history, strategy, empty = (
        InMemoryHistoryProvider(),
        TruncationStrategy(5),
        CompactionPipeline([]),
    )

    assert ContextConfig(history, strategy).pipeline.strategies == (strategy,)
    assert ContextConfig(history, empty).pipeline is empty
    assert isinstance(empty, CompactionStrategy)


async def test_the_history_of_another_store_is_refused() -> None:
    """It would be read as the one of the runtime that serves the agent."""
    assert ContextConfig(StoreHistory()).history is not None
    with pytest.raises(ContractError, match=r"takes StoreHistory\(\) without a store"):
        ContextConfig(Runtime().history)
