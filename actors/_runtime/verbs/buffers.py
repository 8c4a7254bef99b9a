"""Buffers of a run's signals and answers: the store is read again when there may be more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar

from typing_extensions import override

from actors._kernel.json import JsonValue, recordable
from actors._kernel.runtime.commit import SignalKey
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.rows import RESERVED, RESOLVE, Arrived, BufferedSignal
from actors._kernel.runtime.waits import Answer
from actors._kernel.stores.run_store import RunStore
from actors._runtime.journal.run_log import RunLog, reading, refuse_unreadable
from actors.errors import ContractError

F = TypeVar("F")


def refuse_reserved(name: str) -> None:
    """Refuse a signal name that is reserved for operators' decisions.

    Raises:
        ContractError: The name is reserved: see `Runtime.resolve`.
    """
    if name.startswith(RESERVED):
        msg = f"signal name {name!r} is reserved: names must not start with {RESERVED!r}"
        raise ContractError(msg)


def resolution(action: Literal["value", "retry", "fail"], *, value: Any, error: str) -> JsonValue:
    """Return the payload of a decision for a parked run. See `Runtime.resolve`.

    Raises:
        NotSerializableError: `value` is not JSON data.
    """
    decision: dict[str, JsonValue] = {"action": action}
    if action == "value":
        decision["value"] = recordable(value, where="value of the effect in doubt")
    elif action == "fail":
        decision["error"] = error
    return decision


class Buffer(Generic[F]):
    """The signals or answers read for a run and not consumed. The next flush writes what is taken.

    It knows whether what was read is current. Of many branches one reads, the others wait for it.

    Attributes:
        is_current: True if all hinted items are read, or are being read: no `refresh` is needed.
        on_found: Function that gets each read signal or answer, in this read or a later one.
    """

    is_current: bool = True

    def __init__(self, store: RunStore, run_id: RunId, log: RunLog) -> None:
        self._store, self._run_id, self._log = store, run_id, log
        self._reading = asyncio.Lock()
        self.on_found: Callable[[Iterable[F]], None] = _ignore

    def detach(self) -> None:
        """Stop the notifications of what is found."""
        self.on_found = _ignore

    def invalidate(self) -> None:
        """Note that the store may have something new, or something from before this execution."""
        self.is_current = False

    async def refresh(self) -> None:
        """Return when all is read that was there at the last `invalidate`."""
        async with self._reading:
            while not self.is_current:
                # Set before the read: a hint that comes during it asks for another one.
                self.is_current = True
                try:
                    self.on_found(await self._read())
                # Also a cancellation: without it the next reader would take an empty buffer for current.
                except BaseException:
                    self.is_current = False  # its branch was closed: the next one reads
                    raise

    async def _read(self) -> Iterable[F]:
        """Read all from the store, and return what `on_found` is called with."""
        raise NotImplementedError


class SignalBuffer(Buffer[tuple[str, int]]):
    """The signals of a run. Nothing is read before it is first asked for.

    `on_found` is called with the names of all that are there, and the count of each.
    """

    is_current = False

    def __init__(self, store: RunStore, run_id: RunId, log: RunLog) -> None:
        super().__init__(store, run_id, log)
        self._waiting: dict[str, deque[BufferedSignal]] = {}
        """Unconsumed signals by name, the oldest first."""
        self._taken_keys: set[SignalKey] = set()

    @override
    async def _read(self) -> Iterable[tuple[str, int]]:
        signals = await reading(self._log, lambda: self._store.reads.signals(self._run_id))
        self._waiting = {}
        for signal in signals:
            # A signal that was taken is a row until the next flush.
            if SignalKey(signal.name, signal.n) not in self._taken_keys:
                self._waiting.setdefault(signal.name, deque()).append(signal)
        return ((name, len(waiting_signals)) for name, waiting_signals in self._waiting.items())

    async def take(self, name: str) -> BufferedSignal | None:
        """Consume and return the oldest signal of this name, or None."""
        await self.refresh()
        return self.take_now(name)

    async def decision(self, position: str, seq: int) -> BufferedSignal | None:
        """Consume what operators decided at `position`; return what they did about the entry `seq`.

        What is about another entry came too late, or from a release that did not say: it is dropped.
        """
        decision = None
        while (signal := await self.take(f"{RESOLVE}{position}")) is not None:
            decision = signal if signal.about == seq else decision
        if decision is not None:
            refuse_unreadable(self._log, decision.payload, f"the decision on {position}")
        return decision

    def first(self, name: str) -> BufferedSignal | None:
        """Return what `take_now` would return."""
        signals = self._waiting.get(name)
        return signals[0] if signals else None

    def count(self, name: str) -> int:
        """Return how many of this name were read and are not taken."""
        return len(self._waiting.get(name, ()))

    def take_now(self, name: str) -> BufferedSignal | None:
        """Consume and return the oldest signal of this name that was read, or None."""
        signals = self._waiting.get(name)
        if signals is None:
            return None
        signal = signals.popleft()
        if not signals:
            del self._waiting[name]
        key = SignalKey(signal.name, signal.n)
        self._taken_keys.add(key)
        self._log.writes.take_signals.append(key)
        return signal


class AnswerBuffer(Buffer[str]):
    """The answers to the asks, joins and approvals of a run.

    `on_found` is called with the keys of all that are there.
    """

    def __init__(self, store: RunStore, run_id: RunId, log: RunLog) -> None:
        super().__init__(store, run_id, log)
        self._waiting: dict[str, Answer] = {}
        self._taken_answers: dict[str, Answer] = {}

    @override
    async def _read(self) -> Iterable[str]:
        answers = await reading(self._log, lambda: self._store.reads.answers(self._run_id))
        self._waiting = {a.key: a for a in answers if a.key not in self._taken_answers}
        return self._waiting

    def first(self, key: str) -> Answer | None:
        """Return what `take_now` would return."""
        return self._taken_answers.get(key) or self._waiting.get(key)

    def take_now(self, key: str, *, keep: bool = False) -> Answer | None:
        """Consume and return the answer with this key, or None.

        Branches that wait for the same get the same. With `keep` it stays for callers that wait for it
        again, in a later generation of the run too.
        """
        answer = self._taken_answers.get(key)
        if answer is None:
            answer = self._waiting.pop(key, None)
            if answer is None:
                return None
            self._taken_answers[key] = answer
            if not keep:
                self._log.writes.take_answers.append(key)
        return answer


def is_readable(log: RunLog, event: BufferedSignal | Answer | Arrived | None) -> bool:
    """Return whether there is anything, and the run's code may get it.

    Raises:
        RunSuspended: It cannot be decoded: see `refuse_unreadable`.
    """
    match event:
        case BufferedSignal(name=name, payload=payload):
            refuse_unreadable(log, payload, f"signal {name!r}")
        case Answer(key=key, result=result, error=error):
            for value in (result, *(error or {}).values()):
                refuse_unreadable(log, value, f"the answer to {key}")
        case Arrived(message=message):
            refuse_unreadable(log, message.payload, f"message {message.id}")
        case None:
            return False
    return True


def _ignore(_: object) -> None:
    """Do nothing: no branch waits."""
