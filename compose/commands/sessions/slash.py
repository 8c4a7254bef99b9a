"""Commands of the chat, which are lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from actors.errors import ActorsError
from actors.kernel.agent.transcript import Turn
from actors.sessions import ROOT
from compose.commands.output import Exit
from compose.commands.sessions.nodes import all_nodes, find_node, node_text
from compose.commands.sessions.talk import Chat
from compose.commands.sessions.tree import tree_of

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
        known: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "nodes": self._nodes,
            "switch": self._switch,
            "retry": self._retry,
            "edit": self._edit,
            "mode": self._mode,
        }
        do = known.get(word)
        if do is None:
            self._refuse(f"there is no command /{word}: see /help")
            return
        try:
            await do(rest.strip())
        except ActorsError as exc:
            self._refuse(str(exc))

    async def _help(self, _: str) -> None:
        self.talk.note(HELP)

    async def _nodes(self, _: str) -> None:
        agents, session = self.talk.agents, self.talk.session_id
        row = await agents.session(session)
        for line in tree_of(await all_nodes(agents, session), row.head):
            style = "bold" if line.is_active else "" if line.is_on_path else "dim"
            self.talk.note(node_text(line), style=style)

    async def _switch(self, node: str) -> None:
        if not node:
            self._refuse("give a prefix of a node's id: /nodes lists them")
            return
        agents, session = self.talk.agents, self.talk.session_id
        found = await find_node(agents, session, node)
        await agents.switch_context(session, found.id)
        self.talk.note(f"the next message continues from {found.id[:8]}")

    async def _retry(self, _: str) -> None:
        found = await self._last_said()
        if found is not None:
            turn, parent = found
            await self.talk.say(turn.message.text, parent_node=parent)

    async def _edit(self, text: str) -> None:
        if not text:
            self._refuse("give the new text: /edit TEXT")
        elif (found := await self._last_said()) is not None:
            await self.talk.say(text, parent_node=found[1])

    async def _last_said(self) -> tuple[Turn, str] | None:
        """Return the last user message on the path, and the id of the node before it or `ROOT`."""
        path = await self.talk.agents.path(self.talk.session_id)
        places = [place for place, turn in enumerate(path) if turn.message.role == "user"]
        if not places:
            self._refuse("nothing was said yet")
            return None
        last = places[-1]
        return path[last], path[last - 1].id if last else ROOT

    async def _mode(self, name: str) -> None:
        others = ", ".join(self.modes) or "not known here"
        if name and self.modes and name not in self.modes:
            self._refuse(f"there is no mode {name!r}: {others}")
            return
        self.talk.mode = name or self.talk.mode
        self.talk.note(f"mode {self.talk.mode}" + ("" if name else f" (of {others})"))

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
