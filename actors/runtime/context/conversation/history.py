"""`ctx.history`: the turns of a session, for an author who keeps them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.context.history import StoreHistory
from actors.errors import MessageTooLargeError
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import turn_id
from actors.kernel.json import JsonValue, sized
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.stores.conversations import TranscriptStore
from actors.runtime.context.call import Call, RunState
from actors.runtime.context.conversation.new_turns import own_turns, with_id
from actors.runtime.context.conversation.sessions import Sessions, as_turn
from actors.runtime.context.effects import Effects, effect
from actors.runtime.journal.reading import reading

if TYPE_CHECKING:
    from actors.kernel.stores.conversations import HistoryProvider

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
        said = own_turns(messages)
        name = sessions.name_of(session)
        words: list[JsonValue] = [
            "history.append",
            session,
            [message.model_dump(mode="json") for message in said],
        ]
        if sessions.memory.history is not None and sessions.is_written:
            await self._append_outside(sessions.memory.history, name, said, words)
            return
        call = Call(run, "history.append")
        known = call.meet((K.EFFECT_RESULT,), "history.append", words)
        sessions.remember(name, said)
        if known is not None:
            return
        place = f"{call.position} {call.digest}"
        ids = [turn_id(run.run_id, place, n) for n in range(len(said))]
        call.record(K.EFFECT_RESULT, call.returned(None))
        counter = sessions.memory.pipeline.counter
        turns = [
            as_turn(message, name, id_, counter.count(message))
            for message, id_ in zip(said, ids, strict=True)
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
            found = await reading(
                self._run.log,
                lambda: provider.get_messages(
                    self._run.agent_id, session_id=name, limit=limit, offset=offset
                ),
            )
            return [message.model_dump(mode="json") for message in found]

        words: list[JsonValue] = ["history.get", session, limit, offset]
        value = await self._recorded("history.get", words, read)
        return [ChatMessage.model_validate(one) for one in value]

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

    async def _recorded(self, name: str, words: list[JsonValue], read: Callable[[], Any]) -> Any:
        async def limited() -> Any:
            value = await read()
            size_bytes = sized(value, where=name)[1]
            if size_bytes > MAX_READ_BYTES:
                what = f"result of ctx.{name}, to be read in pages by limit= and offset=,"
                raise MessageTooLargeError(what, size_bytes, MAX_READ_BYTES)
            return value

        return await self._effects.perform(effect("step", name, words, limited))

    async def _append_outside(
        self,
        history: HistoryProvider,
        session: str,
        said: list[ChatMessage],
        words: list[JsonValue],
    ) -> None:
        run = self._run

        async def append() -> None:
            place = f"{call.position} {call.digest}"
            marked = [
                with_id(message, turn_id(run.run_id, place, n)) for n, message in enumerate(said)
            ]
            await history.append_many(run.agent_id, marked, session_id=session, run_id=run.run_id)

        call = effect("step", "history.append", words, append)
        await self._effects.perform(call)
