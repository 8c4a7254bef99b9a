"""Contracts of the durable runtime."""
