"""Long-term memory of hosts that are killed or frozen."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.harness.slow import IS_SLOW
from tests.system.agents import executed
from tests.system.remembering import BEGAN, FACTS, HERE, KEY, LEFT, QUERY
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.system.processes import Hosts

AGENT, KEEPER = AgentId("rememberer", "a"), AgentId("keeper", "a")
LEASE_S: Final = 0.8
MOST: Final = {"append": 12, "commit": 3}
"""Maximum number of writes of the keeper's run."""
POINTS: Final = [
    (point, nth, moment)
    for point, most in MOST.items()
    for nth in range(1, most + 1)
    for moment in ("before", "after")
]


@pytest.mark.skipif(not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays it in one process")
async def test_a_host_frozen_during_an_embedding_stores_no_memory(
    fleet: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The other host's memory stays. The thawed host adds nothing, also after that memory was deleted.

    It may lose its run before it sends the write. A write that is sent is refused by the fence: see
    `test_a_host_frozen_past_its_lease_stores_no_memory`.
    """
    ledger, gate, memory = tmp_path / "ledger", tmp_path / "gate", client.memory()
    frozen = await fleet.serving(HERE)
    run_id = await client.submit(AGENT, {"ledger": str(ledger), "gate": str(gate)})
    await until(lambda: (BEGAN, frozen.pid) in executed(ledger), "an embedding")
    frozen.send(signal.SIGSTOP)
    other = await fleet.serving(HERE)
    result = await client.result(run_id)
    log = [entry async for entry in client.entries(run_id)]
    memories = await memory.page()
    # Now only the lease stops the frozen host from adding the text: its id is free again.
    forgotten = await memory.forget(KEY, about=f"agent:{AGENT}")
    gate.touch()
    frozen.thaw()
    await frozen.until_lost()
    await until(lambda: (LEFT, frozen.pid) in executed(ledger), "the end of its embedding")
    frozen.send(signal.SIGTERM)
    await frozen.exit_code()  # its write has been tried by then
    afterwards = [entry async for entry in client.entries(run_id)]

    assert [(m.id, m.key, m.run_id) for m in memories] == [(result, KEY, run_id)]
    assert memories[0].text == f"kept by {frozen.pid}"  # by a step that was recorded
    assert forgotten == 1
    assert (LEFT, other.pid) in executed(ledger)
    assert afterwards == log
    assert await memory.page() == []


@pytest.mark.skipif(not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays it in one process")
@pytest.mark.parametrize(("point", "nth", "moment"), POINTS)
async def test_each_memory_is_stored_once_over_a_crash_at_any_write(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, tmp_path: Path, point: str, nth: int, moment: str
) -> None:
    """Versions, blocks and hits equal those of an undisturbed run; at most one text is embedded again."""
    ledger, memory, own = tmp_path / "ledger", client.memory(), f"agent:{KEEPER}"
    doomed = fleet.start(
        HERE, fault=f"{point}:{nth}:{moment}", lease_s=LEASE_S, suspend_after=5 * (nth % 2)
    )
    await doomed.until("host.serving")
    run_id = await client.submit(KEEPER, str(ledger))
    result = asyncio.ensure_future(client.result(run_id))
    await until(lambda: result.done() or not doomed.is_alive, "a death, or the end")
    if not doomed.is_alive:
        assert await doomed.exit_code() == -9
        await fleet.serving(HERE, lease_s=LEASE_S)
    answer = await result
    texts = {
        name: [m.text for m in await memory.versions(name, about=about)]
        for name, about in (("units", own), ("old", own), ("persona", f"blocks:{own}"))
    }
    present = await memory.page()
    embedded = Counter(ledger.read_text(encoding="utf-8").split())

    assert answer == ["Oslo", "miles"]
    assert texts == {"units": ["miles", "metric"], "old": [], "persona": ["kind", "curt"]}
    assert sorted(m.text for m in present) == ["Oslo", "kind", "miles"]
    assert {m.run_id for m in present} == {run_id}
    assert embedded.keys() == {QUERY, *(text for text, _ in FACTS)}
    assert embedded.total() - len(embedded) <= 1
