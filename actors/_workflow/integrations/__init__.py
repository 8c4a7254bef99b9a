"""Models, tools and knowledge for the effects LLM_CALL, TOOL_CALLS and MEMORY_KG_*.

Three modes: `local_llm` (model and tools in this process), `remote_llm` (a model behind a server, tools of a
client; or an agent for both) and `hybrid_llm` (a model behind a server, or an agent; tools in this process).
Each returns an `Integration`, whose handlers `WorkflowRuntime` and `Flows` take. Keys of providers are `Secret`
objects, whose values are in headers only.

- `wiring`: the integrations, with the event loop for drivers without coroutines. `models`, `tools`,
  `knowledge`: the handlers. `chat_payload`: payloads. `remote_model`: a model behind a server.
"""

from __future__ import annotations

from actors._workflow.integrations.knowledge import GraphStoreKnowledge, KnowledgeGraph
from actors._workflow.integrations.models import CachingModel, PromptCache
from actors._workflow.integrations.remote_model import RemoteModel, RemoteModelError
from actors._workflow.integrations.tools import RemoteAgent
from actors._workflow.integrations.wiring import Integration, hybrid_llm, local_llm, remote_llm

__all__ = [
    "CachingModel",
    "GraphStoreKnowledge",
    "Integration",
    "KnowledgeGraph",
    "PromptCache",
    "RemoteAgent",
    "RemoteModel",
    "RemoteModelError",
    "hybrid_llm",
    "local_llm",
    "remote_llm",
]
