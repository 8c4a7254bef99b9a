"""Sessions: queue, modes, nodes, cancel and deletion, as a program sees them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.tools import Risk, Tool, ToolCall
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.agents import ReActAgent
from actors.context import ContextConfig, InMemoryHistoryProvider
from actors.errors import ContractError, RegistrationError, RunFailedError
from actors.sessions import (
    AgentRuntime,
    SessionActiveError,
    SessionAgent,
    UnknownChildError,
    UnknownModeError,
    UnknownNodeError,
    UnknownSessionError,
    UserMessage,
)
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import (
    Echo,
    all_of,
    failing,
    parent_on,
    past_of,
    path_texts,
    payload_of,
    sessions_on,
    types_of,
)
from tests.harness.simloop import SimLoop

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

NO_RETRY = RetryPolicy(max_retries=0)


@pytest.mark.item(348, 349, 351, 361, 362, 364, 378)
async def test_a_text_starts_a_run_and_its_events_end_with_the_run(bed: Bed, app: str) -> None:
    """The handle is returned before the run has ended, with run, session and status."""
    echo = Echo()
    gate = echo.hold("hello")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        run = await talks.start("hello", session_id="s1")
        assert (run.session_id, run.status) == ("s1", "running")
        assert not (await bed.row(run.run_id)).status.is_terminal
        gate.set()
        events = await all_of(run)
        assert types_of(events) == ["loop_started", "message", "message", "run_completed"]
        assert {event.run_id for event in events} == {run.run_id}
        assert payload_of(events[-1]) == {"output": "echo: hello"}
        assert run.status == "completed"
        assert await path_texts(talks, "s1") == ["hello", "echo: hello"]


@pytest.mark.item(350, 361, 363)
async def test_each_run_has_the_agent_of_its_mode(bed: Bed, app: str) -> None:
    """Both modes of one session share its conversation, and each run is one top-level row."""
    main, boss = Echo("main"), Echo("boss")
    modes = {"normal": main.agent(), "orchestrator": boss.agent()}
    answer = main.hold("a")
    async with sessions_on(bed, modes, app=app) as talks:
        first = await talks.start("a", session_id="s")
        second = await talks.start("b", session_id="s", mode="orchestrator")
        answer.set()
        assert [await first.result(), await second.result()] == ["main: a", "boss: b"]
        assert boss.asked == [["a", "main: a", "b"]]
        began = (await all_of(second))[0]
        assert began.type == "run_queued"
        assert [e.payload for e in await past_of(talks, "s") if e.type == "loop_started"] == [
            {"mode": "normal"},
            {"mode": "orchestrator"},
        ]
        rows = await bed.runtime.store.lists.runs(agent=talks.agent_id("s"))
        assert len(rows) == 2
        assert all(row.parent is None for row in rows)
        with pytest.raises(UnknownModeError, match=r"'solo'.*normal, orchestrator"):
            await talks.start("c", session_id="s", mode="solo")


@pytest.mark.item(365, 366, 368, 370)
async def test_queued_runs_start_in_order_and_a_cancelled_one_never_starts(
    bed: Bed, app: str
) -> None:
    """The model is never called for the cancelled one, whose end is recorded; it is removed from the queue."""
    echo = Echo()
    gate = echo.hold("1")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        runs = [await talks.start(text, session_id="s") for text in ("1", "2", "3", "4")]
        assert [run.status for run in runs] == ["running", "queued", "queued", "queued"]
        done = await runs[2].cancel(reason="not needed")
        assert (done.status, done.has_ended) == ("cancelled", True)
        gate.set()
        assert [await run.result() for run in (runs[0], runs[1], runs[3])] == [
            "echo: 1",
            "echo: 2",
            "echo: 4",
        ]
        assert [window[-1] for window in echo.asked] == ["1", "2", "4"]
        assert types_of(await all_of(runs[1]))[:2] == ["run_queued", "loop_started"]
        ended = [event for event in await past_of(talks, "s") if event.run_id == runs[2].run_id]
        types = ["run_queued", "cancel_requested", "run_cancelled", "run_dequeued"]
        assert types_of(ended) == types
        reason = {"reason": "not needed"}
        assert [event.payload for event in ended[:3]] == [{"ahead": 2}, reason, reason]
        kinds = await bed.kinds(runs[2].run_id)
        assert kinds == ["run.cancelled"]


@pytest.mark.item(356, 366, 372)
async def test_queue_order_and_conversation_survive_the_process(bed: Bed, app: str) -> None:
    """Without a reader all runs complete, and all of their events are stored."""
    echo = Echo()
    echo.hold("1")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        runs = [await talks.start(text, session_id="s") for text in ("1", "2", "3")]
        await bed.seen(runs[0].run_id, "msg.received")
        await bed.crash()
    after = Echo()
    await bed.start()
    async with sessions_on(bed, after.agent(), app=app) as talks:
        for run in runs:
            assert (await bed.ended(run.run_id)).status == "COMPLETED"
        assert await path_texts(talks, "s") == ["1", "echo: 1", "2", "echo: 2", "3", "echo: 3"]
        fourth = await talks.start("4", session_id="s")
        await fourth.result()
        assert after.asked[-1][-3:] == ["3", "echo: 3", "4"]
        ends = [
            event.run_id for event in await past_of(talks, "s") if event.type == "run_completed"
        ]
        assert ends == [*(run.run_id for run in runs), fourth.run_id]


@pytest.mark.item(367)
async def test_sessions_execute_at_the_same_time(bed: Bed, app: str) -> None:
    """Each waits for the start of the other."""
    began = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def reply(messages: Any, options: Any = None) -> ModelReply:
        mine = messages[-1].text
        began[mine].set()
        return ModelReply(text=mine, before=began["b" if mine == "a" else "a"].wait)

    agent = ReActAgent("two", model=FunctionModel(reply))
    async with sessions_on(bed, agent, app=app) as talks:
        runs = [await talks.start(text, session_id=text) for text in ("a", "b")]
        assert [await bed.result(run.run_id) for run in runs] == ["a", "b"]


@pytest.mark.item(352, 377, 379)
async def test_a_cancelled_answer_is_no_node(bed: Bed, app: str) -> None:
    """The active node is the user's last message; the next run continues from there."""
    echo = Echo()
    echo.hold("stop me")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        await (await talks.start("first", session_id="s")).result()
        run = await talks.start("stop me", session_id="s")
        await bed.until(lambda: echo.asked[-1][-1] == "stop me")
        done = await run.cancel(reason="enough")
        assert done.has_ended
        assert types_of(await all_of(run))[-1] == "run_cancelled"
        nodes = await talks.path("s")
        assert (await talks.session("s")).head == nodes[-1].id
        assert "echo: stop me" not in [node.message.text for node in nodes]
        echo.gates.clear()
        assert await (await talks.start("again", session_id="s")).result() == "echo: again"


@pytest.mark.item(376, 377)
async def test_a_failed_run_leaves_the_users_turn_as_the_active_node(bed: Bed, app: str) -> None:
    """After a success the active node is the answer."""
    async with sessions_on(bed, failing(), app=app, retry=NO_RETRY) as talks:
        await (await talks.start("good", session_id="s")).result()
        assert [n.message.text for n in await talks.path("s")][-1] == "ok"
        run = await talks.start("bad", session_id="s")
        with pytest.raises(RunFailedError):
            await run.result()
        path = await talks.path("s")
        assert [node.message.text for node in path] == ["good", "ok", "bad"]
        assert (await talks.session("s")).head == path[-1].id


@pytest.mark.item(381)
async def test_the_next_run_continues_from_the_switched_node(bed: Bed, app: str) -> None:
    """Both branches stay; a window has its own path only."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        for text in ("1", "2"):
            await (await talks.start(text, session_id="s")).result()
        await (await talks.start("x", session_id="other")).result()
        path = await talks.path("s")
        await talks.switch_context("s", path[1].id)
        assert await path_texts(talks, "s") == ["1", "echo: 1"]
        await (await talks.start("3", session_id="s")).result()
        assert echo.asked[-1] == ["1", "echo: 1", "3"]
        await talks.switch_context("s", path[-1].id)
        await (await talks.start("4", session_id="s")).result()
        assert echo.asked[-1] == ["1", "echo: 1", "2", "echo: 2", "4"]
        foreign = (await talks.path("other"))[0].id
        with pytest.raises(UnknownNodeError):
            await talks.switch_context("s", foreign)
        with pytest.raises(UnknownSessionError):
            await talks.switch_context("nowhere", foreign)


@pytest.mark.item(381, 385)
async def test_a_session_with_open_runs_is_neither_switched_nor_deleted(bed: Bed, app: str) -> None:
    """Switch and deletion are refused while a run is active or queued, and change nothing."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        await (await talks.start("1", session_id="s")).result()
        node = (await talks.path("s"))[0].id
        gate = echo.hold("2")
        run = await talks.start("2", session_id="s")
        for refused in (talks.switch_context("s", node), talks.delete_session("s")):
            with pytest.raises(SessionActiveError) as caught:
                await refused
            assert caught.value.code == "session_active"
        gate.set()
        await run.result()
        assert await path_texts(talks, "s") == ["1", "echo: 1", "2", "echo: 2"]


@pytest.mark.item(381)
async def test_an_edited_message_starts_a_branch(bed: Bed, app: str) -> None:
    """Its run continues from `parent_node`, also if it waits in the queue first."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        await (await talks.start("1", session_id="s")).result()
        first = (await talks.path("s"))[1].id
        gate = echo.hold("2")
        second = await talks.start("2", session_id="s")
        edited = await talks.start("2b", session_id="s", parent_node=first)
        gate.set()
        await second.result()
        await edited.result()
        assert echo.asked[-1] == ["1", "echo: 1", "2b"]
        with pytest.raises(UnknownNodeError):
            await talks.start("3", session_id="s", parent_node="nothing")


@pytest.mark.item(382)
async def test_a_deleted_session_can_be_created_again(bed: Bed, app: str) -> None:
    """Nodes, events and runs are deleted. The id can be used again, and old cursors are refused."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        run = await talks.start("1", session_id="s")
        await run.result()
        await (await talks.start("kept", session_id="t")).result()
        before = await talks.session("s")
        deletion = await talks.delete_session("s")
        assert deletion["conversations"]["turns"] == 2
        assert await talks.path("s") == []
        assert [row.agent_id.key for row in await talks.sessions()] == ["t"]
        with pytest.raises(UnknownSessionError):
            await talks.session("s")
        with pytest.raises(UnknownSessionError):
            await talks.delete_session("s")
        again = await talks.start("2", session_id="s")
        await again.result()
        assert echo.asked[-1] == ["2"]
        assert (await talks.session("s")).last_fact > before.last_fact
        assert await path_texts(talks, "t") == ["kept", "echo: kept"]


@pytest.mark.item(369)
async def test_a_person_is_asked_when_the_tool_is_about_to_execute(bed: Bed, app: str) -> None:
    """Never while the run is queued: the callback is called once for each call that is about to execute."""
    calls: list[str] = []
    requests: list[str] = []

    async def refund(amount: int) -> str:
        calls.append(f"refund {amount}")
        return "done"

    def reply(messages: Any, options: Any = None) -> ModelReply:
        last = messages[-1]
        if last.role == "tool":
            return ModelReply(text=f"said: {last.text or last.content[0].model_dump()}")
        call = ToolCall(id="c1", name="refund", arguments={"amount": int(last.text)})
        return ModelReply(calls=[call])

    hold = asyncio.Event()

    async def decide(request: Any) -> bool:
        requests.append(request.what)
        await hold.wait()
        return bool(request.args["arguments"]["amount"] < 10)

    tool = Tool("refund", "Pays money back.", refund, risk=Risk.CRITICAL)
    agent = ReActAgent("desk", model=FunctionModel(reply), tools=[tool])
    async with sessions_on(bed, agent, app=app, on_approval=decide) as talks:
        first = await talks.start("5", session_id="s")
        second = await talks.start("50", session_id="s")
        await bed.until(lambda: requests)
        assert requests == ["tool refund"]
        hold.set()
        await first.result()
        await second.result()
        assert calls == ["refund 5"]
        assert requests == ["tool refund"] * 2
        events = await past_of(talks, "s")
        types = types_of([event for event in events if event.run_id == first.run_id])
        assert types.index("approval_decided") < types.index("tool_started")
        started = next(event for event in events if event.type == "tool_started")
        assert (started.tool_call_id, started.payload) == (
            "c1",
            {"name": "refund", "arguments": {"amount": 5}},
        )
        decided = [event.payload for event in events if event.type == "approval_decided"]
        assert [decision["status"] for decision in decided] == ["approved", "denied"]


async def test_a_plain_function_decides_approvals_in_a_thread(bed: Bed, app: str) -> None:
    """It may block, for example at a terminal: the loop, on which the run waits, goes on."""
    threads: list[int] = []

    async def refund() -> str:
        return "done"

    def reply(messages: Any, options: Any = None) -> ModelReply:
        if messages[-1].role == "tool":
            return ModelReply(text="paid")
        return ModelReply(calls=[ToolCall(id="c1", name="refund", arguments={})])

    def decide(request: Any) -> bool:
        threads.append(threading.get_ident())
        return bool(request.what == "tool refund")

    tool = Tool("refund", "Pays money back.", refund, risk=Risk.CRITICAL)
    agent = ReActAgent("desk", model=FunctionModel(reply), tools=[tool])
    async with sessions_on(bed, agent, app=app, on_approval=decide) as talks:
        run = await talks.start("go", session_id="s")
        await run.result()

    assert len(threads) == 1
    is_simulated = isinstance(asyncio.get_running_loop(), SimLoop)  # that calls threads in place
    assert is_simulated or threads != [threading.get_ident()]


@pytest.mark.item(353, 354, 373, 380)
async def test_a_child_can_be_inspected_and_followed(bed: Bed, app: str) -> None:
    """A child has nodes and events of its own; a run that is no child is refused."""
    child = Echo("child")
    parent = await parent_on(bed, child)
    async with sessions_on(bed, {"normal": parent}, app=app) as talks:
        run = await talks.start("go", session_id="s")
        assert await bed.result(run.run_id) == "child: look into it"
        [spawned] = await run.children()
        view = await run.inspect_child(spawned)
        assert [node.message.text for node in view.nodes] == ["look into it", "child: look into it"]
        assert types_of(view.events)[-1] == "run_completed"
        followed = [event async for event in run.child_events(spawned)]
        assert types_of(followed) == types_of(view.events)
        about = [event for event in await past_of(talks, "s") if event.type.startswith("child_")]
        assert [payload_of(event)["child"] for event in about] == [spawned, spawned]
        other = await talks.start("go", session_id="t")
        await other.result()
        with pytest.raises(UnknownChildError):
            await run.inspect_child((await other.children())[0])


@pytest.mark.item(355)
async def test_blocks_reach_the_model_unchanged(bed: Bed, app: str) -> None:
    """Also blocks of an unknown type."""
    contents: list[Any] = []

    def reply(messages: Any, options: Any = None) -> ModelReply:
        contents.append(messages[-1].content)
        return ModelReply(text="ok")

    agent = ReActAgent("blocks", model=FunctionModel(reply))
    odd = ContentBlock.model_validate({"type": "hologram", "depth": 3, "parts": ["x"]})
    message = UserMessage(content=(ContentBlock(type="text", text="look"), odd))
    async with sessions_on(bed, agent, app=app) as talks:
        run = await talks.start(message, session_id="s")
        await run.result()
        again = await talks.start(message, session_id="s")
        assert again.run_id == run.run_id, "the same message id is the same run"
        assert [block.model_dump(exclude_none=True) for block in contents[0]] == [
            {"type": "text", "text": "look"},
            {"type": "hologram", "depth": 3, "parts": ["x"]},
        ]


async def test_an_agent_that_keeps_no_turns_is_refused(bed: Bed) -> None:
    """A session shows the turns that its store keeps."""
    agent = Echo().agent()
    agent.context = ContextConfig(InMemoryHistoryProvider())
    with pytest.raises(RegistrationError, match="mode 'normal' keeps its conversation in"):
        AgentRuntime(agents=agent, runtime=bed.runtime)
    with pytest.raises(RegistrationError, match="has no mode"):
        SessionAgent(bed.name(), {})


@pytest.mark.parametrize("key", ["a/b", "s/1 ä", "~x", "%41", "a" * 256, "💬"])
async def test_unusual_session_ids_are_distinct(bed: Bed, app: str, key: str) -> None:
    """Each is one session."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        run = await talks.start("1", session_id=key)
        await run.result()
        assert await path_texts(talks, key) == ["1", "echo: 1"]
        assert [row.agent_id.key for row in await talks.sessions()] == [key]


@pytest.mark.parametrize("key", ["a\0b", "a" * 257, "x\ud800"])
async def test_malformed_session_ids_are_refused_at_the_call(bed: Bed, app: str, key: str) -> None:
    """Nothing is written."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        with pytest.raises(ContractError):
            await talks.start("1", session_id=key)
        assert await talks.sessions() == []


async def test_the_result_of_an_unheeded_cancel_has_the_run_as_open(bed: Bed, app: str) -> None:
    """The result and the run's events have a field that it has not ended."""
    stuck, release = asyncio.Event(), asyncio.Event()

    class Stubborn:
        id = bed.name()

        async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
            stuck.set()
            try:
                await ctx.sleep_until_signal("never")
            finally:
                release.clear()
            return "ended"

    async with sessions_on(bed, {"normal": Stubborn()}, app=app) as talks:
        run = await talks.start("x", session_id="s")
        async with asyncio.timeout(LIMIT_S):
            await stuck.wait()
        done = await run.cancel(timeout_s=LIMIT_S)
        assert done.has_ended
        assert "cancel_requested" in types_of(await all_of(run))
