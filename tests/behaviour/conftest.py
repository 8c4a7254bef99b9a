"""Fixtures: beds on {memory, PostgreSQL, NATS}, whose waiting runs stay in memory or are evicted at once.

The event loop is the parameter that selects the backend. Memory runs in virtual time, where no test
sleeps and any socket is an error; the others run in a real loop. On NATS, messages travel through
NATS and rows are PostgreSQL's; no message between agents takes the short path inside the host.
"""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._runtime.loop.clock import SystemClock, SystemEntropy
from persistence.postgres import StoreSettings, open_store
from tests.behaviour.bed import Bed, OpenStore, memory_bed
from tests.harness import servers
from tests.harness.lasting import LastingLoop
from tests.harness.sample import is_selected_by_id
from tests.harness.simloop import SimLoop
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from actors._kernel.runtime.ids import HostIncarnation
    from actors._kernel.stores.run_store import RunStore
    from tests.harness.servers import Observer, TestNats, TestPostgres

_LOOP = "_asyncio_loop_factory"
_HOT_S = 5.0


def _virtual_loop() -> SimLoop:
    return SimLoop(seed=0)


@functools.cache
def _real_loop() -> LastingLoop:
    return LastingLoop()


@functools.cache
def _brokered_loop() -> LastingLoop:
    """Return the loop for the tests on NATS."""
    return LastingLoop()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this folder once per backend; those marked `nats` are about the broker.

    A test that never runs on NATS is not even collected there: each item costs all workers time.
    """
    if item.get_closest_marker("nats"):
        return {"nats": _brokered_loop}
    backends: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "memory": _virtual_loop,
        "postgres": _real_loop,
    }
    if IS_SLOW or item.path.stem in _BY_BROKER or not _about(item) & (_IN_MEMORY | _WITHOUT_MAIL):
        backends["nats"] = _brokered_loop
    return backends


def _about(item: pytest.Item) -> set[str]:
    """Return the names of the test and of its file, without their `test_`."""
    name: str = getattr(item, "originalname", item.name)
    return {item.path.stem.removeprefix("test_"), name.removeprefix("test_")}


_WITHOUT_MAIL = frozenset(
    (
        "agui",
        "approvals",
        "budgets",
        "cancel",
        "client_tools",
        "deadly_code",
        "decisions",
        "divergence",
        "fairness",
        "fork",
        "graph_pages",
        "housekeeping",
        "http_access",
        "http_graphs",
        "http_tokens",
        "identity",
        "idle_runs",
        "in_doubt",
        "life_cycle",
        "limits",
        "odd_errors",
        "registration",
        "result_cache",
        "retention",
        "retries",
        "schedules",
        "session_below",
        "session_cancel",
        "session_heard",
        "session_hidden",
        "session_input",
        "session_races",
        "sessions_behave_as_the_model_predicts",
        "spawn",
        "submit",
        "trees",
        "values",
        "versions",
        "waits",
        "windows",
        "every_entry_point_refuses_text_that_no_store_accepts",
    )
)
"""Files and single tests in which no message behaves differently with a broker."""

_IN_MEMORY = frozenset(
    (
        *("branches", "exits", "llm", "middleware", "secrets", "steps", "tool_approvals", "tools"),
        # flow_deaths, flow_ledgers: a crash at each call of a store; the driver's decisions
        *("flow_deaths", "flow_ledgers"),
        # http_jwt, http_login: decisions made before the store of tokens is asked
        *("http_jwt", "http_login"),
        # bytes_of_compaction: the calls of a host to its store
        "bytes_of_compaction",
        # cached_prefixes: requests; cuts with their changes are in conformance
        "cached_prefixes",
        # prepared_summaries: all but the cut, and that a host which was away or ended writes none
        "a_message_cancels_a_preparation",
        "a_prepared_summary_survives_a_crash_at_each_write",
        "a_summary_counts_against_the_budget_of_the_run_that_uses_it",
        "a_failed_preparation_records_nothing",
        "agents_of_a_factory_share_the_summaries_of_one_context",
        "a_window_that_would_overflow_waits_for_its_summary",
        # bad_input: all but odd texts and large values, which a row has to hold
        "a_value_nested_too_deep_is_an_error",
        "an_agent_that_cancels_itself_is_a_crash",
        "an_agent_that_raises_a_base_exception_fails",
        "an_effect_in_a_foreign_task_is_refused",
        "asyncio_gather_around_ctx_calls_is_refused",
        "asyncio_timeout_around_ctx_calls_is_refused",
        "asyncio_wait_for_around_ctx_calls_is_refused",
        "cleanup_executes_no_effect_when_the_run_suspends",
        "code_that_uses_random_values_is_parked",
        # deadly_code: all but the marks of a message's run, and neighbours
        "code_that_kills_its_host_is_parked_wherever_it_does_that",
        "swallowing_the_suspension_fails_the_run",
        # memory: decisions above its store, whose suite runs on PostgreSQL
        "a_model_stores_and_finds_facts_by_tools",
        "a_trace_has_spans_of_remember_and_recall",
        "nothing_is_stored_if_the_embedder_fails",
        "recalled_text_reaches_the_model_as_marked_data",
        # divergence: all but the timer that a row keeps while its run is parked
        "changed_code_is_parked_and_goes_on_once_it_is_mended",
        "code_that_catches_everything_is_parked_all_the_same",
        "code_after_the_recorded_part_may_change",
        "other_runs_of_the_agent_wait_behind_a_parked_one",
        # task_tool: boards of the process; those of PostgreSQL are in conformance, and with the tool in compose
        "task_tool",
        # usage: test_usage in another file runs it with the broker
        "totals_are_the_sums_of_logs",
        # odd_errors: all but instants that a row has to hold
        "an_invalid_time_is_refused_at_the_call",
        "a_tool_error_that_cannot_be_inspected_is_a_result",
        "an_agent_without_a_sensible_deadline_is_refused_or_served",
        "an_error_that_cannot_be_inspected_ends_its_attempt",
        # ask: the poll and the commit are held in the host. Conformance tests that a commit which
        # ends a wait is notified of an answer that exists, or is just being written, and the race
        # of both
        "a_reply_before_the_time_limit_is_recorded_is_the_answer",
        # bad_messages: which messages the end of an attempt splits
        "a_run_with_an_interrupted_effect_is_not_split",
        # publish_foreign: a graph and a fan-out of the test's own, called in an effect like any
        # other
        "a_runs_calls_of_them_are_recorded_effects",
        # refusals: the test itself refuses in the store's place
        "a_temporary_refusal_parks_nothing",
        "a_run_whose_writes_are_refused_is_parked_by_the_second_refusal",
        "a_refused_parking_is_retried_with_growing_pauses",
        "a_submitted_run_that_could_not_be_read_is_read_with_the_next_scan",
        "an_odd_run_id_is_an_unknown_run",
        "neighbours_of_a_refused_run_go_on",
        "text_that_no_store_accepts_is_refused_at_the_call",
    )
)
"""Files and single tests about decisions made above the store.

They write what every run writes: entries, a status, a wake-up. `tests/conformance` proves that rows
hold it. The random programs, which use steps, branches, errors, waits and crashes on PostgreSQL and
NATS, prove both together. `tests/integration/persistence` proves how a refusal of PostgreSQL is
told apart from another.
"""


_BY_BROKER = frozenset(("test_broker_mail", "test_broker_reach"))


def _is_played_elsewhere(item: pytest.Item) -> bool:
    """Return whether another backend or mode runs the same test; see below."""
    call = getattr(item, "callspec", None)
    if call is None or item.path.stem in _BY_BROKER:
        return False
    mode = call.params.get("bed")
    if call.params.get(_LOOP) is not _virtual_loop:
        return mode == _HOT_S or bool(_about(item) & _IN_MEMORY)
    return mode not in (None, _mode_of(item)) and not is_selected_by_id(item.config)


def _mode_of(item: pytest.Item) -> float:
    """Return the suspend mode in which the gate runs a test in memory, chosen by its name."""
    name = re.sub(r"-?(hot|drops)", "", item.nodeid)  # that of both modes
    return _HOT_S if zlib.crc32(name.encode()) % 2 else 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, so that `-m 'not postgres'` deselects them.

    Decisions made before a store is asked run in memory alone. Tests without messages do not run on
    NATS, because nothing in them differs from PostgreSQL alone. With servers all waiting runs are
    evicted, which is the harder mode. In memory a test runs in one
    of the two modes, chosen by its name; both are tested by the random programs, and if the test is
    selected by its id. A thousand random programs run all of it on both backends, half of them
    without eviction, and `CALLBOARD_TEST_SLOW=1` runs every test everywhere.
    """
    left_out = [] if IS_SLOW else [item for item in items if _is_played_elsewhere(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        deselected_items = set(left_out)
        items[:] = [item for item in items if item not in deselected_items]
    postgres, nats = pytest.mark.postgres, pytest.mark.nats
    marks: dict[object, list[pytest.MarkDecorator]] = {
        _real_loop: [postgres],
        _brokered_loop: [postgres, nats],
    }
    for item in items:
        call = getattr(item, "callspec", None)
        loop: object = None if call is None else call.params.get(_LOOP)
        for mark in marks.get(loop, ()):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def behaviour_schema(postgres_server: TestPostgres) -> Iterator[str]:
    """One schema for all tests of this folder on PostgreSQL alone: their agent types differ."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_schema(postgres_server, name))


@pytest.fixture(scope="session")
def brokered_schema(postgres_server: TestPostgres) -> Iterator[str]:
    """Another schema for the tests on NATS: either all hosts of a database have a broker, or none has."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_schema(postgres_server, name))


@pytest.fixture(scope="session")
def behaviour_namespace(nats_server: TestNats) -> Iterator[str]:
    """One namespace for all tests of this folder: their agent types differ."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_namespace(nats_server, name))


def _postgres_bed(url: str, schema: str, suspend_after: float) -> Bed:
    opening = _opening(url, schema, is_brokered=False)
    return Bed("postgres", suspend_after, opening, SystemClock(), SystemEntropy())


def _nats_bed(nats: str, namespace: str, *, url: str, schema: str, suspend_after: float) -> Bed:
    opening = _opening(url, schema, is_brokered=True)
    return Bed("nats", suspend_after, opening, SystemClock(), SystemEntropy(), (nats, namespace))


def _opening(url: str, schema: str, *, is_brokered: bool) -> OpenStore:
    """Return a function that opens stores with one connection for reads: each new one costs CPU."""

    @asynccontextmanager
    async def opened(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        settings = StoreSettings(
            url=url,
            schema=schema,
            owner=owner,
            lease_s=60,
            readers=1,
            brokered=is_brokered,
            local_delivery=not is_brokered,
        )
        async with open_store(settings) as store:
            await store.listening()
            yield store

    return opened


def _undertaker(observer: Observer, schema: str) -> Callable[[HostIncarnation], Awaitable[object]]:
    """Return a function that releases the shards of a dead host, as the end of its lease does.

    A claim that the server still executes would take some for the dead host, so its connections end
    first.
    """
    end = (
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where application_name = left('callboard ' || $1, 63)"
    )
    release = (
        f"select {schema}.release_shards('undertaker', array_agg(shard), array_agg(owner),"
        f" array_agg(epoch)) from {schema}.shards where owner = $1"
    )

    async def bury(owner: HostIncarnation) -> None:
        await observer.fetch(end, owner)
        await observer.fetch(release, owner)

    return bury


@pytest.fixture(params=[_HOT_S, 0.0], ids=["hot", "drops"])
async def bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """Yield a started host without agents, on each backend and in both suspend modes."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        seed = zlib.crc32(request.node.nodeid.encode())
        bed = memory_bed(loop, request.param, seed)
        await bed.start()
        yield bed
        await bed.stop()
        return
    url = request.getfixturevalue("postgres_server").url
    is_brokered = loop is _brokered_loop()
    schema = request.getfixturevalue("brokered_schema" if is_brokered else "behaviour_schema")
    if is_brokered:
        nats = request.getfixturevalue("nats_server").url
        namespace = request.getfixturevalue("behaviour_namespace")
        bed = _nats_bed(nats, namespace, url=url, schema=schema, suspend_after=request.param)
    else:
        bed = _postgres_bed(url, schema, request.param)
    observer: Observer = request.getfixturevalue("schemas").observer
    bed.bury = _undertaker(observer, schema)
    await bed.start()
    yield bed
    await bed.stop()
    # No later host takes over, or reads, the agents of this test.
    deletes = (f"delete from {schema}.{table}" for table in ("shards", "types", "hosts"))
    await observer.execute(";".join(deletes))


@pytest.fixture
def app(bed: Bed) -> str:
    """Return an agent type that no other test has."""
    return bed.name().type
