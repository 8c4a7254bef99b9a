"""Graphs on each of their stores: in memory, in a folder, in an SQLite file."""
