"""`callboard chat` at a terminal: it is used, killed with kill -9 in mid-answer, and opened again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.scheduler import RunStatus
from actors.sessions import AgentRuntime
from compose._assembly.runtime import build_local_runtime
from tests.harness.slow import IS_SLOW
from tests.system.chatting import STUCK, ChatProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from actors._runtime import Runtime

LONG = "First second third of a long one."


@pytest.fixture
def chat() -> Iterator[Callable[..., ChatProcess]]:
    """Start chats, and end them all afterwards."""
    started: list[ChatProcess] = []

    def start(*arguments: str, **env: str) -> ChatProcess:
        started.append(ChatProcess(*arguments, env=env))
        return started[-1]

    yield start
    for process in started:
        process.end()


async def texts_in(runtime: Runtime) -> list[str]:
    """Return the texts of the conversation."""
    async with AgentRuntime(runtime=runtime) as agents:
        return [turn.message.text for turn in await agents.path("s1")]


@pytest.mark.costly
@pytest.mark.item(356, 378, 379)
async def test_a_chat_killed_in_mid_answer_goes_on_when_it_is_opened_again(
    chat: Callable[..., ChatProcess], postgres_dsn: str, schema: str, client: Runtime
) -> None:
    """The same run answers the message, and the conversation has the turn once."""
    storage_options = ("--session", "s1", "--postgres-url", postgres_dsn, "--schema", schema)
    lease = {"CALLBOARD_LEASE_S": "1", "CALLBOARD_HEARTBEAT_S": "0.25"}
    first = chat(*storage_options, **{STUCK: "1"}, **lease)
    await first.says("I want a refund")
    await first.sees("info    loading for a test")
    await first.sees('? refund {"order": "7"}: agree? [y/N] ')
    first.types("y")
    await first.sees("← refund: refunded 7")
    await first.says("a long wait")
    await first.sees("second")
    first.send(signal.SIGINT)
    await first.sees("the run was cancelled: Ctrl-C")
    await first.says("a long one")
    await first.sees("second")
    first.send(signal.SIGKILL)
    assert await first.exit_code() == -signal.SIGKILL

    second = chat(*storage_options, **lease)
    await second.sees("The desk has an answer.")
    await second.sees("you> a long one")
    await second.sees("the run continues; Ctrl-C cancels it")
    await second.sees(LONG.partition(" ")[2])
    await second.says("/quit")

    assert await second.exit_code() == 0
    texts = await texts_in(client)
    assert texts[-2:] == ["a long one", LONG]
    assert texts.count(LONG) == 1
    runs = await client.store.lists.runs()
    ends = {RunStatus.COMPLETED: 2, RunStatus.CANCELLED: 1}
    assert {status: [run.status for run in runs].count(status) for status in ends} == ends
    assert len(runs) == 3


@pytest.mark.skipif(not IS_SLOW, reason="embedded servers twice: set CALLBOARD_TEST_SLOW=1")
@pytest.mark.item(356)
async def test_a_chat_with_servers_of_its_own_goes_on(
    chat: Callable[..., ChatProcess], tmp_path: Path
) -> None:
    """They are killed with it, and started again by the next one."""
    storage_options = ("--session", "s1", "--data", str(tmp_path / "data"))
    first = chat(*storage_options, **{STUCK: "1"})
    await first.says("a long one")
    await first.sees("second")
    first.send(signal.SIGKILL)
    await first.exit_code()

    second = chat(*storage_options)
    await second.sees("you> a long one")
    await second.says("/quit")

    assert await second.exit_code() == 0
    async with build_local_runtime(tmp_path / "data", serve=False) as runtime:
        assert await texts_in(runtime) == ["a long one", LONG]
