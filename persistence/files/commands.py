"""Commands as JSON lines, and the place of their reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.kernel.workflow.commands import CommandAppendResult, CommandRecord
from actors.kernel.workflow.durable import durable_copy
from persistence.files.atomic import append_lines, appending, json_text, read_lines, write_whole


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
        page = [CommandRecord(**row) for row in self._rows()[after : after + limit]]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """See `CommandStore.get_last_seq`."""
        return len(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return read_lines(self._path)[0]


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
        write_whole(self._path, f"{json_text({'cursor': cursor})}\n".encode())
