"""A summary prepared after an answer, on a host that crashes before it is complete."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import ChatMessage
from compose.demo.desk import lines_of
from tests.system.fleet import publish
from tests.system.summaries import HERE, SESSION, Clerk
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.rawnats import RawNats
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts


async def test_the_turn_after_a_crash_waits_for_no_summary_and_none_is_recorded_twice(
    fleet: Hosts, client: Runtime, outsider: RawNats, *, rows: Rows, tmp_path: Path
) -> None:
    """The other host answers while no summary can be written, and prepares its own for the next turn."""
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    early = [ChatMessage.of("user", f"fact {n}") for n in range(6)]
    await client.history.append_many(Clerk.id, early, session_id=SESSION)
    hosts = {host.pid: host for host in [await fleet.serving(f"{HERE}:CLERKS") for _ in range(2)]}

    def noted() -> list[list[str]]:
        return [line.split() for line in lines_of(str(ledger))]

    async def ask(text: str, *, turns: int) -> None:
        job: dict[str, Any] = {"ledger": str(ledger), "gate": str(gate), "text": text}
        await publish(outsider, str(fleet.more["namespace"]), Clerk.id, job)

        async def is_answered() -> bool:
            count = await client.history.count_messages(Clerk.id, session_id=SESSION)
            return count == turns

        await until(is_answered, f"the answer to {text}")

    await ask("one", turns=8)
    await until(lambda: len(noted()) == 2, "a request for a summary")
    [_, (request_name, doomed)] = noted()
    hosts.pop(int(doomed)).send(signal.SIGKILL)
    await ask("two", turns=10)
    await until(lambda: len(noted()) == 4, "a request of the other host")
    gate.touch()
    await until(lambda: len(noted()) == 5, "its summary")
    await ask("three", turns=12)

    [other] = map(str, hosts)
    assert request_name == "summary"
    assert noted()[2:] == [[name, other] for name in ("answer", "summary", "written", "answer")]
    recorded = (
        "select count(*) from event_log where payload ->> 'model' = 'writer' and kind = 'llm.call'"
    )
    assert await rows.connection.fetchval(recorded) == 1
    view = await client.store.data.transcripts.view(Clerk.id, SESSION, limit=1)
    assert view.cut is not None
    assert view.cut.upto >= len(early)
