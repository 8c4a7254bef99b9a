"""Graphs that run Cypher, by Apache AGE: see `schema/stores/graphs_cypher.sql`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString

from pydantic import JsonValue
from typing_extensions import override

from actors.kernel.hidden import metadata_text
from actors.kernel.search_rules import MAX_CYPHER_ROWS
from actors.kernel.stores.data import CypherCapable
from actors.kernel.stores.errors import CypherError
from persistence.errors import AGEMissingError, RefusedError
from persistence.postgres.connection.link import Row
from persistence.postgres.stores.cypher_query import CypherQuery, read_query
from persistence.postgres.stores.cypher_rows import cypher_value
from persistence.postgres.stores.first_use import StoreTables
from persistence.postgres.stores.graphs import PostgresGraphStore

SQL_MAKE_CYPHER_GRAPH: Final[LiteralString] = "select make_cypher_graph($1)"
SQL_RUN_CYPHER: Final[LiteralString] = (
    "select r.columns from run_cypher($1, $2, $3, $4, $5) r(columns)"
)

QUERY_S: Final = 10.0
"""Seconds that one query may take. Its sessions have it as `statement_timeout`."""
_NO_GRAPH: Final = frozenset(("CB004", "42P01", "42883"))
"""SQLSTATE of a tenant's graph, or of a table or function, that is not there."""
_NO_AGE: Final = "CB005"
_TOO_LONG: Final = "57014"


class AGEGraphStore(PostgresGraphStore, CypherCapable):
    """A `GraphStore` of one tenant on PostgreSQL that also runs Cypher, by Apache AGE.

    Entities and relationships are the rows of `PostgresGraphStore`. AGE has a copy of the tenant's graph. Each
    statement that changes rows, of whichever store, also changes the copy. So the copy survives what the rows
    survive, and a query sees all that was kept when it began.

    Args:
        tables: The tables of `graphs`.
        copies: Tables of `graphs_cypher`, by links that wait long enough for a graph to be copied.
        queries: Tables of `graphs_cypher`, by links whose statements end after `QUERY_S`.
        tenant: Owner of all that this store reads and writes.
    """

    def __init__(
        self, tables: StoreTables, copies: StoreTables, queries: StoreTables, *, tenant: str
    ) -> None:
        super().__init__(tables, tenant=tenant)
        self._copies, self._queries = copies, queries

    async def make_ready(self) -> None:
        """Make the tenant's graph of AGE unless it is there. Writers of graphs in the schema wait meanwhile.

        Raises:
            AGEMissingError: The database has no AGE that this user may use.
            PersistenceError: The database could not be asked.
        """
        await self._tables.make()
        try:
            doing = "making a graph of Apache AGE"
            await self._copies.fetch(doing, SQL_MAKE_CYPHER_GRAPH, self._tenant)
        except RefusedError as exc:
            if exc.sqlstate == _NO_AGE:
                raise AGEMissingError(exc.problem) from exc
            raise

    @override
    async def cypher(
        self, query: str, *, parameters: Mapping[str, JsonValue] | None = None
    ) -> list[dict[str, JsonValue]]:
        """See `CypherCapable.cypher`. A query takes at most 10 s.

        Raises:
            AGEMissingError: See `make_ready`.
            PersistenceError: The database could not be asked.
        """
        values = metadata_text(parameters or {}, what="parameters of a Cypher query")
        checked = read_query(query, parameters or {})
        try:
            rows = await self._run(checked, values)
        except RefusedError as exc:
            if exc.sqlstate not in _NO_GRAPH:
                raise _refused(exc) from exc
            await self.make_ready()
            try:
                rows = await self._run(checked, values)
            except RefusedError as again:
                raise _refused(again) from again
        if len(rows) > MAX_CYPHER_ROWS:
            raise CypherError(f"more than {MAX_CYPHER_ROWS} rows: add LIMIT, or a stricter WHERE")
        return [
            dict(zip(checked.columns, map(cypher_value, row["columns"]), strict=True))
            for row in rows
        ]

    async def _run(self, query: CypherQuery, values: str) -> list[Row]:
        args = (self._tenant, query.text, values, len(query.columns), MAX_CYPHER_ROWS + 1)
        return await self._queries.fetch("running Cypher", SQL_RUN_CYPHER, *args)


def _refused(exc: RefusedError) -> CypherError:
    if exc.sqlstate == _TOO_LONG:
        return CypherError(
            f"it took more than {QUERY_S:g} s: bound the lengths of paths, or add LIMIT"
        )
    return CypherError(exc.problem)
