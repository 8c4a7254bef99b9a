"""Waiting verbs: sleep, signals, mail. Hot for a while, then the run is suspended and replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from actors.errors import ContractError, ForeignCancellationError
from actors.kernel.agent.message import Message, MessageKey
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.wakeup import WakeSet
from actors.runtime.signals import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Arrived, BufferedSignal
    from actors.runtime.branch import Branch
    from actors.runtime.recorder import Recorder

_MAX_TIMER_S: Final = 86_400.0
"""The loop's timers are re-armed at least daily, so that a stepped clock is noticed."""


@dataclass(slots=True)
class _Wait:
    verb: str
    at: datetime | None = None
    signal: str | None = None
    mail: bool = False


class Waits:
    """The waiting verbs of one execution of a run.

    Args:
        recorder: The execution.
        take_mail: Returns the agent's next pending message and removes it from its queue.
    """

    def __init__(self, recorder: Recorder, take_mail: Callable[[], Arrived | None]) -> None:
        self._run = recorder
        self._take_mail = take_mail
        self._active: dict[Branch, _Wait] = {}

    # --- verbs ----------------------------------------------------------------------------------

    async def until(self, at: datetime | None, *, verb: str, seconds: float = 0.0) -> None:
        """Return when `at` (or `seconds` from now, decided once) has come; never early."""
        run = self._run
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        words: list[JsonValue] = ["sleep", seconds] if at is None else ["until", at.isoformat()]
        digest = args_hash(words)
        place = run.meet(position, (K.TIMER_SET, K.TIMER_FIRED), verb, digest)
        if place is not None and place.end is not None:
            await run.turnstile.turn_for(branch, place.end.seq, verb)
            return
        if place is not None and place.begin is not None:
            at = _instant(place.begin.payload["at"])
        else:
            at = at or run.clock.now() + timedelta(seconds=seconds)
            self._set_timer(position, at, digest, verb)
        await self._begin(branch, verb)
        await self._until_ready(branch, _Wait(verb, at=at))
        await self._conclude(branch, verb, K.TIMER_FIRED, position, {"at": at.isoformat()})

    async def signal(self, name: str) -> JsonValue:
        """Return the payload of the oldest signal of this name."""
        if name.startswith(RESERVED):
            msg = f"signal name {name!r} is reserved: names must not start with '~'"
            raise ContractError(msg)
        run, verb = self._run, "sleep_until_signal"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        digest = args_hash(["signal", name])
        place = run.meet(position, (K.SIGNAL_RECEIVED,), f"signal {name}", digest)
        if place is not None and place.end is not None:
            await run.turnstile.turn_for(branch, place.end.seq, verb)
            return place.end.payload["payload"]
        await self._begin(branch, verb)
        found = await self._until_ready(branch, _Wait(verb, signal=name))
        assert found.signal is not None
        payload: dict[str, JsonValue] = {
            "name": name, "payload": found.signal.payload, "n": found.signal.n, "hash": digest,
        }  # fmt: skip
        await self._conclude(branch, verb, K.SIGNAL_RECEIVED, position, payload)
        return found.signal.payload

    async def receive(self, timeout_s: float | None) -> Message | None:
        """Return the agent's next plain message, or None after `timeout_s` seconds."""
        run, verb = self._run, "receive"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        digest = args_hash(["receive", timeout_s])
        kinds = (K.MSG_RECEIVED, K.TIMER_SET, K.TIMER_FIRED)
        place = run.meet(position, kinds, verb, digest)
        if place is not None and place.end is not None:
            await run.turnstile.turn_for(branch, place.end.seq, verb)
            return message_of(place.end.payload)
        at = None
        if place is not None and place.begin is not None:
            at = _instant(place.begin.payload["at"])
        elif timeout_s is not None:
            at = run.clock.now() + timedelta(seconds=timeout_s)
            self._set_timer(position, at, digest, verb)
        await self._begin(branch, verb)
        found = await self._until_ready(branch, _Wait(verb, at=at, mail=True))
        if found.mail is None:
            assert at is not None
            await self._conclude(branch, verb, K.TIMER_FIRED, position, {"at": at.isoformat()})
            return None
        payload = message_payload(found.mail)
        payload["hash"] = digest
        run.log.bind(MessageKey(found.mail.agent_id, found.mail.sender, found.mail.message.id))
        await self._conclude(branch, verb, K.MSG_RECEIVED, position, payload)
        return found.mail.message

    # --- from outside ---------------------------------------------------------------------------

    def poke_mail(self) -> None:
        """The agent has new mail."""
        self._poke(lambda wait: wait.mail)

    def poke_signals(self) -> None:
        """The run has new signals."""
        self._run.signals.poke()
        self._poke(lambda wait: wait.signal is not None)

    def _poke(self, concerns: Callable[[_Wait], bool]) -> None:
        for branch in [b for b, wait in self._active.items() if concerns(wait)]:
            self._run.turnstile.woken(branch)

    def wake_set(self) -> WakeSet:
        """Return everything that is waited for now."""
        waits = self._active.values()
        names = {wait.signal for wait in waits if wait.signal is not None}
        return WakeSet(
            at=min((wait.at for wait in waits if wait.at is not None), default=None),
            signals=tuple(sorted(names)),
            message=any(wait.mail for wait in waits),
        )

    # --- waiting --------------------------------------------------------------------------------

    def _set_timer(self, position: str, at: datetime, digest: str, verb: str) -> None:
        payload: dict[str, JsonValue] = {"at": at.isoformat(), "hash": digest, "verb": verb}
        self._run.log.record(K.TIMER_SET, position, payload)

    async def _begin(self, branch: Branch, verb: str) -> None:
        await self._run.turnstile.begin(branch, verb)

    async def _until_ready(self, branch: Branch, wait: _Wait) -> _Found:
        loop = asyncio.get_running_loop()
        try:
            while True:
                found = await self._look(wait)
                if found is not None:
                    return found
                self._active[branch] = wait
                timer = None
                if wait.at is not None:
                    delay = (wait.at - self._run.clock.now()).total_seconds()
                    delay = min(max(delay, 0.0), _MAX_TIMER_S)
                    timer = loop.call_later(delay, self._run.turnstile.woken, branch)
                try:
                    await self._run.turnstile.wake(branch, wait.verb)
                finally:
                    if timer is not None:
                        timer.cancel()
        except BaseException as exc:
            self._interrupted(branch, wait.verb, exc)
            raise
        finally:
            self._active.pop(branch, None)

    def _interrupted(self, branch: Branch, verb: str, exc: BaseException) -> None:
        """Put the branch back into agent code; name a cancellation that came from nowhere."""
        self._run.turnstile.to_code(branch)
        is_ours = branch.closed or self._run.turnstile.unwinding is not None
        if isinstance(exc, asyncio.CancelledError) and not is_ours:
            raise ForeignCancellationError(verb) from None

    async def _look(self, wait: _Wait) -> _Found | None:
        if wait.signal is not None:
            signal = await self._run.signals.take(wait.signal)
            if signal is not None:
                return _Found(signal=signal)
        if wait.mail and (mail := self._take_mail()) is not None:
            return _Found(mail=mail)
        if wait.at is not None and self._run.clock.now() >= wait.at:
            return _Found()
        return None

    async def _conclude(  # noqa: PLR0917 - the parts of one entry
        self, branch: Branch, verb: str, kind: K, position: str, payload: dict[str, JsonValue]
    ) -> None:
        run = self._run
        try:
            seq = run.log.record(kind, position, payload)
            run.turnstile.queue_turn(branch, seq)
            await run.log.durable(branch, seq)
            await run.turnstile.await_turn(branch, verb)
        except BaseException as exc:
            self._interrupted(branch, verb, exc)
            raise


@dataclass(frozen=True, slots=True)
class _Found:
    signal: BufferedSignal | None = None
    mail: Arrived | None = None


def _instant(value: JsonValue) -> datetime:
    return datetime.fromisoformat(str(value)).astimezone(UTC)


def message_payload(arrived: Arrived) -> dict[str, JsonValue]:
    """Return the payload of the entry that says a message was received."""
    return {"message": arrived.message.to_json(), "arrival": arrived.arrival}


def message_of(payload: dict[str, JsonValue]) -> Message | None:
    """Return the message that such an entry holds, None for the end of a time limit."""
    data = payload.get("message")
    return Message.from_json(data) if isinstance(data, dict) else None
