"""Search by meaning in a large collection: exact and by its index, against the bare SQL of the same search."""

from __future__ import annotations

import random
import statistics
import time
import uuid
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

from actors._kernel.search_rules import unit_vector
from persistence._postgres.data.indexes import EXACT_ROWS
from persistence._postgres.opening import open_search_indexes
from persistence.postgres import open_postgres_vectors
from tests.benchmarks.bench import report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors._kernel.stores.data import SearchResult
    from persistence._postgres.connection.link import Connection
    from persistence.postgres import PgVectorStore

DIMENSIONS: Final = 384
COUNT: Final = 100_000
TIMES: Final = 50
LIMIT: Final = 10
TENANT, COLLECTION = "default", "bench"
RARE: Final = 100
"""One document of so many passes the filter."""
LATENT: Final = 40
"""Independent directions in the vectors. Embeddings of texts have a few dozen; vectors without any, each number
by chance, have no neighbours worth the name, and no index finds those."""
NOISE: Final = 0.3
"""Length of what is by chance in a vector, beside what is not: 1."""
BATCH: Final = 1_000
SQL_FILL: Final = """
insert into {schema}.vector_documents (tenant, collection, id, content, metadata, embedding)
  select $1, $2, 'd' || n + $3::int, 'text', json_build_object('k', (n + $3::int) % {rare}),
      ($4::real[])[(n - 1) * {dimensions} + 1 : n * {dimensions}]
    from generate_series(1, cardinality($4::real[]) / {dimensions}) n
"""
SQL_FLOOR: Final = """
select id, content, metadata, 1 - (embedding operator(public.<=>) $3::text::public.vector) as score
  from {schema}.vector_documents where tenant = $1 and collection = $2 {condition}
  order by embedding operator(public.<=>) $3::text::public.vector limit $4
"""
SQL_FLOOR_INDEXED: Final = """
select id, content, metadata, 1 - (embedding operator(public.<=>) $1::text::public.vector) as score
  from {schema}.vector_documents where tenant = '{tenant}' and collection = '{collection}' {condition}
  order by embedding{cast} operator(public.<=>) $1::text::public.vector({dimensions})
  limit $2
"""
SETTINGS: Final = (
    "set hnsw.ef_search = 200; set hnsw.iterative_scan = relaxed_order; set enable_sort = off;"
    "set hnsw.scan_mem_multiplier = 4"
)


class Vectors:
    """Vectors with structure: sums of a few directions, and some chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        base = random.Random("base")
        self._base = [
            array("f", (base.gauss(0, 1) for _ in range(DIMENSIONS))) for _ in range(LATENT)
        ]

    def batches(self, count: int) -> Iterator[list[array[float]]]:
        """Yield so many, a thousand at a time."""
        for begin in range(0, count, BATCH):
            yield [self.vector() for _ in range(min(BATCH, count - begin))]

    def vector(self) -> array[float]:
        """Return one of length 1."""
        gauss = self._chance.gauss
        weights = [gauss(0, 1) for _ in range(LATENT)]
        noise = NOISE * LATENT**0.5
        numbers = [gauss(0, noise) for _ in range(DIMENSIONS)]
        for weight, direction in zip(weights, self._base, strict=True):
            numbers = [n + weight * d for n, d in zip(numbers, direction, strict=True)]
        return unit_vector(numbers, what="a vector")


@dataclass(slots=True)
class Figures:
    """Seconds of searches, and the ids that they found."""

    seconds: list[float]
    ids: list[list[str]]

    @property
    def ms(self) -> float:
        """The median."""
        return round(statistics.median(self.seconds) * 1000, 2)

    def recall(self, exact: Figures) -> float:
        """The share of the exact search's hits that were found."""
        pairs = zip(self.ids, exact.ids, strict=True)
        return round(statistics.mean(len({*a} & {*b}) / len(b) for a, b in pairs), 4)


async def fill(connection: Connection, schema: str, count: int) -> None:
    """Write the collection."""
    collections = f"insert into {schema}.vector_collections values ($1, $2, $3)"
    await connection.execute(collections, TENANT, COLLECTION, DIMENSIONS)
    text = SQL_FILL.format(schema=schema, rare=RARE, dimensions=DIMENSIONS)
    for n, vectors in enumerate(Vectors(1).batches(count)):
        numbers = [number for vector in vectors for number in vector]
        await connection.execute(text, TENANT, COLLECTION, n * BATCH, numbers)
    await connection.execute(f"vacuum analyze {schema}.vector_documents")


async def ours(store: PgVectorStore, queries: Sequence[array[float]], *, rare: bool) -> Figures:
    """Search by the store."""
    figures = Figures([], [])
    for query in queries:
        began = time.perf_counter()
        hits: list[SearchResult] = await store.search(
            query, collection=COLLECTION, limit=LIMIT, filter={"k": 1} if rare else None
        )
        figures.seconds.append(time.perf_counter() - began)
        figures.ids.append([hit.id for hit in hits])
    return figures


async def floor(
    connection: Connection,
    schema: str,
    queries: Sequence[array[float]],
    *,
    rare: bool,
    indexed: bool,
) -> Figures:
    """Search by SQL."""
    text = (SQL_FLOOR_INDEXED if indexed else SQL_FLOOR).format(
        schema=schema,
        tenant=TENANT,
        collection=COLLECTION,
        dimensions=DIMENSIONS,
        condition="and filterable @> '{\"k\": 1}'" if rare else "",
        # Without the cast the index of filters is taken, and what it finds is compared.
        cast="" if rare else f"::public.vector({DIMENSIONS})",
    )
    statement = await connection.prepare(text)
    figures = Figures([], [])
    for query in queries:
        args = (str(query.tolist()), LIMIT)
        began = time.perf_counter()
        rows = await statement.fetch(*(args if indexed else (TENANT, COLLECTION, *args)))
        figures.seconds.append(time.perf_counter() - began)
        figures.ids.append([row["id"] for row in rows])
    return figures


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each way to search, of all documents and of one in a hundred."""
    count, times = max(2_000, int(COUNT * scale)), max(5, int(TIMES * scale))
    schema, chance = f"bench_{uuid.uuid4().hex[:12]}", Vectors(2)
    queries = [chance.vector() for _ in range(times)]
    exact: dict[bool, Figures] = {}
    async with (
        open_postgres_vectors(url, schema=schema, tenant=TENANT) as store,
        open_search_indexes(url, schema=schema) as indexes,
    ):
        await store.search([1.0])  # makes the tables
        connection = await asyncpg.connect(url)
        try:
            await fill(connection, schema, count)
            for rare in (False, True):
                exact[rare] = await ours(store, queries, rare=rare)
                base = await floor(connection, schema, queries, rare=rare, indexed=False)
                _report(("exact", count, rare), exact[rare], base=base, exact=exact[rare])
            [scope] = await indexes.scopes(rows=0)
            began = time.perf_counter()
            await indexes.build(scope)
            build_s = time.perf_counter() - began
            [scope] = await indexes.scopes(rows=0)
            size_mb = round(scope.size_bytes / 2**20)
            report(
                benchmark="index",
                rows=count,
                build_s=round(build_s, 1),
                size_mb=size_mb,
                limit_rows=EXACT_ROWS,
            )
            await connection.execute(SETTINGS)
            for rare in (False, True):
                figures = await ours(store, queries, rare=rare)
                base = await floor(connection, schema, queries, rare=rare, indexed=True)
                _report(("indexed", count, rare), figures, base=base, exact=exact[rare])
        finally:
            await connection.close()


def _report(of: tuple[str, int, bool], figures: Figures, *, base: Figures, exact: Figures) -> None:
    way, count, rare = of
    report(
        benchmark="searches",
        way=way,
        documents=count,
        filtered="1 %" if rare else "no",
        search_ms=figures.ms,
        floor_ms=base.ms,
        ratio=round(figures.ms / base.ms, 2),
        goal_ratio=1.3,
        recall=figures.recall(exact),
        floor_recall=base.recall(exact),
        goal_recall=0.95,
    )
