"""Contracts of agents, messages, models and tools."""
