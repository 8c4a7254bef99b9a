"""The turns of a session: `ctx.history`, for an author who keeps them by hand, and those that a call adds.

Of the turns of a call that fails, some stay in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from actors._context.compaction.steps import SHORTEST_TOKENS
from actors._context.errors import WindowTooSmallError
from actors._context.history import StoreHistory
from actors._context.tokens import TokenCounter
from actors._context.turns import NEW, PINNED, REFUSED, id_of, with_content
from actors._kernel.agent.hooks import InputBlockedError
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolResult
from actors._kernel.agent.transcript import TOKENS, check_turn, turn_id
from actors._kernel.json import JsonValue, sized
from actors._kernel.runtime.effects import EffectCall
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.stores.conversations import TranscriptStore
from actors._runtime.journal.run_log import reading
from actors._runtime.replay.failures import recorded_error
from actors._runtime.verbs.call import Call, Payload, RunState
from actors._runtime.verbs.conversation.sessions import Sessions, as_turn
from actors._runtime.verbs.effects import Effects, effect
from actors.errors import MessageTooLargeError, ModelError, ModelErrorKind

if TYPE_CHECKING:
    from actors._kernel.stores.conversations import HistoryProvider

MAX_READ_BYTES: Final = 256 * 1024
"""Largest sum of the turns that `get` returns, as JSON, because they are recorded in the log."""


class ConversationHistory:
    """Turns of the run's agent: `append`, `get` and `count`, each recorded."""

    def __init__(
        self, run: RunState, effects: Effects, sessions: Sessions, store: TranscriptStore
    ) -> None:
        self._run, self._effects, self._sessions = run, effects, sessions
        self._store = StoreHistory(store)

    async def append(self, *messages: str | ChatMessage, session: str | None = None) -> None:
        """Put turns at the end of a session; a plain text is the user's. Durable with the next flush.

        With a provider outside it is an effect that a crash may repeat: turns have the same ids then, and
        the provider drops those that it has. With retention NONE nothing is written.

        Raises:
            MessageTooLargeError: A turn has more than 32 MiB as JSON.
        """
        run, sessions = self._run, self._sessions
        own_messages = own_turns(messages)
        name = sessions.name_of(session)
        arguments: list[JsonValue] = [
            "history.append",
            session,
            [message.model_dump(mode="json") for message in own_messages],
        ]
        if sessions.memory.history is not None and sessions.is_written:
            await self._append_outside(sessions.memory.history, name, own_messages, arguments)
            return
        call = Call(run, "history.append")
        entry = call.meet((K.EFFECT_RESULT,), "history.append", arguments)
        sessions.remember(name, own_messages)
        if entry is not None:
            return
        seed = f"{call.position} {call.digest}"
        ids = [turn_id(run.run_id, seed, n) for n in range(len(own_messages))]
        call.record(K.EFFECT_RESULT, call.result_payload(None))
        counter = sessions.memory.pipeline.counter
        turns = [
            as_turn(message, name, id_, counter.count(message))
            for message, id_ in zip(own_messages, ids, strict=True)
        ]
        sessions.keep(name, turns)

    async def get(
        self, *, limit: int | None = None, offset: int = 0, session: str | None = None
    ) -> list[ChatMessage]:
        """Return turns, oldest first: at most `limit`, after the first `offset`. The same on replay.

        Raises:
            MessageTooLargeError: They have more than 256 KiB as JSON: read them in pages.
        """
        name = self._sessions.name_of(session)

        async def read() -> list[Any]:
            provider = self._provider()
            messages = await reading(
                self._run.log,
                lambda: provider.get_messages(
                    self._run.agent_id, session_id=name, limit=limit, offset=offset
                ),
            )
            return [message.model_dump(mode="json") for message in messages]

        arguments: list[JsonValue] = ["history.get", session, limit, offset]
        value = await self._recorded("history.get", arguments, read)
        return [ChatMessage.model_validate(data) for data in value]

    async def count(self, *, session: str | None = None) -> int:
        """Return how many turns a session has. The same on replay."""
        name = self._sessions.name_of(session)

        async def read() -> int:
            provider = self._provider()
            return await reading(
                self._run.log, lambda: provider.count_messages(self._run.agent_id, session_id=name)
            )

        value: int = await self._recorded("history.count", ["history.count", session], read)
        return value

    def _provider(self) -> HistoryProvider:
        return self._sessions.memory.history or self._store

    async def _recorded(
        self, name: str, arguments: list[JsonValue], read: Callable[[], Any]
    ) -> Any:
        async def limited() -> Any:
            value = await read()
            size_bytes = sized(value, where=name)[1]
            if size_bytes > MAX_READ_BYTES:
                what = f"result of ctx.{name}, to be read in pages by limit= and offset=,"
                raise MessageTooLargeError(what, size_bytes, MAX_READ_BYTES)
            return value

        return await self._effects.perform(effect("step", name, arguments, limited))

    async def _append_outside(
        self,
        history: HistoryProvider,
        session: str,
        messages: list[ChatMessage],
        arguments: list[JsonValue],
    ) -> None:
        run = self._run

        async def append() -> None:
            seed = f"{call.position} {call.digest}"
            marked_messages = [
                with_id(message, turn_id(run.run_id, seed, n)) for n, message in enumerate(messages)
            ]
            await history.append_many(
                run.agent_id, marked_messages, session_id=session, run_id=run.run_id
            )

        call = effect("step", "history.append", arguments, append)
        await self._effects.perform(call)


REPLACED: Final = "replaced"
"""The key of a receipt under which the turns are that guards put in place of the author's."""
TOO_LONG: Final[ModelErrorKind] = "context_too_long"
_OF_THE_REQUEST: Final[frozenset[ModelErrorKind]] = frozenset(("refused", "invalid"))
"""Kinds of errors that the same turns would cause again, in every later window."""


@dataclass(frozen=True)
class NewTurns:
    """The turns that a call adds. They are counted once, and not on a replay.

    Attributes:
        turns: The turns, in order.
        counter: The counter of their tokens.
        is_replaced: True if guards put them in place of the author's.
    """

    turns: list[ChatMessage]
    counter: TokenCounter
    is_replaced: bool = False

    @cached_property
    def sizes(self) -> list[int]:
        """Their tokens."""
        return [self.counter.count(turn) for turn in self.turns]

    @property
    def fixed_tokens(self) -> int:
        """Their tokens if each result of a tool is as short as it can be made."""
        return sum(
            min(size, SHORTEST_TOKENS) if turn.role == "tool" else size
            for turn, size in zip(self.turns, self.sizes, strict=True)
        )

    def marked(self, ids: Sequence[str]) -> list[ChatMessage]:
        """Return them as strategies are given them: no strategy drops one."""
        return [
            with_id(turn, id_, tokens=size, is_new=True)
            for turn, id_, size in zip(self.turns, ids, self.sizes, strict=False)
        ]


def ids_of(call: EffectCall, run_id: str, count: int) -> list[str]:
    """Return the ids of the turns that a call adds: made of its position, and of its request."""
    return [turn_id(run_id, f"{call.position} {call.digest}", n) for n in range(count)]


def with_id(
    message: ChatMessage, id_: str, *, tokens: int | None = None, is_new: bool = False
) -> ChatMessage:
    """Return a message marked as the turn with this id, and of this size."""
    marks = {"turn": id_} | ({PINNED: NEW} if is_new else {})
    if tokens is not None:
        marks[TOKENS] = str(tokens)
    return message.with_metadata(message.metadata | marks)


def own_turns(new: Sequence[str | ChatMessage]) -> list[ChatMessage]:
    """Return turns that may be kept: a plain text is the user's, a message of the author is copied.

    Raises:
        MessageTooLargeError: A turn has more than 32 MiB as JSON.
    """
    turns = [
        ChatMessage.of("user", item) if isinstance(item, str) else item.copied() for item in new
    ]
    for turn in turns:
        check_turn(turn)
    return turns


def asked_turns(turns: Sequence[ChatMessage], payload: Payload) -> list[ChatMessage]:
    """Return the turns that the model was asked with: those of the author, or of a guard in their place.

    Args:
        turns: The author's.
        payload: The payload of the call's result.
    """
    receipt = payload.get("receipt")
    replaced_turns = receipt.get(REPLACED) if isinstance(receipt, dict) else None
    if not isinstance(replaced_turns, list):
        return [*turns]
    return [ChatMessage.model_validate(turn) for turn in replaced_turns]


def stored_turns(turns: Sequence[ChatMessage], payload: Payload) -> list[ChatMessage]:
    """Return the new turns that become turns of the session with a call's result.

    A turn because of which the call failed is in no later window, because these would fail in the same way: it
    is marked, or left out if it is too long. A result of a tool stays, so that the model knows of the call. Its
    content stays unless it may be the cause and no strategy can shorten it.

    Args:
        turns: The author's.
        payload: The payload of the call's result.
    """
    sent_turns = asked_turns(turns, payload)
    if payload.get("status") != "error":
        return sent_turns
    error = recorded_error(payload)
    kind = error.kind if isinstance(error, ModelError) else None
    if isinstance(error, WindowTooSmallError) or kind == TOO_LONG:
        return [turn for turn in sent_turns if turn.role == "tool"]
    if isinstance(error, InputBlockedError):
        return [_refused(turn, "guard") for turn in turns]
    if kind in _OF_THE_REQUEST:
        return [_refused(turn, str(kind)) for turn in sent_turns]
    # A guard may decide otherwise when the call is repeated. The answer then has the id of none of these turns.
    return sent_turns if len(sent_turns) == len(turns) else []


def _refused(turn: ChatMessage, by: str) -> ChatMessage:
    """Return the turn with a mark. Results of tools have no mark, and no content any more."""
    if turn.role != "tool":
        return turn.with_metadata(turn.metadata | {REFUSED: by})
    text = "the tool was called; its result is withheld, because the request with it was refused"
    results: list[ContentBlock] = []
    for block in turn.content:
        if block.type == "tool_result":
            name = str((block.model_extra or {}).get("name") or "")
            result = ToolResult(id=id_of(block), name=name, text=text, is_error=True)
            results.append(result.block())
    return with_content(turn, results)


def as_data(turns: Sequence[ChatMessage]) -> list[JsonValue]:
    """Return turns as JSON data."""
    return [turn.model_dump(mode="json") for turn in turns]
