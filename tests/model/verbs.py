"""Each verb of ctx in the model: hit, miss, and the start of a miss."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.effects import args_hash
from actors._kernel.runtime.ids import message_id_of_run
from actors._kernel.text import check_name_of
from actors.errors import (
    CancellationError,
    EffectError,
    MessageTooLargeError,
    RunError,
    SpawnDenied,
)
from tests.model.branches import Branch, CancelledError, Group, Wait
from tests.model.history import DivergenceError, Line
from tests.model.program import AwkwardError, make_error, text_of
from tests.model.reading import DRAWN, same
from tests.model.signs import TIE_S, ContinueSignal, TieError
from tests.model.world import iso

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from tests.model.history import Memory, Record
    from tests.model.model import Model
    from tests.model.program import Call, Case
    from tests.model.world import Box, Letter

EFFECTS: Final = ("step", "tool", "cancel", "llm")
RESULTS: Final = {"tool": "tool.result", "llm": "llm.call"}
MOST_BYTES: Final = 256 * 1024
"""Of what a message holds, as JSON."""
_MARK: Final = "__model_seq__"


class Verbs:
    """The verbs of a run; `Run` decides the order of branches."""

    case: Case
    run_id: RunId
    log: list[Line]
    memory: Memory
    world: Model
    box: Box
    signals: list[tuple[str, Any]]
    seen: list[Letter]
    by_id: dict[str, Letter]
    set_here: dict[str, Any]
    ready: list[Branch]
    hits: list[Branch]
    misses: list[Branch]
    out: list[Branch]
    begun_at: dict[str, float]
    last_delivery: tuple[float, Branch | None]

    def record(self, kind: str, position: str, data: dict[str, Any]) -> int:
        """Put an entry at the end of the log."""
        raise NotImplementedError

    def open_group(self, branch: Branch, group: Group) -> None:
        """Remember a group."""
        raise NotImplementedError

    def at(self, when: float, branch: Branch, wait: Wait) -> None:
        """Let `happen` be called at a time."""
        raise NotImplementedError

    def call(self, branch: Branch, call: Call) -> Any:
        """Return the value of an immediate verb; a verb that waits sets `branch.wait`."""
        if branch.closed and call.verb != "check":
            raise CancelledError
        return getattr(self, f"_{call.verb}")(branch, *call.args)

    def _note(self, branch: Branch, verb: str, value: Any) -> Any:
        """Run a verb that is recorded once and returns the recorded value."""
        position, digest = branch.take_position(), args_hash([verb])
        record = self.memory.find(position, ("effect.result",), digest)
        if record is not None and record.end is not None:
            return self.log[record.end].data["value"]
        self._value(position, verb, digest, value)
        return value

    def _now(self, branch: Branch) -> float:
        # To the last digit as it was read, where that is right: it may be hashed.
        read, at = self._drawn(branch), self.world.now
        is_right = isinstance(read, float) and same(read, at)
        value: float = self._note(branch, "now", read if is_right else at)
        return value

    def _random(self, branch: Branch) -> Any:
        return self._note(branch, "random", self._drawn(branch))

    def _uuid(self, branch: Branch) -> Any:
        return self._note(branch, "uuid", self._drawn(branch))

    def _drawn(self, branch: Branch) -> Any:
        """Return the next random value of this position: the n-th value drawn there."""
        position = f"{branch.prefix}{branch.calls}"
        mine = [line for line in self.log if line.position == position]
        n = sum(line.data.get("effect") in DRAWN for line in mine)
        values = self.world.values.get(self.run_id, {}).get(position, ())
        return values[n] if n < len(values) else f"drawn at {position}, {n}"

    def _patched(self, _: Branch, name: str) -> bool:
        check_name_of("id of ctx.patched", name)
        position, digest = f"patch:{name}", args_hash(["patched", name])
        if self.memory.generation:
            position = f"{self.memory.generation}:{position}"
        record = self.memory.find(position, ("effect.result",), digest)
        if record is None or record.end is None:
            if any(line.position == position for line in self.log[self.memory.start :]):
                return True
            self._value(position, "patched", digest, value=True)
            return True
        return bool(self.log[record.end].data["value"])

    def _check(self, _: Branch) -> None:
        return None

    def _get(self, branch: Branch, key: str) -> Any:
        position = branch.take_position()
        check_name_of("key of ctx.state.get", key)
        digest = args_hash(["get", key])
        record = self.memory.find(position, ("effect.result",), digest)
        here = key in self.set_here
        if record is not None and record.end is not None:
            value = self.log[record.end].data["value"]
            if self.memory.is_strict(record.end) or not here or value == self.set_here[key]:
                return value
        value = self.set_here[key] if here else self.box.state.get(key)
        self._value(position, "state.get", digest, value)
        return value

    def _set(self, branch: Branch, key: str, value: Any) -> None:
        self._write(branch, key, ["set", key, value], {"value": value})
        self.set_here[key] = value

    def _clear(self, branch: Branch, key: str) -> None:
        self._write(branch, key, ["clear", key], {"deleted": True})
        self.set_here[key] = None

    def _write(self, branch: Branch, key: str, words: list[Any], what: dict[str, Any]) -> None:
        position = branch.take_position()
        check_name_of(f"key of ctx.state.{words[0]}", key)
        digest = args_hash(words)
        data = {"key": key, **what, "hash": digest}
        record = self.memory.find(position, ("state.set",), digest)
        if record is not None and record.end is not None:
            is_strict = self.memory.is_strict(record.end)
            if is_strict and not self.memory.pool_sets(key, record.end):
                return
        self.record("state.set", position, data)

    def _send(self, branch: Branch, payload: Any) -> None:
        self.send_to(branch, self.case.sink, payload)

    def send_to(self, branch: Branch, target: str, payload: Any) -> None:
        """Send a message to an agent or a topic."""
        position, digest = branch.take_position(), args_hash([target, payload])
        record = self.memory.find(position, ("msg.sent",), digest)
        if record is not None:
            return
        refuse_large(payload, f"message to {target}")
        before = self.memory.records.get(position)
        message_id = message_id_of_run(self.run_id, position, before.sent if before else 0)
        data = {"message_id": message_id, "target": target, "hash": digest, "payload": payload}
        self.record("msg.sent", position, data)

    def _continue(self, _: Branch, boot: Any) -> None:
        raise ContinueSignal(boot)

    def _value(self, position: str, verb: str, digest: str, value: Any) -> None:
        data = {"effect": verb, "hash": digest, "status": "ok", "value": value}
        self.record("effect.result", position, data)

    def _result(self, position: str, plan: tuple[Any, ...], rest: dict[str, Any]) -> int:
        effect, _, digest, name = plan[:4]
        kind = RESULTS.get(effect, "effect.result")
        data = {"effect": effect, "name": name, "hash": digest, **rest}
        return self.record(kind, position, data)

    def _step(self, branch: Branch, name: str, mode: str, args: list[Any]) -> None:
        digest = args_hash([name, [name, *args]])
        self._effect(branch, ("step", mode, digest, name, name))

    def _tool(self, branch: Branch, mode: str, kwargs: dict[str, Any]) -> None:
        name = "idempotent_tool" if mode == "idempotent" else "at_most_once_tool"
        self._effect(branch, ("tool", mode, args_hash([name, kwargs]), name, kwargs["called"]))

    def _effect(self, branch: Branch, plan: tuple[Any, ...]) -> None:
        effect, _, digest = plan[:3]
        position = branch.take_position()
        kinds = ("tool.called" if effect == "tool" else "effect.intent", "effect.result")
        kinds = (kinds[0], RESULTS.get(effect, kinds[1]))
        record = self.memory.find(position, kinds, digest)
        if record is not None and record.end is not None and record.end not in self.memory.void:
            self._await_hit(branch, record.end)
            return
        if record is not None and record.begin is not None and record.end is None:
            branch.begun[position] = effect
            if record.abandoned is not None and self.memory.is_strict(record.abandoned):
                branch.wait = Wait("stay")
                return
        self._want(branch, position, plan, record)

    def _await_hit(self, branch: Branch, seq: int) -> None:
        branch.wait = Wait("hit", seq)
        self.hits.append(branch)

    def _want(
        self, branch: Branch, position: str, plan: tuple[Any, ...], record: Record | None
    ) -> None:
        branch.wait = Wait("miss", plan=plan, position=position, record=record)
        self.misses.append(branch)

    def _timer(self, branch: Branch, verb: str, digest: str, deadline: float | None) -> None:
        """Return a wait that may end at a time; the time is recorded at the first call."""
        position = branch.take_position()
        kinds = ("timer.set", "timer.fired", "msg.received")
        record = self.memory.find(position, kinds[: 2 + (verb == "receive")], digest)
        if record is not None and record.end is not None:
            self._await_hit(branch, record.end)
            return
        if record is not None and record.begin is not None:
            deadline = self.log[record.begin].data["at"]
        elif deadline is not None:
            self.record("timer.set", position, {"at": deadline, "hash": digest, "verb": verb})
        self._want(branch, position, (verb, deadline, digest), record)

    def _sleep(self, branch: Branch, seconds: float) -> None:
        self._timer(branch, "sleep", args_hash(["sleep", float(seconds)]), self.world.now + seconds)

    def _sleep_until(self, branch: Branch, at: float) -> None:
        digest = args_hash(["until", iso(at)])
        self._timer(branch, "sleep_until", digest, at)

    def _receive(self, branch: Branch, timeout: float | None) -> None:
        deadline = None if timeout is None else self.world.now + timeout
        self._timer(branch, "receive", args_hash(["receive", timeout]), deadline)

    def _signal(self, branch: Branch, name: str) -> None:
        position, digest = branch.take_position(), args_hash(["signal", name])
        record = self.memory.find(position, ("signal.received",), digest)
        if record is not None and record.end is not None:
            self._await_hit(branch, record.end)
            return
        self._want(branch, position, ("signal", name, digest), record)

    def begin(self, branch: Branch, wait: Wait) -> bool:
        """Start an effect or a wait at the live frontier; return False if an effect is in doubt."""
        verb, wait.kind = wait.plan[0], "out"
        if verb not in EFFECTS:
            self.out.append(branch)
            if verb != "signal" and wait.plan[1] is not None:
                self.at(wait.plan[1], branch, wait)
            return True
        effect, mode, digest, name = wait.plan[:4]
        record = wait.record
        is_open = record is not None and record.begin is not None and record.end is None
        if is_open and mode == "at_most_once":
            return False
        if not is_open:
            kind = "tool.called" if effect == "tool" else "effect.intent"
            data = {"effect": effect, "name": name, "hash": digest, "mode": mode}
            self.record(kind, wait.position, data)
            branch.begun[wait.position] = effect
        self.begun_at[wait.position] = self.world.now
        return True

    def execute(self, branch: Branch, wait: Wait) -> None:
        """Execute an effect that has started; entries before it are durable."""
        does = wait.plan[4]
        n = self.world.executions.get(does, 0)
        self.world.executions[does] = n + 1
        outcome = self.case.outcome(does, n)
        wait.plan = (*wait.plan, outcome, f"{does}#{n}")
        self.at(self.world.now + outcome["d"], branch, wait)

    def happen(self, branch: Branch, wait: Wait) -> None:
        """Record that the time of a wait has come, so that the branch can continue in its turn."""
        if wait.plan[0] in ("step", "tool"):
            effect, outcome, text = wait.plan[0], *wait.plan[5:]
            rest = came_of(effect, outcome, text)
            self.conclude(branch, wait, rest)
            return
        self._give(branch)
        self.out.remove(branch)
        kind, data = self.lapsed(wait)
        self._await_hit(branch, self.record(kind, wait.position, data))

    def conclude(self, branch: Branch, wait: Wait, rest: dict[str, Any]) -> None:
        """Record the outcome of an effect; the branch continues in its turn."""
        del branch.begun[wait.position]
        self._await_hit(branch, self._result(wait.position, wait.plan, rest))

    def lapsed(self, wait: Wait) -> tuple[str, dict[str, Any]]:
        """Return kind and data of the entry for the end of a wait's time."""
        raise NotImplementedError

    def answer_of(self, wait: Wait) -> tuple[str, dict[str, Any]] | None:
        """Return kind and data of the entry that ends an ask or a join, if its answer is there."""
        raise NotImplementedError

    def offer(self) -> bool:
        """Give arrived events to the branches that wait for them; return True if one got something.

        Raises: TieError: Two could have it, or two get something in the same instant.
        """
        self.out = [b for b in self.out if b.wait is not None and b.wait.kind == "out"]
        takers = [(branch, entry) for branch in self.out for entry in self._find_entries(branch)]
        if len(takers) > 1:
            raise TieError("two branches get something in the same instant")
        for branch, (kind, data) in takers:
            assert branch.wait is not None
            self._give(branch)
            self.out.remove(branch)
            if kind == "signal.received":
                self.signals.remove((data["name"], data["payload"]))
            elif kind == "msg.received":
                letter = self.box.waiting.pop(0)
                self.by_id[letter.id] = letter
            self._await_hit(branch, self.record(kind, branch.wait.position, data))
        return bool(takers)

    def _give(self, branch: Branch) -> None:
        """Refuse that two branches get an event in one instant: their order is undefined."""
        at, other = self.last_delivery
        if other is not branch and abs(self.world.now - at) < TIE_S:
            raise TieError(f"two branches get something at {at:.6f} s")
        for waiting_branch in self.out:
            timed = (
                waiting_branch.wait.plan[1]
                if waiting_branch.wait is not None and waiting_branch is not branch
                else None
            )
            if isinstance(timed, float) and timed < self.world.now + TIE_S:
                raise TieError(f"two branches get something at {timed:.6f} s")
        self.last_delivery = (self.world.now, branch)

    def _find_entries(self, branch: Branch) -> list[tuple[str, dict[str, Any]]]:
        assert branch.wait is not None
        verb, what, digest = branch.wait.plan[:3]
        if verb == "signal":
            for name, payload in self.signals:
                if name == what:
                    data = {"name": name, "payload": payload, "hash": digest}
                    return [("signal.received", data)]
        elif verb == "receive" and self.box.waiting:
            letter = self.box.waiting[0]
            data = {"payload": letter.payload, "id": letter.id, "hash": digest}
            return [("msg.received", data)]
        elif verb in ("ask", "join"):
            answer = self.answer_of(branch.wait)
            return [] if answer is None else [answer]
        return []

    def outcome_at(self, wait: Wait) -> tuple[Any, BaseException | None]:
        """Return the value, or the error, that an entry gives to the branch that awaits it."""
        line = self.log[wait.seq]
        if line.kind == "msg.received":
            self.seen.append(self.by_id[line.data["id"]])
        if line.kind in ("signal.received", "msg.received"):
            return line.data["payload"], None
        if line.kind == "child.completed":
            return [line.data[key] for key in ("status", "output", "error")], None
        if line.kind in ("ask.replied", "ask.timeout"):
            return [line.data.get(key) for key in ("outcome", "result", "handle")], None
        if line.data.get("status") == "error":
            error = rebuilt(line.data["error"])
            setattr(error, _MARK, wait.seq)
            return None, error
        return line.data.get("value"), None

    def _gather(self, branch: Branch, codes: list[Any], kind: str = "gather") -> None:
        group = Group(kind, branch.take_position())
        for index, code in enumerate(codes):
            group.children.append(Branch(f"{group.position}.{index}.", [(code, None)]))
        self.open_group(branch, group)
        self.ready += group.children
        branch.wait = Wait("group", group=group)

    def _select(self, branch: Branch, codes: list[Any]) -> None:
        self._gather(branch, codes, "select")

    def _scope(self, branch: Branch, body: Any) -> None:
        group = Group("body", branch.take_position())
        self.open_group(branch, group)
        branch.stack.append((body(group), group))

    def _start(self, _: Branch, group: Group, code: Any) -> tuple[Group, Branch]:
        child = Branch(f"{group.position}.{len(group.children)}.", [(code, None)])
        group.children.append(child)
        self.ready.append(child)
        return group, child

    def _join(self, branch: Branch, started: tuple[Group, Branch], kind: str = "join") -> None:
        group, child = started
        group.kind, group.child = kind, child
        branch.wait = Wait("group", group=group)

    def _cancel(self, branch: Branch, started: tuple[Group, Branch]) -> None:
        self._join(branch, started, "cancel")

    def outcome_of(self, group: Group) -> tuple[Any, BaseException | None]:
        """Return what a group whose condition holds gives to its parent."""
        if group.kind in ("join", "cancel"):
            return self._outcome_of_child(group)
        decider = group.decider
        if group.kind == "select":
            assert decider is not None
            index = group.children.index(decider)
            self._won(group.position, index)
            return [index, decider.value], decider.error
        error = group.error or (decider.error if decider is not None else None)
        if error is not None or group.kind == "scope":
            return group.value, error
        return [child.value for child in group.children], None

    @staticmethod
    def _outcome_of_child(group: Group) -> tuple[Any, BaseException | None]:
        """Return the result of `await child` or `await child.cancel()`."""
        child, kind, group.kind = group.child, group.kind, "body"
        assert child is not None
        if kind == "cancel":
            return None, None
        group.joined.append(child)
        if child.closed:
            return None, CancellationError("this branch of the scope was cancelled")
        return child.value, child.error

    def _won(self, position: str, index: int) -> None:
        record = self.memory.find(position, ("select.won",), "")
        if record is not None and record.end is not None and self.memory.is_strict(record.end):
            if self.log[record.end].data["index"] != index:
                raise DivergenceError(position)
            return
        self.record("select.won", position, {"index": index})


def came_of(effect: str, outcome: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the log entry of an execution; a failed tool is an answer, not an error."""
    if "err" not in outcome:
        value = outcome.get("ok")
        return {"status": "ok", "value": ["ok", value, ""] if effect == "tool" else value}
    error = make_error(outcome["err"], text)
    if effect == "tool" and not isinstance(error, RunError):
        text = f"{type(error).__name__}: {text_of(error)}"
        return {"status": "ok", "value": ["error", None, text]}
    return {"status": "error", "error": error_record(error)}


def refuse_large(payload: Any, what: str) -> None:
    """Return if a message may hold this."""
    size = len(json.dumps(payload, separators=(",", ":")).encode())
    if size > MOST_BYTES:
        raise MessageTooLargeError(what, size, MOST_BYTES)


def error_record(error: BaseException) -> dict[str, Any]:
    """Return the essential record of an error: its class and its text."""
    if isinstance(error, EffectError):
        return {"type": error.error_type.rpartition(":")[2], "message": error.message}
    return {"type": type(error).__name__, "message": text_of(error)}


def rebuilt(record: dict[str, Any]) -> Exception:
    """Return the error as authors get it."""
    name, text = record["type"], record["message"]
    if name == SpawnDenied.__name__:
        parent, limit = re.fullmatch(r"run (\S+) .*\((.*)\)", text).groups()  # type: ignore[union-attr]
        return SpawnDenied(parent, limit)
    if name in (AwkwardError.__name__, "SystemExit"):
        module = "builtins" if name == "SystemExit" else AwkwardError.__module__
        return EffectError(f"{module}:{name}", text)
    if name in ("RetryAfter", "ModelError"):
        text = text.partition(": ")[2]
    error = make_error(name, text.strip("'") if name == "KeyError" else text)
    assert isinstance(error, Exception)
    return error


def ending_of(error: BaseException) -> int | None:
    """Return the seq of the first recorded error along ``__cause__`` and ``__context__``."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        exc = todo.pop(0)
        if exc is not None and id(exc) not in seen:
            seen.add(id(exc))
            seq = getattr(exc, _MARK, None)
            if isinstance(seq, int):
                return seq
            todo += [exc.__cause__, exc.__context__]
    return None
