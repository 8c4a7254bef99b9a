"""Long-term memory of hosts that are killed or frozen."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from actors.kernel.runtime.ids import AgentId
from tests.harness.slow import IS_SLOW
from tests.system.agents import executed
from tests.system.remembering import BEGAN, HERE, KEY, LEFT
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors.runtime import Runtime
    from tests.system.processes import Hosts

AGENT = AgentId("rememberer", "a")


@pytest.mark.skipif(not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays it in one process")
async def test_a_host_that_was_frozen_while_it_embedded_keeps_no_memory(
    fleet: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The other host's memory stands. The thawed one adds nothing, even where that was forgotten.

    It may lose its run before it sends the write. A write that is sent is refused by the fence: see
    `test_a_host_frozen_past_its_lease_keeps_no_memory`.
    """
    ledger, gate, memory = tmp_path / "ledger", tmp_path / "gate", client.memory()
    frozen = await fleet.serving(HERE)
    run_id = await client.submit(AGENT, {"ledger": str(ledger), "gate": str(gate)})
    await until(lambda: (BEGAN, frozen.pid) in executed(ledger), "an embedding")
    frozen.send(signal.SIGSTOP)
    other = await fleet.serving(HERE)
    result = await client.result(run_id)
    log = [entry async for entry in client.entries(run_id)]
    kept = await memory.page()
    # Now nothing but the lease keeps the frozen host from adding the text: its id is free again.
    forgotten = await memory.forget(KEY, about=f"agent:{AGENT}")
    gate.touch()
    frozen.thaw()
    await frozen.until_lost()
    await until(lambda: (LEFT, frozen.pid) in executed(ledger), "the end of its embedding")
    frozen.send(signal.SIGTERM)
    await frozen.exit_code()  # what it would have written, it has tried to
    afterwards = [entry async for entry in client.entries(run_id)]

    assert [(one.id, one.key, one.run_id) for one in kept] == [(result, KEY, run_id)]
    assert kept[0].text == f"kept by {frozen.pid}"  # by a step that was recorded
    assert forgotten == 1
    assert (LEFT, other.pid) in executed(ledger)
    assert afterwards == log
    assert await memory.page() == []
