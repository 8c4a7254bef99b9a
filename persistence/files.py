"""Workflow graphs in a folder: a JSON file for each run, a JSON line for each record.

Every write is on the disk when it returns, and each file is replaced as a whole. Processes of one machine may
share a folder.
"""

from persistence._files.stores import (
    FileArtifactStore,
    JsonFileCommandCursorStore,
    JsonFileRunStore,
    JsonlCommandStore,
    JsonlLedgerStore,
    JsonSnapshotStore,
)

__all__ = [
    "FileArtifactStore",
    "JsonFileCommandCursorStore",
    "JsonFileRunStore",
    "JsonSnapshotStore",
    "JsonlCommandStore",
    "JsonlLedgerStore",
]

__path__: list[str] = []  # modules of the release before were below this one
