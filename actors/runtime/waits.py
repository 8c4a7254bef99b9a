"""Waiting verbs: sleep, signals, mail, answers. Hot for a while, then the run is suspended and replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from actors.kernel.agent.message import Message, MessageKey
from actors.kernel.runtime.commit import Answer
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.wakeup import WakeSet
from actors.kernel.seconds import check_s
from actors.kernel.text import check_name_of
from actors.runtime.error_record import record_error
from actors.runtime.signals import refuse_reserved
from actors.runtime.timers import Alarm
from actors.runtime.turn import LateEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Arrived, BufferedSignal, Wait
    from actors.runtime.branch import Branch
    from actors.runtime.recorder import Recorder


class Mail(Protocol):
    """The waiting messages of one agent, in this process."""

    def is_there(self) -> bool:
        """Whether `take` would return one."""
        ...

    def take(self) -> Arrived | None:
        """Remove and return the next one."""
        ...

    def put_back(self, arrived: Arrived) -> None:
        """It may not be taken yet: something older of its sender has to be read first."""
        ...


Payload: TypeAlias = "dict[str, JsonValue]"
_Entry: TypeAlias = "tuple[K, str, Payload]"


@dataclass(slots=True)
class _Wait:
    verb: str
    at: datetime | None = None
    signal: str | None = None
    mail: bool = False
    row: Wait | None = None
    """What an answer ends, as others see it."""
    keep: bool = False
    ended: _Ended | None = None


@dataclass(frozen=True, slots=True)
class AnswerWait:
    """A wait that an answer ends.

    Attributes:
        verb: Who waits.
        digest: Hash of the call.
        prepare: Returns the wait as others see it, or what ends it at once.
        entry_of: Returns the entry that records an answer.
        late: Returns the entry that records the end of its time.
        take_back: Called when the refusal of the call is recorded.
        key: Of the answer that counts instead, should it come before the end of the time is recorded.
        keep: Whether the answer stays for others who wait for it.
    """

    verb: str
    digest: str
    prepare: Callable[[], Awaitable[Wait | Answer | Exception]]
    entry_of: Callable[[Answer], _Entry]
    late: Callable[[], Awaitable[_Entry]] | None = None
    take_back: Callable[[], None] | None = None
    key: str | None = None
    keep: bool = False


class Waits:
    """The waiting verbs of one execution of a run.

    Args:
        recorder: The execution.
        mail: The agent's waiting messages.
    """

    def __init__(self, recorder: Recorder, mail: Mail) -> None:
        self._run = recorder
        self._mail = mail
        self._active: dict[Branch, _Wait] = {}
        self._open: dict[Branch, _Wait] = {}
        """Also those that look, just now, whether what they wait for is there."""

    # --- verbs ----------------------------------------------------------------------------------

    async def until(self, at: datetime | None, *, verb: str, seconds: float = 0.0) -> None:
        """Return when `at` (or `seconds` from now, decided once) has come; never early."""
        run = self._run
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        seconds = check_s(f"the time of ctx.{verb}", seconds)
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
        await run.turnstile.begin(branch, verb)
        fired: _Entry = (K.TIMER_FIRED, position, {"at": at.isoformat()})
        await self._end(branch, _Wait(verb, at=at), lambda _: fired)

    async def signal(self, name: str) -> JsonValue:
        """Return the payload of the oldest signal of this name."""
        run, verb = self._run, "sleep_until_signal"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        check_name_of("name of a signal", name)
        refuse_reserved(name)
        digest = args_hash(["signal", name])
        place = run.meet(position, (K.SIGNAL_RECEIVED,), f"signal {name}", digest)
        if place is not None and place.end is not None:
            await run.turnstile.turn_for(branch, place.end.seq, verb)
            return place.end.payload["payload"]
        await run.turnstile.begin(branch, verb)

        def received(found: _Found) -> _Entry:
            assert found.signal is not None
            payload: dict[str, JsonValue] = {
                "name": name, "payload": found.signal.payload, "n": found.signal.n, "hash": digest,
            }  # fmt: skip
            return K.SIGNAL_RECEIVED, position, payload

        found = (await self._end(branch, _Wait(verb, signal=name), received)).found
        return found.signal.payload if found.signal is not None else None

    async def receive(self, timeout_s: float | None) -> Message | None:
        """Return the agent's next plain message, or None after `timeout_s` seconds."""
        run, verb = self._run, "receive"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        limit_s = 0.0 if timeout_s is None else check_s("timeout of ctx.receive", timeout_s)
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
            at = run.clock.now() + timedelta(seconds=limit_s)
            self._set_timer(position, at, digest, verb)
        await run.turnstile.begin(branch, verb)

        def received(found: _Found) -> _Entry:
            if found.mail is None:
                return K.TIMER_FIRED, position, {"at": at.isoformat() if at is not None else ""}
            return K.MSG_RECEIVED, position, {**message_payload(found.mail), "hash": digest}

        found = (await self._end(branch, _Wait(verb, at=at, mail=True), received)).found
        return found.mail.message.copied() if found.mail is not None else None

    async def answer(
        self, branch: Branch, position: str, wanted: AnswerWait
    ) -> tuple[int, Payload]:
        """Return the entry that ended a wait for an answer, with its seq; the branch has begun.

        Its kind says whether it is a refusal.
        """
        run = self._run

        def entry_of(found: _Found) -> _Entry:
            entry = found.entry
            if entry is None:
                assert found.answer is not None
                entry = wanted.entry_of(found.answer)
            if found.is_refusal and wanted.take_back is not None:
                wanted.take_back()
            if found.is_unasked and wanted.key is not None:
                end = LateEnd(wanted.key, entry[2], wanted.entry_of, wanted.keep)
                run.log.unless_answered(end)
            return entry

        def refused(exc: Exception) -> _Found:
            payload = refusal(wanted.verb, wanted.digest, exc)
            return _Found(entry=(K.EFFECT_RESULT, position, payload), is_refusal=True)

        wait = _Wait(wanted.verb, keep=wanted.keep)

        async def look() -> _Found | None:
            """What ends the wait without anything new: a refusal, what is known, the end of time."""
            exc = run.refusals.get(position)
            if exc is None and wait.row is None:
                known = await wanted.prepare()
                if isinstance(known, Exception):
                    exc = known
                elif isinstance(known, Answer):
                    return _Found(answer=known, is_unasked=True)
                else:
                    wait.row, wait.at = known, known.expires_at
            return refused(exc) if exc is not None else None

        async def late() -> _Found | None:
            """A last look comes before the end of its time is recorded."""
            run.answers.poke()
            await run.answers.refresh()
            if self._is_there(wait) or wanted.late is None:
                return None
            return _Found(entry=await wanted.late(), is_unasked=True)

        ended = await self._end(branch, wait, entry_of, look=look, late=late)
        return ended.seq, ended.payload

    # --- from outside ---------------------------------------------------------------------------

    def fail(self, position: str, exc: Exception) -> None:
        """Let the wait for an answer at `position` raise an error, which is recorded."""
        self._run.refusals[position] = exc
        self._poke(lambda wait: wait.row is not None and wait.row.position == position)

    def poke_mail(self) -> None:
        """The agent has new mail."""
        self._poke(lambda wait: wait.mail)

    def poke_signals(self) -> None:
        """The run has new signals."""
        self._run.signals.poke()
        self._run.answers.poke()
        self._poke(lambda wait: wait.signal is not None or wait.row is not None)

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
            runs=tuple(sorted({wait.row.key for wait in waits if wait.row is not None})),
        )

    def rows(self, *, resting: bool) -> tuple[Wait, ...]:
        """Return the waits that others can see, by position.

        Only those of a run at rest can close a circle, and only if nothing else can go on in it.
        """
        waits = self._open.values()
        rows = [wait.row for wait in waits if wait.row is not None]
        must = resting and len(rows) == len(waits) == len(self._active)
        must = must and not self._run.turnstile.is_selecting
        must = must and all(row.kind != "approval" for row in rows)
        return tuple(replace(row, must=must) for row in sorted(rows, key=_place))

    # --- waiting --------------------------------------------------------------------------------

    def _set_timer(self, position: str, at: datetime, digest: str, verb: str) -> None:
        payload: dict[str, JsonValue] = {"at": at.isoformat(), "hash": digest, "verb": verb}
        self._run.log.record(K.TIMER_SET, position, payload)

    async def _end(
        self,
        branch: Branch,
        wait: _Wait,
        entry_of: Callable[[_Found], _Entry],
        *,
        look: _Look | None = None,
        late: _Look | None = None,
    ) -> _Ended:
        ending = self._until_ended(branch, wait, entry_of, look=look, late=late)
        spans = self._run.spans
        if spans is None:
            return await ending
        with spans.waiting(wait.verb) as seen:
            try:
                ended = await ending
            finally:
                seen.names(wait.row)
            seen.ended(ended.found.mail, ended.payload)
        return ended

    async def _until_ended(
        self,
        branch: Branch,
        wait: _Wait,
        entry_of: Callable[[_Found], _Entry],
        *,
        look: _Look | None = None,
        late: _Look | None = None,
    ) -> _Ended:
        """Return what ended the wait, recorded and durable, when it is this branch's turn.

        A signal, message or answer is consumed only by a branch that goes on with it: see
        `Turnstile.take`. `look` and `late` find what ends it beside them, and at the end of its time.
        """
        run = self._run
        record = partial(self._record, branch, wait, entry_of)

        def on_turn() -> None:
            found = self._consume(wait)
            if found is not None:
                record(found)

        self._open[branch] = wait
        try:
            while wait.ended is None:
                if wait.signal is not None:
                    await run.signals.refresh()
                known = await look() if look is not None else None
                if wait.row is not None:
                    await run.answers.refresh()
                if known is not None:
                    record(known)
                elif self._is_there(wait):
                    is_own = wait.row is not None
                    await run.turnstile.take(branch, wait.verb, on_turn, together=is_own)
                elif wait.at is not None and run.clock.now() >= wait.at:
                    known = await late() if late is not None else _Found()
                    if known is not None:
                        record(known)
                else:
                    await self._pause(branch, wait)
                if wait.ended is not None:
                    await run.log.durable(branch, wait.ended.seq)
            await run.turnstile.await_turn(branch, wait.verb)
        except BaseException as exc:
            run.turnstile.interrupted(branch, wait.verb, exc)
            raise
        finally:
            self._open.pop(branch, None)
        return wait.ended

    def _record(
        self,
        branch: Branch,
        wait: _Wait,
        entry_of: Callable[[_Found], _Entry],
        found: _Found,
    ) -> None:
        """Record what ended a wait; nothing has, after all, if it was a message that has to wait."""
        run = self._run
        kind, position, payload = entry_of(found)
        seq = run.log.record(kind, position, payload)
        run.turnstile.queue_turn(branch, seq)
        self._open.pop(branch, None)
        if (mail := found.mail) is not None:
            key = MessageKey(mail.agent_id, mail.sender, mail.message.id)
            run.log.receive(key, position, partial(self._put_back, branch, wait, mail))
        wait.ended = _Ended(found, seq, payload)

    def _put_back(self, branch: Branch, wait: _Wait, mail: Arrived) -> None:
        """Wait on: an older message of its sender has to be read first."""
        self._mail.put_back(mail)
        if self._run.turnstile.go_on_working(branch):
            self._open[branch] = wait
            wait.ended = None

    async def _pause(self, branch: Branch, wait: _Wait) -> None:
        """Wait until somebody says that there may be something, or the time has come."""
        alarm = None
        if wait.at is not None:
            alarm = Alarm(self._run.clock, wait.at, partial(self._run.turnstile.woken, branch))
        looking = len(self._open) - len(self._active)
        if wait.row is not None and self._run.turnstile.working > looking:
            self._run.log.show_waits()  # else the run rests soon, which writes them anyway
        self._active[branch] = wait
        try:
            await self._run.turnstile.wake(branch, wait.verb)
        finally:
            self._active.pop(branch, None)
            if alarm is not None:
                alarm.cancel()

    def _is_there(self, wait: _Wait) -> bool:
        if wait.signal is not None:
            return self._run.signals.is_there(wait.signal)
        if wait.row is not None:
            return self._run.answers.is_there(wait.row.key)
        return wait.mail and self._mail.is_there()

    def _consume(self, wait: _Wait) -> _Found | None:
        if wait.signal is not None:
            signal = self._run.signals.take_now(wait.signal)
            return _Found(signal=signal) if signal is not None else None
        if wait.row is not None:
            answer = self._run.answers.take_now(wait.row.key, keep=wait.keep)
            return _Found(answer=answer) if answer is not None else None
        mail = self._mail.take()
        return _Found(mail=mail) if mail is not None else None


@dataclass(frozen=True, slots=True)
class _Found:
    signal: BufferedSignal | None = None
    mail: Arrived | None = None
    answer: Answer | None = None
    entry: _Entry | None = None
    """What is recorded as it is: the end of a time limit, or a refusal."""
    is_refusal: bool = False
    is_unasked: bool = False
    """Nobody answered: the time is over, or the run that was to be asked."""


class _Ended(NamedTuple):
    found: _Found
    seq: int
    payload: Payload


_Look: TypeAlias = "Callable[[], Awaitable[_Found | None]]"


def _place(wait: Wait) -> list[tuple[int, ...]]:
    return [
        tuple(int(part) for part in piece.split(".") if part) for piece in wait.position.split(":")
    ]


def refusal(verb: str, digest: str, exc: Exception) -> Payload:
    """Return the payload of the entry that keeps why a call could not be done."""
    return {"effect": verb, "hash": digest, "status": "error", "error": record_error(exc)}


def _instant(value: JsonValue) -> datetime:
    return datetime.fromisoformat(str(value)).astimezone(UTC)


def message_payload(arrived: Arrived) -> dict[str, JsonValue]:
    """Return the payload of the entry that says a message was received."""
    return {"message": arrived.message.to_json(), "arrival": arrived.arrival}


def message_of(payload: dict[str, JsonValue]) -> Message | None:
    """Return the message that such an entry holds, None for the end of a time limit."""
    data = payload.get("message")
    return Message.from_json(data) if isinstance(data, dict) else None
