"""Graphs in processes that are killed."""
