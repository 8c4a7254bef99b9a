"""Clients of language models, and tools of MCP servers. Only this package imports their SDKs.

`model(name)` opens a client by name. `FallbackModel`, `Router`, `SemanticCache` and `RetryingModel` wrap other
clients and need no SDK. An SDK is imported at the first call that needs it. `embedder(name)` and
`local_embedder()` turn texts into vectors. Extras: ``models``, ``mcp``, ``local-model``, ``embedder``,
``tokens``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from compose._models.combined import (
        FallbackModel,
        RetryingModel,
        Router,
        SemanticCache,
        TryLimits,
    )
    from compose._models.embedders import LocalEmbedder, ProviderEmbedder, embedder, local_embedder
    from compose._models.mcp.session import McpServerError
    from compose._models.mcp.toolset import McpTools, mcp_tools
    from compose._models.opening import LocalModel, local, model
    from compose._models.provider_model import ProviderModel, known_models
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "compose._models.combined": (
                "FallbackModel",
                "RetryingModel",
                "TryLimits",
                "Router",
                "SemanticCache",
            ),
            "compose._models.embedders": (
                "LocalEmbedder",
                "local_embedder",
                "ProviderEmbedder",
                "embedder",
            ),
            "compose._models.mcp.session": ("McpServerError",),
            "compose._models.mcp.toolset": ("McpTools", "mcp_tools"),
            "compose._models.opening": ("LocalModel", "local", "model"),
            "compose._models.provider_model": ("ProviderModel", "known_models"),
        },
    )

__all__ = [
    "FallbackModel",
    "LocalEmbedder",
    "LocalModel",
    "McpServerError",
    "McpTools",
    "ProviderEmbedder",
    "ProviderModel",
    "RetryingModel",
    "Router",
    "SemanticCache",
    "TryLimits",
    "embedder",
    "known_models",
    "local",
    "local_embedder",
    "mcp_tools",
    "model",
]
