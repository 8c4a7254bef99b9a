"""An agent's sessions, as one execution of a run sees them.

A model is given turns without the marks of a session (`ShownTurn`). `OpenCalls` has calls of tools and
answers that are in no session yet: what is said of them if the run ends now.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from actors._context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
from actors._context.compaction.dropping import SlidingWindowCompaction
from actors._context.history import StoreHistory
from actors._context.repair import NOT_EXECUTED, UNKNOWN
from actors._context.turns import SUMMARY, UPTO, is_refused, result_ids, with_content
from actors._kernel.agent.agent import Agent, HistoryRetention
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import STOPPED, LLMClient, ReasoningDelta, TextDelta
from actors._kernel.agent.tools import ToolCall, ToolResult, ToolSpec
from actors._kernel.agent.transcript import NO_CUT, Cut, NewTurn, message_of_turn, turn_id
from actors._kernel.json import canonical_json
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import HistoryProvider, TranscriptStore
from actors._runtime.journal.run_log import reading
from actors._runtime.verbs.call import RunState

_log = logging.getLogger("callboard.context")

FARTHEST: Final = 5_000
"""Number of the newest turns after the last cut of which a window is made, at most."""
MOST_ADDED: Final = 64
"""Number of turns that a run adds to a session before it is read again."""
LEAST: Final = 32
"""Least number of left-out turns at which a cut without a summary moves, if no budget made the window."""
SLACK: Final = 20
"""Number of turns by which the window of an agent without a context moves its beginning."""
_SLIDING: Final = SlidingWindowCompaction(slack=SLACK)


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """An agent's declarations about its conversations, with the defaults for what it does not.

    Attributes:
        history: A provider that is called by recorded effects, or None if the runtime's own store keeps turns.
        pipeline: Makes windows.
        retention: What becomes of a run's turns when it ends.
        session: The session of runs that name none.
        blocks: Labels of blocks that are in front of every window.
    """

    history: HistoryProvider | None
    pipeline: CompactionPipeline
    retention: HistoryRetention
    session: str | None
    blocks: tuple[str, ...] = ()

    @classmethod
    def of(cls, agent: Agent) -> SessionTerms:
        """Return what this agent declares."""
        context: Any = getattr(agent, "context", None)
        history = getattr(context, "history", None)
        pipeline = getattr(context, "pipeline", None)
        return cls(
            None if isinstance(history, StoreHistory) else history,
            _pipeline_of(agent) if pipeline is None else pipeline,
            getattr(context, "retention", None) or HistoryRetention.PERMANENT,
            getattr(agent, "session", None),
            tuple(getattr(agent, "blocks", ())),
        )


@dataclass(frozen=True, slots=True)
class WindowSource:
    """A session as a window is made of it.

    Attributes:
        messages: Its turns, oldest first, each with its id, without those that were refused, with the changes
            of the cut; in front the summary of what the cut left out.
        ordinals: Ordinals of stored turns, by id.
        cut: The last cut, or None if there is none.
        count: Number of turns in the whole session.
        added: Number of turns that the run has added since the session was read; they have no ordinals.
        changes: The cut's, unless the turns before it were read, too.
    """

    messages: list[ChatMessage]
    ordinals: Mapping[str, int]
    cut: Cut | None = None
    count: int = 0
    added: int = 0
    changes: Mapping[str, ChatMessage | None] = field(default_factory=dict)

    @property
    def head(self) -> int:
        """The ordinal of the last turn; `NO_CUT`: there is none."""
        return max(self.ordinals.values(), default=NO_CUT) + self.added

    def with_turns(self, turns: Sequence[NewTurn]) -> WindowSource:
        """Return the session with turns of the run at its end, those left out that were read."""
        new = [message_of_turn(turn) for turn in turns if turn.id not in self.ordinals]
        messages = [*self.messages, *_window_turns(new, self.changes)]
        return replace(self, messages=messages, added=self.added + len(new))

    @property
    def begin(self) -> int:
        """The cut's ordinal; `NO_CUT` where there is none, or the turns before it were read, too."""
        upto = NO_CUT if self.cut is None else self.cut.upto
        return NO_CUT if min(self.ordinals.values(), default=upto + 1) <= upto else upto

    @classmethod
    async def of(
        cls, memory: SessionTerms, store: TranscriptStore, agent: AgentId, session: str
    ) -> WindowSource:
        """Return a session from its last cut on, or all of it where a provider keeps it."""
        if memory.history is not None:
            turns = await memory.history.get_messages(agent, session_id=session)
            return cls(_window_turns(turns), {}, count=len(turns))
        view = await store.view(agent, session, limit=FARTHEST)
        cut = view.cut
        made_by = cut.strategy if cut is not None and cut.summary is None else None
        changes = {} if cut is None else cut.changes
        if made_by not in (None, fingerprint(memory.pipeline)):  # another window may reach farther
            view = await store.view(agent, session, limit=FARTHEST, whole=True)
            changes = {}
        messages = _window_turns(view.messages, changes)
        if cut is not None and cut.summary is not None:
            messages.insert(0, cut.summary)
        return cls(messages, view.ordinals, cut, view.count, changes=changes)


def _pipeline_of(agent: Agent) -> CompactionPipeline:
    """Return the pipeline of an agent without a context: its window always fits the agent's model."""
    model: LLMClient | None = getattr(agent, "model", None)
    if model is None:
        return CompactionPipeline([_SLIDING])
    budget = TokenBudgetComposedStrategy.from_client(model, [], target_ratio=0.5, always_fits=True)
    return CompactionPipeline([_SLIDING, budget])


def _window_turns(
    messages: Sequence[ChatMessage], changes: Mapping[str, ChatMessage | None] | None = None
) -> list[ChatMessage]:
    """Return the turns that windows are made of, with a cut's changes."""
    turns = [message for message in messages if not is_refused(message)]
    if not changes:
        return turns
    shown_turns: list[ChatMessage] = []
    for turn in turns:
        changed_turn = changes.get(turn.turn or "", turn)
        if changed_turn is not None:
            shown_turns.append(
                turn if changed_turn is turn else with_content(turn, changed_turn.content)
            )
    return shown_turns


def clears_in_store(agent: Agent | None) -> bool:
    """Return whether the store forgets the turns of this agent's runs when they end."""
    if agent is None:
        return False
    memory = SessionTerms.of(agent)
    return memory.history is None and memory.retention is HistoryRetention.RUN


class Sessions:
    """Reads and names the sessions of one run's agent.

    Args:
        run: What its verbs share.
        memory: What its agent declares.
        store: The store of turns, if the agent brings no history.
    """

    memory: SessionTerms
    shown_turns: ShownTurns
    calls: OpenCalls

    def __init__(self, run: RunState, memory: SessionTerms, store: TranscriptStore) -> None:
        self._run, self.memory, self._store = run, memory, store
        self._own: dict[str, list[ChatMessage]] = {}
        """Turns of this run by session, with retention NONE: only the run's log has them."""
        self._views: dict[str, WindowSource] = {}
        """Sessions that were read, with what the run has added since."""
        self._kept = 0
        """Number of times that turns were kept: turns that were read meanwhile may lack them."""
        self.shown_turns, self.calls = ShownTurns(), OpenCalls()
        self.answered: dict[str, None] = {}
        """Sessions in which a model has answered in this execution, in order. Not on a replay."""

    def begin(self, session: str | None) -> None:
        """Take the session that the run's messages name, if any. Spans name the run's session from here on."""
        run = self._run
        run.session = session
        if run.spans is not None:
            run.spans.session = self.name_of(None)

    def name_of(self, session: str | None) -> str:
        """Return a session's name: the given one, else the tree's, run's or agent's, else the run's id."""
        run = self._run
        supervision = run.row.supervision
        session_of_tree = supervision.session_id if supervision is not None else None
        return session or session_of_tree or run.session or self.memory.session or run.run_id

    def open_results(self) -> tuple[NewTurn, ...]:
        """Return what is known of calls of tools that the run leaves open, as turns of their sessions.

        In a session of a user also what was shown of answers.
        """
        if not self.is_in_store or self.memory.retention is HistoryRetention.RUN:
            return ()
        run_id, count = self._run.run_id, self.memory.pipeline.counter.count
        turns = self.calls.results(self._run.begun_calls)
        turns += [(self.name_of(None), answer) for answer in self.calls.answers()]
        return tuple(
            as_turn(turn, session, turn_id(run_id, "end", n), count(turn))
            for n, (session, turn) in enumerate(turns)
        )

    async def clear(self) -> None:
        """Delete the turns of a run that ends, if its agent's retention is RUN.

        Call it before the terminal entry. Rows are deleted in the commit of that entry. An external provider
        is called before it, and again after a crash.
        """
        memory, run = self.memory, self._run
        if memory.retention is not HistoryRetention.RUN:
            return
        if memory.history is None:
            run.log.writes.clear_turns = True
            return
        try:
            await memory.history.clear_run(
                run.agent_id, session_id=self.name_of(None), run_id=run.run_id
            )
        except Exception:  # noqa: BLE001 - a provider raises what it likes, and the run has ended
            _log.exception(
                "a history provider could not clear the turns of a run that has ended; call its"
                " clear_run for it",
                extra={"agent": str(run.agent_id), "run": run.run_id},
            )

    @property
    def has_kept(self) -> bool:
        """True if this execution has put turns into a conversation."""
        return self._kept > 0

    @property
    def is_written(self) -> bool:
        """True if turns are kept at all."""
        return self.memory.retention is not HistoryRetention.NONE

    @property
    def is_in_store(self) -> bool:
        """True if turns are rows of the runtime's own store."""
        return self.is_written and self.memory.history is None

    async def view(self, session: str, *, anew: bool = False) -> WindowSource:
        """Return a session from its last cut on, or all of it where a provider keeps it.

        Args:
            session: The conversation, within the agent.
            anew: Read it also if it was read since the run last waited.

        Raises:
            RunSuspended: The store could not be read.
        """
        if not self.is_written:
            return WindowSource([*self._own.get(session, ())], {})
        read = partial(WindowSource.of, self.memory, self._store, self._run.agent_id, session)
        if not self.is_in_store:
            return await read()
        # A cache: within one execution a session changes only by what the run adds, until the run waits.
        view = None if anew else self._views.get(session)
        if view is None or view.added >= MOST_ADDED:
            kept_before = self._kept
            view = await reading(self._run.log, read)
            self.forget(session)
            # Turns that another branch has kept during the read may be missing in it.
            if kept_before == self._kept:
                self._views[session] = view
        return view

    def forget(self, session: str | None = None) -> None:
        """Let a session, or all of them, be read anew."""
        if session is None:
            self._views.clear()
            self.shown_turns = ShownTurns()
        else:
            self._views.pop(session, None)

    def keep(self, session: str, turns: Sequence[NewTurn]) -> None:
        """Let turns be durable with what was recorded last, or remember them where nothing keeps them."""
        if not self.is_in_store:
            return
        self._run.log.writes.turns += turns
        self._kept += 1
        if (view := self._views.get(session)) is not None:
            self._views[session] = view.with_turns(turns)

    def remember(self, session: str, messages: Sequence[ChatMessage]) -> None:
        """Remember turns of this run where nothing else keeps them; called on a replay, too."""
        if not self.is_written:
            self._own.setdefault(session, []).extend(messages)


def new_cut(
    source: WindowSource, window: Sequence[ChatMessage], least: int
) -> tuple[int, ChatMessage | None]:
    """Return the cut for the session's next windows: they begin after this ordinal, with this summary.

    The ordinal is that of the last turn that the window leaves out at its beginning; later windows do not
    show these turns again. `NO_CUT`: later windows begin where the source of this window began, because the
    window leaves out fewer than `least` turns, or its summary does not stand for exactly these turns.
    """
    kept_ids, last_left_out = {message.turn for message in window}, NO_CUT
    count = 0
    for message in source.messages:
        if (ordinal := source.ordinals.get(message.turn or "")) is not None:
            if message.turn in kept_ids:
                break
            last_left_out, count = ordinal, count + 1
    previous_summary = source.cut.summary if source.cut is not None else None
    summary = window[0] if window and is_summary_of(window[0]) is not None else None
    if summary is not None and summary != previous_summary:
        is_whole = source.ordinals.get(is_summary_of(summary) or "") == last_left_out
        return (last_left_out if is_whole else NO_CUT), summary
    return (last_left_out if count >= least else NO_CUT), previous_summary


def changes_after(
    upto: int, source: WindowSource, window: Sequence[ChatMessage], new: Sequence[ChatMessage] = ()
) -> dict[str, ChatMessage | None]:
    """Return the turns after an ordinal that a window shows otherwise than the session has them.

    Args:
        upto: The ordinal of a cut.
        source: What the window was made of. Its changes stay.
        window: The window.
        new: Turns that were added to the source.
    """
    turn_in_window = {turn.turn: turn for turn in window if turn.turn is not None}
    changes = dict(source.changes)
    for turn in (*source.messages, *new):
        if turn.turn is None:
            continue
        if (window_turn := turn_in_window.get(turn.turn)) is None:
            changes[turn.turn] = None
        elif window_turn.content != turn.content:
            changes[turn.turn] = ChatMessage(role=window_turn.role, content=window_turn.content)
    return {
        turn: change
        for turn, change in changes.items()
        if source.ordinals.get(turn, upto + 1) > upto
    }


def fingerprint(strategy: object) -> str:
    """Return a strategy's class and settings: a window of another size is another strategy."""
    inner_strategies = map(fingerprint, getattr(strategy, "strategies", ()))
    settings: Mapping[str, object] = getattr(strategy, "settings", None) or vars(strategy)
    plain_settings = (
        f"{name}={value}"
        for name, value in sorted(settings.items())
        if isinstance(value, int | float | str)
    )
    return f"{type(strategy).__name__}({', '.join([*plain_settings, *inner_strategies])})"


def is_summary_of(message: ChatMessage) -> str | None:
    """Return the id of the last turn that a summary stands for, or None if the message is none."""
    return message.metadata.get(UPTO) if message.metadata.get(SUMMARY) else None


def as_turn(message: ChatMessage, session: str, turn_id: str, tokens: int | None) -> NewTurn:
    """Return a message as a turn with this id."""
    return NewTurn(session, turn_id, message, tokens, message.parent)


KEPT_BYTES: Final = 4_096
"""Largest JSON of a turn that is kept for the run's next window. Larger turns are made again."""


class ShownTurn(NamedTuple):
    """A message as a model is given it.

    Attributes:
        message: The message.
        text: Its JSON, or None if it has half a surrogate pair.
    """

    message: ChatMessage
    text: bytes | None


class ShownTurns:
    """Turns of a session's last window as its model was given them, each with its JSON.

    Most turns of a window were in the one before, the new ones of that call with other marks. They are not
    made, and their JSON is not written, again.
    """

    def __init__(self) -> None:
        self._turns: dict[tuple[object, ...], ShownTurn] = {}
        """By all that is shown of a turn. Its content is kept, so that no other object can have its id."""

    def of(self, window: Iterable[ChatMessage]) -> list[ShownTurn]:
        """Return a window as a model is given it."""
        previous, self._turns, shown_turns = self._turns, {}, []
        for turn in window:
            key = (id(turn.content), turn.role, turn.name, turn.metadata.get(SUMMARY))
            turn_with_text = previous.get(key) or shown_turn(without_marks(turn))
            if turn_with_text.text is not None and len(turn_with_text.text) <= KEPT_BYTES:
                self._turns[key] = turn_with_text
            shown_turns.append(turn_with_text)
        return shown_turns


def shown_turn(message: ChatMessage) -> ShownTurn:
    """Return a message that a model is given as it is, with its JSON."""
    try:
        return ShownTurn(message, to_json(message))
    except PydanticSerializationError:
        return ShownTurn(message, None)


def without_marks(message: ChatMessage) -> ChatMessage:
    """Return a message as a model is given it: what strategies note of turns is not the author's.

    The mark of a summary stays, by which a client knows where the stable beginning of a request ends.
    """
    if not message.metadata:
        return message
    summary = message.metadata.get(SUMMARY)
    return message.with_metadata({} if summary is None else {SUMMARY: summary})


def window_digest(window: Sequence[ShownTurn]) -> str:
    """Return the `digest` of the messages that a model is given."""
    texts = [turn.text for turn in window if turn.text is not None]
    if len(texts) < len(window):
        return digest([turn.message for turn in window])
    return hashlib.sha256(b"[" + b",".join(texts) + b"]").hexdigest()


def digest(models: Sequence[ChatMessage | ToolSpec]) -> str:
    """Return the SHA-256 of models as a JSON array, in hexadecimal."""
    try:
        text = to_json(models)
    except PydanticSerializationError:  # half a surrogate pair
        model_data = [model.model_dump(mode="json") for model in models]
        text = canonical_json(model_data).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()


@dataclass(slots=True)
class _OpenCall:
    session: str
    name: str
    result: ChatMessage | None = None


@dataclass(slots=True)
class OpenCalls:
    """The calls of a run's chats that have no result in their session. A replay notes them again.

    Also what its user was shown of answers that have no end.
    """

    _calls: dict[str, _OpenCall] = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)
    """Pieces that were shown of answers without a recorded end, by position."""

    def show(self, position: str, piece: TextDelta | ReasoningDelta, n: int) -> None:
        """Note a piece of an answer, its number `n`. Piece 0 voids those before it."""
        if n == 0:
            self._texts[position] = []
        if isinstance(piece, TextDelta):
            self._texts.setdefault(position, []).append(piece.text)

    def end_answer(self, position: str) -> None:
        """Forget what was shown of an answer: its end is recorded."""
        self._texts.pop(position, None)

    def answers(self) -> list[ChatMessage]:
        """Return what was shown of answers without a recorded end, each with a mark."""
        answers: list[ChatMessage] = []
        for position, pieces in self._texts.items():
            text = "".join(pieces)
            if text.strip():
                mark = ContentBlock.model_validate({"type": STOPPED, "position": position})
                content = [ContentBlock(type="text", text=text), mark]
                answers.append(ChatMessage(role="assistant", content=content))
        return answers

    def add(self, session: str, calls: Iterable[ToolCall]) -> None:
        """Note the calls of an answer."""
        for call in calls:
            self._calls[call.id] = _OpenCall(session, call.name)

    def end(self, call_id: str, result: ChatMessage) -> None:
        """Note the result of a call."""
        if (call := self._calls.get(call_id)) is not None:
            call.result = result

    def close(self, turns: Sequence[str | ChatMessage]) -> None:
        """Forget the calls whose results are among turns that a session has now."""
        for turn in turns:
            if isinstance(turn, ChatMessage):
                for call_id in result_ids(turn):
                    self._calls.pop(call_id, None)

    def results(self, begun_ids: Collection[str]) -> list[tuple[str, ChatMessage]]:
        """Return what is known of the open calls, each as a turn with its session.

        Args:
            begun_ids: Ids of calls that may have acted.
        """
        turns: list[tuple[str, ChatMessage]] = []
        for id_, call in self._calls.items():
            text = UNKNOWN if id_ in begun_ids else NOT_EXECUTED
            result = ToolResult(id=id_, name=call.name, text=text, is_error=True)
            turns.append((call.session, call.result or result.message()))
        return turns
