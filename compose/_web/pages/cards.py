"""A run as cards: messages, tools, approvals, child runs and errors, in the order of the run's events.

The cards of open runs are cached: a page is loaded again after each event, and only new entries are read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from actors._kernel.agent.transcript import Turn
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RunRow
from actors._runtime.runtime import Runtime
from actors._sessions.events import SessionEvent
from actors._sessions.translation import RunTranslator

Kind: TypeAlias = Literal["message", "tool", "approval", "child", "note"]
_NOT_SHOWN: Final = frozenset(("tool", "system"))
"""Roles of turns that are no message: a tool's card has its result, and a system text is for the model."""
_QUIET: Final[tuple[Any, ...]] = ("", None, {}, [])
MOST_FOLDS: Final = 64
"""Maximum number of open runs whose cards are kept: those that were read last."""
MOST_CARDS: Final = 2_000
"""A run with more cards than this is read from its start each time."""
Nodes: TypeAlias = Callable[[Sequence[str]], Awaitable[list[Turn]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An item in the view of a run.

    Attributes:
        kind: The kind, which selects the template.
        key: Unique in the run, and the same each time the run is read.
        title: A role, a tool's or agent's name, the subject of an approval, or the event of a note.
        status: A status in one word.
        text: A message's text, a comment or an error.
        reasoning: The model's reasoning before the text.
        before: The arguments.
        after: The result, or a child run's error.
        id: The id of a node, an approval or a child run.
        parent: The node's previous node.
        at: The instant, aware UTC.
        by: The person that decided an approval.
        extra: Types of blocks that are not text.
    """

    kind: Kind
    key: str
    title: str
    status: str = ""
    text: str = ""
    reasoning: str = ""
    before: Any = None
    after: Any = None
    id: str = ""
    parent: str | None = None
    at: datetime | None = None
    by: str = ""
    extra: tuple[str, ...] = ()

    @property
    def says_something(self) -> bool:
        """Return whether a message has content to show."""
        return bool(self.text or self.reasoning or self.extra)

    @property
    def is_node(self) -> bool:
        """Return whether the card is a message that is a node of the session."""
        return self.kind == "message" and bool(self.id)


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """A user's message to an open run. It becomes a node with the run's first answer."""

    run_id: str
    text: str
    at: datetime


@dataclass(slots=True)
class RunCards:
    """The cards of one run, built from its events.

    Attributes:
        cards: The cards by key, in order.
        parked: The reason why the run is parked for an operator; empty if it is not.
    """

    cards: dict[str, Card] = field(default_factory=dict)
    parked: str = ""

    def take_all(self, events: Iterable[SessionEvent]) -> None:
        """Apply events in order. Events of types that no card shows are ignored."""
        for event in events:
            take = getattr(self, f"_on_{event.type}", None)
            if take is not None:
                take(event, {**event.payload})

    def put(self, card: Card) -> None:
        """Add a card, or replace the card with the same key."""
        self.cards[card.key] = card

    def put_first(self, cards: Iterable[Card]) -> None:
        """Add cards before all others."""
        first = {card.key: card for card in cards}
        self.cards = first | {key: card for key, card in self.cards.items() if key not in first}

    def begin_with(self, message: AskedMessage | None) -> None:
        """Move the user's message to the start. If it is not a node yet, add it from `message`."""
        first = next((card for card in self.cards.values() if card.title == "user"), None)
        if first is None and message is not None:
            first = Card(
                kind="message", key="asked", title="user", text=message.text, at=message.at
            )
        if first is not None:
            self.put_first([first])

    def forget_nodes(self) -> None:
        """Remove the ids of nodes, so that the page offers no actions on them."""
        for key, card in self.cards.items():
            if card.kind == "message":
                self.cards[key] = replace(card, id="")

    def keep_messages(self, nodes: set[str]) -> None:
        """Drop messages that are not at these nodes, because they are on another branch."""
        self.cards = {
            key: card
            for key, card in self.cards.items()
            if card.kind != "message" or card.id in nodes
        }

    def follow(self, parents: Mapping[str, str | None]) -> None:
        """Set the parents of the nodes."""
        for id_ in self.node_ids:
            self.put(replace(self.cards[f"m{id_}"], parent=parents.get(id_)))

    @property
    def node_ids(self) -> list[str]:
        """The nodes among the cards, in order."""
        return [card.id for card in self.cards.values() if card.is_node]

    def _on_message(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        if payload["role"] in _NOT_SHOWN:
            return
        card = message_card(
            event.node_id or f"e{event.seq}", payload["role"], payload["content"], event.at
        )
        if card.says_something:
            self.put(replace(card, id=event.node_id or ""))

    def _on_tool_started(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        key = f"t{event.tool_call_id or event.seq}"
        self.put(
            Card(
                kind="tool",
                key=key,
                title=payload["name"],
                status="running",
                before=payload.get("arguments"),
                at=event.at,
            )
        )

    def _on_tool_finished(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        card = self._tool_of(event, payload["name"])
        self.put(replace(card, status=payload["status"], after=payload["result"]))

    def _tool_of(self, event: SessionEvent, name: str) -> Card:
        card = self.cards.get(f"t{event.tool_call_id}")
        if card is not None:
            return card
        for candidate in reversed(self.cards.values()):
            if (candidate.kind, candidate.title, candidate.status) == ("tool", name, "running"):
                return candidate
        return Card(kind="tool", key=f"t{event.tool_call_id or event.seq}", title=name, at=event.at)

    def _on_approval_requested(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        id_ = payload["approval_id"]
        self.put(
            Card(
                kind="approval",
                key=f"a{id_}",
                id=id_,
                title=payload["what"],
                status="waiting",
                before=payload["args"],
                at=event.at,
            )
        )

    def _on_approval_decided(self, _: SessionEvent, payload: dict[str, Any]) -> None:
        card = self.cards.get(f"a{payload['approval_id']}")
        if card is not None:
            by, comment = payload.get("by") or "", payload.get("comment") or ""
            self.put(replace(card, status=payload["status"], text=comment, by=by))

    def _on_child_started(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        child = payload["child"]
        self.put(
            Card(
                kind="child",
                key=f"c{child}",
                id=child,
                title=payload["agent"],
                status="running",
                at=event.at,
            )
        )

    def _on_child_finished(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        child = payload["child"]
        card = self.cards.get(f"c{child}") or Card(
            kind="child", key=f"c{child}", id=child, title=child, at=event.at
        )
        after = payload.get("error") or payload.get("output")
        status = str(payload["status"]).lower()
        self.put(replace(card, status=status, after=None if after in _QUIET else after))

    def _on_run_waiting(self, _: SessionEvent, payload: dict[str, Any]) -> None:
        self.parked = payload.get("parked") or ""

    def _on_run_resumed(self, _: SessionEvent, __: dict[str, Any]) -> None:
        self.parked = ""

    def _on_attempt_failed(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        self._note(event, f"Attempt {payload['attempt']} failed", "failed", payload["error"])

    def _on_run_failed(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        self._note(event, "The run failed", "failed", payload["error"])

    def _on_run_cancelled(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        self._note(event, "Stopped", "cancelled", payload["reason"])

    def _note(self, event: SessionEvent, title: str, status: str, about: Any) -> None:
        """Add a note about an event, with the error's message if there is one."""
        text = about if isinstance(about, str) else str((about or {}).get("message") or about or "")
        key = f"n{event.seq}"
        self.put(
            Card(kind="note", key=key, title=title, status=status, text=text[:2_000], at=event.at)
        )


def message_card(
    id_: str, role: str, content: Iterable[dict[str, Any]], at: datetime | None
) -> Card:
    """Return a message as a card: its text, the model's reasoning, and the types of other blocks."""
    texts: dict[str, list[str]] = {"text": [], "reasoning": []}
    extra = []
    for block in content:
        type_ = str(block.get("type"))
        if type_ in texts:
            texts[type_].append(str(block.get("text") or ""))
        elif type_ not in ("tool_call", "tool_result"):
            extra.append(type_)
    return Card(
        kind="message",
        key=f"m{id_}",
        title=role,
        text="".join(texts["text"]),
        reasoning="".join(texts["reasoning"]),
        at=at,
        extra=tuple(extra),
    )


def cards_of_nodes(turns: Iterable[Turn]) -> list[Card]:
    """Return the cards of turns alone, for runs whose events were deleted."""
    run_cards = RunCards()
    for turn in turns:
        content = [block.model_dump(mode="json") for block in turn.message.content]
        card = message_card(turn.id, turn.message.role, content, turn.at)
        if turn.message.role not in _NOT_SHOWN and card.says_something:
            run_cards.put(replace(card, id=turn.id))
        for block in content:
            key = f"t{block.get('id')}"
            if block["type"] == "tool_call":
                name, arguments = str(block.get("name")), block.get("arguments")
                run_cards.put(Card(kind="tool", key=key, title=name, before=arguments, at=turn.at))
            elif block["type"] == "tool_result" and key in run_cards.cards:
                status = "error" if block.get("is_error") else "ok"
                run_cards.put(replace(run_cards.cards[key], status=status, after=block.get("text")))
    return list(run_cards.cards.values())


@dataclass(slots=True)
class Fold:
    """The cards of a run up to an entry.

    Attributes:
        translator: Translates entries into events.
        cards: The cards of the entries so far.
        next_seq: The number of the next entry to read.
    """

    translator: RunTranslator
    cards: RunCards = field(default_factory=RunCards)
    next_seq: int = 0

    async def read_on(self, runtime: Runtime) -> None:
        """Apply the entries that are new since the last call."""
        async for entry in runtime.entries(self.translator.run_id, from_seq=self.next_seq):
            self.cards.take_all(await self.translator.of(entry))
            self.next_seq = entry.seq + 1


class Folds:
    """The cached folds of open runs in this process."""

    def __init__(self) -> None:
        self._folds: dict[RunId, Fold] = {}

    async def cards_of(
        self, runtime: Runtime, agent: AgentId, row: RunRow, nodes: Nodes
    ) -> RunCards:
        """Return the cards of a run. For an open run, only entries that are new since the last call are read.

        A fold in use is not in the cache. If two requests read a run at once, one of them reads it from the
        start.
        """
        fold = self._folds.pop(row.run_id, None)
        # A fold that is ahead of the log has entries of commits that the database lost.
        if fold is None or fold.next_seq > row.last_seq + 1:
            names = runtime.hidden_names
            fold = Fold(RunTranslator(agent.key, row.run_id, agent, names, nodes))
        await fold.read_on(runtime)
        if not row.status.is_terminal and len(fold.cards.cards) <= MOST_CARDS:
            self._folds[row.run_id] = fold
            if len(self._folds) > MOST_FOLDS:
                del self._folds[next(iter(self._folds))]
        # A copy: the page changes its cards, and the fold is continued by the next request.
        return replace(fold.cards, cards={**fold.cards.cards})
