"""Models that turn texts into vectors: one in this process, and those of providers.

`offline` computes in a thread, with a model from a wheel. `provider` sends HTTP requests through pydantic-ai.
Both are `QueryEmbeddingClient`s, and import their packages at the first call.
"""
