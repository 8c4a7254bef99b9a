"""The runs below a deleted session's own runs, and what the deletion removes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.behaviour.talks import Echo, sessions_on

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Boss:
    """Delegates to a specialist, which other sessions use, too."""

    def __init__(self, specialist: AgentId) -> None:
        self.id, self._specialist = AgentId(specialist.type, "boss"), specialist

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the specialist's answer."""
        payload: Any = inbox[0].payload
        return (await ctx.join(await ctx.spawn(self._specialist, payload["text"]))).output


@pytest.mark.item(382)
async def test_a_deletion_removes_the_logs_of_runs_below_the_session(bed: Bed) -> None:
    """At any depth; logs of other sessions, whose runs the same agents execute, stay. Rows stay."""

    async def helps(ctx: RunContext, inbox: list[Message]) -> Any:
        return f"helped with {inbox[0].payload}"

    helper = await bed.serve(helps)

    async def specialist(ctx: RunContext, inbox: list[Message]) -> Any:
        return (await ctx.join(await ctx.spawn(helper, inbox[0].payload))).output

    boss = Boss(await bed.serve(specialist))
    runs: dict[str, list[RunId]] = {}
    async with sessions_on(bed, boss, app=bed.name().type) as talks:
        for session in ("s", "t"):
            run = await talks.start(f"it in {session}", session_id=session)
            assert await run.result() == f"helped with it in {session}"
            [child] = await run.children()
            [deep] = [handle.run_id for handle in await bed.runtime.children(child)]
            runs[session] = [child, deep]
            assert all([await bed.log(run_id) for run_id in runs[session]])
        deletion = await talks.delete_session("s")
        assert deletion["children"] == {"logs": 2}
        for run_id in runs["s"]:
            row = await bed.row(run_id)
            assert (row.status, row.swept, row.result) == ("COMPLETED", True, None)
            assert await bed.log(run_id) == []
        assert all([await bed.log(run_id) for run_id in runs["t"]])
        assert (await talks.delete_session("t"))["children"] == {"logs": 2}


@pytest.mark.item(382)
@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_deletion_removes_the_turns_of_runs_below_the_session(
    bed: Bed, is_swept: bool
) -> None:
    """Their turns in all conversations of their agents; turns of other sessions' runs stay, in their order."""
    echo = Echo("clerk")
    clerk = echo.agent()
    clerk.id = bed.name("c")
    bed.agents[clerk.id] = clerk
    await bed.runtime.register(clerk)
    transcripts = bed.runtime.store.data.transcripts

    async def stored_texts() -> list[str]:
        return [
            turn.message.text
            for info in await transcripts.sessions(clerk.id)
            for turn in await transcripts.page(clerk.id, info.name, branches=True)
        ]

    async with sessions_on(bed, Boss(clerk.id), app=bed.name().type) as talks:
        for session in ("s", "t", "s"):
            run = await talks.start(f"it in {session}", session_id=session)
            await run.result()
            if is_swept:
                await bed.runtime.store.retention.sweep_these(await run.children())
        assert sorted(set(await stored_texts())) == [
            "clerk: it in s",
            "clerk: it in t",
            "it in s",
            "it in t",
        ]
        await talks.delete_session("s")
        assert await stored_texts() == ["it in t", "clerk: it in t"]
        await talks.delete_session("t")
        assert await transcripts.sessions(clerk.id) == []
