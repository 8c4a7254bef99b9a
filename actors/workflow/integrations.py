"""Models, tools and knowledge for the effects LLM_CALL, TOOL_CALLS and MEMORY_KG_*.

Three modes: `local_llm` (model and tools in this process), `remote_llm` (a model behind a server, tools of a
client; or an agent for both) and `hybrid_llm` (a model behind a server, or an agent; tools in this process).
Each returns an `Integration`, whose handlers `WorkflowRuntime` and `Flows` take. Keys of providers are `Secret`
objects, whose values are in headers only.
"""

from actors._workflow.integrations import (
    CachingModel,
    GraphStoreKnowledge,
    Integration,
    KnowledgeGraph,
    PromptCache,
    RemoteAgent,
    RemoteModel,
    RemoteModelError,
    hybrid_llm,
    local_llm,
    remote_llm,
)

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
