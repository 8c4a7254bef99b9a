"""A chat at a terminal: send messages, show events, ask for approvals, obey commands, stop runs at Ctrl-C.

Commands are lines that begin with a slash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from actors._kernel.agent.agent import DEFAULT_MODE
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import TERMINAL, RunStatus
from actors._kernel.stores.conversations import SessionRow
from actors._runtime.loop.tasks import TaskScope
from actors._sessions.artifacts import UserMessage
from actors._sessions.events import EventCursor, SessionEvent
from actors._sessions.run import ENDS
from actors._sessions.runtime import AgentRuntime
from actors.errors import ActorsError, UnknownApprovalError
from actors.sessions import ROOT
from compose._commands.output import Exit
from compose._commands.sessions.look import all_nodes, find_node, node_text, tree_of
from compose._commands.sessions.screen import STEP, YOU, ChatScreen, Person, question_text

SHOWN: Final = 6
"""Number of turns that are shown when a conversation is opened."""
_OPEN: Final = tuple(status for status in RunStatus if status not in TERMINAL)


class Chat:
    """A session at a terminal.

    Args:
        agents: The sessions of the application.
        session_id: Id of the session, which need not exist yet.
        screen: The display of the events.
        person: The person who types messages and decides approvals; None without a terminal.
        by: Name under which approvals are decided.
        mode: Mode of the next messages, which chooses the agent that answers.
    """

    def __init__(
        self,
        agents: AgentRuntime,
        session_id: str,
        screen: ChatScreen,
        *,
        person: Person | None = None,
        by: str = "cli",
        mode: str = DEFAULT_MODE,
    ) -> None:
        self.agents, self.session_id, self.screen, self.mode = agents, session_id, screen, mode
        self._person, self._by = person, by
        self._tasks = TaskScope()
        self._open_runs: set[str] = set()
        """Ids of the session's runs that have not ended."""
        self._end_types: dict[str, str] = {}
        """Types of the last events of ended runs, by run id."""
        self._own_messages: set[str] = set()
        """Ids of the messages that this process sent."""
        self._question_tasks: dict[str, asyncio.Task[Any]] = {}
        # One question at a time: two prompts would read from the same line of the keyboard.
        self._question_lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._is_stopping = self._is_at_prompt = False
        self._failure: Exception | None = None
        self.has_left = asyncio.Event()
        """Set when the person leaves the chat."""

    @property
    def has_open_runs(self) -> bool:
        """True if a run of the session has not ended."""
        return bool(self._open_runs)

    async def open(self, *, shows_past: bool = True) -> None:
        """Show the end of the conversation, and all later events. `shows_past` False shows only open runs."""
        row = await self.agents.runtime.store.data.sessions.get(
            self.agents.agent_id(self.session_id)
        )
        # The cursor is of the row that is read first: events that are written while the turns are read come by
        # the tail, and none is lost.
        cursor = None
        if row is not None:
            cursor = str(EventCursor(row.last_fact))
            await self._show_conversation(row, shows_past=shows_past)
        self._tasks.start(self._follow(cursor), name=f"events of {self.session_id}")

    async def close(self) -> None:
        """Stop the tasks of this object. Runs continue."""
        await self._tasks.close()

    async def say(self, text: str, *, parent_node: str | None = None) -> str:
        """Start a run for a message, and return its id."""
        message = UserMessage.of(text)
        self._own_messages.add(message.id)
        run = await self.agents.start(
            message, session_id=self.session_id, mode=self.mode, parent_node=parent_node
        )
        self._is_stopping = False
        self.screen.typed(run.run_id, text, is_seen=True)
        # The events of a short run may be on the screen before `start` returns.
        if run.run_id not in self._end_types:
            self._open_runs.add(run.run_id)
        return run.run_id

    async def until_ended(self, run_id: str) -> str:
        """Wait until the event that ended a run is on the screen, and return the event's type."""
        await self._until(lambda: run_id in self._end_types)
        return self._end_types[run_id]

    async def until_idle(self) -> None:
        """Wait until no run of the session is open."""
        await self._until(lambda: not self._open_runs)

    async def _until(self, condition: Any) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()

    async def ask(self) -> str | None:
        """Return the next line that the person types, or None if the person has left."""
        assert self._person is not None
        async with self._question_lock:
            self._is_at_prompt = True
            try:
                return await self._person.ask(YOU)
            finally:
                self._is_at_prompt = False

    def interrupt(self) -> None:
        """Stop the open runs. A second call without a message or a run's end between leaves the chat."""
        if self._is_stopping:
            self.has_left.set()
            return
        self._is_stopping = True
        if not self._open_runs:
            self.note("Ctrl-C again ends the chat, like /quit", style="dim")
            return
        for run_id in self._open_runs:
            self._tasks.start(self._cancel(run_id), name=f"cancel {run_id}")

    def resume(self) -> None:
        """Drop an interrupt that came while no run was open."""
        self._is_stopping = False

    async def _cancel(self, run_id: str) -> None:
        try:
            await self.agents.runtime.cancel(RunId(run_id), reason="Ctrl-C")
        except ActorsError as exc:
            self.note(str(exc), style="red")

    def note(self, text: str, *, style: str = "dim") -> None:
        """Show a line of the program, even while the person types a line."""
        self._show_above_prompt(lambda: self.screen.note(text, style=style))

    def _show_above_prompt(self, show: Any) -> None:
        """Call `show`. If the person is typing a line, draw that line again below the output."""
        person = self._person
        if person is None or not person.is_asked:
            show()
            return
        person.clear()
        show()
        if not self.screen.is_inside:
            person.redraw()

    async def _show_conversation(self, row: SessionRow, *, shows_past: bool) -> None:
        """Show the last turns of the path, and the messages that started the open runs."""
        store = self.agents.runtime.store
        runs = []
        if row.open_runs:
            runs = await store.lists.runs(status=_OPEN, agent=row.agent_id)
        self._open_runs |= {run.run_id for run in runs}
        if shows_past:
            path = await self.agents.path(self.session_id)
            earlier_turns = [turn for turn in path if turn.run_id not in self._open_runs]
            self.screen.past(earlier_turns[-SHOWN:], max(0, len(earlier_turns) - SHOWN))
        for run in reversed(runs):
            await self._show_messages(run.run_id)
        if runs:
            self.note("the run continues; Ctrl-C cancels it")

    async def _show_messages(self, run_id: str) -> None:
        """Show the messages that started a run."""
        agent = self.agents.agent_id(self.session_id)
        inbox = await self.agents.runtime.store.insight.inbox(agent, limit=100)
        messages = [arrival.message for arrival in inbox if arrival.run_id == run_id]
        text = "\n".join(_text_of(message.payload) for message in messages)
        is_seen = all(message.id in self._own_messages for message in messages)
        if messages:
            self._show_above_prompt(lambda: self.screen.typed(run_id, text, is_seen=is_seen))

    async def _follow(self, cursor: str | None) -> None:
        try:
            async with aclosing(self.agents.tail_session(self.session_id, cursor=cursor)) as events:
                async for event in events:
                    await self._handle_event(event)
        # An error in a task reaches nobody, and the chat would wait for ever: `_until` raises it there.
        except Exception as exc:  # noqa: BLE001 - as above
            self._failure = exc
            self._news.set()

    async def _handle_event(self, event: SessionEvent) -> None:
        if event.type == "loop_started":
            self._open_runs.add(event.run_id)
            await self._show_messages(event.run_id)
        self._show(event, 0)
        if event.type in ENDS:
            self._open_runs.discard(event.run_id)
            self._end_types[event.run_id] = event.type
            if not self._open_runs:
                self._is_stopping = False
            self._news.set()

    def _show(self, event: SessionEvent, depth: int, top_run_id: str | None = None) -> None:
        """Show an event. Follow a started child, ask the person for an approval, or end a decided question.

        While the person types a message, an approval is only shown, and another client may decide it.
        """
        payload: dict[str, Any] = dict(event.payload)
        can_ask = self._person is not None and not self._is_at_prompt
        if event.type == "approval_requested" and can_ask:
            self._tasks.start(self._decide(event.run_id, payload, depth), name="approval")
            return
        self._show_above_prompt(lambda: self.screen.event(event, depth=depth))
        if event.type == "child_started":
            child = self._follow_child(top_run_id or event.run_id, payload["child"], depth + 1)
            self._tasks.start(child, name=f"child {payload['child']}")
        elif event.type == "approval_decided" and (
            task := self._question_tasks.get(payload["approval_id"])
        ):
            task.cancel()
        elif event.type in ENDS and depth == 0:
            for task in self._question_tasks.values():
                task.cancel()

    async def _follow_child(self, run_id: str, child_id: str, depth: int) -> None:
        run = await self.agents.run(run_id)
        async for event in run.child_events(child_id):
            self._show(event, depth, run_id)

    async def _decide(self, run_id: str, payload: dict[str, Any], depth: int) -> None:
        """Ask the person, and decide the approval unless another client decides it first."""
        id_, task = payload["approval_id"], asyncio.current_task()
        assert self._person is not None
        assert task is not None
        approvals = self.agents.runtime.approvals
        self._question_tasks[id_] = task
        try:
            async with self._question_lock:
                # Read after the wait for the lock: another client may have decided during an earlier question.
                is_open = id_ in {
                    approval.id for approval in await approvals.open(run_id=RunId(run_id))
                }
                if not is_open:
                    return
                is_approved = await self._yes_or_no(
                    f"{STEP * depth}? {question_text(payload)}: agree? [y/N] "
                )
            if is_approved is not None:
                await approvals.decide(id_, approve=is_approved, by=self._by)
        except UnknownApprovalError:
            self.note("another client has decided meanwhile")
        finally:
            del self._question_tasks[id_]

    async def _yes_or_no(self, question: str) -> bool | None:
        """Return the person's answer, or None at the end of input."""
        assert self._person is not None
        # `fresh`: what was typed before the question appeared is no answer to it.
        while (line := await self._person.ask(question, fresh=True)) is not None:
            match line.strip().lower():
                case "y" | "yes":
                    return True
                case "" | "n" | "no":
                    return False
        self.has_left.set()
        return None


def _text_of(payload: Any) -> str:
    text = payload.get("text") if isinstance(payload, dict) else payload
    return text if isinstance(text, str) else str(payload)


async def say_all(chat: Chat, messages: Sequence[str]) -> Exit:
    """Send messages one after the other, each after the end of the run before.

    Return FAILED at the first run that does not complete, else OK.
    """
    for text in messages:
        if await chat.until_ended(await chat.say(text)) != "run_completed":
            return Exit.FAILED
    return Exit.OK


HELP: Final = """/nodes         the conversation as a tree; * is the active node
/switch NODE   continue from this node; give its id or a prefix of it
/retry         ask for another answer to your last message
/edit TEXT     say TEXT instead of your last message
/mode [NAME]   choose the agent that answers from now on
/quit          end the command, like Ctrl-D; the session continues next time
Ctrl-C stops the open runs."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of a conversation.

    Attributes:
        talk: The conversation.
        modes: Names of the modes; empty if they are not known.
    """

    talk: Chat
    modes: tuple[str, ...] = ()

    async def obey(self, line: str) -> None:
        """Execute the command of a line, or show why it is refused."""
        word, _, rest = line[1:].strip().partition(" ")
        try:
            match word:
                case "help":
                    self.talk.note(HELP)
                case "nodes":
                    await self._show_nodes()
                case "switch":
                    await self._switch(rest.strip())
                case "retry" | "edit":
                    await self._say_again(rest.strip() if word == "edit" else None)
                case "mode":
                    self._choose_mode(rest.strip())
                case _:
                    self._refuse(f"there is no command /{word}: see /help")
        except ActorsError as exc:
            self._refuse(str(exc))

    async def _show_nodes(self) -> None:
        agents, session_id = self.talk.agents, self.talk.session_id
        row = await agents.session(session_id)
        for line in tree_of(await all_nodes(agents, session_id), row.head):
            style = "bold" if line.is_active else "" if line.is_on_path else "dim"
            self.talk.note(node_text(line), style=style)

    async def _switch(self, node: str) -> None:
        if not node:
            self._refuse("give a prefix of a node's id: /nodes lists them")
            return
        agents, session_id = self.talk.agents, self.talk.session_id
        active_node = await find_node(agents, session_id, node)
        await agents.switch_context(session_id, active_node.id)
        self.talk.note(f"the next message continues from {active_node.id[:8]}")

    async def _say_again(self, text: str | None) -> None:
        """Say `text` in place of the last user message on the path, or the same message if it is None."""
        if text == "":
            self._refuse("give the new text: /edit TEXT")
            return
        path = await self.talk.agents.path(self.talk.session_id)
        positions = [position for position, turn in enumerate(path) if turn.message.role == "user"]
        if not positions:
            self._refuse("nothing was said yet")
            return
        last_position = positions[-1]
        parent_id = path[last_position - 1].id if last_position else ROOT
        message = path[last_position].message.text if text is None else text
        await self.talk.say(message, parent_node=parent_id)

    def _choose_mode(self, name: str) -> None:
        mode_names = ", ".join(self.modes) or "not known here"
        if name and self.modes and name not in self.modes:
            self._refuse(f"there is no mode {name!r}: {mode_names}")
            return
        self.talk.mode = name or self.talk.mode
        self.talk.note(f"mode {self.talk.mode}" + ("" if name else f" (of {mode_names})"))

    def _refuse(self, text: str) -> None:
        self.talk.note(text, style="red")


async def talk_with(person: Chat, commands: Commands) -> Exit:
    """Read lines until the person leaves. The next prompt comes when no run is open."""
    while True:
        await person.until_idle()
        line = await person.ask()
        person.resume()
        if line is None or line.strip() in ("/quit", "/exit"):
            return Exit.OK
        if line.startswith("/"):
            await commands.obey(line)
        elif line.strip():
            try:
                await person.say(line)
            except ActorsError as exc:
                person.note(str(exc), style="red")
