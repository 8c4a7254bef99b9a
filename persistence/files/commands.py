"""Commands as JSON lines, and the position of their reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.kernel.workflow.durable import durable_copy, row_text
from actors.kernel.workflow.stores import CommandAppendResult, CommandRecord
from persistence.files.atomic import append_lines, appending, read_lines, write_whole


class JsonlCommandStore:
    """A file with a line for each command; see `CommandStore`.

    Args:
        folder: Its file is ``commands.jsonl``.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "commands.jsonl"

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """See `CommandStore.append`."""
        row: dict[str, Any] = durable_copy(record.to_dict(), "command")
        with appending(self._path) as file:
            known = self._rows()
            for one in known:
                if one["command_id"] == record.command_id:
                    return CommandAppendResult(accepted=False, duplicate=True, seq=one["seq"])
            seq = len(known) + 1
            append_lines(file, [row | {"seq": seq}])
        return CommandAppendResult(accepted=True, duplicate=False, seq=seq)

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """See `CommandStore.list_after`."""
        rows = [row for row in self._rows()[after:] if "run_id" in row][: max(limit, 0)]
        page = [CommandRecord(**row) for row in rows]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """See `CommandStore.get_last_seq`."""
        return len(self._rows())

    def delete(self, run_id: str) -> int:
        """See `DeletableCommandStore.delete`: the file is written anew, whole or not at all."""
        if not self._path.exists():
            return 0
        with appending(self._path):
            rows = self._rows()
            gone = [row["seq"] for row in rows if row.get("run_id") == run_id]
            if gone:
                kept = [_blank(row) if row["seq"] in gone else row for row in rows]
                write_whole(self._path, "".join(f"{row_text(row)}\n" for row in kept).encode())
        return len(gone)

    def _rows(self) -> list[dict[str, Any]]:
        return read_lines(self._path)[0]


def _blank(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("seq", "command_id")}


class JsonFileCommandCursorStore:
    """A file with a number; see `CommandCursorStore`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def load(self) -> int:
        """See `CommandCursorStore.load`."""
        rows = read_lines(self._path)[0]
        return int(rows[0]["cursor"]) if rows else 0

    def save(self, cursor: int) -> None:
        """See `CommandCursorStore.save`."""
        write_whole(self._path, f"{row_text({'cursor': cursor})}\n".encode())
