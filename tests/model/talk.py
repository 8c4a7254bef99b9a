"""The verbs between runs in the model: spawn, join, ask, reply, cancel, send, emit, follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors._kernel.runtime.effects import args_hash
from actors._kernel.runtime.ids import derive_id, message_id_of_run, run_id_of_child
from actors.errors import SpawnDenied
from tests.model.branches import Wait
from tests.model.signs import RefusedSignal, TieError
from tests.model.verbs import Verbs, error_record, refuse_large

if TYPE_CHECKING:
    from tests.model.branches import Branch
    from tests.model.world import Answer

OUTCOMES: Final = {
    "replied": "replied",
    "completed": "replied",
    "failed": "target_failed",
    "cancelled": "target_cancelled",
}


def child_of(run_id: Any, position: str, n: int) -> tuple[str, str]:
    """Return the id of the n-th child spawned at a position, and its agent's key."""
    spawn_position = position if n == 0 else f"{position}#{n}"
    return str(run_id_of_child(run_id, spawn_position)), derive_id("agent", run_id, position, n)


class Talk(Verbs):
    """See the module's docstring."""

    parent: str | None
    rows: dict[str, str]
    refused: dict[str, str]
    extra: dict[int, Any]
    lookups: list[Branch]

    def _spawn(self, branch: Branch, type_: str, boot: Any) -> str:
        position, digest = branch.take_position(), args_hash(["spawn", type_, None, boot])
        record = self.memory.find(position, ("child.spawned", "effect.result"), digest)
        if record is not None and record.end is not None and record.end not in self.memory.void:
            line = self.log[record.end]
            if line.kind == "child.spawned":
                return str(line.data["child"])
            raise self.error_at(record.end)
        if position in self.refused:
            raise self._refusal(position, digest, self.refused.pop(position))
        refuse_large(boot, f"boot message of {type_}")
        before = self.memory.records.get(position)
        n = before.sent if before else 0
        child, key = child_of(self.run_id, position, n)
        letter_id = None if boot is None else message_id_of_run(self.run_id, position, n)
        data = {
            "child": child,
            "agent": self.case.named(f"{type_}/{key}"),
            "boot": letter_id,
            "hash": digest,
        }
        self.extra[self.record("child.spawned", position, data)] = boot
        if self.is_working:
            try:
                self.flush()
            except RefusedSignal as signal:
                if signal.positions != [position]:
                    raise TieError("an earlier spawn is refused while effects execute") from None
                self.log.pop()
                del self.extra[len(self.log)]
                error = self._refusal(position, digest, signal.limit)
                self.flush()
                raise error from None
        return child

    def _refusal(self, position: str, digest: str, limit: str) -> BaseException:
        """Record that the budget has no slot for a child; return the error."""
        denied = error_record(SpawnDenied(self.run_id, limit))
        data = {"effect": "spawn", "hash": digest, "status": "error", "error": denied}
        return self.error_at(self.record("effect.result", position, data))

    @property
    def is_working(self) -> bool:
        """Whether effects execute."""
        raise NotImplementedError

    def _reply(self, branch: Branch, which: int, value: Any) -> None:
        if not self.seen:
            return
        letter = self.seen[which % len(self.seen)]
        position, digest = branch.take_position(), args_hash(["reply", letter.id, value])
        record = self.memory.find(position, ("effect.result",), digest)
        if record is None or record.end is None:
            data: dict[str, Any] = {"effect": "reply", "hash": digest, "status": "ok"}
            data["value"] = letter.asker is not None
            self.extra[self.record("effect.result", position, data)] = (letter, value)

    def _tell(self, branch: Branch, target: str, payload: Any) -> None:
        self.send_to(branch, target, payload)

    def _emit(self, branch: Branch, topic: str, payload: Any) -> None:
        self.send_to(branch, topic, payload)

    def _follow(self, branch: Branch, topic: str) -> None:
        self._change(branch, topic, ["follow", topic, "eager"], following=True)

    def _unfollow(self, branch: Branch, topic: str) -> None:
        self._change(branch, topic, ["unfollow", topic], following=False)

    def _change(self, branch: Branch, topic: str, words: list[Any], *, following: bool) -> None:
        position, digest = branch.take_position(), args_hash(words)
        record = self.memory.find(position, ("follow.changed",), digest)
        if record is None or record.end is None:
            data = {"topic": topic, "following": following, "hash": digest}
            self.record("follow.changed", position, data)
            self.flush()

    def flush(self) -> None:
        """Make durable what is recorded."""
        raise NotImplementedError

    def _stop_run(self, branch: Branch, child: str) -> None:
        digest = args_hash(["cancel", child, ""])
        self._effect(branch, ("cancel", "idempotent", digest, child, child))

    @override
    def execute(self, branch: Branch, wait: Wait) -> None:
        if wait.plan[0] != "cancel":
            super().execute(branch, wait)
            return

        def done() -> None:
            if branch.wait is wait:
                self._give(branch)
                self.conclude(branch, wait, {"status": "ok", "value": None})
                self.flush_or_refuse()
                self.go()

        self.world.cancel(wait.plan[4], "")
        self.world.soon.append(done)

    def flush_or_refuse(self) -> None:
        """Flush what a branch has recorded outside its turn."""
        raise NotImplementedError

    def go(self) -> None:
        """Execute everything that needs no other run."""
        raise NotImplementedError

    def _await_run(self, branch: Branch, child: str) -> None:
        position, digest = branch.take_position(), args_hash(["join", child])
        record = self.memory.find(position, ("child.completed",), digest)
        if record is not None and record.end is not None:
            self._await_hit(branch, record.end)
            return
        self._want(branch, position, ("join", None, digest, child, None), record)

    def _joined(self) -> dict[str, dict[str, Any]]:
        """Return the outcomes of children that were joined in this generation."""
        lines = self.log[self.memory.start :]
        return {line.data["child"]: line.data for line in lines if line.kind == "child.completed"}

    def left_behind(self) -> list[str]:
        """Return the children spawned in this generation that were not joined."""
        joined = self._joined()
        lines = self.log[self.memory.start :]
        children = [line.data["child"] for line in lines if line.kind == "child.spawned"]
        return [child for child in children if child not in joined]

    def _ask(self, branch: Branch, target: str, payload: Any, limit: float) -> None:
        self._question(branch, (target, target, None), payload, limit)

    def _ask_run(self, branch: Branch, child: str, payload: Any, limit: float) -> None:
        lines = self.log[self.memory.start :]
        agents = {x.data["child"]: x.data["agent"] for x in lines if x.kind == "child.spawned"}
        self._question(branch, (child, agents[child], child), payload, limit)

    def _question(
        self, branch: Branch, to: tuple[str, str, str | None], payload: Any, limit: float
    ) -> None:
        name, agent, run = to
        position, digest = branch.take_position(), args_hash(["ask", name, payload, limit])
        kinds = ("ask.sent", "ask.replied", "ask.timeout")
        record = self.memory.find(position, kinds, digest)
        if record is not None and record.end is not None:
            self._await_hit(branch, record.end)
            return
        if record is not None and record.begin is not None:
            line = self.log[record.begin]
            deadline, key = line.data["at"], line.data["message_id"]
        else:
            refuse_large(payload, f"question to {agent}")
            before = self.memory.records.get(position)
            key = str(message_id_of_run(self.run_id, position, before.sent if before else 0))
            deadline = self.world.now + limit
            data = {"target": name, "message_id": key, "at": deadline, "hash": digest}
            if run is not None:
                plan = ("ask", deadline, digest, key, agent, run, (data, payload))
                self._want(branch, position, plan, record)
                return
            self.extra[self.record("ask.sent", position, data)] = (agent, payload)
        self._want(branch, position, ("ask", deadline, digest, key, agent, run, None), record)

    @override
    def begin(self, branch: Branch, wait: Wait) -> bool:
        """Begin a verb; an awaited run is read first."""
        verb = wait.plan[0]
        if verb == "join" and wait.plan[3] in self._joined():
            end_data = self._joined()[wait.plan[3]]
            self._found_out(branch, wait, "child.completed", {**end_data, "hash": wait.plan[2]})
            return True
        if verb == "ask" and wait.plan[6] is not None:
            self.flush()
            other = self.world.runs[wait.plan[5]]
            if not other.is_open:
                if wait.plan[5] not in self._joined():
                    other.looked_at = self.world.now
                    other.refuse_race()
                answer = self.world.answer_of(other)
                self._found_out(branch, wait, "ask.replied", self._replied(wait, answer))
                return True
            other.looked_at = self.world.now
            data, payload = wait.plan[6]
            self.lookups.append(branch)
            self.extra[self.record("ask.sent", wait.position, data)] = (wait.plan[4], payload)
        return super().begin(branch, wait)

    def _found_out(self, branch: Branch, wait: Wait, kind: str, data: dict[str, Any]) -> None:
        self.lookups.append(branch)
        self._give(branch)
        seq = self.record(kind, wait.position, data)
        self.flush()
        self._await_hit(branch, seq)

    def open_rows(self) -> dict[str, str]:
        """Return the runs whose end answers open asks, by the question's id."""
        waits = [branch.wait for branch in self.out if branch.wait and not branch.closed]
        asks = [wait.plan for wait in waits if wait.kind == "out" and wait.plan[0] == "ask"]
        return {plan[3]: plan[5] for plan in asks if plan[5] is not None}

    @override
    def answer_of(self, wait: Wait) -> tuple[str, dict[str, Any]] | None:
        verb, _, digest, key = wait.plan[:4]
        answer = self.world.answers.get((self.run_id, key))
        if answer is None:
            return None
        if verb == "join":
            return "child.completed", {"child": key, **ended(answer), "hash": digest}
        return "ask.replied", self._replied(wait, answer)

    @staticmethod
    def _replied(wait: Wait, answer: Answer) -> dict[str, Any]:
        data = {"outcome": OUTCOMES[answer.status], "hash": wait.plan[2], "handle": answer.by}
        result = answer.result if answer.status in ("replied", "completed") else answer.error
        return {**data, "result": result}

    @override
    def lapsed(self, wait: Wait) -> tuple[str, dict[str, Any]]:
        if wait.plan[0] != "ask":
            return "timer.fired", {}
        digest, key, agent, run = wait.plan[2:6]
        if run is not None and not self.world.runs[run].is_open:
            answer = self.world.answer_of(self.world.runs[run])
            return "ask.replied", self._replied(wait, answer)
        handle = self.world.run_of(agent, key, run)
        if handle is None and agent in self.world.boxes and self.world.boxes[agent].is_due:
            raise TieError("a time limit ends in the instant in which the target starts")
        return "ask.timeout", {"outcome": "timed_out", "handle": handle, "hash": digest}

    def error_at(self, seq: int) -> BaseException:
        """Return the error of an entry."""
        _, error = self.outcome_at(Wait("hit", seq))
        assert error is not None
        return error


def ended(answer: Answer) -> dict[str, Any]:
    """Return the outcome of a joined run."""
    return {"status": answer.status.upper(), "output": answer.result, "error": answer.error}
