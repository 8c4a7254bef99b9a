"""Parents, askers and their targets crash, freeze, or lose their servers: one fault each."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RunStatus
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.system.fleet import Rows
from tests.system.processes import Hosts
from tests.system.talking import HERE, REPLIED, executed
from tests.system.waiting import until, until_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from actors._runtime import Runtime
    from compose.embedded import NatsServer, PostgresServer
    from tests.system.processes import HostProcess

LEFT: Final = f"{HERE}:PAIR_LEFT"
RIGHT: Final = f"{HERE}:PAIR_RIGHT"
SIDES: Final = {"left": LEFT, "right": RIGHT}
LEASE_S: Final = 1.2
BRIEF_S: Final = 0.6
"""For tests in which hosts crash in turn, and a lost lease does no harm."""
PARENT: Final = AgentId("parent", "a")
ASKER: Final = AgentId("asker", "a")
DESK: Final = AgentId("deskr", "a")
GATED: Final = AgentId("gated", "a")
ASKS: Final = 200


def job(folder: Path, **more: Any) -> dict[str, Any]:
    """Return an agent's job: where to record it, what to wait for, and the rest."""
    return {"ledger": str(folder / "ledger"), "gate": str(folder / "gate"), "n": 1, **more}


async def kinds(rows: Rows, *names: str) -> Counter[str]:
    """Return how many entries of these kinds there are in all logs."""
    records = await rows.connection.fetch(
        "select kind, count(*) as n from event_log where kind = any($1) group by kind", list(names)
    )
    return Counter({row["kind"]: row["n"] for row in records})


async def children(rows: Rows) -> list[tuple[RunId, str]]:
    """Return run and status of every run that was spawned."""
    records = await rows.connection.fetch(
        "select run_id, status from runs where parent is not null"
    )
    return [(RunId(row["run_id"]), row["status"]) for row in records]


def names(folder: Path) -> Counter[str]:
    """Return how often each step happened."""
    return Counter(line.name for line in executed(folder / "ledger"))


async def until_working(folder: Path, *, times: int = 1) -> int:
    """Return the process in which the gated work started for the n-th time."""
    await until(lambda: names(folder)["work"] >= times, "work")
    return [line.pid for line in executed(folder / "ledger") if line.name == "work"][times - 1]


async def until_ended(rows: Rows, agent: AgentId | str) -> None:
    """Return once a run of an agent, or of its type, has ended."""

    async def has_ended() -> bool:
        ended = "select count(*) from runs where starts_with(agent, $1) and ended_at is not null"
        return bool(await rows.connection.fetchval(ended, str(agent)))

    await until(has_ended, f"the end of {agent}")


async def start(fleet: Hosts, *serves: str, suspend_after: float = 5) -> list[HostProcess]:
    """Start a host for each side."""
    hosts = [fleet.start(spec, lease_s=LEASE_S, suspend_after=suspend_after) for spec in serves]
    for host in hosts:
        await host.until("host.serving")
    return hosts


async def kill(*hosts: HostProcess) -> None:
    """Kill them at once."""
    for host in hosts:
        host.send(signal.SIGKILL)
    for host in hosts:
        await host.exit_code()


@pytest.mark.item(145, 229, 231, 235)
@pytest.mark.parametrize("child", ["kidl", "kidr"])
@pytest.mark.parametrize("then", ["die", "flush and die"])
async def test_a_parent_killed_right_after_its_spawn_has_one_child(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, then: str, child: str
) -> None:
    """Before the spawn is durable there is no child; afterwards there is one, and it is not spawned again."""
    doomed = await fleet.serving(LEFT, lease_s=LEASE_S)
    run_id = await client.submit(PARENT, job(tmp_path, child=child, then=then))
    assert await doomed.exit_code() == -9
    born = await children(rows)
    await start(fleet, LEFT, RIGHT)

    assert len(born) == (then == "flush and die")
    assert await client.result(run_id) == ["COMPLETED", [10]]
    assert await kinds(rows, "child.spawned", "child.completed") == {
        "child.spawned": 1,
        "child.completed": 1,
    }
    [(child_id, status)] = await children(rows)
    assert status == "COMPLETED"
    assert child_id in {run for run, _ in born} or not born
    assert names(tmp_path)["kid-1"] == 1


@pytest.mark.costly
@pytest.mark.item(145, 235)
@pytest.mark.parametrize("suspend_after", [0, 5])
async def test_a_child_that_ended_before_both_hosts_were_killed_is_joined(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, suspend_after: float
) -> None:
    """Both hosts are killed between the child's end and the join: the rows have the result."""
    await start(fleet, LEFT, RIGHT, suspend_after=suspend_after)
    run_id = await client.submit(PARENT, job(tmp_path, child="kidr", then="wait"))
    await until_ended(rows, "kidr/")
    await kill(*fleet.started)
    await fleet.serving(LEFT, lease_s=LEASE_S)
    await client.signal(run_id, "go")

    assert await client.result(run_id) == ["COMPLETED", [10]]
    assert names(tmp_path) == {"kid-1": 1}


@pytest.mark.costly
@pytest.mark.item(145, 146, 231, 235, 244)
@pytest.mark.parametrize("waiting", ["joins", "asks"])
@pytest.mark.parametrize("suspend_after", [0, 5])
async def test_a_wait_gets_a_result_from_before_its_hosts_restart(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, suspend_after: float, waiting: str
) -> None:
    """In memory or not when its host is killed: the next one finds the result, or the reply."""
    doomed, other = await start(fleet, LEFT, RIGHT, suspend_after=suspend_after)
    if waiting == "joins":
        run_id = await client.submit(PARENT, job(tmp_path, child="gated", then="join"))
    else:
        run_id = await client.submit(ASKER, job(tmp_path, target=str(GATED)))
    await until_working(tmp_path)
    await kill(doomed)
    (tmp_path / "gate").touch()
    await until_ended(rows, "gated/")
    await fleet.serving(LEFT, lease_s=LEASE_S)

    expected = ["COMPLETED"] if waiting == "joins" else [REPLIED]
    result: Any = await client.result(run_id)
    assert result[:2] == [*expected, other.pid]
    assert names(tmp_path)["work"] == 1


@pytest.mark.item(90, 146, 244, 248)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_an_ask_survives_alternating_crashes_at_each_commit(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, nth: int, moment: str
) -> None:
    """The next host is killed there, too; the third one of either side succeeds."""
    hosts = {
        side: [
            fleet.start(serves, lease_s=BRIEF_S, suspend_after=0, fault=f"commit:{nth}:{moment}")
        ]
        for side, serves in SIDES.items()
    }
    for [host] in hosts.values():
        await host.until("host.serving")
    run_id = await client.submit(ASKER, job(tmp_path, target=str(DESK)))

    def has_died() -> bool:
        return any(not started[-1].is_alive for started in hosts.values())

    async def is_next() -> bool:
        return has_died() or (await client.handle(run_id) is not None and await _is_over(rows))

    while True:
        await until(is_next, "death, or the end")
        if not has_died():
            break
        for side, started in hosts.items():
            if not started[-1].is_alive:
                fault = f"commit:{nth}:{moment}" if len(started) < 2 else ""
                started.append(fleet.start(SIDES[side], lease_s=BRIEF_S, fault=fault))
    outcome: Any = await client.result(run_id)

    assert outcome[:2] == [REPLIED, 100]
    assert await kinds(rows, "ask.sent", "ask.replied", "ask.timeout") == {
        "ask.sent": 1,
        "ask.replied": 1,
    }
    assert names(tmp_path)["asker-1"] == 1
    assert nth > 1 or all(len(started) > 1 for started in hosts.values())


async def _is_over(rows: Rows) -> bool:
    open_runs = "select exists (select from runs where ended_at is null)"
    return not await rows.connection.fetchval(open_runs)


@pytest.mark.costly
@pytest.mark.item(90, 244, 246, 248, 484)
async def test_a_target_frozen_past_its_lease_has_not_failed(
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """Another host answers; the frozen one's late answer does not count."""
    asking, frozen = await start(fleet, LEFT, RIGHT)
    run_id = await client.submit(ASKER, job(tmp_path, target=str(GATED)))
    assert await until_working(tmp_path) == frozen.pid
    frozen.send(signal.SIGSTOP)
    await frozen.until_frozen()
    other = await fleet.serving(RIGHT, lease_s=LEASE_S)
    assert await until_working(tmp_path, times=2) == other.pid
    (tmp_path / "gate").touch()
    outcome: Any = await client.result(run_id)
    frozen.thaw()
    await frozen.until_lost()
    again = await client.submit(ASKER, job(tmp_path, target=str(GATED), n=2))
    second: Any = await client.result(again)

    assert outcome[:2] == [REPLIED, other.pid]
    assert second[0] == REPLIED
    answers = "select status, result::text from completions where parent = $1"
    completions = [tuple(row) for row in await rows.connection.fetch(answers, run_id)]
    assert completions == [("replied", str(other.pid))]
    assert await kinds(rows, "ask.replied", "ask.timeout") == {"ask.replied": 2}
    assert (await client.store.reads.run(RunId(outcome[2]))).status is RunStatus.COMPLETED  # type: ignore[union-attr]
    assert asking.is_alive


@pytest.mark.costly
@pytest.mark.item(90, 245, 246, 248)
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_target_without_a_host_has_timed_out_and_not_failed(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, how: str
) -> None:
    """Its run is open and named, and continues as soon as a host serves it; the asker has ended."""
    _, host = await start(fleet, LEFT, RIGHT)
    run_id = await client.submit(ASKER, job(tmp_path, target=str(GATED), timeout=3))
    await until_working(tmp_path)
    host.send(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    outcome: Any = await client.result(run_id)
    kind, result, handle = outcome
    row = await client.store.reads.run(RunId(handle))
    assert row is not None
    assert (kind, result, row.agent_id, row.status.is_terminal) == ("timed_out", None, GATED, False)
    (tmp_path / "gate").touch()
    if how == "frozen":
        await kill(host)
    other = await fleet.serving(RIGHT, lease_s=LEASE_S)
    await until_run(client, row.run_id, lambda row: row.status.is_terminal, "the end of the target")

    assert await client.result(row.run_id) == other.pid
    assert await client.result(run_id) == ["timed_out", None, handle]
    assert await kinds(rows, "ask.replied", "ask.timeout") == {"ask.timeout": 1}


@pytest.fixture
def own_hosts(postgres: PostgresServer, nats: NatsServer, tmp_path: Path) -> Iterator[Hosts]:
    """Start hosts on these servers; all messages go by the broker."""
    schema = f"t_{secrets.token_hex(4)}"
    more: dict[str, object] = {"nats_url": nats.url, "local_delivery": False}
    hosts = Hosts(postgres.url, schema, tmp_path, more)
    yield hosts
    hosts.end()


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.item(90, 145, 146, 244, 248, 482, 486)
async def test_two_hundred_asks_survive_a_restart_of_both_servers(
    own_hosts: Hosts, postgres: PostgresServer, nats: NatsServer, tmp_path: Path
) -> None:
    """In flight when PostgreSQL is restarted and when NATS is killed: all get one reply."""
    settings = Settings(postgres_url=own_hosts.url, db_schema=own_hosts.schema)
    for serves in SIDES.values():
        await own_hosts.serving(serves, lease_s=5, suspend_after=0.05)
    async with (
        build_postgres_runtime(own_hosts.url, settings=settings, serve=False) as client,
        asyncio.TaskGroup() as tasks,
    ):
        submitting = [
            tasks.create_task(client.submit(AgentId("asker", f"a{n}"), _question(tmp_path, n)))
            for n in range(ASKS)
        ]
        await until(lambda: _count(tmp_path, "desk-") >= ASKS // 5, "a fifth is at the desks")
        await asyncio.to_thread(postgres.stop)
        await asyncio.to_thread(postgres.start)
        await until(lambda: _count(tmp_path, "desk-") >= ASKS // 2, "half is at the desks")
        await asyncio.to_thread(nats.kill)
        at_restart = _count(tmp_path, "asker-")
        await asyncio.to_thread(nats.start)
        outcomes: list[Any] = [await client.result(await task) for task in submitting]

    assert at_restart < ASKS, "all was over before the last fault"
    assert [outcome[:2] for outcome in outcomes] == [[REPLIED, n * 100] for n in range(ASKS)]
    assert {names(tmp_path)[f"asker-{n}"] for n in range(ASKS)} == {1}
    async with Rows.of(own_hosts.url, own_hosts.schema) as rows:
        assert await kinds(rows, "ask.sent", "ask.replied", "ask.timeout") == {
            "ask.sent": ASKS,
            "ask.replied": ASKS,
        }
        assert await rows.count("dead_letters") == 0


def _question(folder: Path, n: int) -> dict[str, Any]:
    return job(folder, target=f"deskr/d{n % 5}", n=n, pace_s=0.1)


def _count(folder: Path, prefix: str) -> int:
    return len(
        {line.effect for line in executed(folder / "ledger") if line.name.startswith(prefix)}
    )
