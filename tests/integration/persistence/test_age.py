"""Cypher on a real server: what it sees, that tenants stay apart, and what happens without Apache AGE."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from actors._kernel.search_rules import MAX_CYPHER_ROWS
from actors._kernel.stores.data import CypherCapable, Entity, Relationship
from actors._kernel.stores.errors import CypherError
from actors.errors import ContractError, NotSerializableError
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from persistence._postgres import opening as opening_stores
from persistence._postgres.data import graphs as age
from persistence._postgres.data.graphs import CypherQuery
from persistence.errors import AGEMissingError, RefusedError
from persistence.postgres import open_age_graph, open_postgres_graph
from tests.conformance.stores.places import Place, copy_faults, links_to
from tests.integration.compose.commandline import Cli
from tests.integration.persistence.hosts import connected, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from actors._kernel.stores.data import GraphStore
    from persistence.postgres import AGEGraphStore
    from tests.harness.servers import TestPostgres

pytestmark = [pytest.mark.age, pytest.mark.item(323)]
SCHEMA = "callboard"


@asynccontextmanager
async def open_graphs(
    url: str, *names: str, schema: str = SCHEMA
) -> AsyncIterator[tuple[AGEGraphStore, ...]]:
    """The graphs of tenants that no other test has."""
    ours = secrets.token_hex(6)
    async with AsyncExitStack() as stack:
        opening = (open_age_graph(url, tenant=f"{name}-{ours}", schema=schema) for name in names)
        yield tuple([await stack.enter_async_context(context) for context in opening])


async def people(graph: GraphStore, *names: str, **properties: Any) -> None:
    """Make people, each of whom knows the next."""
    for name in names:
        entity = Entity(id=name, type="person", properties={"name": name.title(), **properties})
        await graph.add_entity(entity)
    for source, target in itertools.pairwise(names):
        ends = {"source_id": source, "target_id": target}
        await graph.add_relationship(Relationship(id=f"{source}-{target}", type="knows", **ends))


async def test_a_query_returns_rows_of_json(age_database: str) -> None:
    """Entities, relationships and paths as the store has them; values and parameters as they are."""
    async with open_graphs(age_database, "acme") as (graph,):
        await people(graph, "ada", "bob", "eve", large=10**30, text="\U0001f600 'a' \"b\" $$ \\")
        assert isinstance(graph, CypherCapable)
        rows = await graph.cypher(
            "MATCH (a:Entity {type: 'person'})-[r:Relationship*1..3 {type: 'knows'}]->(b)"
            " WHERE a.id = $start RETURN b.name, size(r) AS hops ORDER BY hops",
            parameters={"start": "ada"},
        )
        assert rows == [{"b.name": "Bob", "hops": 1}, {"b.name": "Eve", "hops": 2}]

        [row] = await graph.cypher(
            "MATCH p = (a)-[r]->(b {id: 'bob'}) RETURN a, r, p, a.nobody AS n"
        )
        ada, relationship = await graph.get_entity("ada"), await graph.get_relationship("ada-bob")
        assert ada is not None
        assert relationship is not None
        assert Entity.model_validate(row["a"]) == ada
        assert Relationship.model_validate(row["r"]) == relationship
        assert row["p"] == [row["a"], row["r"], (await _fetch_entity(graph, "bob"))]
        assert row["n"] is None

        parameters: dict[str, Any] = {
            "v": [
                1,
                1.5,
                10**22,
                -(2**63),
                "1" * 30,
                None,
                True,
                {"a": ["'; $$ \\ \"", "\U0001f600"]},
            ]
        }
        [value] = await graph.cypher("RETURN $v AS v, $v[7].a[0] AS text", parameters=parameters)
        assert value == {"v": parameters["v"], "text": parameters["v"][7]["a"][0]}


ODD: tuple[str, ...] = (
    *(
        "",
        "\\",
        '"',
        "'",
        "$$",
        "\n\x01\x7f",
        "é\U0001f600\u2028",
        "\\u0041",
        "::numeric",
        "}::vertex",
        "%s",
        "9" * 30,
    ),
)


async def test_whatever_a_store_keeps_a_query_sees(age_database: str) -> None:
    """Texts, keys and numbers that AGE writes in a way of its own; large and deep properties."""
    deep: Any = 0
    for _ in range(60):
        deep = [deep]
    numbers = [2**63, -(2**63) - 1, 10**40, 1e22, 5e-324, 1e308, -0.5]
    odd: dict[str, Any] = {text: [text, {text: numbers}] for text in ODD}
    large = {"deep": deep, "x" * 20_000: "y" * 20_000}
    async with open_graphs(age_database, "acme") as (graph,):
        for properties, texts in ((odd, ODD), (large, ODD[:1])):
            for text in texts:
                id_ = f"{text}!"
                await graph.add_entity(Entity(id=id_, type=text, properties=properties))
                ends = {"source_id": id_, "target_id": id_}
                edge = Relationship(id=id_, type=text, properties=properties, **ends)
                await graph.add_relationship(edge)
            rows = await graph.cypher("MATCH (n)-[r]->(n) RETURN n, r")
            for row in rows:
                entity, loop = (
                    Entity.model_validate(row["n"]),
                    Relationship.model_validate(row["r"]),
                )
                assert entity == await graph.get_entity(entity.id)
                assert loop == await graph.get_relationship(entity.id)
            assert len(rows) == len(ODD)


async def _fetch_entity(graph: CypherCapable, id_: str) -> object:
    [row] = await graph.cypher("MATCH (n) WHERE n.id = $id RETURN n", parameters={"id": id_})
    return row["n"]


async def test_a_query_sees_every_change(age_database: str) -> None:
    """By this store, by one that knows no Cypher, and by SQL; what was there before the first query, too."""
    async with (
        open_postgres_graph(age_database, schema=SCHEMA, tenant="before") as plain,
        links_to(Place(age_database, SCHEMA)) as links,
    ):
        await people(plain, "ada", "bob", "eve")
        async with open_age_graph(age_database, schema=SCHEMA, tenant="before") as graph:
            assert await _edges(graph) == ["ada-bob", "bob-eve"]
            await plain.add_entity(Entity(id="bob", type="robot", properties={"id": "no", "n": 1}))
            assert await _fetch_entity(graph, "bob") == {
                "id": "bob",
                "type": "robot",
                "properties": {"n": 1},
            }
            ends = {"source_id": "eve", "target_id": "ada"}
            await graph.add_relationship(Relationship(id="bob-eve", type="likes", **ends))
            assert await _edges(graph) == ["ada-bob", "eve-ada"]
            await plain.delete_entity("bob")
            assert await _edges(graph) == ["eve-ada"]
            await links.fetch("x", "delete from graph_entities where tenant = 'before'")
            assert await graph.cypher("MATCH (n) RETURN n.id") == []
            assert await copy_faults(links, "before") == []


async def _edges(graph: CypherCapable) -> list[object]:
    rows = await graph.cypher("MATCH (a)-[r]->(b) RETURN a.id + '-' + b.id AS e ORDER BY e")
    return [row["e"] for row in rows]


async def test_writers_before_and_after_the_copy_are_in_it(age_database: str) -> None:
    """One that is under way is waited for; others wait, and write into the copy."""
    tenant = f"acme-{secrets.token_hex(6)}"
    async with (
        open_postgres_graph(age_database, schema=SCHEMA, tenant=tenant) as plain,
        links_to(Place(age_database, SCHEMA)) as links,
    ):
        await plain.add_entity(Entity(id="0", type="t"))
        adding = (plain.add_entity(Entity(id=f"{n}", type="t")) for n in range(1, 20))

        async def copied() -> None:
            async with open_age_graph(age_database, schema=SCHEMA, tenant=tenant):
                pass

        await asyncio.gather(*adding, copied(), copied(), copied())
        assert await copy_faults(links, tenant) == []


HOSTILE: tuple[tuple[str, str], ...] = (
    ("RETURN 1 $$) as (c1 agtype); drop table graph_entities; --", "cannot be read"),
    ("RETURN '$$' AS a", ""),
    ('RETURN "\') as (c1 agtype); drop table graph_entities; --" AS a', ""),
    ("RETURN pg_catalog.current_setting('data_directory')", "no function"),
    ("RETURN ag_catalog.drop_graph('{other}', true)", "no function"),
    ("RETURN graph_stats('{other}')", "no function"),
    ("CREATE (n:Entity {{id: 'new'}}) RETURN n", "only reads"),
    ("MATCH (n) DETACH DELETE n RETURN 1", "only reads"),
)


async def test_hostile_queries_reach_no_other_graph(age_database: str) -> None:
    """Nothing of another tenant is read, and nothing at all is changed."""
    async with (
        open_graphs(age_database, "acme", "bolt") as (acme, bolt),
        links_to(Place(age_database, SCHEMA)) as links,
    ):
        await people(acme, "ada")
        await people(bolt, "secret", "hidden")
        find = "select graph from cypher_graphs where tenant = $1"
        other = await links.value("asking", find, bolt._tenant)
        for query, problem in HOSTILE:
            text = query.format(other=other)
            if problem:
                with pytest.raises(CypherError, match=problem):
                    await acme.cypher(text)
            else:
                assert len(await acme.cypher(text)) == 1
        for query in ("MATCH (n) RETURN n.id AS id", "MATCH (n:Entity) RETURN n.id AS id"):
            assert await acme.cypher(query) == [{"id": "ada"}]
        assert await acme.cypher("MATCH (n)-[r]-(m) RETURN r") == []
        values = {"id": "x'}) RETURN 1 $$) as (a agtype); --"}
        assert await acme.cypher("MATCH (n {id: $id}) RETURN n", parameters=values) == []
        for store in (acme, bolt):
            assert await copy_faults(links, store._tenant) == []


@pytest.mark.parametrize(
    "query",
    [
        "CREATE (n:Entity {id: 'new'}) RETURN n",
        "MATCH (n) SET n.name = 'x' RETURN n",
        "MATCH (n) DETACH DELETE n RETURN 1",
        "MERGE (n:Entity {id: 'new'}) RETURN n",
    ],
)
async def test_the_server_refuses_to_write_by_itself(
    age_database: str, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Where a query that writes were taken for one that reads."""
    monkeypatch.setattr(age, "read_query", lambda text, _: CypherQuery(text, ["a"]))
    async with (
        open_graphs(age_database, "acme") as (graph,),
        links_to(Place(age_database, SCHEMA)) as links,
    ):
        await people(graph, "ada", "bob")
        with pytest.raises(CypherError, match="only reads"):
            await graph.cypher(query)
        assert await copy_faults(links, graph._tenant) == []
        await people(graph, "eve")


async def test_dollar_quotes_cannot_be_closed(
    age_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a text were not looked at: the server gets it as one text, whatever is in it."""
    monkeypatch.setattr(age, "read_query", lambda text, _: CypherQuery(text, ["a"]))
    async with open_graphs(age_database, "acme") as (graph,):
        for end in ("$$", "$q$", "$q" + "0" * 32 + "$", "'", "$1", "%L", "$q"):
            with pytest.raises(CypherError):
                await graph.cypher(f"RETURN 1 {end}) as (c1 agtype); select 1 --")
        assert await graph.cypher("MATCH (n) RETURN n") == []


async def test_bad_queries_are_errors_of_the_caller(age_database: str) -> None:
    """With the server's words; the connections stay usable."""
    async with open_graphs(age_database, "acme") as (graph,):
        bad: list[tuple[str, Mapping[str, Any] | None, type[Exception], str]] = [
            ("MATCH (n) WHERE RETURN n", None, CypherError, "syntax error"),
            ("MATCH (n) RETURN m", None, CypherError, "m"),
            ("RETURN 1 / 0", None, CypherError, "zero"),
            ("RETURN 1 UNION RETURN 1, 2", None, CypherError, "columns"),
            (f"UNWIND range(0, {MAX_CYPHER_ROWS}) AS n RETURN n", None, CypherError, "10000 rows"),
            ("UNWIND range(1, 999) AS n RETURN range(1, 5000) AS r", None, CypherError, "16 MiB"),
            ("RETURN $x", {}, CypherError, r"\$x is not given"),
            ("RETURN $x", {"x": float("nan")}, NotSerializableError, "NaN"),
            ("RETURN $x", {"x": "\x00"}, NotSerializableError, "parameters"),
            ("RETURN $x", {"x": "x" * 70_000}, NotSerializableError, "more than 65536"),
        ]
        for query, values, error, problem in bad:
            with pytest.raises(error, match=problem) as exc_info:
                await graph.cypher(query, parameters=values)
            assert isinstance(exc_info.value, ContractError)
        ends = MAX_CYPHER_ROWS - 1
        assert len(await graph.cypher(f"UNWIND range(0, {ends}) AS n RETURN n")) == MAX_CYPHER_ROWS


EVERYBODY_KNOWS_EVERYBODY = (
    "insert into graph_entities select $1, n::text, 'person', '{}' from generate_series(1, 12) n",
    """
    insert into graph_relationships select $1, n || '-' || m, 'knows', n::text, m::text, '{}'
      from generate_series(1, 12) n, generate_series(1, 12) m
    """,
)


async def test_a_query_that_takes_too_long_is_stopped(
    age_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server, so nothing goes on there; the next one is answered."""
    monkeypatch.setitem(opening_stores.CYPHER_SESSION, "statement_timeout", "200ms")
    async with open_graphs(age_database, "acme") as (graph,):
        for statement in EVERYBODY_KNOWS_EVERYBODY:
            await graph._tables.fetch("filling", statement, graph._tenant)
        with pytest.raises(CypherError, match=r"more than 10 s: bound the lengths"):
            await graph.cypher("MATCH p = (a)-[*]-(b) RETURN count(p)")
        assert await graph.cypher("RETURN 1 AS n") == [{"n": 1}]


async def test_erase_reaches_the_copy(age_database: str) -> None:
    """Of a subject, then of the tenant; another tenant's graph stays."""
    schema = f"t_{secrets.token_hex(6)}"
    settings = Settings(postgres_url=age_database, db_schema=schema)
    async with (
        build_postgres_runtime(age_database, settings=settings) as runtime,
        open_graphs(age_database, "acme", "bolt", schema=schema) as (acme, bolt),
    ):
        for graph in (acme, bolt):
            await people(graph, "ada", "bob", about="user:1")
            await people(graph, "eve")
        canary = await _holders(age_database, "user:1")
        subject = await runtime.erase(tenant=acme._tenant, about="user:1")
        assert subject.counts["graph"] == {"entities": 2, "relationships": 1}
        assert await acme.cypher("MATCH (n) RETURN n.id AS id") == [{"id": "eve"}]
        whole = await runtime.erase(tenant=acme._tenant)
        assert whole.counts["graph"] == {"entities": 1, "relationships": 0}
        assert await acme.cypher("MATCH (n) RETURN n.id AS id") == []
        assert len(canary - await _holders(age_database, "user:1")) == 1
        assert len(await bolt.cypher("MATCH (n) RETURN n")) == 3
        async with links_to(Place(age_database, schema)) as links:
            assert await copy_faults(links, bolt._tenant) == []


async def _holders(url: str, text: str) -> set[str]:
    """Tables of AGE that have the text."""
    find = "select format('%I.%I', schemaname, tablename) as t from pg_tables where schemaname ~ '^callboard_'"
    tables = [row["t"] for row in await sql(url, "public", find)]
    parts = [
        f"select '{table}' as t where exists (select from only {table} r where r.properties::text ~ $1)"
        for table in tables
    ]
    return {row["t"] for row in await sql(url, "public", " union all ".join(parts), text)}


async def test_a_server_without_age_is_named_with_the_remedy(
    postgres_dsn: str, new_schema: str
) -> None:
    """When the store is opened; the plain store goes on with the same graph."""
    async with open_postgres_graph(postgres_dsn, schema=new_schema) as plain:
        await people(plain, "ada", "bob")
        with pytest.raises(
            AGEMissingError, match=r"has no Apache AGE: install it.*create extension age"
        ):
            async with open_age_graph(postgres_dsn, schema=new_schema):
                pass
        await plain.delete_entity("ada")
        assert await plain.get_relationship("ada-bob") is None


async def test_rights_that_are_missing_are_named_with_the_remedy(
    age_server: TestPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other; then it works, and goes on where the extension was dropped meanwhile."""
    user, name = f"u_{secrets.token_hex(6)}", f"d_{secrets.token_hex(6)}"
    parts = urlsplit(age_server.url)
    own = urlunsplit(parts._replace(path=f"/{name}"))
    url = urlunsplit(
        parts._replace(netloc=f"{user}:x@{parts.netloc.rpartition('@')[2]}", path=f"/{name}")
    )
    async with connected(age_server.url, "public") as server:
        await server.execute(f"create role {user} login password 'x'")
        await server.execute(f"create database {name}")
        try:
            async with connected(own, "public") as operator:
                await operator.execute(f"create schema callboard authorization {user}")
                for remedy in (
                    "create extension age",
                    f"grant usage on schema ag_catalog to {user}",
                    f"grant create on database {name} to {user}",
                ):
                    with pytest.raises(AGEMissingError, match=remedy):
                        async with open_age_graph(url):
                            pass
                    await operator.execute(remedy)
                await _outlive_the_extension(url, operator, user, Cli(url, "callboard", capsys))
        finally:
            await server.execute(f"drop database {name} with (force)")
            await server.execute(f"drop role {user}")


async def _outlive_the_extension(url: str, operator: Any, user: str, cli: Cli) -> None:
    async def doctor() -> dict[str, Any]:
        output = await cli.call("doctor", "--json")
        [check] = [check for check in output.data["checks"] if check["check"] == "cypher"]
        return dict(check)

    async with open_age_graph(url) as graph:
        await people(graph, "ada", "bob")
        assert await graph.cypher("MATCH (n) RETURN count(n) AS n") == [{"n": 2}]
        assert (await doctor())["found"].startswith("Apache AGE 1.")
        await operator.execute("drop extension age cascade")
        await people(graph, "bob", "eve")
        with pytest.raises(AGEMissingError, match="create extension age"):
            await graph.cypher("MATCH (n) RETURN n")
        check = await doctor()
        assert check["level"] == "wrong"
        assert "create extension age" in check["remedy"]
    await operator.execute(f"create extension age; grant usage on schema ag_catalog to {user}")
    # Sessions that have used the extension remember its types by number.
    async with open_age_graph(url) as graph:
        assert await _edges(graph) == ["ada-bob", "bob-eve"]
        async with links_to(Place(url, "callboard")) as links:
            graphs = await links.fetch("x", "select graph from cypher_graphs")
            await links.fetch("x", f"select ag_catalog.drop_graph('{graphs[0]['graph']}', true)")
        await people(graph, "eve", "mia")
        assert await _edges(graph) == ["ada-bob", "bob-eve", "eve-mia"]


async def test_other_refusals_stay_what_they_are(age_database: str) -> None:
    """A statement that fails for another reason is no missing extension."""
    async with open_graphs(age_database, "acme") as (graph,):
        with pytest.raises(RefusedError, match="null value"):
            await graph._tables.fetch("x", "insert into graph_entities (tenant) values ('a')")
