"""The exact model: what a run of a `Case` must do, by docs/replay.md, without tasks and without a store.

It is given a log (empty, or as a crash left it) and a time, and says how the log goes on. It never
suspends: with and without suspensions a run's log has to be the same.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from actors.errors import EffectInDoubtError
from actors.kernel.runtime.ids import RunId
from tests.model.branches import Branch, CancelledError, Group, Wait, innermost_open
from tests.model.endings import end_of_attempt
from tests.model.history import DivergenceError, Line, Memory
from tests.model.program import Interpreter
from tests.model.signs import ContinueSignal, TieError
from tests.model.verbs import TIE_S, Verbs
from tests.model.world import Outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.model.program import Case


@dataclass(frozen=True, slots=True)
class Prediction:
    """What has to be found afterwards.

    Attributes:
        status: COMPLETED, FAILED, PARKED, or WAITING for something that never comes.
        log: All entries but run.suspended and run.resumed.
        state: The agent's state.
        executions: By effect name, how often it began to execute.
        ended_at: Virtual time of the last entry.
        unread: Numbers of the messages that no receive took.
    """

    status: str
    log: list[Line]
    state: dict[str, Any]
    executions: dict[str, int]
    ended_at: float
    unread: list[int]


class Model(Verbs):
    """See the module's docstring.

    Args:
        case: What runs.
        log: How the log begins; empty for a new run.
        now: Virtual time at which the run begins to execute.
        executions: How often each effect executed before.
        values: What `random` and `uuid` gave, by position, in order; taken from the runtime's log.
    """

    def __init__(
        self,
        case: Case,
        *,
        run_id: str = "run",
        log: Sequence[Line] = (),
        now: float = 0.0,
        executions: Mapping[str, int] | None = None,
        values: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.case = case
        self.run_id = RunId(run_id)
        self.log = list(log)
        taken = {repr(line.data["payload"]) for line in log if "payload" in line.data}
        arrivals = [(at, name, {"n": n}) for n, (at, name) in enumerate(case.signals)]
        arrivals += [(at, "", {"mail": n}) for n, at in enumerate(case.mail)]
        arrivals = sorted(one for one in arrivals if repr(one[2]) not in taken)
        self.world = Outside(now, arrivals, dict(executions or {}), values or {})
        self.memory = Memory(self.log)
        self._reset()

    def _reset(self) -> None:
        self.set_here: dict[str, Any] = {}
        self.ready: list[Branch] = []
        self.groups: list[Group] = []
        self.parents: dict[int, Branch] = {}
        self.hits: list[Branch] = []
        self.misses: list[Branch] = []
        self.out: list[Branch] = []
        self.events: list[tuple[float, int, Branch, Wait]] = []
        self.begun_at: dict[str, float] = {}
        self.given: tuple[float, Branch | None] = (-1.0, None)
        self.ends = 0
        self.numbers = 0

    def predict(self) -> Prediction:
        """Return how the run goes on and ends.

        Raises:
            TieError: Two events happen at the same time.
        """
        if not self.log:
            self.record("run.started", "", {})
            self.record("msg.received", "in.0", {"boot": True})
        self.world.arrive(self.world.now)
        status = _status_of(self.log[-1])
        while not status:
            last = self.log[-1]
            if last.kind == "run.attempt_failed":
                self.world.arrive(last.data["at"])
            status = self._attempt()
        self.world.arrivals, rest = [], self.world.arrivals
        unread = [one["mail"] for one in self.world.mail]
        unread += [payload["mail"] for _, name, payload in rest if not name]
        return Prediction(
            status, self.log, self.state(), self.world.executions, self.log[-1].at, unread
        )

    @override
    def record(self, kind: str, position: str, data: dict[str, Any]) -> int:
        """Put an entry at the end of the log and return its seq."""
        self.log.append(Line(kind, position, data, self.world.now))
        return len(self.log) - 1

    @override
    def state(self) -> dict[str, Any]:
        """Return the agent's state as it is stored now."""
        state: dict[str, Any] = {}
        for line in self.log:
            if line.kind == "state.set":
                if line.data.get("deleted"):
                    state.pop(line.data["key"], None)
                else:
                    state[line.data["key"]] = line.data["value"]
        return state

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(self) -> str:
        """Run the code once from its top; return the status if the run has ended or is stuck."""
        self._reset()
        self.memory = Memory.of(self.log)
        code = Interpreter(self.case.program, self.memory.boot).main()
        generation = self.memory.generation
        root = Branch(f"{generation}:" if generation else "", [(code, None)])
        self.ready.append(root)
        try:
            while not root.ended:
                if not self._turn():
                    return "WAITING"
        except ContinueSignal as signal:
            self.record("run.continued", "", {"generation": generation + 1, "input": signal.boot})
            return ""
        except DivergenceError:
            self.record("run.parked", "", {"reason": "non_determinism"})
            return "PARKED"
        if root.error is None and self.memory.unasked:
            self.record("run.parked", "", {"reason": "non_determinism"})
            return "PARKED"
        for kind, data in end_of_attempt(self, root):
            self.record(kind, "", data)
        return _status_of(self.log[-1])

    def _turn(self) -> bool:
        """Do the first thing that applies; False when nothing will ever happen."""
        if self.ready:
            self.advance(self.ready.pop(0))
        elif not (self._step_groups() or self._release_hit() or self._begin_misses()):
            return self._next_event()
        return True

    def advance(
        self, branch: Branch, value: Any = None, error: BaseException | None = None
    ) -> None:
        """Run the branch's code until it waits or ends."""
        branch.wait = None
        while branch.wait is None:
            code, scope = branch.stack[-1]
            ended, call = False, None
            try:
                call = code.send(value) if error is None else code.throw(error)
                value = error = None
            except StopIteration as stop:
                ended, value, error = True, stop.value, None
            except (ContinueSignal, DivergenceError):
                raise
            except BaseException as exc:  # noqa: BLE001 - the branch's outcome
                ended, value, error = True, None, exc
            if call is not None:
                try:
                    value = self.call(branch, call)
                except (ContinueSignal, DivergenceError):
                    raise
                except BaseException as exc:  # noqa: BLE001 - thrown into the code
                    error = exc
            elif ended and self._leave(branch, scope, value, error):
                return

    def _leave(
        self, branch: Branch, scope: Group | None, value: Any, error: BaseException | None
    ) -> bool:
        """The innermost code has ended; True when the branch has."""
        branch.stack.pop()
        if scope is None:
            self.ends += 1
            branch.ended, branch.value, branch.error = self.ends, value, error
            if branch.closed:
                for position, verb in branch.begun.items():
                    self.abandon(position, verb)
            return True
        scope.value, scope.error = value, error
        if branch.closed:
            branch.groups.remove(scope)
            self.groups.remove(scope)
            return False
        scope.kind = "scope"
        branch.wait = Wait("group", group=scope)
        return False

    def abandon(self, position: str, verb: str) -> None:
        """Note that nobody waits for a begun effect any more."""
        record = self.memory.records.get(position)
        if self.begun_at.get(position) == self.world.now:
            raise TieError(f"the effect at {position} is closed in the instant in which it begins")
        known = None if record is None or record.end is not None else record.abandoned
        if known is None or not self.memory.is_strict(known):
            self.record("effect.abandoned", position, {"effect": verb})

    # --- rule 1: groups -------------------------------------------------------------------------------

    @override
    def open_group(self, branch: Branch, group: Group) -> None:
        """Remember a group of which `branch` is the parent."""
        self.groups.append(group)
        branch.groups.append(group)
        self.parents[id(group)] = branch

    def _step_groups(self) -> bool:
        for group in reversed(self.groups):
            parent = self.parents[id(group)]
            if parent.wait is None or parent.wait.group is not group or parent.closed:
                continue
            to_close = self._decide(group)
            if to_close is None:
                continue
            loser = next((child for child in to_close if not child.ended), None)
            if loser is not None:
                self._close(loser)
            else:
                self._let_go(parent, group)
            return True
        return False

    def _decide(self, group: Group) -> list[Branch] | None:
        """Return whom to close before the parent goes on; None if it has to wait."""
        ended = sorted((c for c in group.children if c.ended and not c.closed), key=_ended)
        failed = [c for c in ended if c.error is not None and c not in group.joined]
        match group.kind:
            case "cancel":
                return [group.one] if group.one else []
            case "join":
                return [] if group.one and group.one.ended else None
            case "select":
                group.chosen = group.chosen or (ended[0] if ended else None)
                return group.children if group.chosen else None
            case _:
                group.chosen = group.chosen or (failed[0] if failed else None)
                if group.chosen or group.error is not None:
                    return group.children
                return [] if all(child.ended for child in group.children) else None

    def _close(self, child: Branch) -> None:
        target = innermost_open(child)
        target.closed = True
        if target in self.ready:
            self.ready.remove(target)
            self.ends += 1
            target.ended = self.ends
            target.stack[-1][0].close()
            return
        self.advance(target, error=CancelledError())

    def _let_go(self, parent: Branch, group: Group) -> None:
        if group.kind not in ("join", "cancel"):
            self.groups.remove(group)
            parent.groups.remove(group)
        value, error = self.outcome_of(group)
        group.one = None
        self.advance(parent, value, error)

    # --- rules 2 and 3 -----------------------------------------------------------------------------------

    def _release_hit(self) -> bool:
        waiting = [b for b in self.hits if b.wait is not None and b.wait.kind == "hit"]
        self.hits = [branch for branch in waiting if not branch.closed]
        if not self.hits:
            return False
        branch = min(self.hits, key=_awaited)
        self.hits.remove(branch)
        assert branch.wait is not None
        value, error = self.outcome_at(branch.wait)
        self.advance(branch, value, error)
        return True

    def _begin_misses(self) -> bool:
        misses, self.misses = self.misses, []
        begun = [b for b in misses if b.wait is not None and b.wait.kind == "miss" and not b.closed]
        doubtful = []
        for branch in begun:
            assert branch.wait is not None
            if not self.begin(branch, branch.wait):
                doubtful.append(branch)
        if begun:
            given = self.offer()
            due = bool(self.events) and self.events[0][0] < self.world.now + TIE_S
            if len(doubtful) + given > 1 or (doubtful and due):
                raise TieError("two branches go on from one instant")
        for branch in doubtful:
            assert branch.wait is not None
            error = EffectInDoubtError(self.run_id, branch.wait.position, branch.wait.plan[3])
            self.advance(branch, error=error)
        return bool(begun)

    # --- what happens outside ---------------------------------------------------------------------------

    @override
    def at(self, when: float, branch: Branch, wait: Wait) -> None:
        """Let `happen` be called for the wait at a time, if the branch still waits for that."""
        self.numbers += 1
        heapq.heappush(self.events, (max(when, self.world.now), self.numbers, branch, wait))

    def _next_event(self) -> bool:
        while self.events and self.events[0][2].wait is not self.events[0][3]:
            heapq.heappop(self.events)
        timer = self.events[0][0] if self.events else None
        arrival = self.world.arrivals[0][0] if self.world.arrivals else None
        if timer is None and (arrival is None or not self.out):
            return False
        if timer is not None and (arrival is None or timer <= arrival):
            when, _, branch, wait = heapq.heappop(self.events)
            self._refuse_tie(when)
            self.world.now = max(self.world.now, when)
            self.happen(branch, wait)
        else:
            assert arrival is not None
            _, name, payload = self.world.arrivals.pop(0)
            self._refuse_tie(arrival)
            self.world.now = max(self.world.now, arrival)
            self.world.signals += [(name, payload)] if name else []
            self.world.mail += [] if name else [payload]
            self.offer()
        return True

    def _refuse_tie(self, when: float) -> None:
        near = [at for at, _, branch, wait in self.events if branch.wait is wait]
        near += [at for at, _, _ in self.world.arrivals[:1]]
        if any(abs(at - when) < TIE_S for at in near):
            raise TieError(f"two events at {when:.6f} s")


def _status_of(line: Line) -> str:
    kinds = {
        "run.completed": "COMPLETED",
        "run.failed": "FAILED",
        "run.parked": "PARKED",
        "run.cancelled": "CANCELLED",
    }
    return kinds.get(line.kind, "")


def _ended(branch: Branch) -> int:
    return branch.ended


def _awaited(branch: Branch) -> int:
    return branch.wait.seq if branch.wait is not None else -1
