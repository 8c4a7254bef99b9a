"""Deltas between hosts, and hints of ends, over core NATS: never stored, lost without a subscriber."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count
from typing import Final, get_args

from pydantic_core import to_json
from typing_extensions import override

from actors.errors import ContractError, NotSerializableError
from actors.kernel.json_data import check_json
from actors.kernel.runtime.hints import Delta, DeltaKind
from actors.kernel.runtime.ids import AgentId, RunId
from broker.gateway.core_subjects import CoreSubjects, Handler
from broker.nats.client import NatsConnection
from broker.nats.reconnecting import Tasks
from broker.wire.subjects import Subjects, hint_subject

MAX_BEHIND: Final = 1_000
"""Maximum number of pieces kept for a slow reader; above it the oldest are dropped."""
_KINDS: Final = get_args(DeltaKind)
_ALL_ANSWERED: Final = b""
"""The message after the last whole answer."""


class NatsDeltaBus(CoreSubjects):
    """See `DeltaBus`."""

    def __init__(self, subjects: Subjects) -> None:
        super().__init__(subjects)
        self._open_answers: Callable[[AgentId, RunId], Sequence[Delta]] = lambda *_: ()
        self._inbox = ""
        self._numbers = count()
        self._questions: dict[str, tuple[bytes, Handler]] = {}
        """Questions for whole answers, by their number, and what takes the answers."""

    def publish(self, delta: Delta) -> None:
        """See `DeltaBus.publish`."""
        if self._client is not None:
            self._send(self._subjects.live(delta.agent_id, delta.run_id), _data_of(delta))

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """See `DeltaBus.announce_end`."""
        self._send(self._subjects.live_end(agent_id, run_id), b"")

    async def subscribe(
        self, agent_id: AgentId, run_id: RunId, *, whole: bool = False
    ) -> AsyncGenerator[Delta | None, None]:
        """See `DeltaBus.subscribe`."""
        waiting: deque[Delta | None] = deque(maxlen=MAX_BEHIND)
        came = asyncio.Event()

        def take(data: bytes) -> None:
            if (delta := _delta(data, agent_id, run_id)) is not None:
                put(delta)

        def take_answer(data: bytes) -> None:
            put(None) if data == _ALL_ANSWERED else take(data)

        def put(delta: Delta | None) -> None:
            waiting.append(delta)
            came.set()

        forget = self._subscribe_local(self._subjects.live(agent_id, run_id), take)
        question = str(next(self._numbers))
        if whole:
            asked = to_json({"agent": str(agent_id), "run": run_id})
            self._questions[question] = asked, take_answer
            self._ask(question)
        try:
            while True:
                await came.wait()
                came.clear()
                while waiting:
                    yield waiting.popleft()
        finally:
            self._questions.pop(question, None)
            forget()

    def answer_by(self, open_answers: Callable[[AgentId, RunId], Sequence[Delta]]) -> None:
        """See `DeltaBus.answer_by`."""
        self._open_answers = open_answers

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """See `DeltaBus.watch_end`."""
        return self._subscribe_local(self._subjects.live_end(agent_id, run_id), lambda _: on_end())

    @override
    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        self._inbox = f"{inbox}.open"
        await client.listen(f"{self._inbox}.*", self._answered)
        await client.listen(hint_subject(self._subjects, "open"), self._asked)
        await super().attach(client, inbox, tasks)
        for question in self._questions:
            self._ask(question)

    def _ask(self, question: str) -> None:
        """Ask all processes, after the subscription to the pieces that follow the answer."""
        asked, _ = self._questions[question]
        self._send(hint_subject(self._subjects, "open"), asked, f"{self._inbox}.{question}")

    def _answered(self, subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
        question = self._questions.get(subject.rpartition(b".")[2].decode())
        if question is not None:
            question[1](data)

    def _asked(self, _subject: bytes, reply: bytes, data: bytes, _headers: bytes) -> None:
        """Send the answers after the pieces that they contain, and before later pieces."""
        try:
            asked = json.loads(data)
            found = self._open_answers(AgentId.parse(asked["agent"]), RunId(asked["run"]))
        except (ValueError, TypeError, KeyError, RecursionError, ContractError):
            return  # of another version
        if found and reply:
            for delta in found:
                self._send(reply.decode(), _data_of(delta))
            self._send(reply.decode(), _ALL_ANSWERED)


def _data_of(delta: Delta) -> bytes:
    facts = {
        "kind": delta.kind,
        "run": delta.run_id,
        "attempt": delta.attempt,
        "position": delta.position,
        "n": delta.n,
        "text": delta.text,
        **({} if delta.data is None else {"data": delta.data}),
        **({"whole": True} if delta.is_whole else {}),
        **({} if delta.after is None else {"after": delta.after}),
    }
    return to_json(facts)


def _delta(data: bytes, agent_id: AgentId, run_id: RunId) -> Delta | None:
    # Of another host, perhaps of another version: what cannot be read is nothing to show.
    try:
        facts = json.loads(data)
        if facts["kind"] not in _KINDS:
            return None
        found = facts.get("data")
        check_json(found, where="delta")
        return Delta(
            run_id=run_id,
            agent_id=agent_id,
            attempt=int(facts["attempt"]),
            position=str(facts["position"]),
            n=int(facts["n"]),
            kind=facts["kind"],
            text=str(facts["text"]),
            data=found,
            is_whole=bool(facts.get("whole")),
            after=None if facts.get("after") is None else int(facts["after"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, NotSerializableError):
        return None
