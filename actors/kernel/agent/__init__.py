"""Contracts of agents, messages, models and tools: what an author writes and is given.

Values and Protocols without I/O. Everything is above; ids and modes of effects are those of
`kernel.runtime`.
"""
