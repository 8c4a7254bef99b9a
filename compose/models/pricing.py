"""Context sizes and prices that the SDK's price list knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.agent.llm import Usage
from actors.kernel.agent.model_registry import ModelFacts, ModelRegistry

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


def known_models() -> ModelRegistry:
    """Return a registry that knows the context sizes of the price list `genai-prices`, if that is installed.

    No client and no key is needed. Prices are not in it, since they depend on the size of a request: a
    client's responses have their cost.
    """
    return ModelRegistry(_listed)


def _listed(name: str) -> ModelFacts | None:
    try:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - loads the price list
    except ImportError:
        return None
    provider, _, bare = name.rpartition(":")
    try:
        _, found = get_snapshot().find_provider_model(
            bare, provider=None, provider_id=provider or None, provider_api_url=None
        )
    except LookupError:
        return None
    return ModelFacts(context_window=found.context_window)


def cost_usd(
    response: ModelResponse, usage: Usage, name: str, registry: ModelRegistry | None
) -> float | None:
    """Return the cost of an answer in dollars: as the provider says, else as registered, else as listed.

    None if they are unknown.
    """
    if response.usage.cost is not None:
        return float(response.usage.cost)
    if registry is not None and (registered := registry.cost_usd(name, usage)) is not None:
        return registered
    try:
        return max(0.0, float(response.cost().total_price))
    except (AssertionError, LookupError, ValueError):
        return None
