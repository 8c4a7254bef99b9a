"""Plays dialogues on hosts that crash, and compares all visible state with the model.

Many dialogues can be played at the same time: a host crashes when each of them has come to a crash,
or to its end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import actors.sessions
from actors._kernel.stores.errors import UnknownSessionError
from actors.errors import ActorsError
from actors.sessions import UserMessage
from tests.model.dialogue import ABOUT_DEATHS, ROOT, Dialogue, Segment, Told, read_by
from tests.model.dialogue_program import FOREIGN
from tests.model.dialogue_reader import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors.sessions import AgentRuntime, SessionEvent, SessionRun
    from tests.model.dialogue import Event, Run
    from tests.model.dialogue_program import Act, Dialogues
    from tests.model.dialogue_stage import Stage

Perform: TypeAlias = "Callable[[], Awaitable[Any]]"

_NEVER: Final = object()
REST_S: Final = 0.2
"""Virtual seconds after which all runs wait or have ended."""
PATIENCE_S: Final = 15.0
"""Real seconds after which a missing event is an error."""
LONG_REST_S: Final = 5.0
"""Virtual seconds that a host may need to continue after a crash."""
LOOKS: Final = 3
"""Number of cursors from which the rest is read again, at the end."""


@dataclass
class Play:
    """One play of one program.

    Attributes: program: The program. stage: Its stage. name: Prefix of the ids of its sessions, and
    its labels. wrong: The differences from the model.
    """

    program: Dialogues
    stage: Stage
    name: str = "d"
    wrong: list[str] = field(default_factory=list)
    are_marks_known: bool = field(init=False)
    are_requests_known: bool = field(init=False)
    labels: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    eras: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of each label: its session, and its era there."""
    _sent: defaultdict[str, list[tuple[Told, str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        drops = self.stage.bed.drops
        crashes = sum(act.what == "crash" for act in self.program.acts)
        # An heir marks what the dead host may have executed, which the model does not know exactly.
        self.are_marks_known = self.stage.dies_at is None and not crashes
        # From the second crash on, suspects execute one at a time.
        self.are_requests_known = self.stage.dies_at is None and crashes < 2
        self.model = {
            f"{self.name}{n}": Dialogue(
                drops, cuts=set() if self.program.is_plain else None, resumes=self.are_marks_known
            )
            for n in range(3)
        }
        self.watches = [Watch(reader) for reader in self.program.readers]
        self.was_on: set[tuple[int, str, int]] = set()

    async def play(self) -> list[str]:
        """Play it, and return the differences."""
        try:
            for n, act in enumerate(self.program.acts):
                await self._let_come()
                await self._do(n, act)
                if self.wrong:
                    break
            await self._look()
        finally:
            for watch in self.watches:
                await watch.go()
            await self.stage.leave()
        return self.wrong

    def session(self, n: int) -> str:
        """Return the id of a session."""
        return f"{self.name}{n}"

    async def _let_come(self, *, at_last: bool = False) -> None:
        for watch in self.watches:
            if watch.is_on:
                if not at_last:
                    continue
                await self._rest()
                await watch.go()
            if at_last or watch.is_due():
                session = self.session(watch.reader.session)
                await self._learn(session)
                is_old = self._is_old(watch, session)
                talks = await self.stage.talks(watch.reader.who)
                watch.come(talks, session, at_last=at_last)
                if is_old:
                    await self._until(lambda watch=watch: watch.was_lost)
                    if not watch.was_lost:
                        self.wrong.append(f"a cursor of before a deletion is taken: {watch}")
                    watch.come(talks, session, at_last=at_last)

    def _is_old(self, watch: Watch, session: str) -> bool:
        """Return whether the last event of a reader was deleted with its session."""
        if watch._cursor is None:
            return False
        era = self.eras[self.labels[watch.seen[-1].run_id]][1]
        return era < len(self.model[session].eras) - 1

    async def _do(self, n: int, act: Act) -> None:
        """Execute an act, and let the host crash meanwhile at the faults.

        Readers have read everything before a deletion: a concurrent reader may get a part of it.
        """
        if act.what == "delete":
            await self._rest()
            await self._until_read(act.session)
        predicted, perform = await self._prepared(n, act)
        dies = self.stage.dies_at == n
        if dies:
            self.stage.is_armed = True
            observed, has_died = await self._until_death(perform)
            self.stage.is_armed = False
            if has_died:
                await self._crash_now()
                if observed is _NEVER:
                    observed = await perform()
                if self.stage.bed.backend == "memory":
                    await asyncio.sleep(LONG_REST_S)
            if act.what == "delete" and not str(predicted).endswith("Error"):
                observed = predicted  # the rest for the second call is open
        else:
            observed = await perform()
        if predicted != observed:
            self.wrong.append(f"act {n}: {observed}, and not {predicted}")
        await self._rest()

    async def _until_death(self, perform: Perform) -> tuple[Any, bool]:
        """Return the outcome, or `_NEVER`; and whether the host crashed before all runs waited or had ended."""
        died = asyncio.ensure_future(self.stage.died.wait())
        observed: Any = _NEVER
        for work in (perform, partial(self._rest, may_be_late=True)):
            task = asyncio.ensure_future(work())
            await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                return observed, True
            observed = task.result() if observed is _NEVER else observed
        died.cancel()
        return observed, self.stage.died.is_set()

    async def _prepared(self, n: int, act: Act) -> tuple[Any, Perform]:
        """Update the model; return its prediction, and the call of the act."""
        match act.what:
            case "start" | "again":
                return await self._start(n, act)
            case "cancel":
                return await self._cancel(act)
            case "go":
                return await self._let_go(act)
            case "crash":
                return None, self._crash
        session = self.session(act.session)
        return await (self._switch if act.what == "switch" else self._delete)(session, act)

    async def _start(self, n: int, act: Act) -> tuple[Any, Perform]:
        session = self.session(act.session)
        dialogue = self.model[session]
        await self._learn(session)
        if act.what == "again":
            sent = self._sent[session]
            if not sent:
                return None, _nothing
            client_message, conflict, predicted = sent[act.n % len(sent)]
            if predicted != client_message.label and self.stage.bed.backend != "memory":
                return None, _nothing  # the run that a message is said to have joined is open there
        else:
            label = f"{self.name}.{n}"
            client_message, conflict = (
                Told(label, act.kind, f"c{act.who}", act.parent),
                act.conflict,
            )
            predicted = dialogue.start(client_message, conflict)
            if not predicted.endswith("Error"):
                sent = self._sent[session]
                sent.append((client_message, conflict, predicted))
        self.eras.update({run: (session, len(dialogue.eras) - 1) for run in dialogue.runs})
        node = (
            None
            if client_message.parent is None
            else await self._node(session, client_message.parent)
        )
        return predicted, partial(self._send, session, client_message, conflict, node)

    async def _send(
        self, session: str, client_message: Told, conflict: Any, node: str | None
    ) -> str:
        talks = await self.stage.talks(int(client_message.sender[1:]))
        message = UserMessage(
            content=UserMessage.of(client_message.text).content, id=client_message.label
        )
        mode = {"signal": "wait", "child": "boss"}.get(client_message.kind, "normal")
        try:
            run = await talks.start(
                message, session_id=session, mode=mode, parent_node=node, on_conflict=conflict
            )
        except ActorsError as exc:
            return type(exc).__name__
        return self.labels.setdefault(run.run_id, client_message.label)

    async def _node(self, session: str, n: int) -> str:
        if n == ROOT:
            return actors.sessions.ROOT
        talks = await self.stage.talks(0)
        agent = talks.agent_id(session)
        turns = await talks.runtime.store.data.transcripts.page(agent, session, branches=True)
        if n < len(turns):
            return turns[n].id
        foreign = [
            turn.id for other in self.model if other != session for turn in await talks.path(other)
        ]
        return foreign[0] if foreign else "none"

    async def _cancel(self, act: Act) -> tuple[Any, Perform]:
        runs = [run for dialogue in self.model.values() for run in dialogue.open_runs]
        runs = runs or [run for dialogue in self.model.values() for run in dialogue.runs.values()]
        if not runs:
            return None, _nothing
        run = runs[act.n % len(runs)]
        session = next(name for name, dialogue in self.model.items() if run.label in dialogue.runs)
        predicted = (self.model[session].cancel(run), True)

        async def cancel() -> tuple[str, bool]:
            handle = await self._handle(session, run, act.who)
            done = await handle.cancel(timeout_s=PATIENCE_S)
            return done.status, done.has_ended

        return predicted, cancel

    async def _handle(self, session: str, run: Run, who: int) -> SessionRun:
        await self._learn(session)
        run_id = next(id_ for id_, label in self.labels.items() if label == run.label)
        return await (await self.stage.talks(who)).run(run_id)

    async def _let_go(self, act: Act) -> tuple[Any, Perform]:
        waiting = [name for name, dialogue in self.model.items() if dialogue.active is not None]
        if not waiting:
            return None, _nothing
        session = waiting[act.n % len(waiting)]
        run, approve = self.model[session].active, act.n % 2 == 0
        assert run is not None
        waits = run.waits
        await self._learn(session)
        self.model[session].let_go(approve=approve)

        async def let_go() -> None:
            handle = await self._handle(session, run, act.who)
            runtime = handle._runtime
            if waits == "gate":
                self.stage.speaker.gate(run.messages[-1].text).set()
            elif waits == "signal":
                await runtime.signal(handle.run_id, "go", message_id=f"go {run.label}")
            elif waits == "child":
                child = (await handle.children())[-1]
                await runtime.signal(child, "go", message_id=f"go {run.label}")
            else:
                for approval in await runtime.approvals.open(run_id=handle.run_id):
                    await runtime.approvals.decide(approval.id, approve=approve, by="person")

        return None, let_go

    async def _crash(self) -> None:
        await self._crash_now()
        for dialogue in self.model.values():
            dialogue.crash()

    async def _crash_now(self) -> None:
        for watch in self.watches:
            if watch.reader.who % 2 == 0:
                await watch.go()
        await self.stage.crash()

    async def _switch(self, session: str, act: Act) -> tuple[Any, Perform]:
        dialogue = self.model[session]
        number = act.n if act.n < len(dialogue.nodes) else FOREIGN
        node = await self._node(session, number)

        async def switch() -> str:
            talks = await self.stage.talks(act.who)
            try:
                await talks.switch_context(session, node)
            except ActorsError as exc:
                return type(exc).__name__
            return "ok"

        return dialogue.switch(number), switch

    async def _delete(self, session: str, act: Act) -> tuple[Any, Perform]:
        await self._learn(session)
        dialogue = self.model[session]
        era = len(dialogue.eras) - 1
        predicted = dialogue.delete()
        if not predicted.endswith("Error"):
            self._sent[session].clear()
            self.was_on |= {
                (n, session, era)
                for n, watch in enumerate(self.watches)
                if watch.reader.session == act.session and watch.is_settled and watch.is_on
            }

        async def delete() -> str:
            talks = await self.stage.talks(act.who)
            try:
                report = await talks.delete_session(session)
            except ActorsError as exc:
                return type(exc).__name__
            rows, turns = report["sessions"]["rows"], report["conversations"].get("turns", 0)
            return f"{rows} rows, {turns} turns"

        return predicted, delete

    async def _learn(self, session: str) -> None:
        """Give runs of messages their labels, and nodes their numbers."""
        store, dialogue = self.stage.bed.runtime.store, self.model[session]
        agent = (await self.stage.talks(0)).agent_id(session)
        self.eras.update({run: (session, len(dialogue.eras) - 1) for run in dialogue.runs})
        new = iter([label for label in dialogue.runs if label not in self.labels.values()])
        for fact in await store.data.sessions.facts(agent):
            if fact.run_id not in self.labels:
                self.labels[fact.run_id] = next(new, "?")
        turns = await store.data.transcripts.page(agent, session, branches=True)
        self.numbers.update({turn.id: n for n, turn in enumerate(turns)})

    async def _rest(self, *, may_be_late: bool = False) -> None:
        """Return when everything is as predicted, or when nothing changes any more."""
        if self.stage.bed.backend == "memory":
            await asyncio.sleep(REST_S)
            for watch in self.watches:
                watch.is_settled = watch.is_on
            return
        for session, dialogue in self.model.items():
            if dialogue.is_there:
                event_count = sum(
                    len(segment.entries) + len(segment.facts) for segment in dialogue.eras[-1]
                )
                await self._until_asked(dialogue)
                await self._until_seen(
                    session, event_count, len(dialogue.facts), may_be_late=may_be_late
                )

    async def _until_read(self, session: int) -> None:
        """Return when readers of a session have all present events."""
        name, era = self.session(session), len(self.model[self.session(session)].eras) - 1
        event_count = sum(
            len(segment.entries) + len(segment.facts) for segment in self.model[name].eras[-1]
        )
        await self._learn(name)
        for watch in self.watches:
            if watch.reader.session == session:
                await self._until(
                    lambda w=watch: not w.is_on or len(self._of(w, era)) >= event_count
                )

    async def _until_asked(self, dialogue: Dialogue) -> None:
        """Return when the model was called as often as predicted."""
        counts = self.stage.speaker.request_counts
        if self.are_requests_known:
            await self._until(
                lambda: all(counts[text] >= n for text, n in dialogue.request_counts.items())
            )

    async def _until_seen(
        self, session: str, event_count: int, facts: int, *, may_be_late: bool
    ) -> None:
        talks = await self.stage.talks(0)
        agent, sessions = talks.agent_id(session), talks.runtime.store.data.sessions
        limit = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < limit:
            if len(await sessions.facts(agent)) >= facts:
                seen = [event async for event in talks.replay_session(session)]
                if len(seen) >= event_count:
                    return
            await asyncio.sleep(0.005)
        if not may_be_late:
            self.wrong.append(f"{session} does not come to {event_count} events and {facts} facts")

    async def _until(self, holds: Any) -> None:
        limit = asyncio.get_running_loop().time() + PATIENCE_S
        while not holds() and asyncio.get_running_loop().time() < limit:  # noqa: ASYNC110 - of readers
            await asyncio.sleep(0.01)

    async def _look(self) -> None:
        """Compare everything."""
        if not self.wrong:
            await self._let_come(at_last=True)
        for session, dialogue in self.model.items():
            await self._learn(session)
            await self._look_at(session, dialogue)
            speaker = self.stage.speaker
            windows = {text: speaker.windows.get(text) for text in dialogue.windows}
            self._compare(session, "windows", dialogue.windows, windows)
            if self.are_requests_known:
                counts = {text: speaker.request_counts[text] for text in dialogue.request_counts}
                self._compare(session, "number of requests", dict(dialogue.request_counts), counts)
        for n, watch in enumerate(self.watches):
            session = self.session(watch.reader.session)
            last = self.model[session].eras[-1]
            if not self.wrong:
                event_count = sum(len(segment.entries) + len(segment.facts) for segment in last)
                era = len(self.model[session].eras) - 1
                await self._until(lambda w=watch, e=era, m=event_count: len(self._of(w, e)) >= m)
                await self._rest()
            self.wrong += [f"reader {n}: {problem}" for problem in watch.wrong]
            self._judge(n, watch, session)

    def _of(self, watch: Watch, era: int) -> list[Event]:
        events = self._convert_events(watch.seen)
        return [event for event in events if self.eras.get(event[1], ("", -1))[1] == era]

    def _judge(self, n: int, watch: Watch, session: str) -> None:
        eras = [self.eras.get(self.told_of(event)[1], ("", -1)) for event in watch.seen]
        if any(e[0] != session for e in eras) or sorted(eras) != eras:
            self.wrong.append(f"reader {n} saw another session, or an old one: {eras}")
        segments = self.model[session].eras
        for era, segment in enumerate(segments):
            is_all = era == len(segments) - 1 or (n, session, era) in self.was_on
            problem = read_by(segment, self._of(watch, era), is_all=is_all and not self.wrong)
            if problem:
                self.wrong.append(f"reader {n} of {session}, era {era}: {problem}")

    def _convert_events(self, events: Sequence[SessionEvent]) -> list[Event]:
        """Return events in the model's form."""
        model_events = [self.told_of(event) for event in events]
        return [e for e in model_events if self.are_marks_known or e[0] not in ABOUT_DEATHS]

    def told_of(self, event: SessionEvent) -> Event:
        """Return an event in the model's form."""
        payload: dict[str, Any] = {**event.payload}
        detail: Any = None
        match event.type:
            case "message":
                number = self.numbers.get(event.node_id or "", event.node_id)
                detail = (payload["role"], payload["text"], number)
            case "run_waiting":
                detail = tuple(payload.get("signals", ()))
            case "run_failed":
                detail = payload["error"]["type"]
            case "run_cancelled" | "cancel_requested" if payload["reason"].startswith(
                "interrupted by "
            ):
                detail = "interrupted"
            case _ if event.type in _DETAIL:
                detail = payload[_DETAIL[event.type]]
        return event.type, self.labels.get(event.run_id, event.run_id), detail

    async def _look_at(self, session: str, dialogue: Dialogue) -> None:
        talks = await self.stage.talks(0)
        agent, store = talks.agent_id(session), talks.runtime.store
        facts = await store.data.sessions.facts(agent)
        found_facts = [(fact.kind, self.labels[fact.run_id], fact.ahead) for fact in facts]
        self._compare(session, "facts", dialogue.facts, found_facts)
        numbers = [dialogue.number + 1 + n for n in range(len(facts))]
        self._compare(session, "numbers of facts", numbers, [fact.number for fact in facts])
        await self._look_at_nodes(session, dialogue, talks)
        statuses = {run.label: run.status for run in dialogue.runs.values()}
        observed: dict[str, str] = {}
        for run_id, label in self.labels.items():
            if label in statuses:
                observed[label] = await (await talks.run(run_id)).refresh()
        self._compare(session, "statuses", statuses, observed)
        await self._look_at_events(session, dialogue.eras[-1], talks)
        for run in dialogue.runs.values():
            if not self.wrong and run.status not in ("queued", "running"):
                await self._look_at_run(session, dialogue, run)

    async def _look_at_nodes(self, session: str, dialogue: Dialogue, talks: AgentRuntime) -> None:
        agent, store = talks.agent_id(session), talks.runtime.store
        turns = await store.data.transcripts.page(agent, session, branches=True)
        nodes = await store.data.sessions.nodes(agent, [turn.id for turn in turns])
        found_nodes = [
            (
                node.message.role,
                node.message.text,
                None if node.parent is None else self.numbers.get(node.parent),
                self.labels.get(node.run_id),
            )
            for node in nodes
        ]
        predicted = [(n.role, n.text, n.parent, n.run) for n in dialogue.nodes]
        self._compare(session, "nodes", predicted, found_nodes)
        path = [self.numbers.get(node.id) for node in await talks.path(session)]
        self._compare(session, "path", dialogue.path(), path)
        try:
            row = await talks.session(session)
        except UnknownSessionError:
            self._compare(session, "existence", dialogue.is_there, False)
            return
        observed = (self.numbers.get(row.head or ""), row.open_runs, row.last_fact)
        last = dialogue.number + len(dialogue.facts)
        self._compare(session, "row", (dialogue.head, len(dialogue.open_runs), last), observed)

    async def _look_at_events(
        self, session: str, segments: list[Segment], talks: AgentRuntime
    ) -> None:
        stored = [event async for event in talks.replay_session(session)]
        if problem := read_by(segments, self._convert_events(stored)):
            self.wrong.append(f"{session}, as stored: {problem}")
        if len({event.event_id for event in stored}) < len(stored):
            self.wrong.append(f"{session}: two events have one id")
        step = max(len(stored) // LOOKS, 1)
        for n in range(len(stored) - 1, -1, -step):
            cursor = stored[n].event_id
            rest = [event async for event in talks.replay_session(session, cursor=cursor)]
            if problem := read_by(segments, self._convert_events([*stored[: n + 1], *rest])):
                self.wrong.append(f"{session}, behind {cursor}: {problem}")

    async def _look_at_run(self, session: str, dialogue: Dialogue, run: Run) -> None:
        handle = await self._handle(session, run, 0)
        own = [
            Segment(*([e for e in some if e[1] == run.label] for some in (era.entries, era.facts)))
            for era in dialogue.eras[-1]
        ]
        async with asyncio.timeout(PATIENCE_S):
            seen = [event async for event in handle.events() if event.event_id is not None]
        if problem := read_by(own, self._convert_events(seen)):
            self.wrong.append(f"events of {run.label} in {session}: {problem}")

    def _compare(self, session: str, what: str, predicted: Any, observed: Any) -> None:
        if predicted != observed:
            self.wrong.append(f"{what} of {session}:\n  model {predicted}\n  found {observed}")


async def _nothing() -> None:
    """Do nothing: the act has no target."""


_DETAIL: Final = {
    "run_queued": "ahead",
    "loop_started": "mode",
    "tool_started": "name",
    "tool_finished": "status",
    "approval_requested": "what",
    "approval_decided": "status",
    "child_finished": "status",
    "run_resumed": "reason",
    "attempt_failed": "attempt",
    "run_completed": "output",
    "run_cancelled": "reason",
    "cancel_requested": "reason",
}
"""The compared part of a payload."""
