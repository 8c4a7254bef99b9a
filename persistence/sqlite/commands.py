"""Commands as rows, and the positions of their readers."""

from __future__ import annotations

import json
from typing import Final

from actors.kernel.workflow.durable import durable_copy
from actors.kernel.workflow.stores import CommandAppendResult, CommandRecord
from persistence.sqlite.database import SqliteDatabase

SQL_APPEND_COMMAND: Final = """
insert or ignore into commands (seq, command_id, record_json)
select coalesce(max(seq), 0) + 1, ?, ? from commands
"""
SQL_PLACE_OF_COMMAND: Final = "select seq from commands where command_id = ?"
SQL_LIST_COMMANDS: Final = """
select seq, record_json from commands where seq > ? and record_json <> 'null' order by seq limit ?
"""
SQL_BLANK_COMMANDS: Final = """
update commands set record_json = 'null' where json_extract(record_json, '$.run_id') = ?
"""
SQL_LAST_COMMAND: Final = "select coalesce(max(seq), 0) as seq from commands"
SQL_LOAD_CURSOR: Final = "select cursor from command_cursors where consumer_id = ?"
SQL_SAVE_CURSOR: Final = """
insert into command_cursors (consumer_id, cursor) values (?, ?)
on conflict (consumer_id) do update set cursor = excluded.cursor
"""


class SqliteCommandStore:
    """The commands of a file; see `CommandStore`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """See `CommandStore.append`."""
        text = json.dumps(durable_copy(record.to_dict(), "command"), ensure_ascii=False)
        with self._database.transaction() as connection:
            made = connection.execute(SQL_APPEND_COMMAND, (record.command_id, text)).rowcount == 1
            row = connection.execute(SQL_PLACE_OF_COMMAND, (record.command_id,)).fetchone()
        return CommandAppendResult(accepted=made, duplicate=not made, seq=row["seq"])

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """See `CommandStore.list_after`."""
        rows = self._database.read(SQL_LIST_COMMANDS, (after, limit))
        page = [
            CommandRecord(**json.loads(row["record_json"]) | {"seq": row["seq"]}) for row in rows
        ]
        return page, page[-1].seq if page else after

    def delete(self, run_id: str) -> int:
        """See `DeletableCommandStore.delete`."""
        with self._database.transaction() as connection:
            return connection.execute(SQL_BLANK_COMMANDS, (run_id,)).rowcount

    def get_last_seq(self) -> int:
        """See `CommandStore.get_last_seq`."""
        return int(self._database.read(SQL_LAST_COMMAND)[0]["seq"])


class SqliteCommandCursorStore:
    """The position of one reader of a file; see `CommandCursorStore`."""

    def __init__(self, database: SqliteDatabase, *, consumer_id: str = "default") -> None:
        self._database, self._consumer_id = database, consumer_id

    def load(self) -> int:
        """See `CommandCursorStore.load`."""
        rows = self._database.read(SQL_LOAD_CURSOR, (self._consumer_id,))
        return int(rows[0]["cursor"]) if rows else 0

    def save(self, cursor: int) -> None:
        """See `CommandCursorStore.save`."""
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_CURSOR, (self._consumer_id, cursor))
