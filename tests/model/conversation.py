"""The verbs of conversations in the model: append, count and get of a history, generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, turn_id
from actors._kernel.runtime.effects import args_hash
from tests.model import scripted
from tests.model.scripted import KEPT, MODEL, MOST, SESSIONS, SUMMARISER
from tests.model.sessions import Cut, Session
from tests.model.signs import TieError
from tests.model.talk import Talk
from tests.model.verbs import came_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.branches import Branch, Wait
    from tests.model.history import Line

READS: Final = ("history.count", "history.get")


def words_of(texts: Sequence[str]) -> list[Any]:
    """Return the user's turns in the form that is hashed."""
    return [ChatMessage.of("user", text).model_dump(mode="json") for text in texts]


class Conversations(Talk):
    """See the module's docstring.

    Attributes:
        new_turns: Turns that become durable with an entry, by its seq: the entry, session, id, role and text.
        cuts: Wanted since the last flush.
    """

    new_turns: dict[int, tuple[Line, list[tuple[str, str, str, str]]]]
    cuts: list[Cut]

    def _append(self, branch: Branch, texts: list[str], session: str | None) -> None:
        position = branch.take_position()
        digest = args_hash(["history.append", session, words_of(texts)])
        record = self.memory.find(position, ("effect.result",), digest)
        if record is not None and record.end is not None:
            return
        self._value(position, "history.append", digest, None)
        self._say(position, digest, session, [("user", text) for text in texts])

    def _count(self, branch: Branch, session: str | None) -> None:
        self._read(branch, "history.count", ["history.count", session], session)

    def _turns(self, branch: Branch, session: str | None) -> None:
        self._read(branch, "history.get", ["history.get", session, None, 0], session)

    def _read(self, branch: Branch, name: str, words: list[Any], session: str | None) -> None:
        self._effect(branch, ("step", "idempotent", args_hash(words), name, session or ""))

    def _generate(self, branch: Branch, name: str, text: str, session: str | None) -> None:
        question = f"{name}|{text}"
        digest = args_hash(["generate", session, words_of([question]), None])
        self._effect(branch, ("llm", "idempotent", digest, MODEL, name, session, question))

    def _say(
        self, position: str, digest: str, session: str | None, role_texts: list[tuple[str, str]]
    ) -> None:
        """Let turns be durable with the entry that was recorded last."""
        ids = [turn_id(self.run_id, f"{position} {digest}", n) for n in range(len(role_texts))]
        turns = [
            (session or SESSIONS[0], id_, *role_text)
            for id_, role_text in zip(ids, role_texts, strict=True)
        ]
        self.new_turns[len(self.log) - 1] = (self.log[-1], turns)

    @override
    def execute(self, branch: Branch, wait: Wait) -> None:
        name = wait.plan[3]
        if name in READS and wait.plan[0] == "step":
            session = self._session(wait.plan[4])
            turns = [[turn.role, turn.text, turn.id] for turn in session.turns]
            value = len(turns) if name == "history.count" else turns
            wait.plan = (*wait.plan, {"ok": value}, "")
            self.lookups.append(branch)
            self.at(self.world.now, branch, wait)
        elif wait.plan[0] == "llm":
            window, receipt = self._window(wait)
            outcome, n = self._executed(wait.plan[4])
            wait.plan = (*wait.plan, window, receipt, outcome, f"{wait.plan[4]}#{n}")
            self.at(self.world.now + outcome["d"], branch, wait)
        else:
            super().execute(branch, wait)

    @override
    def happen(self, branch: Branch, wait: Wait) -> None:
        if wait.plan[0] != "llm":
            super().happen(branch, wait)
            return
        digest, session, question = wait.plan[2], *wait.plan[5:7]
        texts, receipt, outcome, text = wait.plan[7:]
        rest, role_texts = came_of("llm", outcome, text), [("user", question)]
        if rest["status"] == "ok":
            answer = scripted.answer_to(texts, rest["value"])
            role_texts.append(("assistant", answer))
            rest["value"] = [answer, *receipt]
        self.conclude(branch, wait, rest)
        self._say(wait.position, digest, session, role_texts)

    @override
    def outcome_at(self, wait: Wait) -> tuple[Any, BaseException | None]:
        value, error = super().outcome_at(wait)
        return (value[0] if self.log[wait.seq].kind == "llm.call" and value else value), error

    def _session(self, name: str | None) -> Session:
        key = f"{self.box.agent} {name or SESSIONS[0]}"
        return self.world.sessions.get(key, Session())

    def _executed(self, name: str) -> tuple[dict[str, Any], int]:
        """Count an execution; return its outcome, and its number."""
        n = self.world.executions.get(name, 0)
        self.world.executions[name] = n + 1
        return self.case.outcome(name, n), n

    def _window(self, wait: Wait) -> tuple[list[str], list[int]]:
        """Return the texts of the window that a model is shown, and head, cut and size of its receipt."""
        session = self._session(wait.plan[5])
        behind = [turn for turn in session.turns if turn.ordinal > session.upto]
        fresh = turn_id(self.run_id, f"{wait.position} {wait.plan[2]}", 0)
        turns = [(turn.id, turn.text) for turn in behind if turn.id != fresh]
        turns.append((fresh, wait.plan[6]))
        summary, head = session.summary, max((turn.ordinal for turn in behind), default=-1)
        receipt = [head, session.upto]
        if len(turns) > MOST:
            summary = turns[-KEPT - 1][0]
            self._pay(wait, summary)
            turns = turns[-KEPT:]
            kept_ids, cut_upto = {id_ for id_, _ in turns}, NO_CUT
            for turn in behind:
                if turn.id in kept_ids:
                    break
                cut_upto = turn.ordinal
            ordinals = {turn.id: turn.ordinal for turn in behind}
            if cut_upto != NO_CUT and ordinals.get(summary) == cut_upto:
                name = wait.plan[5] or SESSIONS[0]
                self.cuts.append(Cut(name, cut_upto, session.upto, summary))
        texts = [scripted.summary_of(summary).text] if summary else []
        texts += [text for _, text in turns]
        return texts, [*receipt, len(texts)]

    def _pay(self, wait: Wait, upto: str) -> None:
        """Buy a summary, unless one with the same words is recorded."""
        if sum(at == self.world.now for at in self.begun_at.values()) > 1:
            raise TieError("a summary is bought where another effect begins")
        question = scripted.summary_question(upto)
        position = f"{wait.position}~0"
        digest = args_hash(["paid", SUMMARISER, words_of([question]), None])
        record = self.memory.records.get(position)
        if record is not None and record.end is not None:
            record_data = self.log[record.end].data
            if (record_data["hash"], record_data["status"]) == (digest, "ok"):
                return
        self._executed(scripted.name_in(question))
        data = {"effect": "llm", "name": SUMMARISER, "hash": digest}
        self.record("effect.intent", position, {**data, "mode": "idempotent"})
        answer = scripted.summary_to(question)
        self.record("llm.call", position, {**data, "status": "ok", "value": [answer]})
        self.flush()
