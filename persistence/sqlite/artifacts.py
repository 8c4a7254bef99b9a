"""Artifacts of graphs as rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from typing_extensions import override

from actors.kernel.json import Unreadable, read_or
from actors.kernel.workflow.artifacts import (
    Artifact,
    ArtifactMetadata,
    ArtifactShelf,
    checked_artifact_id,
)
from persistence.sqlite.database import SqliteDatabase

SQL_KEEP: Final = """
insert or ignore into artifacts (artifact_id, run_id, metadata_json, content) values (?, ?, ?, ?)
"""
SQL_LOAD: Final = "select metadata_json, content from artifacts where artifact_id = ?"
SQL_DESCRIBE: Final = "select metadata_json from artifacts where artifact_id = ?"
SQL_CHANGE: Final = "update artifacts set metadata_json = ? where artifact_id = ?"
SQL_DELETE: Final = "delete from artifacts where artifact_id = ?"
SQL_DELETE_OF_RUN: Final = "delete from artifacts where run_id = ?"
SQL_LIST: Final = """
select metadata_json from artifacts where ? is null or run_id = ? order by place desc limit ?
"""
ALL: Final = -1

_log = logging.getLogger("callboard.workflow")


class SqliteArtifactStore(ArtifactShelf):
    """The artifacts of a file, bytes and all; see the Protocol `ArtifactStore` of graphs.

    SQLite holds 1 GB a row at most, and a row is read whole: larger bytes belong into a `FileArtifactStore`.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        name = metadata.artifact_id
        with self._database.transaction() as connection:
            connection.execute(SQL_KEEP, (name, metadata.run_id, _text(metadata), content))
        kept = self.get_metadata(name)
        assert kept is not None
        return kept

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._database.transaction() as connection:
            found = self.get_metadata(artifact_id)
            if found is None:
                return None
            changed = change(found)
            connection.execute(SQL_CHANGE, (_text(changed), artifact_id))
        return changed

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        rows = self._database.read(SQL_LOAD, (checked_artifact_id(artifact_id),))
        return Artifact(_metadata(rows[0]), bytes(rows[0]["content"])) if rows else None

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        rows = self._database.read(SQL_DESCRIBE, (checked_artifact_id(artifact_id),))
        return _metadata(rows[0]) if rows else None

    @override
    def exists(self, artifact_id: str) -> bool:
        return self.get_metadata(artifact_id) is not None

    @override
    def delete(self, artifact_id: str) -> bool:
        with self._database.transaction() as connection:
            return connection.execute(SQL_DELETE, (checked_artifact_id(artifact_id),)).rowcount == 1

    @override
    def delete_by_run(self, run_id: str) -> int:
        with self._database.transaction() as connection:
            return connection.execute(SQL_DELETE_OF_RUN, (run_id,)).rowcount

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        most = limit if limit > 0 else ALL
        return _listed(self._database.read(SQL_LIST, (None, None, most)))

    @override
    def list_by_run(self, run_id: str) -> list[ArtifactMetadata]:
        return _listed(self._database.read(SQL_LIST, (run_id, run_id, ALL)))

    def content_path(self, artifact_id: str) -> None:
        """Return None: the bytes are in no file of their own."""
        del artifact_id


def _listed(rows: Iterable[Any]) -> list[ArtifactMetadata]:
    descriptions = [_description(row) for row in rows]
    return [metadata for metadata in descriptions if metadata is not None]


def _description(row: Any) -> ArtifactMetadata | None:
    """Return a description for a list. One that cannot be read is named in the log, and hides no other."""

    def log(unreadable: Unreadable) -> None:
        details = {"row": row["metadata_json"][:200], "problem": str(unreadable)}
        _log.error("the description of an artifact cannot be read", extra=details)

    return read_or(row, _metadata, log)


def _metadata(row: Any) -> ArtifactMetadata:
    return ArtifactMetadata.from_dict(json.loads(row["metadata_json"]))


def _text(metadata: ArtifactMetadata) -> str:
    return json.dumps(metadata.to_dict(), ensure_ascii=False)
