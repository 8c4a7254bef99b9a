"""Context sizes and prices from the SDK's price list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.agent.models import ModelFacts, ModelRegistry, Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


def known_models() -> ModelRegistry:
    """Return a registry with the context sizes of the price list `genai-prices`, if that is installed.

    It needs no client and no key. It has no prices, because these depend on the size of a request. Responses of
    a client have their cost.
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
    """Return the cost of an answer in US dollars; None if it is unknown.

    The provider's own figure is used first, then the registry's price, then the price list's.
    """
    if response.usage.cost is not None:
        return float(response.usage.cost)
    if registry is not None and (registered := registry.cost_usd(name, usage)) is not None:
        return registered
    try:
        return max(0.0, float(response.cost().total_price))
    except (AssertionError, LookupError, ValueError):
        return None
