"""Cypher without a server: refusals of queries, names of columns, and values of AGE as JSON."""

from __future__ import annotations

import pytest

from actors._kernel.stores.errors import CypherError
from actors.errors import InvalidTextError
from persistence._postgres.data.graphs import cypher_value, read_query

pytestmark = pytest.mark.item(323)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("MATCH (n) RETURN n", ["n"]),
        ("match (n) return distinct n.name as name, count(*)", ["name", "count(*)"]),
        (
            "MATCH (n) RETURN [x IN [1, 2] | x], {a: 1, b: 2} AS m ORDER BY m LIMIT 3",
            ["[x IN [1, 2] | x]", "m"],
        ),
        ("MATCH (n) RETURN n.id UNION ALL MATCH (n) RETURN n.type AS other;  ", ["n.id"]),
        ("MATCH (n) WHERE EXISTS {MATCH (n)-[r]->(x) RETURN x} RETURN n.id AS `a ``b`", ["a `b"]),
        (
            "MATCH (n) RETURN n.x/* , n */ + 'a, RETURN b' // , c\r\n, 2 AS two",
            ["n.x/* , n */ + 'a, RETURN b'", "two"],
        ),
        (
            "MATCH (n:Entity)-[r:Relationship*1..3]-(:Entity) RETURN 1 AS `SET`, n.`delete` AS d",
            ["SET", "d"],
        ),
        ("MATCH (a) WHERE (a.x IN (1)) AND NOT (a.y) RETURN DISTINCT (a.x) AS x", ["x"]),
    ],
)
def test_columns_are_named(query: str, columns: list[str]) -> None:
    """By AS, or by the text of the expression; commas and words in brackets, texts and comments are none."""
    assert read_query(query).columns == columns


def test_comments_do_not_reach_the_server() -> None:
    """Where they end is not the same for everybody."""
    text = read_query("RETURN 1 // a\r/* ' */+ '//' AS x").text
    assert text.split() == ["RETURN", "1", "+", "'//'", "AS", "x"]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        # Writes, however they are written.
        ("CREATE (n:Entity {id: 'x'})", "only reads"),
        ("MATCH (n) DETACH DELETE n RETURN 1", "only reads"),
        ("MATCH (n) sEt n.x = 1 RETURN n", "only reads"),
        ("MATCH (n) REMOVE n.x RETURN n", "only reads"),
        ("MERGE (n) RETURN n", "only reads"),
        ("WITH 1.DELETE n RETURN 1", "only reads"),
        ("MATCH (n) RETURN n /* */CREATE (x)", "only reads"),
        ("RETURN 'a' //\rCREATE (x)", "only reads"),
        # Functions of the database.
        ("RETURN pg_catalog.pg_read_file('/etc/passwd')", "no function"),
        ("RETURN `pg_catalog`.`current_user`()", "no function"),
        ("RETURN ag_catalog . drop_graph('other', true)", "no function"),
        ("RETURN ag_catalog.cypher('other', 'MATCH (n) RETURN n')", "no function"),
        ("RETURN graph_stats('other')", "no function"),
        ("RETURN age_prepare_cypher('other', 'x')", "no function"),
        ("RETURN pg_sleep (10)", "no function"),
        ("RETURN pg_sleep/**/(10)", "no function"),
        ("RETURN `count`(1)", "no function"),
        ("RETURN n.IN (1)", "no function"),
        ("RETURN $given(1)", "no function"),
        ("CALL pg_catalog.pg_sleep(1) YIELD x RETURN x", "only reads"),
        ("LOAD CSV FROM 'http://x' AS l RETURN l", "only reads"),
        # Texts that end what is around the query.
        ("RETURN 1 $$) as (a agtype); drop schema x cascade; --", "character 10"),
        ("RETURN 1; RETURN 2", "character 9"),
        ("RETURN 'a", "character 8"),
        ("RETURN 1 /* a", "character 10"),
        ('RETURN "a\\" ', "character 8"),
        ("RETURN `a", "character 8"),
        ("RETURN 1 AS a\\", "character 14"),
        ("RETURN $1", "character 8"),
        ("RETURN 1\u00a0AS x, #", "character"),
        # Columns that have no name, or not one each.
        ("MATCH (n)", "ends with RETURN"),
        ("RETURN", "ends with RETURN"),
        ("RETURN 1,", "ends with RETURN"),
        ("(RETURN 1)", "ends with RETURN"),
        ("MATCH (n) RETURN *", "name the columns"),
        ("RETURN 1 AS a, 2 AS a", "two columns have the name a"),
        ("RETURN " + ", ".join(f"{n} AS c{n}" for n in range(101)), "101 columns"),
        ("RETURN $who", r"\$who is not given"),
        # Labels that no row has.
        ("MATCH (n:person) RETURN n", r"write \(n:Entity \{type: 'person'\}\)"),
        ("MATCH ()-[:`knows`]->() RETURN 1", r"write \[r:Relationship \{type: 'knows'\}\]"),
    ],
)
def test_what_is_no_reading_is_refused(query: str, problem: str) -> None:
    """With what to do instead."""
    with pytest.raises(CypherError, match=problem):
        read_query(query, {"given"})


def test_a_text_that_no_database_takes_is_refused() -> None:
    """A NUL, half a surrogate pair, or more than 64 KiB."""
    for query in ("RETURN '\0'", "RETURN '\ud800'", "RETURN 1" + " " * 66_000):
        with pytest.raises(InvalidTextError, match="Cypher query"):
            read_query(query)


def test_a_parameter_is_one_that_was_given() -> None:
    """Others may be given, too."""
    assert read_query("RETURN $a.b[0] AS x", {"a": 1, "c": 2}).columns == ["x"]


VERTEX = '{"id": 1, "label": "Entity", "properties": {"id": "a", "n": 1.0, "type": "t"}}::vertex'
EDGE = (
    '{"id": 2, "label": "Relationship", "end_id": 1, "start_id": 1, "properties": {"id": "r", "type": "k",'
    ' "source_id": "a", "target_id": "b", "why": "}::vertex"}}::edge'
)
OF_VERTEX = {"id": "a", "type": "t", "properties": {"n": 1.0}}
OF_EDGE = {
    "id": "r",
    "type": "k",
    "source_id": "a",
    "target_id": "b",
    "properties": {"why": "}::vertex"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("null", None),
        ("1e+22", 1e22),
        ("10000000000000000000000::numeric", 10**22),
        ('"a::edge \\" \\u0001"', 'a::edge " \x01'),
        (VERTEX, OF_VERTEX),
        (EDGE, OF_EDGE),
        (f"[{VERTEX}, {EDGE}, {VERTEX}]::path", [OF_VERTEX, OF_EDGE, OF_VERTEX]),
        (f'{{"a": [{VERTEX}]}}', {"a": [OF_VERTEX]}),
        (VERTEX.removesuffix("::vertex"), {"id": 1, "label": "Entity", "properties": ...}),
    ],
)
def test_values_are_json(text: str | None, value: object) -> None:
    """Vertices and edges have the fields of entities and relationships; a map that looks like one stays."""
    parsed_value = cypher_value(text)
    if (
        isinstance(value, dict)
        and isinstance(parsed_value, dict)
        and value.get("properties") is ...
    ):
        value["properties"] = parsed_value["properties"]
    assert parsed_value == value


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"a": Infinity}'])
def test_numbers_that_json_has_not_are_refused(text: str) -> None:
    """As everywhere."""
    with pytest.raises(CypherError, match="no JSON"):
        cypher_value(text)
