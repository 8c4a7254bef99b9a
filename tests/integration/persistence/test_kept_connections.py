"""What tests share: connections that are kept leave nothing of one test to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors._kernel.runtime.ids import HostIncarnation
from persistence._postgres.connection.link import connect
from persistence.postgres import StoreSettings
from tests.harness.lasting import LastingLoop

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres


async def session(url: str, name: str, *, ends: bool = True) -> tuple[int, str, str, int]:
    """Open a connection, and leave a setting, a channel, a lock and a transaction in it."""
    settings = StoreSettings(url=url, owner=HostIncarnation(name), schema="public")
    connection = await connect(settings)
    row = await connection.fetchrow(
        "select pg_backend_pid(), current_setting('application_name'), current_setting('work_mem'),"
        " (select count(*) from pg_listening_channels()) + (select count(*) from pg_locks"
        " where pid = pg_backend_pid() and locktype = 'advisory')"
    )
    await connection.execute("set work_mem = '77MB'")
    await connection.add_listener("left", lambda *_: None)
    await connection.execute("select pg_advisory_lock(4711)")
    await connection.execute("begin")
    if ends:
        await connection.close(timeout=2)
    else:
        connection.terminate()
    assert row is not None
    pid, application, work_mem, channels_and_locks = row
    return pid, application, work_mem, channels_and_locks


def test_a_kept_connection_is_as_new(postgres_server: TestPostgres) -> None:
    """It serves the next test under another name; one that broke off serves nobody."""
    loop = LastingLoop()

    def play(name: str, *, ends: bool = True) -> tuple[int, str, str, int]:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(session(postgres_server.url, name, ends=ends))

    first = play("one")
    again = play("two", ends=False)
    other = play("three")
    assert (first[0], *again[1:]) == (again[0], "callboard two", first[2], 0)
    assert other[0] != first[0]


def test_a_lasting_loop_drops_the_state_of_its_test() -> None:
    """Its calls and its threads go with the test that began them."""
    loop = LastingLoop()

    async def leave() -> asyncio.TimerHandle:
        await asyncio.to_thread(lambda: None)
        return asyncio.get_running_loop().call_later(60, lambda: None)

    timers = []
    for _ in range(2):
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            timers.append(runner.run(leave()))
    loop.end()

    assert [call.cancelled() for call in timers] == [True, True]
