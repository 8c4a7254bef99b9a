"""Models that turn texts into vectors: one in this process, and those of providers.

`offline` computes in a thread, with a model from a wheel; `provider` asks by HTTP, over pydantic-ai. Both are
`QueryEmbeddingClient`s, and import what they need at the first call.
"""
