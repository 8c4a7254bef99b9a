"""The exact model: what the runs of a `Case` must do, by docs/replay.md, without tasks and without a store.

It is told of a scene (nothing but a submitted message, or what a crash left) and says how every log
goes on. It never suspends: with and without suspensions a run's log has to be the same. Runs meet only
in mailboxes, answers and their tree's account; what two of them do there in the same instant has no
defined order, and such cases are refused (`TieError`).
"""

from __future__ import annotations

import heapq
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from actors._kernel.runtime.ids import AgentId, message_id_of_post, run_id_of_mail
from tests.model.completions import TERMINAL
from tests.model.memories import Shelf
from tests.model.run import Run
from tests.model.sessions import Session
from tests.model.signs import TIE_S, RefusedSignal, TieError
from tests.model.world import NEVER, OUTSIDER, Answer, Box, Left, Letter, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.model.history import Line
    from tests.model.program import Case

BOOT: Final = Letter("boot", "submit:local", {"boot": True})
MAX_MESSAGES: Final = 100
_Event: TypeAlias = "tuple[float, int, Callable[[], bool], Callable[[], None]]"
ENDS: Final = ("run.completed", "run.failed", "run.cancelled")
TOPIC: Final = "news"
"""The prefix of topics' names."""


@dataclass(frozen=True, slots=True)
class Told:
    """The continuation of one run.

    Attributes: status: COMPLETED, FAILED, CANCELLED, PARKED, or WAITING for an event that never
    comes. log: All entries but run.suspended and run.resumed.
    """

    agent: str
    status: str
    log: list[Line]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted results.

    Attributes: status: Of the submitted run. log: Its log. state: Its agent's state. executions: By
    effect name, how often it started to execute. ended_at: Virtual time of the last entry of any
    run. unread: Numbers of the messages that no receive took. runs: All other runs, by id, but
    those that only read messages that came after the end of the first. states: Of the other agents
    that have any. waiting: Ids of messages that wait for other agents. sessions: Conversations with
    turns, by ``AGENT SESSION``. shelf: The memories.
    """

    status: str
    log: list[Line]
    state: dict[str, Any]
    executions: dict[str, int]
    ended_at: float
    unread: list[Any]
    runs: dict[str, Told] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    shelf: Shelf = field(default_factory=Shelf)


class Model:
    """See the module's docstring.

    Args:
        case: What runs.
        run_id: Of the submitted run.
        scene: Where it goes on; None: at the beginning.
        now: When it begins, without a scene.
        values: What `random`, `uuid` and `now` gave, by run and position, in order; taken from the logs.
        order: Which of the events that coincide comes first, one number for each time; None: such
            cases are refused. See `predictions`.

    Attributes:
        chosen: Which came first, and of how many, each time.
    """

    def __init__(
        self,
        case: Case,
        *,
        run_id: str = "run",
        scene: Scene | None = None,
        now: float = 0.0,
        values: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self.case, self.values = case, values or {}
        self._order, self.chosen = order, list[tuple[int, int]]()
        self.scene = scene or Scene(now, [Left(run_id, case.root, [], (BOOT,))])
        self.now = self.scene.at
        self.executions = dict(self.scene.executions)
        self.sessions = deepcopy(self.scene.sessions)
        self.shelf = deepcopy(self.scene.shelf)
        self._used: dict[str, tuple[float, str, bool]] = {}
        self.soon: deque[Callable[[], None]] = deque()
        self.boxes: dict[str, Box] = {}
        self.runs: dict[str, Run] = {}
        self.answers: dict[tuple[str, str], Answer] = {}
        self._known: set[tuple[str, str]] = set()
        self._follows: dict[str, tuple[float, object, set[str]]] = {}
        self._spent: dict[str, tuple[float, str]] = {}
        self._events: list[_Event] = []
        self._numbers = 0
        self._later: list[Any] = list(self.scene.read)
        self.root_id = next(
            left_run.run_id for left_run in self.scene.runs if left_run.agent == case.root
        )
        self._set()

    def _set(self) -> None:
        """Restore the state of the scene."""
        for topic, follower in self.scene.follows:
            self._follows.setdefault(topic, (-1.0, None, set()))[2].add(follower)
        for agent, letters in self.scene.waiting.items():
            self.box(agent).waiting = list(letters)
        for run_id, key, answer in self.scene.answers:
            self._known.add((run_id, key))
            if answer is not None:
                self.answers[run_id, key] = answer
        taken_payloads = [
            line.data["payload"]
            for left_run in self.scene.runs
            for line in left_run.log
            if line.kind == "signal.received"
        ]
        self._arrivals = deque(
            arrival
            for arrival in self.case.arrivals
            if arrival[1] not in self.scene.arrived and arrival[3] not in taken_payloads
        )
        for left_run in self.scene.runs:
            run = self.runs[left_run.run_id] = Run(self, left_run)
            for line in left_run.log:
                _fold_state(run.box.state, line)
            if run.is_open:
                run.box.holder = run

    def box(self, agent: str) -> Box:
        """Return an agent."""
        return self.boxes.setdefault(agent, Box(agent))

    def predict(self) -> Prediction:
        """Return how all runs continue and end.

        Raises: TieError: Two events that affect each other happen at the same time.
        """
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, letter_id, name, payload = self._arrivals.popleft()
            if name:
                self.runs[self.root_id].signals.append((name, payload))
            elif "asked" in payload:
                self._later.append(payload)
            else:
                self.box(self.case.root).waiting.append(Letter(letter_id, OUTSIDER, payload))
        for run in [run for run in self.runs.values() if run.status == ""]:
            self.soon.append(run.start)
        for box in list(self.boxes.values()):
            if box.holder is None and box.waiting:
                self._make_due(box)
        while self._step():
            pass
        return self._prediction()

    def _prediction(self) -> Prediction:
        predicted_runs = {
            run_id: Told(run.box.agent, run.status or "WAITING", run.log)
            for run_id, run in self.runs.items()
        }
        root = predicted_runs.pop(self.root_id)
        box = self.box(self.case.root)
        payloads = [letter.payload for letter in box.waiting] + self._later
        last = max(run.log[-1].at for run in self.runs.values() if run.log)
        others = [b for b in self.boxes.values() if b is not box]
        return Prediction(
            status=root.status,
            log=root.log,
            state=box.state,
            executions=self.executions,
            ended_at=last,
            unread=payloads,
            runs=predicted_runs,
            states={b.agent: b.state for b in others if b.state},
            waiting={b.agent: [x.id for x in b.waiting] for b in others if b.waiting},
            sessions={key: session for key, session in self.sessions.items() if session.turns},
            shelf=self.shelf,
        )

    def at(self, when: float, is_wanted: Callable[[], bool], act: Callable[[], None]) -> None:
        """Call `act` at a time, if it is still needed then."""
        self._numbers += 1
        heapq.heappush(self._events, (max(when, self.now), self._numbers, is_wanted, act))

    def is_due(self, _: Run) -> bool:
        """Return whether the next event is at this instant."""
        return bool(self._events) and self._events[0][0] < self.now + TIE_S

    def _step(self) -> bool:
        """Process the next event; return False if there is none."""
        if self.soon:
            self.soon.popleft()()
            return True
        self._events = [event for event in self._events if event[2]()]
        heapq.heapify(self._events)
        nexts = [event[0] for event in self._events[:1]] + [
            arrival[0] for arrival in self._arrivals
        ][:1]
        if not nexts:
            return False
        near = min(nexts) + TIE_S
        due: list[_Event | None] = [event for event in sorted(self._events) if event[0] < near]
        due += [None] * sum(arrival[0] < near for arrival in self._arrivals)
        event = due[self._first_of(due, min(nexts))]
        if event is None:
            self._arrive(*self._arrivals.popleft())
        else:
            self._events.remove(event)
            heapq.heapify(self._events)
            self.now = max(self.now, event[0])
            event[3]()
        return True

    def _first_of(self, due: Sequence[object], when: float) -> int:
        """Return which of several events comes first."""
        if len(due) == 1:
            return 0
        if self._order is None:
            raise TieError(f"two events at {when:.6f} s")
        n = len(self.chosen)
        choice = self._order[n] if n < len(self._order) else 0
        self.chosen.append((choice, len(due)))
        return choice

    def _arrive(self, at: float, letter_id: str, name: str, payload: Any) -> None:
        self.now = max(self.now, at)
        if name:
            root = self.runs[self.root_id]
            root.signals.append((name, payload))
            root.poke()
        elif (
            "asked" in payload
        ):  # a run queued after that of the case; no other run gets its message
            self._later.append(payload)
        else:
            self.deliver(self.case.root, Letter(letter_id, OUTSIDER, payload), object())

    def deliver(self, agent: str, letter: Letter, cause: object) -> None:
        """Put a message into an agent's inbox."""
        if agent == self.case.sink:
            return
        box = self.box(agent)
        at, last = box.last
        if abs(at - self.now) < TIE_S and (last is not cause or box.holder is None):
            raise TieError(f"two letters for {agent} at {self.now:.6f} s")
        if abs(box.started_at - self.now) < TIE_S:
            raise TieError(f"a letter for {agent} in the instant in which it starts")
        box.last = (self.now, cause)
        box.waiting.append(letter)
        if box.holder is None:
            self._make_due(box)
        else:
            self.soon.append(box.holder.poke)

    def _make_due(self, box: Box) -> None:
        if not box.is_due:
            box.is_due = True
            self.soon.append(lambda: self._start_next(box))

    def _start_next(self, box: Box) -> None:
        box.is_due = False
        if box.holder is not None or not box.waiting:
            return
        n = next((n for n, x in enumerate(box.waiting) if x.alone), MAX_MESSAGES) or 1
        n = min(n, MAX_MESSAGES)
        letters, box.waiting = box.waiting[:n], box.waiting[n:]
        if len(letters) > 1 and abs(box.last[0] - self.now) < TIE_S:
            raise TieError(f"a letter for {box.agent} in the instant in which it becomes free")
        if box.agent == self.case.root:
            self._later += [letter.payload for letter in letters]
            return
        box.started_at = self.now
        run_id = run_id_of_mail(AgentId.parse(box.agent), letters[0].sender, letters[0].id)
        run = self.runs[run_id] = Run(self, Left(run_id, box.agent, [], tuple(letters)))
        box.holder = run
        run.start()

    def run_of(self, agent: str, letter_id: str, target: str | None) -> str | None:
        """Return the run that has a message, else the one that occupies the agent, else `target`."""
        for run in self.runs.values():
            if run.box.agent == agent and letter_id in run.by_id:
                return str(run.run_id)
        holder = self.box(agent).holder
        return str(holder.run_id) if holder is not None else target

    def commit(self, run: Run, seqs: Iterable[int]) -> None:
        """Deliver the messages of a run's commit.

        Raises: RefusedSignal: The tree's budget has no slot for its spawns.
        """
        cause = run.cause = object()
        lines = [(seq, run.log[seq]) for seq in seqs]
        spawned = [(seq, line) for seq, line in lines if line.kind == "child.spawned"]
        if spawned:
            self._count(run, [line.position for _, line in spawned])
        for seq, line in spawned:
            self._spawn(run, seq, line, cause)
        for seq, line in lines:
            _fold_state(run.box.state, line)
            if line.kind == "follow.changed":
                self._change_follow(run, line, cause)
            self._converse(run, seq, line)
            if seq in run.extra and line.kind == "effect.result":
                letter, value = run.extra[seq]
                if letter.asker is not None:
                    answer = Answer("replied", str(run.run_id), value)
                    self.answer(letter.asker, letter.id, answer)
        for cut in run.cuts:
            self._session(run, cut.session).cut(cut)
        run.cuts = []
        for seq, line in lines:
            self._send(run, seq, line, cause)

    def touch(self, what: str, user: str, *, writes: bool) -> None:
        """Record that a run or a call uses a shared object now.

        Raises: TieError: Another one does in the same instant, and one of them writes.
        """
        at, by, wrote = self._used.get(what, (NEVER, "", False))
        is_now = abs(at - self.now) < TIE_S
        if is_now and by != user and (writes or wrote):
            raise TieError(f"two use {what} at {at:.6f} s")
        self._used[what] = (self.now, user, writes or (is_now and wrote))

    def _session(self, run: Run, name: str) -> Session:
        return self.sessions.setdefault(f"{run.box.agent} {name}", Session())

    def _converse(self, run: Run, seq: int, line: Line) -> None:
        """Write the turns that are durable with an entry, or delete those of a run that ends with it."""
        recorded, turns = run.new_turns.get(seq, (None, []))
        for name, *turn in turns if recorded is line else ():
            self._session(run, name).add(turn[0], str(run.run_id), *turn[1:])
        if self.case.retention == "run" and line.kind in ENDS:
            for session in self.sessions.values():
                session.forget(str(run.run_id))

    def _send(self, run: Run, seq: int, line: Line, cause: object) -> None:
        sender = f"agent:{run.box.agent}"
        if line.kind == "ask.sent":
            agent, payload = run.extra[seq]
            letter = Letter(line.data["message_id"], sender, payload, str(run.run_id))
            self.deliver(agent, letter, cause)
        elif line.kind == "msg.sent":
            target, message_id = line.data["target"], line.data["message_id"]
            if not target.rpartition(":")[2].startswith(TOPIC):
                self.deliver(target, Letter(message_id, sender, line.data["payload"]), cause)
                return
            at, by, followers = self._follows.get(target, (-1.0, None, set()))
            if abs(at - self.now) < TIE_S and by is not run:
                raise TieError("a post in the instant of a follow")
            post = Letter(
                message_id_of_post(sender, message_id), f"topic:{target}", line.data["payload"]
            )
            for follower in sorted(followers):
                self.deliver(follower, post, cause)

    def _change_follow(self, run: Run, line: Line, cause: object) -> None:
        del cause
        topic = line.data["topic"]
        followers = self._follows.get(topic, (0.0, None, set()))[2]
        if line.data["following"]:
            followers.add(run.box.agent)
        else:
            followers.discard(run.box.agent)
        self._follows[topic] = (self.now, run, followers)

    def _count(self, run: Run, positions: Sequence[str]) -> None:
        """Refuse a commit that spawns more than its tree may."""
        terms = self.case.budget if run.tree == self.root_id else {}
        tree = [other for other in self.runs.values() if other.tree == run.tree and other.parent]
        places, limit = 10_000, ""
        if "max_runs" in terms:
            places, limit = terms["max_runs"] - len(tree), f"max_runs {terms['max_runs']}"
        most = terms.get("max_concurrent")
        if most is not None:
            free = most - sum(other.is_open for other in tree)
            if free < places:
                places, limit = free, f"max_concurrent {most}"
            ends = (other for other in tree if other.cancel is not None or not other.is_open)
            if any(
                abs(other.active_at - self.now) < TIE_S
                for other in ends
                if other.parent != run.run_id
            ):
                raise TieError("a spawn in the instant in which a place may be given back")
        at, by = self._spent.get(run.tree, (-1.0, ""))
        if terms and abs(at - self.now) < TIE_S and by != run.run_id:
            raise TieError("two runs of a tree spawn in one instant")
        self._spent[run.tree] = (self.now, str(run.run_id))
        if len(positions) > places:
            raise RefusedSignal(list(positions[max(places, 0) :]), limit)

    def _spawn(self, run: Run, seq: int, line: Line, cause: object) -> None:
        child_id, agent, letter_id = line.data["child"], line.data["agent"], line.data["boot"]
        letters: tuple[Letter, ...] = ()
        if letter_id is not None:
            letters = (Letter(letter_id, f"spawn:{run.box.agent}", run.extra[seq]),)
        left_run = Left(child_id, agent, [], letters, str(run.run_id), run.tree, "", run.cancel)
        child = self.runs[child_id] = Run(self, left_run)
        child.born = cause
        child.box.holder = child
        self.soon.append(child.start)

    def cancel(self, run_id: str, reason: str, *, cause: object = None) -> None:
        """Request the cancel of a run and of all below it."""
        for run in self._subtree(run_id):
            if not run.is_open:
                continue
            is_new = cause is not None and run.born is cause
            if abs(run.active_at - self.now) < TIE_S or (not run.log and not is_new):
                raise TieError("a cancel in an instant in which the run does something")
            if run.cancel is None:
                run.cancel = reason
            self.soon.append(run.stop)

    def _subtree(self, run_id: str) -> list[Run]:
        runs = [self.runs[run_id]] if run_id in self.runs else []
        for run in runs:
            runs += [other for other in self.runs.values() if other.parent == run.run_id]
        return runs

    def ended(self, run: Run) -> None:
        """Answer all waits for the end of a run, end its children, and free its agent."""
        if run.parent is not None:
            self.answer(run.parent, str(run.run_id), self.answer_of(run))
        for other in list(self.runs.values()):
            for key, target in other.rows.items():
                if target == run.run_id:
                    self.answer(str(other.run_id), key, self.answer_of(run))
        for letter in run.by_id.values():
            if letter.asker is not None:
                self.answer(letter.asker, letter.id, self.answer_of(run))
        reason = f"parent run {run.run_id} has ended"
        for child in [r for r in self.runs.values() if r.parent == run.run_id]:
            self.cancel(str(child.run_id), reason, cause=run.cause)
        run.rows = {}
        if run.box.holder is run:
            run.box.holder = None
            if run.box.waiting:
                self._make_due(run.box)

    def look_at_rows(self, run: Run) -> None:
        """Answer a wait for an ended run at once."""
        for key, target in run.rows.items():
            other = self.runs.get(target)
            if other is not None and not other.is_open:
                self.answer(str(run.run_id), key, self.answer_of(other))

    def answer(self, run_id: str, key: str, answer: Answer) -> None:
        """Store an answer, unless there is one already."""
        run = self.runs.get(run_id)
        if run is not None and (run_id, key) not in self._known:
            self._known.add((run_id, key))
            self.answers[run_id, key] = answer
            self.soon.append(run.poke)

    @staticmethod
    def answer_of(run: Run) -> Answer:
        """Return the outcome of a run."""
        last = run.log[-1]
        assert run.status in TERMINAL
        by = str(run.run_id)
        match run.status:
            case "COMPLETED":
                return Answer("completed", by, last.data["output"])
            case "FAILED":
                return Answer("failed", by, None, last.data["error"])
            case _:
                return Answer("cancelled", by, None, {"message": last.data["reason"]})


def _fold_state(state: dict[str, Any], line: Line) -> None:
    if line.kind == "state.set":
        if line.data.get("deleted"):
            state.pop(line.data["key"], None)
        else:
            state[line.data["key"]] = line.data["value"]


def predictions(make: Callable[[Sequence[int]], Model], most: int = 24) -> Iterator[Prediction]:
    """Yield each possible continuation, one for each order of coinciding events.

    Raises: TieError: Even an order of events decides nothing, or there are too many.
    """
    todo: list[list[int]] = [[]]
    for _ in range(most):
        if not todo:
            return
        order = todo.pop()
        model = make(order)
        yield model.predict()
        choices = [choice for choice, _ in model.chosen]
        for n in range(len(order), len(choices)):
            todo += [[*choices[:n], other] for other in range(1, model.chosen[n][1])]
    if todo:
        raise TieError(f"more than {most} orders")
