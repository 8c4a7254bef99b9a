"""Stores of commands with the name that the source has for `delete`."""

from __future__ import annotations

from actors import workflow
from persistence import files, sqlite

__all__ = ["InMemoryCommandStore", "JsonlCommandStore", "SqliteCommandStore"]


class InMemoryCommandStore(workflow.InMemoryCommandStore):
    """In memory."""

    delete_by_run = workflow.InMemoryCommandStore.delete


class JsonlCommandStore(files.JsonlCommandStore):
    """In a folder."""

    delete_by_run = files.JsonlCommandStore.delete


class SqliteCommandStore(sqlite.SqliteCommandStore):
    """In a file of SQLite."""

    delete_by_run = sqlite.SqliteCommandStore.delete
