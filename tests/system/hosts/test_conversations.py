"""Conversations whose host freezes while a model answers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind as K
from tests.system.agents import executed
from tests.system.telling import BEGAN, HERE, LEFT, answer_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.system.processes import Hosts

TELLER = AgentId("teller", "a")
OLD = [NewTurn("main", f"old-{n}", ChatMessage.of("user", "word " * 40)) for n in range(6)]


@pytest.mark.item(286, 300, 484)
async def test_a_host_that_was_frozen_in_mid_stream_writes_no_turn_and_no_cut(
    fleet: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The other host's answer stays. The thawed host's stream adds nothing, even to an empty session."""
    ledger, gate, transcripts = (
        tmp_path / "ledger",
        tmp_path / "gate",
        client.store.data.transcripts,
    )
    await transcripts.append(TELLER, OLD)
    frozen = await fleet.serving(HERE)
    run_id = await client.submit(TELLER, {"ledger": str(ledger), "gate": str(gate)})
    await until(lambda: (BEGAN, frozen.pid) in executed(ledger), "half an answer")
    frozen.send(signal.SIGSTOP)
    other = await fleet.serving(HERE)
    result = await client.result(run_id)
    log = [entry async for entry in client.entries(run_id)]
    view = await transcripts.view(TELLER, "main", limit=100, whole=True)
    # Now only the lease stops the frozen host from adding its turns: their ids are free again.
    await transcripts.clear(TELLER, "main")
    gate.touch()
    frozen.thaw()
    await frozen.until_lost()
    await until(lambda: (LEFT, frozen.pid) in executed(ledger), "the end of its stream")
    frozen.send(signal.SIGTERM)
    await frozen.exit_code()  # its write has been tried by then
    cleared_view = await transcripts.view(TELLER, "main", limit=100, whole=True)
    afterwards = [entry async for entry in client.entries(run_id)]

    assert result == answer_of(other.pid)
    assert [turn.text for turn in view.messages[len(OLD) + 1 :]] == [result]
    assert [*view.ordinals.values()] == list(range(len(OLD) + 2))
    assert view.cut is not None
    assert view.cut.run_id == run_id
    assert [entry.position for entry in log if entry.kind == K.LLM_CALL] == ["0~0", "0"]
    assert afterwards == log
    assert (cleared_view.count, cleared_view.cut) == (0, None)
