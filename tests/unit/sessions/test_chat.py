"""A conversation at a terminal, in memory: what a person types, and what becomes of it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from actors import Risk, Runtime, Tool, ToolCall
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.agents import ReActAgent
from actors.errors import ModelError
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel, ModelReply
from compose._commands.output import Exit
from compose._commands.sessions.screen import Person, TextScreen
from compose._commands.sessions.talk import Chat, Commands, say_all, talk_with
from compose._commands.terminal import Terminal

if TYPE_CHECKING:
    from actors import ChatMessage, GenerationOptions

LIMIT_S = 30
ONCE = RetryPolicy(max_retries=0)


class Typist(Person):
    """A person whose lines are known; leaves behind the last one, unless told to wait.

    Attributes:
        asked: The prompts.
    """

    def __init__(self, *lines: str | None) -> None:
        self._lines = [*lines]
        self.asked: list[str] = []
        self._is_asked = False

    @property
    @override
    def is_asked(self) -> bool:
        return self._is_asked

    @override
    async def ask(self, prompt: str, *, fresh: bool = False) -> str | None:
        self.asked.append(prompt)
        self._is_asked = True
        try:
            await asyncio.sleep(0)
            return self._lines.pop(0) if self._lines else None
        finally:
            self._is_asked = False

    @override
    def clear(self) -> None:
        pass

    @override
    def redraw(self) -> None:
        pass


@dataclass
class Desk:
    """A model with a tool that waits for a person, and answers that wait for a test.

    Attributes:
        refunded: What the tool was called with.
        gate: Awaited in the middle of answers to `slow`.
    """

    refunded: list[str] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
        """Answer the last message."""
        del options
        self.asked.append([m.text for m in messages])
        last = messages[-1]
        if last.role == "user" and "refund" in last.text:
            orders = "78" if "both" in last.text else "7"
            calls = [ToolCall(id=n, name="refund", arguments={"order": n}) for n in orders]
            return ModelReply(calls=calls)
        if last.role == "tool":
            return ModelReply(text="The desk has an answer.")
        if "fail" in last.text:
            return ModelReply(error=ModelError("invalid", problem="broken"))
        if "slow" in last.text:
            return ModelReply(text="one two", between=self._wait)
        return ModelReply(text=f"You said {last.text}.")

    async def _wait(self) -> None:
        self.begun.set()
        await self.gate.wait()

    async def refund(self, order: str) -> str:
        """Give money back."""
        self.refunded.append(order)
        return "done"

    def agent(self) -> ReActAgent:
        """The agent that this model answers for."""
        tool = Tool("refund", "Give money back.", self.refund, risk=Risk.HIGH)
        return ReActAgent("desk", model=FunctionModel(self.answer), tools=[tool])


@dataclass
class Terminals:
    """Opens a session, as often as a test likes."""

    agents: AgentRuntime
    out: io.StringIO = field(default_factory=io.StringIO)

    @asynccontextmanager
    async def at(self, person: Person | None = None) -> AsyncIterator[Chat]:
        """A terminal with this person, or none."""
        console = Terminal(file=self.out, width=120, highlight=False, emoji=False)
        screen = TextScreen(console, lambda approval: f"decide {approval[:4]}")
        conversation = Chat(self.agents, "s", screen, person=person, by="Kim")
        async with asyncio.timeout(LIMIT_S):
            await conversation.open()
            try:
                yield conversation
            finally:
                await conversation.close()

    async def typed(self, *lines: str) -> list[str]:
        """What is asked when a person types these lines, and leaves."""
        person = Typist(*lines)
        async with self.at(person) as conversation:
            assert await talk_with(conversation, Commands(conversation, ("normal",))) == Exit.OK
        return person.asked

    @property
    def text(self) -> str:
        """What was shown since the last look."""
        output = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return output


@asynccontextmanager
async def terminals(desk: Desk) -> AsyncIterator[Terminals]:
    """Terminals of one program."""
    async with (
        Runtime() as runtime,
        AgentRuntime(agents=desk.agent(), runtime=runtime, retry=ONCE) as agents,
    ):
        yield Terminals(agents)


async def test_messages_are_answered_one_after_the_other() -> None:
    """The exit code says whether all completed."""
    async with terminals(Desk()) as opened, opened.at() as conversation:
        assert await say_all(conversation, ["one", "two"]) == Exit.OK
        assert await say_all(conversation, ["fail", "three"]) == Exit.FAILED
    text = opened.text
    assert text.startswith("You said one.\nYou said two.\n")
    assert "the run failed" in text
    assert "three" not in text


async def test_a_session_that_is_opened_again_shows_its_last_turns() -> None:
    """At most six, and how many are left out."""
    async with terminals(Desk()) as opened:
        await opened.typed("one", "two", "three", "four")
        assert opened.text.count("You said") == 4
        await opened.typed()

        lines = opened.text.splitlines()
        assert lines[0] == "(2 turns before)"
        assert lines[1:3] == ["you> two", "You said two."]
        assert lines[-1] == "You said four."


async def test_a_person_decides_at_the_terminal() -> None:
    """`y` lets a tool happen, once; no answer and `n` do not, and another word is asked again."""
    desk = Desk()
    async with terminals(desk) as opened:
        prompts = await opened.typed("refund it", "y", "refund it", "", "refund it", "what?", "n")

    assert desk.refunded == ["7"]
    questions = [prompt for prompt in prompts if "agree" in prompt]
    assert questions == ['? refund {"order": "7"}: agree? [y/N] '] * 4
    assert opened.text.count("denied by Kim") == 2


async def test_two_approvals_are_asked_one_after_the_other() -> None:
    """Though the agent asks for both at once."""
    desk = Desk()
    async with terminals(desk) as opened:
        prompts = await opened.typed("refund both", "y", "n")

    assert [prompt[11:25] for prompt in prompts if "agree" in prompt] == [
        'order": "7"}: ',
        'order": "8"}: ',
    ]
    assert desk.refunded == ["7"]


async def test_without_a_person_an_approval_says_how_it_is_decided() -> None:
    """The run waits; somebody else decides."""
    desk = Desk()
    async with terminals(desk) as opened, opened.at() as conversation:
        approvals = opened.agents.runtime.approvals
        run = await conversation.say("refund it")
        async for entry in opened.agents.runtime.tail(RunId(run)):
            if entry.kind == "ask.sent":
                break
        open_approvals = await approvals.open()
        await approvals.decide(open_approvals[0].id, approve=True, by="Robin")
        assert await conversation.until_ended(run) == "run_completed"

    assert desk.refunded == ["7"]
    assert (
        f"waits for a person: decide {open_approvals[0].id[:4]}\napproved by Robin\n" in opened.text
    )


async def test_a_question_that_another_person_decides_is_taken_back() -> None:
    """The person is asked for a message next."""
    desk = Desk()

    class Slow(Typist):
        """Does not answer questions."""

        @override
        async def ask(self, prompt: str, *, fresh: bool = False) -> str | None:
            if "agree" in prompt:
                [approval] = await opened.agents.runtime.approvals.open()
                decide = opened.agents.runtime.approvals.decide
                await decide(approval.id, approve=True, by="Robin")
                await asyncio.get_running_loop().create_future()
            return await super().ask(prompt, fresh=fresh)

    async with terminals(desk) as opened:
        person = Slow("refund it")
        async with opened.at(person) as conversation:
            assert await talk_with(conversation, Commands(conversation)) == Exit.OK
    assert desk.refunded == ["7"]
    assert "approved by Robin" in opened.text


async def test_an_interrupt_stops_the_run_and_the_next_one_leaves() -> None:
    """The session goes on with the next message."""
    desk = Desk()
    async with terminals(desk) as opened, opened.at() as conversation:
        run = await conversation.say("slow")
        await desk.begun.wait()
        conversation.interrupt()
        assert await conversation.until_ended(run) == "run_cancelled"
        assert not conversation.has_left.is_set()
        assert await say_all(conversation, ["one"]) == Exit.OK
        conversation.interrupt()
        assert not conversation.has_left.is_set()
        conversation.interrupt()
        assert conversation.has_left.is_set()
    assert "the run was cancelled: Ctrl-C" in opened.text


async def test_a_terminal_that_comes_later_shows_the_run_under_way() -> None:
    """With the message that started it, which is no node yet."""
    desk = Desk()
    async with terminals(desk) as opened:
        async with opened.at() as conversation:
            run = await conversation.say("slow")
            await desk.begun.wait()
        assert "you>" not in opened.text
        async with opened.at() as conversation:
            desk.gate.set()
            assert await conversation.until_ended(run) == "run_completed"
    assert opened.text.startswith("you> slow\nthe run continues; Ctrl-C cancels it\n")


async def test_a_message_of_another_terminal_is_shown() -> None:
    """And its answer; the person is not asked twice meanwhile."""
    async with terminals(Desk()) as opened, opened.at() as conversation, opened.at() as other:
        run = await other.say("one")
        await conversation.until_ended(run)
        await other.until_ended(run)
    text = opened.text
    assert text.count("you> one\n") == 1
    assert text.count("You said one.") >= 1


async def test_branches_are_made_and_chosen() -> None:
    """By /edit, /retry and /switch; /nodes shows the tree."""
    desk = Desk()
    async with terminals(desk) as opened:
        await opened.typed("/retry", "one", "/retry", "two", "/edit three", "/nodes")
        text = opened.text
        assert "nothing was said yet" in text
        assert desk.asked[:2] == [["one"], ["one"]]
        assert desk.asked[-1] == ["one", "You said one.", "three"]
        drawn = [line[2:].partition("─")[0] for line in text.splitlines() if "user: " in line]
        assert drawn == ["├", "└", "   ├", "   └"]
        await opened.typed("/retry")
        assert desk.asked[-1] == ["one", "You said one.", "three"]
        path = await opened.agents.path("s")
        await opened.typed(f"/switch {path[0].id[:6]}", "four", "/switch", "/switch nothing")
        assert desk.asked[-1] == ["one", "four"]
        assert "has no node 'nothing'" in opened.text


async def test_commands_say_what_they_cannot_do() -> None:
    """In a sentence; a mode that is known may be chosen."""
    async with terminals(Desk()) as opened:
        await opened.typed(
            "/help", "/mode", "/mode odd", "/mode normal", "/edit", "/foo", "", "/quit", "no"
        )
    text = opened.text
    assert "/switch NODE" in text
    assert "mode normal (of normal)" in text
    assert "there is no mode 'odd': normal" in text
    assert "give the new text" in text
    assert "there is no command /foo: see /help" in text
    assert "You said" not in text
