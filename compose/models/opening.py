"""Model clients by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from actors.errors import ContractError
from actors.kernel.agent.models import ModelRegistry
from compose.models.combined import RetryingModel, TryLimits
from compose.models.local_model import LOCAL, local
from compose.models.provider_model import ProviderModel


def model(
    name: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tries: TryLimits | None = None,
    registry: ModelRegistry | None = None,
) -> RetryingModel:
    """Return the client of a model. Nothing is opened or imported before the first call. See `LLMClient`.

    Args:
        name: ``provider:model`` with pydantic-ai's names, such as ``anthropic:claude-sonnet-4-5`` or
            ``openai:gpt-5``; or ``local`` for `local()`, which needs no network and no key.
        api_key: The provider's key; by default that of the environment, such as ``ANTHROPIC_API_KEY``.
        base_url: Address of the provider's API, for example of a proxy; by default the provider's own.
        settings: Further settings of each request, with pydantic-ai's names, for example ``{"timeout": 30}``.
            `GenerationOptions` take precedence.
        tries: Limits of the tries of one call.
        registry: Context sizes and prices that take precedence over those of the SDK.

    Raises:
        ContractError: The name has no provider, or the extra ``models`` is not installed.
    """
    if name == LOCAL:
        if api_key or base_url:
            raise ContractError(
                "model('local') runs in this process: give no api_key and no base_url"
            )
        return local(settings=settings, tries=tries)
    provider, colon, rest = name.partition(":")
    if not (provider and colon and rest):
        msg = f"model {name!r}: give provider:model, such as 'anthropic:claude-sonnet-4-5', or 'local'"
        raise ContractError(msg)
    if find_spec("pydantic_ai") is None:
        msg = f"model {name!r} needs an extra: pip install 'callboard[models]'"
        raise ContractError(msg)
    given = {"api_key": api_key, "base_url": base_url}
    login = {key: value for key, value in given.items() if value is not None}
    client = ProviderModel.of_name(name, login=login, settings=settings, registry=registry)
    return RetryingModel(client, tries=tries)
