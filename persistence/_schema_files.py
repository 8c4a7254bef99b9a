"""The SQL files that a schema is made of: a baseline, functions, and migrations since.

- ``baseline/AREA.sql``: the tables. It stands for the migrations that `history.sha256` names, and is applied to
  an empty schema only; one that has some of those migrations gets the others.
- ``functions/NAME.sql``: each SQL function as it is now. `functions/README.md` says how one is changed.
- ``migrations/NNNN_name.sql``: changes of tables, numbered. The first line of a file may say that hosts start
  before the migration is applied; then one of them applies it while it works. No other file, and no function,
  may need such a migration.

  - ``-- no transaction``: it holds indexes, `create [unique] index concurrently if not exists NAME on …` and
    `drop index concurrently if exists NAME`, each ended by a semicolon.
  - ``-- hosts start without it``: any other statements, in a transaction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from persistence.errors import MigrationError

REVISION: Final = 17
"""Revision of all SQL functions together: raised with each release that changes one."""
NO_TRANSACTION: Final = "-- no transaction"
LATER: Final = "-- hosts start without it"
OLDEST: Final = 18
"""Number of the last migration that has no file any more: an older schema cannot be brought up to date."""
_INDEX: Final = re.compile(
    r"(?:create (?:unique )?index concurrently if not exists|drop index concurrently if exists)"
    r" ([a-z_][a-z0-9_]*)\b[^;]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Function:
    """An SQL function: its name and the text that makes it."""

    name: str
    sql: str

    @property
    def file(self) -> str:
        """The file's name, as operators read it when it is applied or missing."""
        return f"functions/{self.name}"

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, whatever the line ends of the checkout."""
        return _checksum(self.sql)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration's file: its number, name and text.

    Attributes:
        recorded: The checksum of what it was before the baseline; empty for one that came after it.
    """

    version: int
    name: str
    sql: str
    recorded: str = ""

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, whatever the line ends of the checkout."""
        return self.recorded or _checksum(self.sql)

    @property
    def is_index(self) -> bool:
        """True if it is executed outside of a transaction, beside the work of hosts."""
        return self.sql.startswith(NO_TRANSACTION)

    @property
    def can_wait(self) -> bool:
        """True if hosts start without it."""
        return self.is_index or self.sql.startswith(LATER)

    @property
    def indexes(self) -> list[tuple[str, str]]:
        """Each index that such a file makes or drops, by name, with the statement.

        Raises:
            MigrationError: It holds another statement, which would not be repeatable.
        """
        code = re.sub(r"--.*", "", self.sql)
        indexes: list[tuple[str, str]] = []
        for statement in filter(None, (" ".join(part.split()) for part in code.split(";"))):
            match = _INDEX.fullmatch(statement)
            if match is None:
                problem = f"outside of a transaction only indexes are made and dropped: {statement}"
                raise MigrationError("", self.name, problem)
            indexes.append((match[1], statement))
        return indexes


# Each opening of a store compares all files with the schema.
@lru_cache(maxsize=512)
def _checksum(sql: str) -> str:
    return hashlib.sha256(sql.replace("\r\n", "\n").encode()).hexdigest()


@cache
def known_migrations() -> tuple[Migration, ...]:
    """Return those of this release, in order; first what the baseline stands for.

    Raises:
        MigrationError: Two files have one number, a number is missing, or a file without a
            transaction holds more than indexes.
    """
    files = dict(_texts("migrations"))
    lines = _folder("baseline").joinpath("history.sha256").read_text("utf-8").splitlines()
    migrations = [
        Migration(int(name[:4]), name, files.pop(name, ""), recorded)
        for recorded, name in map(str.split, lines)
    ]
    migrations += [Migration(int(name[:4]), name, sql) for name, sql in files.items()]
    for number, migration in enumerate(migrations, 1):
        if migration.version != number:
            raise MigrationError("", migration.name, f"expected number {number:04}")
        if migration.is_index:
            _ = migration.indexes
    return tuple(migrations)


@cache
def known_functions() -> tuple[Function, ...]:
    """Return those of this release, by name."""
    return tuple(Function(name, sql) for name, sql in _texts("functions"))


def on_an_empty_schema(steps: Sequence[Migration]) -> list[Migration]:
    """Return the steps with the baseline instead of what it stands for."""
    baseline = "\n".join(sql for _, sql in _texts("baseline"))
    return [
        replace(step, sql="" if step.version > 1 else baseline) if step.recorded else step
        for step in steps
    ]


def _texts(folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each SQL file, by name."""
    for file in sorted(_folder(folder).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield file.name.removesuffix(".sql"), file.read_text("utf-8")


def _folder(name: str) -> Traversable:
    return resources.files("persistence._postgres").joinpath("schema", name)
