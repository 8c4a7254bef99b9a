"""Waiting verbs: sleep, signals, messages, answers. Hot for a while, then the run is suspended and replayed.

`OpenWaits` has the waits of a run's branches, indexed by what ends them. The cost of finding the branch that
waits for a signal or an answer, and of adding or removing a wait, does not depend on their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.basics import check_s, instant_of
from actors._kernel.json import JsonValue, fresh
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import Arrived, BufferedSignal
from actors._kernel.runtime.waits import FROM_OUTSIDE, Answer, Wait, WakeSet
from actors._kernel.text import check_name_of
from actors._runtime.journal.write_set import LateEnd
from actors._runtime.loop.timers import Alarm
from actors._runtime.replay.branches import Branch
from actors._runtime.verbs.buffers import is_readable, refuse_reserved
from actors._runtime.verbs.call import Call, Entry, Payload, RunState
from actors.errors import ContractError


class MessageQueue(Protocol):
    """The waiting messages of one agent, in this process."""

    def first(self) -> Arrived | None:
        """Return what `take` would return."""

    def take(self) -> Arrived | None:
        """Remove and return the next one."""

    def put_back(self, arrived: Arrived) -> None:
        """Put a message back that may not be taken yet: an older one of its sender has to be read first."""


class Waits:
    """The waiting verbs of one execution of a run.

    Args:
        run: What its verbs share.
        mail: The agent's waiting messages.

    Attributes:
        holding_waits: The waits of `hold`.
    """

    def __init__(self, run: RunState, mail: MessageQueue) -> None:
        self._run = run
        self._mail = mail
        self.open_waits: OpenWaits = OpenWaits()
        self.paused: PausedWaits = self.open_waits.paused
        self.holding_waits: list[PendingWait] = []
        run.signals.on_found = self._signals_found
        run.answers.on_found = self._answers_found

    async def until(self, at: datetime | None, *, verb: str, seconds: float = 0.0) -> None:
        """Return when `at` (or `seconds` from now, decided once) has come; never early."""
        if at is not None:
            if at.tzinfo is None:
                msg = "ctx.sleep_until needs an aware datetime, for example from ctx.now()"
                raise ContractError(msg)
            at = instant_of(at)
        call = Call(self._run, verb)
        seconds = check_s(f"the time of ctx.{verb}", seconds)
        arguments: list[JsonValue] = ["sleep", seconds] if at is None else ["until", at.isoformat()]
        entry = call.meet((K.TIMER_SET, K.TIMER_FIRED), verb, arguments)
        if entry is not None:
            await call.in_order(entry)
            return
        at = _timer(call, seconds, at)
        await call.begin()
        timer_entry: Entry = (K.TIMER_FIRED, call.position, {"at": at.isoformat()})
        await self._end(PendingWait(call.branch, verb, at=at), lambda _: timer_entry)

    async def signal(self, name: str) -> JsonValue:
        """Return the payload of the oldest signal of this name."""
        call = Call(self._run, "sleep_until_signal")
        check_name_of("name of a signal", name)
        refuse_reserved(name)
        entry = call.meet((K.SIGNAL_RECEIVED,), f"signal {name}", ["signal", name])
        if entry is not None:
            await call.in_order(entry)
            return entry.payload["payload"]
        await call.begin()

        def entry_of(trigger: Trigger) -> Entry:
            assert trigger.signal is not None
            n, payload = trigger.signal.n, trigger.signal.payload
            return call.entry(K.SIGNAL_RECEIVED, {"name": name, "payload": payload, "n": n})

        result = await self._end(PendingWait(call.branch, call.verb, signal=name), entry_of)
        return fresh(result.payload["payload"])

    async def receive(self, timeout_s: float | None) -> Message | None:
        """Return the agent's next plain message, or None after `timeout_s` seconds."""
        run, call = self._run, Call(self._run, "receive")
        limit_s = 0.0 if timeout_s is None else check_s("timeout of ctx.receive", timeout_s)
        kinds = (K.MSG_RECEIVED, K.TIMER_SET, K.TIMER_FIRED)
        entry = call.meet(kinds, call.verb, ["receive", timeout_s])
        if entry is not None:
            await call.in_order(entry)
            message = message_of(entry.payload)
            if message is not None:
                run.give(message)
            return message
        at = None if timeout_s is None else _timer(call, limit_s)
        await call.begin()

        def entry_of(trigger: Trigger) -> Entry:
            if trigger.mail is not None:
                return call.entry(K.MSG_RECEIVED, message_payload(trigger.mail))
            return K.TIMER_FIRED, call.position, {"at": at.isoformat() if at is not None else ""}

        wait = PendingWait(call.branch, call.verb, at=at, mail=True)
        trigger = (await self._end(wait, entry_of)).trigger
        if trigger.mail is None:
            return None
        run.give(trigger.mail.message)
        return trigger.mail.message.copied()

    async def answer(self, answer_wait: AnswerWait) -> tuple[int, Payload]:
        """Return the entry that ended a wait for an answer, with its seq; the call has begun.

        Its payload says whether it is a refusal, and is a copy.
        """
        run, call = self._run, answer_wait.call
        wait = PendingWait(call.branch, call.verb, keep=answer_wait.keep)

        def entry_of(trigger: Trigger) -> Entry:
            entry = trigger.entry
            if entry is None:
                assert trigger.answer is not None
                entry = answer_wait.entry_of_answer(trigger.answer)
            if trigger.is_refusal:
                answer_wait.take_back()
            if trigger.is_unasked and answer_wait.key is not None:
                end = LateEnd(
                    answer_wait.key, entry[2], answer_wait.entry_of_answer, answer_wait.keep
                )
                run.log.writes.unless_answered.append(end)
            return entry

        async def poll() -> Trigger | None:
            """Return what ends the wait without a new event: a refusal, a known answer, the end of time."""
            exc = run.refusals.get(call.position)
            if exc is None and wait.row is None:
                outcome = await answer_wait.prepare()
                if isinstance(outcome, Exception):
                    exc = outcome
                elif isinstance(outcome, Answer):
                    return Trigger(answer=outcome, is_unasked=True)
                else:
                    wait.at = outcome.expires_at
                    self.open_waits.show(wait, outcome)
            if exc is None:
                return None
            return Trigger(entry=call.entry(K.EFFECT_RESULT, call.refusal(exc)), is_refusal=True)

        async def poll_at_end() -> Trigger | None:
            """Poll once more before the end of the time is recorded: an answer that is there by then counts."""
            run.answers.invalidate()
            await run.answers.refresh()
            if self._has_event(wait):
                return None
            return Trigger(entry=await answer_wait.entry_of_timeout(), is_unasked=True)

        result = await self._end(wait, entry_of, poll=poll, last_poll=poll_at_end)
        return result.seq, fresh(result.payload)

    async def hold(
        self,
        wait: PendingWait,
        may_go: Callable[[], bool],
        hold_entry: Entry,
        entry_of_signal: Callable[[BufferedSignal], Entry],
    ) -> BufferedSignal | None:
        """Return None when `may_go()`, asked when its branch is woken, or a signal that the wait is for.

        The end is recorded as `hold_entry`, or as what `entry_of_signal` returns.
        """

        async def poll() -> Trigger | None:
            return Trigger(entry=hold_entry) if may_go() else None

        self.holding_waits.append(wait)
        try:
            end = lambda trigger: entry_of_signal(trigger.signal) if trigger.signal else hold_entry  # noqa: E731
            return (await self._end(wait, end, poll=poll)).trigger.signal
        finally:
            self.holding_waits.remove(wait)

    def fail(self, position: str, exc: Exception) -> None:
        """Let the wait for an answer at `position` raise an error, which is recorded."""
        self._run.refusals[position] = exc
        self._wake(self.open_waits.at(position))

    def notify_mail(self) -> None:
        """Note that the agent has new messages."""
        self._wake(self.paused.first("mail"))

    def notify_signals(self) -> None:
        """Note that the run has new signals, or answers: one branch reads for all."""
        self._run.signals.invalidate()
        self._run.answers.invalidate()
        self._wake(self.paused.first("signal"))
        self._wake(self.paused.first("answer"))

    def _signals_found(self, counts: Iterable[tuple[str, int]]) -> None:
        for wait in self.paused.for_signals(counts):
            self._wake(wait)

    def _answers_found(self, keys: Iterable[str]) -> None:
        for wait in self.paused.for_answers(keys):
            self._wake(wait)

    def detach(self) -> None:
        """End all notifications: the execution is over, and would be kept in memory by them."""
        self._run.signals.detach()
        self._run.answers.detach()

    def _wake(self, wait: PendingWait | None) -> None:
        if wait is not None:
            self._run.scheduler.woken(wait.branch)

    def _leave(self, wait: PendingWait) -> None:
        """Forget a wait; if its branch was interrupted, let another one poll or take instead."""
        run = self._run
        self.open_waits.close(wait)
        if wait.result is not None or run.scheduler.live.unwinding is not None:
            return
        if (name := wait.signal) is not None:
            if run.signals.is_current:
                self._signals_found([(name, run.signals.count(name))])
            else:
                self._wake(self.paused.first("signal"))
        elif wait.row is not None and not run.answers.is_current:
            self._wake(self.paused.first("answer"))
        elif wait.mail:
            self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._mail.first() is not None:
            self._wake(self.paused.first("mail"))

    def rows(self, idle: bool) -> tuple[Wait, ...]:
        """Return the waits that others can see, by position.

        Only those of a run that waits can close a cycle, and only if nothing else can go on in it.
        """
        return self.open_waits.rows(must=idle and not self._run.scheduler.groups.is_selecting)

    async def _end(
        self,
        wait: PendingWait,
        entry_of: _EntryOf,
        *,
        poll: _Poll | None = None,
        last_poll: _Poll | None = None,
    ) -> WaitResult:
        ending = self._until_ended(wait, entry_of, poll=poll, last_poll=last_poll)
        spans = self._run.spans
        if spans is None:
            return await ending
        with spans.waiting(wait.verb) as wait_span:
            try:
                result = await ending
            finally:
                wait_span.note_target(wait.row)
            wait_span.note_end(result.trigger.mail, result.payload)
        return result

    async def _until_ended(
        self, wait: PendingWait, entry_of: _EntryOf, *, poll: _Poll | None, last_poll: _Poll | None
    ) -> WaitResult:
        """Return what ended the wait, recorded and durable, when this branch is next to go on.

        A signal, message or answer is consumed only by a branch that goes on with it: see
        `BranchScheduler.take`. `poll` finds what else ends the wait, `last_poll` the end of its time.
        """
        run, branch = self._run, wait.branch

        def on_taken() -> None:
            consumed_trigger = self._consume(wait)
            if consumed_trigger is not None:
                self._record(wait, entry_of(consumed_trigger), consumed_trigger)

        self.open_waits.open(wait)
        try:
            while wait.result is None:
                if wait.signal is not None:
                    await run.signals.refresh()
                trigger = await poll() if poll is not None else None
                if wait.row is not None:
                    await run.answers.refresh()
                if trigger is None and self._has_event(wait):
                    is_own = wait.row is not None
                    await run.scheduler.take(branch, wait.verb, on_taken, together=is_own)
                elif trigger is None and wait.at is not None and run.clock.now() >= wait.at:
                    trigger = await last_poll() if last_poll is not None else Trigger()
                elif trigger is None:
                    await self._pause(wait)
                if trigger is not None:
                    self._record(wait, entry_of(trigger), trigger)
                # A branch that is alone need not wait for an input to be durable: if a crash keeps it from the
                # log, it is given again, or something instead of it.
                if wait.result is not None and not branch.has_input:
                    await run.log.durable(branch, wait.result.seq)
            await run.scheduler.await_resume(branch, wait.verb)
        # Also a cancellation and an eviction: without this the scheduler would count the branch as working for
        # ever.
        except BaseException as exc:
            run.scheduler.live.interrupted(branch, wait.verb, exc)
            raise
        finally:
            self._leave(wait)
        return wait.result

    def _record(self, wait: PendingWait, entry: Entry, trigger: Trigger) -> None:
        """Record what ended a wait; nothing has, after all, if it was a message that has to wait."""
        run = self._run
        seq = run.log.record(*entry)
        run.scheduler.queue_resume(wait.branch, seq, is_input=trigger.is_input)
        self.open_waits.close(wait)
        if (mail := trigger.mail) is not None:
            key = MessageKey(mail.agent_id, mail.sender, mail.message.id)
            run.log.writes.bind.append(key)
            put_back = partial(self._put_back, wait, mail)
            run.log.amendments.received_messages[key] = entry[1], put_back
        wait.result = WaitResult(trigger, seq, entry[2])

    def _put_back(self, wait: PendingWait, mail: Arrived) -> None:
        """Wait on: an older message of its sender has to be read first."""
        self._mail.put_back(mail)
        if self._run.scheduler.go_on_working(wait.branch):
            self.open_waits.open(wait)
            # Taken back before anything was given to the code: the branch waits on as if nothing had come.
            wait.result = None

    async def _pause(self, wait: PendingWait) -> None:
        """Wait until a notification that there may be something, or the time has come."""
        scheduler, alarm = self._run.scheduler, None
        # An alarm of the clock, not a timer of the loop: the clock of the store may jump.
        if wait.at is not None:
            alarm = Alarm(self._run.clock, wait.at, partial(scheduler.woken, wait.branch))
        if wait.row is not None and scheduler.live.working > self.open_waits.polling_count:
            self._run.log.show_waits()  # else the run is suspended soon, which writes them anyway
        self.paused.add(wait)
        try:
            await scheduler.wake(wait.branch, wait.verb)
        finally:
            self.paused.remove(wait)
            if alarm is not None:
                alarm.cancel()

    def _has_event(self, wait: PendingWait) -> bool:
        if wait.signal is not None:
            return is_readable(self._run.log, self._run.signals.first(wait.signal))
        if wait.row is not None:
            return is_readable(self._run.log, self._run.answers.first(wait.row.key))
        return wait.mail and is_readable(self._run.log, self._mail.first())

    def _consume(self, wait: PendingWait) -> Trigger | None:
        if wait.signal is not None:
            signal = self._run.signals.take_now(wait.signal)
            return Trigger(signal=signal) if signal is not None else None
        if wait.row is not None:
            answer = self._run.answers.take_now(wait.row.key, keep=wait.keep)
            return Trigger(answer=answer) if answer is not None else None
        mail = self._mail.take()
        self._wake_receiver()
        return Trigger(mail=mail) if mail is not None else None


_EntryOf: TypeAlias = "Callable[[Trigger], Entry]"
_Poll: TypeAlias = "Callable[[], Awaitable[Trigger | None]]"


def _timer(call: Call, seconds: float, at: datetime | None = None) -> datetime:
    """Return when a wait ends: `at`, or so many seconds from now."""
    # The instant that an earlier execution has set: the wait goes on, and does not begin anew.
    if call.begin_entry is not None:
        return instant_in(call.begin_entry.payload["at"])
    at = at or call.run.clock.now() + timedelta(seconds=seconds)
    call.record(K.TIMER_SET, {"at": at.isoformat(), "verb": call.verb})
    return at


def instant_in(value: JsonValue) -> datetime:
    """Return the instant that an entry holds."""
    return datetime.fromisoformat(str(value)).astimezone(UTC)


def message_payload(arrived: Arrived) -> Payload:
    """Return the payload of the entry that says a message was received."""
    return {"message": arrived.message.to_json(), "arrival": arrived.arrival}


def message_of(payload: Payload) -> Message | None:
    """Return the message that such an entry holds, None for the end of a time limit."""
    data = payload.get("message")
    return Message.from_json(data) if isinstance(data, dict) else None


_OrderKey: TypeAlias = "list[tuple[int, ...]]"
Source: TypeAlias = Literal["signal", "answer", "mail"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """The event that ends a wait."""

    signal: BufferedSignal | None = None
    mail: Arrived | None = None
    answer: Answer | None = None
    entry: Entry | None = None
    """Entry that is recorded as it is: the end of a time limit, or a refusal."""
    is_refusal: bool = False
    is_unasked: bool = False
    """True if no agent answered: the time is over, or the run that was to be asked has ended."""

    @property
    def is_input(self) -> bool:
        """True if the branch continues before the event is durable: the store writes it as it is, or nothing.

        A message may have to wait for an older one, and an answer may come before the end of its time.
        """
        return self.mail is None and not self.is_unasked


class WaitResult(NamedTuple):
    """The event that ended a wait, and its entry."""

    trigger: Trigger
    seq: int
    payload: Payload


@dataclass(slots=True, eq=False)
class PendingWait:
    """The wait of one branch.

    Attributes:
        row: What an answer ends, as others see it; set by `OpenWaits.show`.
        keep: Whether the answer stays for others who wait for it.
        n: Grows with each wait that paused for the first time.
        order_key: Its position in the run, by which rows are sorted.
    """

    branch: Branch
    verb: str
    at: datetime | None = None
    signal: str | None = None
    mail: bool = False
    row: Wait | None = None
    keep: bool = False
    result: WaitResult | None = None
    n: int = -1
    order_key: _OrderKey = field(default_factory=list)

    @property
    def source(self) -> tuple[Source, str] | None:
        """The source of the awaited event, or None if it is the clock alone."""
        if self.signal is not None:
            return "signal", self.signal
        if self.row is not None:
            return "answer", self.row.key
        return ("mail", "") if self.mail else None


class AnswerWait:
    """A wait that an answer ends.

    Attributes:
        key: Key of the answer that replaces the end of the time, if it comes before that end is recorded.
        keep: Whether the answer stays for others who wait for it.
    """

    call: Call
    run: RunState

    key: str | None = None
    keep = False

    def __init__(self, call: Call) -> None:
        self.call, self.run = call, call.run

    async def prepare(self) -> Wait | Answer | Exception:
        """Return the wait as others see it, or the answer or error that ends it at once."""
        raise NotImplementedError

    def entry_of_answer(self, answer: Answer) -> Entry:
        """Return the entry that records an answer."""
        raise NotImplementedError

    async def entry_of_timeout(self) -> Entry:
        """Return the entry that records the end of its time."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Note that the refusal of the call is recorded."""


class PausedWaits:
    """The waits for which nothing is there that ends them, by where that comes from."""

    __slots__ = ("_by_source", "_first_pauses", "_waits")

    def __init__(self) -> None:
        self._waits: set[PendingWait] = set()
        self._first_pauses = 0
        self._by_source: dict[Source, dict[str, list[PendingWait]]]
        self._by_source = {"signal": {}, "answer": {}, "mail": {}}

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: PendingWait) -> None:
        """Add a paused wait: nothing that ends it is there."""
        if wait.n < 0:
            wait.n = self._first_pauses
            self._first_pauses += 1
        self._waits.add(wait)
        if wait.source is not None:
            kind, name = wait.source
            insort(self._by_source[kind].setdefault(name, []), wait, key=_n_of)

    def remove(self, wait: PendingWait) -> None:
        """Remove a wait that polls again, or was broken off."""
        self._waits.remove(wait)
        if wait.source is not None:
            kind, name = wait.source
            waits = self._by_source[kind][name]
            del waits[bisect_left(waits, wait.n, key=_n_of)]
            if not waits:
                del self._by_source[kind][name]

    def first(self, kind: Source) -> PendingWait | None:
        """Return one that pauses for this: for messages the first, else any."""
        waits_by_name = self._by_source[kind]
        return next(iter(waits_by_name.values()))[0] if waits_by_name else None

    def for_signals(self, counts: Iterable[tuple[str, int]]) -> list[PendingWait]:
        """Return the branches that can take signals of these names, given their counts, in order."""
        waits = self._by_source["signal"]
        return sorted((w for name, n in counts for w in waits.get(name, ())[:n]), key=_n_of)

    def for_answers(self, keys: Iterable[str]) -> list[PendingWait]:
        """Return the branches that wait for answers with these keys, in order."""
        waits = self._by_source["answer"]
        return sorted((w for key in keys for w in waits.get(key, ())), key=_n_of)

    def wake_set(self) -> WakeSet:
        """Return everything that they wait for."""
        return WakeSet(
            at=min((wait.at for wait in self._waits if wait.at is not None), default=None),
            signals=tuple(sorted(self._by_source["signal"])),
            message=bool(self._by_source["mail"]),
            runs=tuple(sorted(self._by_source["answer"])),
        )


class OpenWaits:
    """The open waits of one execution.

    Attributes:
        paused: Those of them that pause.
    """

    def __init__(self) -> None:
        self.paused: PausedWaits = PausedWaits()
        self._open: set[PendingWait] = set()
        self._visible_waits: list[PendingWait] = []
        """The open waits that have a row, by position."""
        self._by_position: dict[str, PendingWait] = {}
        self._outside_count = 0
        self._rows: dict[bool, tuple[Wait, ...]] = {}
        """Results of `rows` since the last change, by `must`."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, wait: PendingWait) -> None:
        """Take in a wait that begins, or goes on."""
        self._open.add(wait)

    def show(self, wait: PendingWait, row: Wait) -> None:
        """Let others see an open wait as this row."""
        wait.row = row
        wait.order_key = [
            tuple(int(part) for part in piece.split(".") if part)
            for piece in row.position.split(":")
        ]
        insort(self._visible_waits, wait, key=_order_key_of)
        self._by_position[row.position] = wait
        self._outside_count += row.kind in FROM_OUTSIDE
        self._rows.clear()

    def close(self, wait: PendingWait) -> None:
        """Forget a wait that is over, if that was not done."""
        # A wait is closed when its end is recorded, and again when its branch leaves it.
        if wait not in self._open:
            return
        self._open.remove(wait)
        if wait.row is not None:
            del self._visible_waits[
                bisect_left(self._visible_waits, wait.order_key, key=_order_key_of)
            ]
            del self._by_position[wait.row.position]
            self._outside_count -= wait.row.kind in FROM_OUTSIDE
            self._rows.clear()

    @property
    def polling_count(self) -> int:
        """The number of branches that check, just now, whether their event has happened."""
        return len(self._open) - len(self.paused)

    def at(self, position: str) -> PendingWait | None:
        """Return the open wait for an answer at this position."""
        return self._by_position.get(position)

    def rows(self, *, must: bool) -> tuple[Wait, ...]:
        """Return what others see, by position; whether the run can do nothing else is given.

        The same tuple, until something changes.
        """
        must = must and len(self._visible_waits) == len(self._open) == len(self.paused)
        must = must and not self._outside_count
        # A cache: every flush asks, and with many waits the tuple would be made anew each time.
        if must not in self._rows:
            rows = [wait.row for wait in self._visible_waits if wait.row is not None]
            if must and rows:
                rows[0] = replace(rows[0], must=True)
            self._rows[must] = tuple(rows)
        return self._rows[must]


_n_of: Callable[[PendingWait], int] = attrgetter("n")
_order_key_of: Callable[[PendingWait], _OrderKey] = attrgetter("order_key")
