"""Two services of one tenant: each controls only the runs that it started, unless it has a grant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from actors._kernel.agent.message import SET_BY_RUNTIME
from actors._kernel.runtime.ids import AgentId, run_id_of_mail, run_id_of_submit
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.system.asking import TYPES, Outside, outside
from tests.system.outside import make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")

VERBS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("status", {}),
    ("result", {"timeout": 1}),
    ("events", {}),
    ("signal", {"name": "go"}),
    ("cancel", {}),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield names of this module's own on the session's servers."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed:
        yield new_bed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(bed: Bed) -> AsyncIterator[Runtime]:
    """Yield the host that answers."""
    settings = Settings(db_schema=bed.schema, namespace=bed.namespace, suspend_after=0.05)
    building = build_runtime(bed.nats_url, bed.postgres_url, bed.redis_url, settings=settings)
    async with building as runtime:
        for type_, factory in TYPES.items():
            await runtime.register_type(type_, factory)
        yield runtime


@pytest_asyncio.fixture(loop_scope="module")
async def crm(bed: Bed, host: Runtime) -> AsyncIterator[Outside]:
    """Yield the service that reads other services' runs."""
    del host
    async with outside(bed.nats_url, bed.namespace) as service:
        yield service


async def begun(bed: Bed, key: str) -> RunId:
    """Return a run that the service `shop` started; it waits for a signal."""
    async with outside(bed.nats_url, bed.namespace, publisher="shop") as shop:
        submission = await shop.api("submit", agent=f"waiter/{key}", payload={"card": 1}, id=key)
        run = submission.body["run"]

        async def rests() -> bool:
            return bool((await shop.api("status", run=run)).body["status"] == "SUSPENDED")

        await until(rests, "the run waits")
    return run_id_of_submit(AgentId("waiter", key), "ext:shop", key)


async def test_a_run_of_another_publisher_is_unknown(bed: Bed, crm: Outside, host: Runtime) -> None:
    """Also for a client that computes its id: it cannot be read, signalled or cancelled, and continues."""
    run = await begun(bed, "card")
    answers = [await crm.api(verb, run=run, **more) for verb, more in VERBS]
    row = await host.store.reads.run(run)
    await host.signal(run, "go", 7)

    assert [(answer.code, answer.body["error"]["type"]) for answer in answers] == [
        (404, "unknown_run")
    ] * 5
    assert all("--sees tenant" in answer.body["error"]["remedy"] for answer in answers)
    assert row is not None
    assert row.cancel_requested is None
    assert await host.result(run) == 7


@pytest.mark.parametrize("how", ["join", "interrupt"])
async def test_an_agent_that_works_for_another_publisher_is_busy(
    bed: Bed, crm: Outside, host: Runtime, how: str
) -> None:
    """Its run is neither joined nor interrupted, by a question or a submit; a message can queue behind it."""
    run = await begun(bed, how)
    ask_answer = await crm.ask(f"waiter/{how}", Actor_On_Conflict=how)
    submitted = await crm.api("submit", agent=f"waiter/{how}", payload=1, on_conflict=how)
    queued = await crm.api("submit", agent=f"waiter/{how}", payload=1, id="q")
    row = await host.store.reads.run(run)

    assert [(answer.code, answer.body["error"]["type"]) for answer in (ask_answer, submitted)] == [
        (409, "conflict")
    ] * 2
    assert queued.body["run"] == run_id_of_submit(AgentId("waiter", how), "ext:crm", "q")
    assert row is not None
    assert row.cancel_requested is None


async def test_with_the_grant_all_runs_of_the_tenant_are_accessible(
    bed: Bed, host: Runtime
) -> None:
    """Read, signalled, joined and interrupted; its own runs may have any priority."""
    first, second, third = [await begun(bed, key) for key in ("g1", "g2", "g3")]
    async with outside(bed.nats_url, bed.namespace, tail=".tenant") as ops:
        signalled = await ops.api("signal", run=first, name="go", payload=9)
        result = await ops.api("result", run=first)
        events = await ops.events(run=first)
        cancelled = await ops.api("cancel", run=second)
        joined = await ops.api("submit", agent="waiter/g3", payload=1, on_conflict="join")
        urgent = await ops.ask("echo/urgent", 1, Actor_Priority="0", Actor_On_Conflict="interrupt")
        status = await ops.api("status", run=urgent.run)
        await ops.api("submit", agent="waiter/g3", payload=1, on_conflict="interrupt")
        row = await host.store.reads.run(third)

    assert (signalled.body, result.body["output"]) == ({"accepted": True}, 9)
    assert events[-1]["kind"] == "end"
    assert (cancelled.body, joined.body) == ({"cancelled": True}, {"run": third})
    assert (urgent.code, status.body["status"]) == (0, "COMPLETED")
    assert row is not None
    assert row.cancel_requested is not None


async def test_a_run_of_messages_belongs_to_its_only_sender(
    bed: Bed, crm: Outside, host: Runtime
) -> None:
    """Like a run of its question; another publisher cannot see it."""
    async with bed.connected():
        await bed.publish(AgentId("waiter", "mail"), {"n": 1}, message_id="m")
    run = run_id_of_mail(AgentId("waiter", "mail"), "ext:crm", "m")

    async def is_there() -> bool:
        return await host.store.reads.run(run) is not None

    await until(is_there, "mail started a run")
    mine = await crm.api("status", run=run)
    async with outside(bed.nats_url, bed.namespace, publisher="shop") as shop:
        theirs = await shop.api("status", run=run)

    assert (mine.code, theirs.code) == (0, 404)


@pytest.mark.parametrize("key", sorted(SET_BY_RUNTIME))
async def test_metadata_cannot_use_the_runtimes_own_keys(
    crm: Outside, host: Runtime, key: str
) -> None:
    """The error names the key, and nothing is submitted; other keys reach the agent."""
    bad = await crm.api("submit", agent=f"echo/m-{key}", payload=1, metadata={key: "ext:boss"})
    good = await crm.api("submit", agent="echo/own", payload=1, metadata={"color": "red"})
    result = await crm.api("result", run=good.body["run"])

    assert (bad.code, bad.body["error"]["type"]) == (400, "malformed")
    assert key in bad.body["error"]["message"]
    assert await host.store.lists.runs(agent=AgentId("echo", f"m-{key}")) == []
    assert result.body["output"]["metadata"] == {"color": "red"}
