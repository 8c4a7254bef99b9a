"""One run of the model: its course by docs/replay.md, without tasks and without a store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors._kernel.runtime.ids import RunId, derive_id
from actors.errors import EffectInDoubtError
from tests.model.branches import Branch, CancelledError, Group, Wait, innermost_open
from tests.model.completions import TERMINAL, end_of_attempt
from tests.model.history import DivergenceError, Line, Memory
from tests.model.remembering import Remembering
from tests.model.signs import TIE_S, ContinueSignal, RefusedSignal, TieError
from tests.model.verbs import EFFECTS
from tests.model.world import NEVER, Letter

if TYPE_CHECKING:
    from tests.model.model import Model
    from tests.model.world import Left

BEGUN: Final = tuple((verb,) for verb in EFFECTS)
STOPS: Final = (ContinueSignal, DivergenceError, RefusedSignal, TieError)
"""Exceptions that a program's code does not catch."""


class Run(Remembering):
    """See the module's docstring.

    Args: world: The model. left_run: The run's earlier state.
    """

    def __init__(self, world: Model, left_run: Left) -> None:
        self.world, self.case = world, world.case
        self.run_id = RunId(left_run.run_id)
        self.box = world.box(left_run.agent)
        self.parent, self.tree = left_run.parent, left_run.root or left_run.run_id
        self.log = list(left_run.log)
        self.flushed = len(self.log)
        self.letters = list(left_run.letters)
        self.by_id = {letter.id: letter for letter in left_run.letters}
        self.status, self.cancel = left_run.status, left_run.cancel
        self.signals: list[tuple[str, Any]] = []
        self.rows: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.extra: dict[int, Any] = {}
        self.new_turns = {}
        self.active_at = self.ended_at = NEVER
        self.looked_at = 2 * NEVER
        self.born: object = None
        self.cause: object = None
        self.epoch = self.beginning = 0
        self.memory = Memory(self.log)
        self._reset()

    def _reset(self) -> None:
        self.epoch += 1
        self.cuts = []
        self.set_here: dict[str, Any] = {}
        self.ready: list[Branch] = []
        self.groups: list[Group] = []
        self.parents: dict[int, Branch] = {}
        self.hits: list[Branch] = []
        self.misses: list[Branch] = []
        self.out: list[Branch] = []
        self.working: list[tuple[Branch, Wait]] = []
        self.begun_at: dict[str, float] = {}
        self.last_delivery: tuple[float, Branch | None] = (NEVER, None)
        self.trunk: Branch | None = None
        self.lookups: list[Branch] = []
        self.ends = 0

    @property
    @override
    def tag(self) -> str:
        """Mark by which the run differs from others of its program; empty: the submitted one."""
        return "" if self.box.agent == self.case.root else self.run_id[:6]

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended."""
        return self.status not in TERMINAL

    @override
    def record(self, kind: str, position: str, data: dict[str, Any]) -> int:
        """Append an entry to the log and return its seq."""
        self.log.append(Line(kind, position, data, self.world.now))
        return len(self.log) - 1

    @override
    def flush(self) -> None:
        """Make recorded entries durable, and deliver messages.

        Raises: RefusedSignal: The budget has no slot for its spawns.
        """
        if self.flushed < len(self.log):
            self.world.commit(self, range(self.flushed, len(self.log)))
            self.flushed = len(self.log)
            self.rows = self.open_rows()
            self.world.look_at_rows(self)

    def start(self) -> None:
        """Start, or continue from the log."""
        if not self.is_open:
            return
        if self.cancel is not None:
            self.stop()
            return
        last = self.log[-1] if self.log else None
        if (
            last is not None
            and last.kind == "run.attempt_failed"
            and last.data["at"] > self.world.now
        ):
            self._try_again(last.data["at"])
            return
        self._begin()
        self.go()

    def _try_again(self, when: float) -> None:
        epoch = self.epoch

        def again() -> None:
            self._begin()
            self.go()

        self.world.at(when, lambda: self.epoch == epoch and self.is_open, again)

    def _begin(self) -> None:
        """Start an attempt from the top of the code."""
        self._reset()
        if not self.log:
            self.record("run.started", "", {})
            for n, letter in enumerate(self.letters):
                data = {"boot": True, "id": letter.id, "payload": letter.payload}
                self.record("msg.received", f"in.{n}", data)
            self.beginning = len(self.log)
        self.beginning = max(self.beginning, self.flushed)
        self.memory = Memory.of(self.log)
        generation = self.memory.generation
        if generation:
            boot = Letter(derive_id("continued", self.run_id, generation), "", self.memory.boot)
            self.seen = [boot]
        else:
            self.seen = [self.by_id[id_] for id_ in self.memory.inputs]
        payloads = [letter.payload for letter in self.seen]
        code = self.case.code(self.box.agent.partition("/")[0], payloads, self.tag)
        self.trunk = Branch(f"{generation}:" if generation else "", [(code, None)])
        self.ready.append(self.trunk)

    @override
    def go(self) -> None:
        """Execute everything that needs no other run."""
        self.active_at = self.world.now
        while self.is_open:
            assert self.trunk is not None
            generation = self.memory.generation
            try:
                while not self.trunk.ended:
                    if not self._turn():
                        self._rest()
                        return
                self._conclude()
            except ContinueSignal as signal:
                data = {"generation": generation + 1, "input": signal.boot}
                self.record("run.continued", "", data)
                self._end_turn()
            except DivergenceError:
                self.record("run.parked", "", {"reason": "non_determinism"})
                self._ended("PARKED")
                return
            except RefusedSignal as signal:
                self._refuse(signal)
            else:
                return
            self._begin()

    def _end_turn(self) -> None:
        try:
            self.flush()
        except RefusedSignal as signal:
            self._refuse(signal)

    def _refuse(self, signal: RefusedSignal) -> None:
        """Drop the commit; the run is executed again, and these spawns raise."""
        if self.is_working:
            raise TieError("a spawn is refused while effects execute")
        self.drop_from(self.flushed)
        self.refused = dict.fromkeys(signal.positions, signal.limit)

    def drop_from(self, seq: int) -> None:
        """Forget the entries from this one on; none of them is durable, and others get their numbers."""
        del self.log[seq:]
        self.extra = {n: what for n, what in self.extra.items() if n < seq}

    @property
    @override
    def is_working(self) -> bool:
        """Whether effects execute."""
        self.working = [pair for pair in self.working if pair[0].wait is pair[1]]
        return bool(self.working)

    def _rest(self) -> None:
        """Let the run wait: every branch waits for an external event."""
        if not self.is_working:
            self._show()

    def _show(self) -> None:
        """Make recorded entries durable, send questions, write waits as rows."""
        self.flush()
        self.rows = self.open_rows()
        self.world.look_at_rows(self)

    def poke(self) -> None:
        """Check whether the event of a waiting branch is there."""
        if self.is_open and self.trunk is not None and self.offer():
            self.flush()
            self.go()

    def _conclude(self) -> None:
        """Handle the end of the code."""
        root = self.trunk
        assert root is not None
        if root.error is None and self.memory.unasked:
            raise DivergenceError
        ends = end_of_attempt(self, root)
        status = TERMINAL_OF.get(ends[-1][0], "")
        if status in TERMINAL:
            self._name_orphans()
        for kind, data in ends:
            self.record(kind, "", data)
            if data.get("kept"):
                self._give_back(data["kept"])
        self.flush()
        self.trunk = None
        if status:
            self._ended(status)
        else:
            self._try_again(self.log[-1].data["at"])

    def others(self) -> list[str]:
        """Return the messages beside its first that are released if the run fails now: see docs/replay.md."""
        is_whole = any(
            line.position[:3] != "in." for line in self.log[: self.flushed] if line.position
        )
        rest = self.log[self.flushed :]
        executes = any(line.kind in ("effect.intent", "tool.called") for line in rest)
        return [] if is_whole or executes or self.memory.generation else self.memory.inputs[1:]

    def _give_back(self, kept_count: int) -> None:
        """Let messages wait again, each for a run of its own."""
        letters = [
            replace(self.by_id.pop(id_), alone=True) for id_ in self.memory.inputs[kept_count:]
        ]
        self.box.waiting = letters + self.box.waiting

    def _name_orphans(self) -> None:
        children = self.left_behind()
        if children:
            self.record("orphans.resolved", "", {"policy": "run", "children": children})

    def _ended(self, status: str) -> None:
        self.status, self.trunk = status, None
        self.epoch += 1
        if self.flushed < len(self.log):
            self.flush()
        if status in TERMINAL:
            self.ended_at = self.world.now
            self.refuse_race()
            self.world.ended(self)

    def refuse_race(self) -> None:
        """Refuse a check of whether a run has ended at the instant of its end: either answer is valid."""
        if abs(self.looked_at - self.ended_at) < TIE_S:
            raise TieError("a run is looked at in the instant in which it ends")

    def stop(self) -> None:
        """Handle a cancel request."""
        if not self.is_open:
            return
        reason = self.cancel
        self.memory = Memory.of(self.log) if self.log else self.memory
        self._name_orphans()
        self.record("run.cancelled", "", {"reason": reason})
        try:
            self.flush()
        except RefusedSignal:
            raise TieError("a spawn is refused in the instant of a cancel") from None
        self._ended("CANCELLED")

    def _turn(self) -> bool:
        """Do the first thing that applies; return False if only other runs can change anything."""
        if self.ready:
            self.advance(self.ready.pop(0))
            return True
        return self._step_groups() or self._release_hit() or self._begin_misses()

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
            except STOPS:
                raise
            except BaseException as exc:  # noqa: BLE001 - the branch's outcome
                ended, value, error = True, None, exc
            if call is not None:
                try:
                    value = self.call(branch, call)
                except STOPS:
                    raise
                except BaseException as exc:  # noqa: BLE001 - thrown into the code
                    error = exc
            elif ended and self._leave(branch, scope, value, error):
                return

    def _leave(
        self, branch: Branch, scope: Group | None, value: Any, error: BaseException | None
    ) -> bool:
        """Handle the end of the innermost code; return True if the branch has ended."""
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
        """Record that no branch waits for a started effect any more."""
        record = self.memory.records.get(position)
        if self.begun_at.get(position) == self.world.now:
            raise TieError(f"the effect at {position} is closed in the instant in which it begins")
        abandoned_at = None if record is None or record.end is not None else record.abandoned
        if abandoned_at is None or not self.memory.is_strict(abandoned_at):
            self.record("effect.abandoned", position, {"effect": verb})

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
        """Return the branches to close before the parent continues; None if it has to wait."""
        ended = sorted((c for c in group.children if c.ended and not c.closed), key=_ended)
        failed = [c for c in ended if c.error is not None and c not in group.joined]
        match group.kind:
            case "cancel":
                return [group.child] if group.child else []
            case "join":
                return [] if group.child and group.child.ended else None
            case "select":
                group.decider = group.decider or (ended[0] if ended else None)
                return group.children if group.decider else None
            case _:
                group.decider = group.decider or (failed[0] if failed else None)
                if group.decider or group.error is not None:
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
        group.child = None
        self.advance(parent, value, error)

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
        doubtful, self.lookups = [], []
        for branch in begun:
            assert branch.wait is not None
            if not self.begin(branch, branch.wait):
                doubtful.append(branch)
        effects = [b for b in begun if b.wait is not None and b.wait.plan[:1] in BEGUN]
        if effects:
            self.flush()
        for branch in effects:
            if branch.wait is not None and branch not in doubtful:
                self.working.append((branch, branch.wait))
                self.execute(branch, branch.wait)
        if begun:
            has_taker = self.offer()
            if has_taker:
                self.flush()
            due = self.world.is_due(self)
            if len(doubtful) + has_taker + len(self.lookups) > 1 or (doubtful and due):
                raise TieError("two branches go on from one instant")
        if self.is_working and any(_asks(branch) for branch in begun):
            self._show()
        for branch in doubtful:
            assert branch.wait is not None
            error = EffectInDoubtError(self.run_id, branch.wait.position, branch.wait.plan[3])
            self.advance(branch, error=error)
        return bool(begun)

    @override
    def at(self, when: float, branch: Branch, wait: Wait) -> None:
        """Let `happen` be called for the wait at a time, if the branch still waits for that."""
        epoch = self.epoch

        def is_waited_for() -> bool:
            return self.epoch == epoch and branch.wait is wait

        def come() -> None:
            self.happen(branch, wait)
            self.flush_or_refuse()
            self.go()

        self.world.at(when, is_waited_for, come)

    @override
    def flush_or_refuse(self) -> None:
        """Flush the entries that a branch has recorded outside of its turn."""
        try:
            self.flush()
        except RefusedSignal as signal:
            self._refuse(signal)
            self._begin()


TERMINAL_OF: Final = {"run.completed": "COMPLETED", "run.failed": "FAILED", "run.parked": "PARKED"}


def _ended(branch: Branch) -> int:
    return branch.ended


def _asks(branch: Branch) -> bool:
    """Return whether the branch waits for another run."""
    wait = branch.wait
    return wait is not None and wait.kind == "out" and wait.plan[0] in ("ask", "join")


def _awaited(branch: Branch) -> int:
    return branch.wait.seq if branch.wait is not None else -1
