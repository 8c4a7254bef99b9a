"""Graphs of entities and relationships, in tables or in Apache AGE, which runs Cypher.

See `schema/stores/graphs.sql` and `graphs_cypher.sql`. A Cypher query is checked before a server gets it:
it only reads, and its columns have names. AGE calls functions of its database by name, and a query may come
from a model or a stranger, so only known functions pass. The tokens are those of AGE. A text that AGE may
read in another way is refused. Its values, texts of `agtype`, are read as JSON data.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, NamedTuple

from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.hidden import metadata_text
from actors._kernel.json import JsonValue, decoded_object
from actors._kernel.runtime.ids import check_name
from actors._kernel.search_rules import (
    MAX_CYPHER_ROWS,
    MAX_RELATIONSHIPS,
    check_entity_id,
    check_relationship_id,
    check_walk,
    entity_properties,
    missing_end,
    relationship_properties,
)
from actors._kernel.stores.data import CypherCapable, Entity, GraphStore, Relationship, SubGraph
from actors._kernel.stores.errors import CypherError, SubGraphTooLargeError
from actors._kernel.text import check_text_of
from persistence._postgres.connection.link import Row
from persistence._postgres.data.first_use import StoreTables
from persistence.errors import AGEMissingError, RefusedError

SQL_KEEP_ENTITY: Final[LiteralString] = """
insert into graph_entities as e (tenant, id, type, properties) values ($1, $2, $3, $4::text::json)
  on conflict (tenant, id) do update set type = excluded.type, properties = excluded.properties
"""
SQL_SELECT_ENTITY: Final[LiteralString] = """
select e.id, e.type, e.properties from graph_entities e where e.tenant = $1 and e.id = $2
"""
SQL_DELETE_ENTITY: Final[LiteralString] = (
    "delete from graph_entities e where e.tenant = $1 and e.id = $2"
)
# The ends are locked against their deletion, which takes relationships along that it sees.
SQL_KEEP_RELATIONSHIP: Final[LiteralString] = """
with ends as materialized (
  select e.id from graph_entities e where e.tenant = $1 and e.id in ($4, $5) order by e.id for key share),
missing as materialized (
  select n.id from (values ($4), ($5)) n(id) where n.id not in (select e.id from ends e)),
kept as (
  insert into graph_relationships as r (tenant, id, type, source_id, target_id, properties)
    select $1, $2, $3, $4, $5, $6::text::json where not exists (select from missing)
    on conflict (tenant, id) do update set type = excluded.type, source_id = excluded.source_id,
      target_id = excluded.target_id, properties = excluded.properties)
select m.id from missing m
"""
SQL_SELECT_RELATIONSHIP: Final[LiteralString] = """
select r.id, r.type, r.source_id, r.target_id, r.properties from graph_relationships r
  where r.tenant = $1 and r.id = $2
"""
SQL_DELETE_RELATIONSHIP: Final[LiteralString] = (
    "delete from graph_relationships r where r.tenant = $1 and r.id = $2"
)
SQL_SELECT_NEIGHBORS: Final[LiteralString] = """
select n.distance, n.id, n.type, n.source_id, n.target_id, n.properties
  from graph_neighbors($1, $2, $3, $4, $5) n
"""


class PostgresGraphStore(GraphStore):
    """A `GraphStore` of one tenant on PostgreSQL, in tables. It does not run Cypher.

    Each call is one statement, and what it changed survives any crash that the database survives. A walk sees
    the graph of one moment.

    Args:
        tables: The tables of `graphs`.
        tenant: Owner of all that this store reads and writes.
    """

    def __init__(self, tables: StoreTables, *, tenant: str) -> None:
        self._tables, self._tenant = tables, check_name("tenant", tenant)

    @override
    async def add_entity(self, entity: Entity) -> None:
        properties = entity_properties(entity)
        args = (self._tenant, entity.id, entity.type, properties)
        await self._tables.fetch("keeping an entity", SQL_KEEP_ENTITY, *args)

    @override
    async def get_entity(self, entity_id: str) -> Entity | None:
        check_entity_id(entity_id)
        args = (self._tenant, entity_id)
        rows = await self._tables.fetch("reading an entity", SQL_SELECT_ENTITY, *args)
        return _entity(rows[0]) if rows else None

    @override
    async def delete_entity(self, entity_id: str) -> None:
        check_entity_id(entity_id)
        args = (self._tenant, entity_id)
        await self._tables.fetch("deleting an entity", SQL_DELETE_ENTITY, *args)

    @override
    async def add_relationship(self, relationship: Relationship) -> None:
        properties = relationship_properties(relationship)
        ends = (relationship.source_id, relationship.target_id)
        args = (self._tenant, relationship.id, relationship.type, *ends, properties)
        missing_ends = await self._tables.fetch(
            "keeping a relationship", SQL_KEEP_RELATIONSHIP, *args
        )
        if missing_ends:
            raise missing_end(relationship, missing_ends[0]["id"])

    @override
    async def get_relationship(self, relationship_id: str) -> Relationship | None:
        check_relationship_id(relationship_id)
        args = (self._tenant, relationship_id)
        rows = await self._tables.fetch("reading a relationship", SQL_SELECT_RELATIONSHIP, *args)
        return _relationship(rows[0]) if rows else None

    @override
    async def delete_relationship(self, relationship_id: str) -> None:
        check_relationship_id(relationship_id)
        args = (self._tenant, relationship_id)
        await self._tables.fetch("deleting a relationship", SQL_DELETE_RELATIONSHIP, *args)

    @override
    async def get_neighbors(
        self, entity_id: str, *, depth: int = 1, relationship_types: Sequence[str] | None = None
    ) -> SubGraph:
        check_entity_id(entity_id)
        check_walk(depth, relationship_types)
        types = None if relationship_types is None else list(relationship_types)
        args = (self._tenant, entity_id, depth, types, MAX_RELATIONSHIPS)
        rows = await self._tables.fetch("walking a graph", SQL_SELECT_NEIGHBORS, *args)
        if rows and rows[0]["distance"] < 0:
            raise SubGraphTooLargeError(entity_id, depth, MAX_RELATIONSHIPS)
        return SubGraph(
            entities=[_entity(row) for row in rows if row["source_id"] is None],
            relationships=[_relationship(row) for row in rows if row["source_id"] is not None],
        )


def _entity(row: Row) -> Entity:
    return Entity(id=row["id"], type=row["type"], properties=decoded_object(row["properties"]))


def _relationship(row: Row) -> Relationship:
    return Relationship(
        id=row["id"],
        type=row["type"],
        source_id=row["source_id"],
        target_id=row["target_id"],
        properties=decoded_object(row["properties"]),
    )


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
        """A query takes at most 10 s.

        Raises:
            AGEMissingError: The database has no AGE that this user may use.
            PersistenceError: The database could not be asked.
        """
        parameters_json = metadata_text(parameters or {}, what="parameters of a Cypher query")
        checked_query = read_query(query, parameters or {})
        try:
            rows = await self._run(checked_query, parameters_json)
        except RefusedError as exc:
            if exc.sqlstate not in _NO_GRAPH:
                raise _cypher_error(exc) from exc
            await self.make_ready()
            try:
                rows = await self._run(checked_query, parameters_json)
            except RefusedError as second_exc:
                raise _cypher_error(second_exc) from second_exc
        if len(rows) > MAX_CYPHER_ROWS:
            raise CypherError(f"more than {MAX_CYPHER_ROWS} rows: add LIMIT, or a stricter WHERE")
        return [
            dict(zip(checked_query.columns, map(cypher_value, row["columns"]), strict=True))
            for row in rows
        ]

    async def _run(self, query: CypherQuery, parameters_json: str) -> list[Row]:
        args = (self._tenant, query.text, parameters_json, len(query.columns), MAX_CYPHER_ROWS + 1)
        return await self._queries.fetch("running Cypher", SQL_RUN_CYPHER, *args)


def _cypher_error(exc: RefusedError) -> CypherError:
    if exc.sqlstate == _TOO_LONG:
        return CypherError(
            f"it took more than {QUERY_S:g} s: bound the lengths of paths, or add LIMIT"
        )
    return CypherError(exc.problem)


ENTITY: Final = "Entity"
RELATIONSHIP: Final = "Relationship"
MAX_COLUMNS: Final = 100

_TOKEN: Final = re.compile(
    r"""(?P<space> [ \t\n\r\f\v]+ | //[^\n\r]* | /\*.*?\*/ )
      | (?P<text> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
      | (?P<quoted> `(?:[^`]|``)+` )
      | (?P<parameter> \$[A-Za-z_][A-Za-z0-9_]* )
      | (?P<number> [0-9]+ )
      | (?P<name> [A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]* )
      | (?P<sign> [-+*%^=<>!|&?~.,:()\[\]{}] | /(?!\*) )""",
    re.VERBOSE | re.DOTALL,
)
_WRITING_WORDS: Final = "CALL CREATE DELETE DETACH LOAD MERGE REMOVE SET"
_WRITES: Final = frozenset(_WRITING_WORDS.split())
_WORDS_BEFORE_PARENTHESES: Final = """
AND BY CASE CONTAINS DISTINCT ELSE IN LIMIT MATCH NOT OR RETURN SKIP THEN UNWIND WHEN WHERE WITH XOR
"""
_BEFORE_PARENTHESIS: Final = frozenset(_WORDS_BEFORE_PARENTHESES.split())
_FUNCTION_NAMES: Final = """
abs acos asin atan atan2 avg ceil coalesce collect cos cot count degrees e end_id endnode exists exp floor
head id isempty keys label labels last left length log log10 ltrim max min nodes percentilecont
percentiledisc pi properties radians rand range relationships replace reverse right round rtrim sign sin
size split sqrt start_id startnode stdev stdevp substring sum tail tan timestamp toboolean tobooleanlist
tofloat tofloatlist tointeger tointegerlist tolower tostring tostringlist toupper trim type
"""
_FUNCTIONS: Final = frozenset(_FUNCTION_NAMES.split())
"""Functions that compute only with their arguments. Other functions of AGE take the name of a graph."""
_AFTER_COLUMNS: Final = frozenset(["LIMIT", "ORDER", "SKIP", "UNION"])


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    def word(self) -> str:
        """Return a bare name in upper case; nothing for other tokens."""
        return self.text.upper() if self.kind == "name" else ""


@dataclass(frozen=True, slots=True)
class CypherQuery:
    """A query that only reads.

    Attributes:
        text: The query without its comments.
        columns: Names of the columns of its rows.
    """

    text: str
    columns: Sequence[str]


def read_query(query: str, parameter_names: Container[str] = ()) -> CypherQuery:
    """Return a query that a server may get.

    Args:
        query: Its text.
        parameter_names: Names of the parameters that come with it.

    Raises:
        InvalidTextError: It is no text, longer than 64 KiB, or has a NUL or half a surrogate pair.
        CypherError: It writes, calls an unknown function, lacks a parameter, or has no columns.
    """
    check_text_of("Cypher query", query)
    all_tokens = list(_tokens(query))
    text = "".join(" " if token.kind == "space" else token.text for token in all_tokens)
    tokens = [token for token in all_tokens if token.kind != "space"]
    for index, token in enumerate(tokens):
        if token.word() in _WRITES:
            remedy = "change the graph by the store's methods, and write a name in `backticks`"
            raise CypherError(f"{token.text}: a query only reads; {remedy}")
        if token.kind == "parameter" and token.text[1:] not in parameter_names:
            raise CypherError(f"parameter {token.text} is not given: pass it in `parameters`")
        if token.text == "(" and index:
            _check_call(tokens, index)
        if token.text in {"(", "["}:
            _check_label(tokens, index)
    return CypherQuery(text, _columns(query, tokens))


def _tokens(query: str) -> Iterator[_Token]:
    offset, end = 0, len(query.rstrip(" \t\n\r\f\v").removesuffix(";"))
    while offset < end:
        match = _TOKEN.match(query, offset, end)
        if match is None or match.lastgroup is None:
            raise CypherError(
                f"character {offset + 1} cannot be read: {query[offset : offset + 20]!r}"
            )
        yield _Token(match.lastgroup, match.group(), offset, match.end())
        offset = match.end()


def _check_call(tokens: Sequence[_Token], index: int) -> None:
    """Refuse the call of a function that is not one of `_FUNCTIONS`."""
    callee = tokens[index - 1]
    if callee.kind not in {"name", "quoted", "parameter"}:
        return
    is_qualified = index > 1 and tokens[index - 2].text == "."
    if not is_qualified and callee.word() in _BEFORE_PARENTHESIS:
        return
    if is_qualified or callee.kind != "name" or callee.text.lower() not in _FUNCTIONS:
        raise CypherError(f"{callee.text}(…) is no function that a query may call")


def _check_label(tokens: Sequence[_Token], index: int) -> None:
    """Refuse a label that no row has. The server would only find nothing."""
    rest = tokens[index + 1 : index + 4]
    if rest and rest[0].kind in {"name", "quoted"}:
        rest = rest[1:]
    if not rest[1:] or rest[0].text != ":":
        return
    label, expected_label = (
        rest[1].text.strip("`"),
        ENTITY if tokens[index].text == "(" else RELATIONSHIP,
    )
    if label != expected_label:
        pattern = "(n:{} {{type: '{}'}})" if expected_label == ENTITY else "[r:{} {{type: '{}'}}]"
        raise CypherError(
            f"label {label}: types are properties here, write {pattern.format(expected_label, label)}"
        )


def _columns(query: str, tokens: Sequence[_Token]) -> list[str]:
    names = [_name(query, item) for item in _items(tokens)]
    if "*" in names:
        raise CypherError("RETURN *: name the columns")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise CypherError(f"two columns have the name {duplicates[0]}: write AS after one of them")
    if len(names) > MAX_COLUMNS:
        raise CypherError(f"{len(names)} columns, more than {MAX_COLUMNS}: return a list or a map")
    return names


def _items(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Return what follows the first RETURN that is in no parentheses, apart by commas."""
    items: list[list[_Token]] = []
    depth = 0
    for token in tokens:
        depth += (token.text in {"(", "[", "{"}) - (token.text in {")", "]", "}"})
        if depth == 0 and token.word() == "RETURN":
            if items:
                break
            items.append([])
        elif items:
            if depth == 0 and token.word() in _AFTER_COLUMNS:
                break
            if depth == 0 and token.text == ",":
                items.append([])
            elif items[-1] or len(items) > 1 or token.word() != "DISTINCT":
                items[-1].append(token)
    if not items or not all(items):
        raise CypherError(
            "a query ends with RETURN and its columns, for example RETURN n.name AS name"
        )
    return items


def _name(query: str, item: Sequence[_Token]) -> str:
    *before, last = item
    if before[1:] and before[-1].word() == "AS":
        is_quoted = last.kind == "quoted"
        return last.text[1:-1].replace("``", "`") if is_quoted else last.text
    return query[item[0].start : last.end]


# Matches a whole quoted text, or the suffix that AGE writes after a value that JSON does not have.
_MARKED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\}::(vertex|edge)|::[a-z]+')
_KIND: Final = "\0"
"""The key that marks a vertex or an edge: no text of a database has this character."""


def cypher_value(text: str | None) -> JsonValue:
    """Return a value of a row. Vertices and edges have the fields of `Entity` and `Relationship`.

    Raises:
        CypherError: It is a number that JSON has not.
    """
    if text is None:
        return None
    try:
        return _plain(from_json(_MARKED.sub(_as_json, text), allow_inf_nan=False))
    except ValueError as exc:
        raise CypherError(f"a row has a value that is no JSON: {text[:40]}") from exc


def _as_json(match: re.Match[str]) -> str:
    if match[1]:
        return f', "\\u0000": "{match[1]}"}}'
    return match[0] if match[0].startswith('"') else ""


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(v) for key, v in value.items()}
    kind, properties = plain.pop(_KIND, None), plain.get("properties")
    if kind is None or not isinstance(properties, dict):
        return plain
    own_keys = ("id", "type") if kind == "vertex" else ("id", "type", "source_id", "target_id")
    if plain.get("label") not in {ENTITY, RELATIONSHIP}:
        return plain
    rest = {key: v for key, v in properties.items() if key not in own_keys}
    return {**{key: properties.get(key) for key in own_keys}, "properties": rest}
