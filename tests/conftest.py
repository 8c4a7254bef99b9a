"""Fixture wiring only; what the fixtures do is in `tests/harness`."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import settings
from typing_extensions import override

from compose._host.collector import collect_rarely
from tests.harness import durations, forked, sample, servers, slow
from tests.harness import items as item_rows
from tests.harness.lasting import kept_connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from tests.harness.servers import (
        OwnNats,
        OwnPostgres,
        OwnRedis,
        Schemas,
        TestNats,
        TestPostgres,
        TestRedis,
    )

# A busy machine may take long for an example. The gate plays the same ones each time, other runs new ones.
settings.register_profile("callboard", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("callboard")

HERE = Path(__file__).parent
KINDS = {
    "postgres": servers.POSTGRES,
    "nats": servers.NATS,
    "redis": servers.REDIS,
    "s3": servers.S3,
    "age": servers.AGE,
}
"""By marker; the fixtures of a kind are `MARKER_server` and `own_MARKER`."""


LONGEST = (
    *("test_crowds", "test_benchmarks", "test_demo", "test_readme", "test_graph_programs"),
    *("test_source", "test_fleet", "test_failover", "test_blocking", "test_schemathesis"),
    *("test_chromium", "test_chromium_graphs", "test_examples"),
)
"""Files some test of which, or whose browser, takes more than ten seconds, of a processor or of waiting."""


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where the servers come from, and which costly tests run, before the first test runs."""
    said = ["servers: " + " ".join(f"{name}={kind.choose()}" for name, kind in KINDS.items())]
    if sample.is_whole(config) and not slow.IS_SLOW:
        said.append(f"costly tests: CALLBOARD_TEST_TURN={sample.turn(HERE)} of {sample.TURNS}")
    return said


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that asks for a server, so that `-m 'not postgres'` leaves it out; then sample.

    The longest come first, so that no worker is left alone with one at the end.
    """
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    for item in items:
        for name in KINDS:
            if {f"{name}_server", f"own_{name}"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(getattr(pytest.mark, name))
    if not (slow.IS_SLOW or sample.is_selected_by_id(config)):
        gone = set(sample.left_out(items, HERE))
        if sample.is_whole(config):
            gone.update(sample.without_turn(items, sample.turn(HERE)))
        config.hook.pytest_deselected(items=list(gone))
        items[:] = [item for item in items if item not in gone]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `tests/harness`."""
    parser.addoption("--item-rows", action="store_true", help="print `item-row NUMBER TEST` lines")
    parser.addoption("--slowest-files", type=int, default=0, help="print a table of so many files")
    help_text = "run the tests in so many forked processes; auto: one for each processor"
    parser.addoption("--workers", type=forked.number, default=0, help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Print the checklist rows and the slowest files where they were asked for.

    Tens of thousands of connections to a server of ours, which has no TLS, need not ask for it first.
    """
    collect_rarely()  # tens of thousands of tests are collected
    if memory := servers.folder_in_memory():
        os.environ.setdefault(
            "PYTEST_DEBUG_TEMPROOT", memory
        )  # `tmp_path`: a sync of a file waits for no disk
    item_rows.register(config)
    durations.register(config)
    forked.register(config)
    logging.getLogger().addHandler(_Slips(logging.WARNING))
    if servers.POSTGRES.choose() == "embedded":
        os.environ.setdefault("PGSSLMODE", "disable")


class _Slips(logging.Handler):
    """Errors of the product's own code that it survived: what survives everything hides them."""

    found: ClassVar[list[str]] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Keep what only a slip of the pen raises."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NameError | AttributeError):
            self.found.append(f"{record.name}: {record.getMessage()}: {error!r}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test during which the product logged a name or an attribute that does not exist.

    A command of the product that a test calls writes its log lines to the test's stderr, which ends with it.
    """
    _Slips.found.clear()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        done = yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert not _Slips.found
    return done


def pytest_collection_finish() -> None:
    """Never look for garbage among the thousands of collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestPostgres]:
    """The session's PostgreSQL; tests in a loop that lasts use connections again."""
    with servers.POSTGRES.shared() as server, kept_connections(server.url):
        yield server


@pytest.fixture(scope="session")
def age_server() -> Iterator[TestPostgres]:
    """The session's PostgreSQL with Apache AGE; each test has a tenant or a schema of its own."""
    with servers.AGE.shared() as server:
        yield server


@pytest.fixture(scope="session")
def age_database(age_server: TestPostgres) -> Iterator[str]:
    """The URL of a database with Apache AGE, whose user may do no more than its stores need."""
    with servers.age_database(age_server) as url:
        yield url


@pytest.fixture(scope="session")
def plain_database(postgres_server: TestPostgres) -> Iterator[str]:
    """The URL of a database of the session's PostgreSQL whose user may not make extensions."""
    with servers.plain_database(postgres_server) as url:
        yield url


@pytest.fixture
def postgres_dsn(postgres_server: TestPostgres) -> str:
    """The URL of the session's PostgreSQL."""
    return postgres_server.url


@pytest.fixture(scope="session")
def schemas(postgres_server: TestPostgres) -> Iterator[Schemas]:
    """The migrated schemas of the session's PostgreSQL."""
    made = servers.Schemas(postgres_server)
    yield made
    made.close()


@pytest.fixture
async def schema(schemas: Schemas) -> AsyncIterator[str]:
    """A schema as the migrations make it, which no other test uses meanwhile."""
    async with schemas.lent() as name:
        yield name


@pytest.fixture
async def new_schema(postgres_server: TestPostgres) -> AsyncIterator[str]:
    """The name of a schema that is not there; what the test makes of it is dropped afterwards."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    await servers.drop_schema(postgres_server, name)


@pytest.fixture(scope="session")
def new_clusters() -> Iterator[servers.NewClusters]:
    """What private PostgreSQL servers begin with."""
    with contextlib.ExitStack() as stack:
        yield servers.NewClusters(stack)


@pytest.fixture
def own_postgres(new_clusters: servers.NewClusters) -> Iterator[OwnPostgres]:
    """Starts servers that belong to this test alone, to be killed and restarted."""
    with servers.own_postgres_factory(new_clusters) as start:
        yield start


@pytest.fixture(scope="session")
def nats_server() -> Iterator[TestNats]:
    """The session's NATS, with JetStream."""
    with servers.NATS.shared() as server:
        yield server


@pytest.fixture
async def namespace(nats_server: TestNats) -> AsyncIterator[str]:
    """A namespace that no other test uses; its streams are deleted afterwards."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    await servers.drop_namespace(nats_server, name)


@pytest.fixture
def own_nats() -> Iterator[OwnNats]:
    """Starts NATS servers that belong to this test alone, to be killed, frozen and wiped."""
    with servers.own_nats_factory() as start:
        yield start


@pytest.fixture(scope="session")
def redis_server() -> Iterator[TestRedis]:
    """The session's Valkey; tests share it, so each takes keys of its own."""
    with servers.REDIS.shared() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    """Starts Valkey servers that belong to this test alone, to be killed, flushed and wiped."""
    with servers.own_redis_factory() as start:
        yield start


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.TestServer]:
    """The session's S3; each test has a bucket of its own."""
    with servers.S3.shared() as server:
        yield server
