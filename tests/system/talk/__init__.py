"""Agents that talk while hosts die."""
