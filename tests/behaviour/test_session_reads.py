"""The reads that a run makes of its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import ChatMessage
from actors._runtime.verbs.conversation.sessions import WindowSource
from actors.context import ContextConfig, SlidingWindowCompaction, StoreHistory
from actors.testing import ScriptedModel

if TYPE_CHECKING:
    import pytest

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def requests_of(model: ScriptedModel) -> list[list[str]]:
    """Return the texts of each request."""
    return [[message.text for message in request.messages] for request in model.asked]


async def test_a_run_reads_a_session_once_between_two_waits(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns added by others are read after the next wait. Cuts include turns of the run itself."""
    model, reads = ScriptedModel(otherwise="yes"), []
    context = ContextConfig(StoreHistory(), SlidingWindowCompaction(10))
    of = WindowSource.of

    async def counted(*args: Any) -> WindowSource:
        reads.append(1)
        return await of(*args)

    monkeypatch.setattr(WindowSource, "of", counted)

    async def act(ctx: RunContext, inbox: list[Message]) -> list[int]:
        del inbox
        await ctx.history.append("by hand", session="s")
        for n in range(5):
            await ctx.generate(f"early {n}", session="s")
        early = len(reads)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        before = len(reads)
        for n in range(40):
            await ctx.generate(f"late {n}", session="s")
        return [early, len(reads) - before]

    agent = await bed.serve(act, model=model, context=context)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    await bed.runtime.history.append_many(
        agent, [ChatMessage.of("user", "from outside")], session_id="s"
    )
    await bed.runtime.signal(run_id, "go")
    early, late = await bed.result(run_id)

    assert requests_of(model)[4][:3] == ["by hand", "early 0", "yes"]
    assert requests_of(model)[5][-2:] == ["from outside", "late 0"]
    assert requests_of(model)[-1][-3:] == ["late 38", "yes", "late 39"]
    assert early <= 1, "none on a replay"
    assert 1 <= late <= 8
    view = await bed.runtime.store.data.transcripts.view(agent, "s", limit=200)
    assert view.cut is not None
    assert [*view.ordinals.values()] == [*range(view.cut.upto + 1, 92)]
