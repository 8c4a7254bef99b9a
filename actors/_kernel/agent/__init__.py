"""Contracts of agents, messages, models and tools: the types that an author uses.

Values and Protocols without I/O. Everything is above; ids and modes of effects are those of
`kernel.runtime`.
"""
