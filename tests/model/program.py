"""Small JSON programs and the one interpreter of them, a generator that yields what it wants done.

The agent answers each `Call` through ctx, the model answers it by the rule book: so what both run is
the same code, and only the runtime is compared. A program is a list of statements, each a dict with
an ``op`` and, where it calls ctx, a ``label`` that no other statement has:

``step`` label, mode, args, into · ``tool`` label, args, into · ``sleep`` d · ``sleep_until`` d ·
``signal`` name, into · ``receive`` d (None: for ever), into · ``now`` · ``random`` into · ``uuid`` into ·
``get`` key, into · ``set`` key, value · ``clear`` key · ``send`` payload · ``patched`` id ·
``gather`` branches · ``select`` branches · ``scope`` branches, body · ``join`` child ·
``cancel`` child · ``try`` body, catch, handler, final · ``raise`` error · ``reraise`` · ``if_bad`` error ·
``if`` cond, then, else · ``continue`` limit · ``check`` ·
``ask`` to, payload, d, into · ``ask_back`` to, d, into ·
``ask_child`` child, payload, d, into · ``reply`` which, value ·
``spawn`` type, boot · ``await_child`` child, into · ``stop_child`` child · ``tell`` to, payload ·
``emit`` topic, payload ·
``follow`` topic · ``unfollow`` topic · ``approval`` d, into ·
``append`` texts, session · ``count`` session, into · ``turns`` session, into ·
``generate`` text, session, into ·
``remember`` text, key, about, into · ``recall`` about, into · ``forget`` what, about · ``block`` name, into ·
``set_block`` name, text, expected (a version, or the variable of a block).

`to` is an agent as text; `child` and `which` count children spawned and messages received so far,
around. An expression is ``{"var": name}``, ``{"list": [...]}``, ``{"big": length}`` or JSON data that
stands for itself.
`d` is in virtual seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from typing_extensions import override

from actors.errors import ModelError, RetryAfter, TerminalError
from tests.model.memories import QUERY

Json: TypeAlias = Any
Stmt: TypeAlias = dict[str, Any]
Block: TypeAlias = list[Stmt]


class ScriptedError(Exception):
    """Raised by effects and by programs; can be rebuilt from its record."""


class MemoryConflictError(Exception):
    """Stands for the runtime's in the model: a text is all that a program sees of it."""


class AwkwardError(Exception):
    """Raised by effects; cannot be rebuilt from what its record holds."""

    def __init__(self, code: str, hint: str) -> None:
        super().__init__(f"{code}: {hint}")


class MuteError(Exception):
    """Raised by effects and by programs; nobody can have its text."""

    @override
    def __str__(self) -> str:
        raise ValueError("no text")


def make_error(name: str, text: str) -> BaseException:
    """Return a fresh error of the named class that says `text`."""
    if name == "RetryAfter":
        return RetryAfter(0.75, text)
    if name == "AwkwardError":
        return AwkwardError(text, "lost")
    if name == "ModelError":
        return ModelError("overloaded", None, text)
    return _PLAIN.get(name, ScriptedError)(text)


_PLAIN: Final[dict[str, type[BaseException]]] = {
    error.__name__: error
    for error in (
        *(MuteError, SystemExit, TerminalError, ValueError, KeyError),
        MemoryConflictError,
    )
}


@dataclass(frozen=True, slots=True)
class Call:
    """One thing a program wants from ctx. `args` are plain data or generators of branches."""

    verb: str
    label: str = ""
    args: tuple[Any, ...] = ()


Code: TypeAlias = Generator[Call, Any, Any]
MakeCode: TypeAlias = Callable[[Any], Code]


@dataclass(frozen=True, slots=True)
class Case:
    """A program with everything that decides what it does.

    Attributes:
        program: Its statements.
        script: By label, what each execution of the effect does: ``{"d": s, "ok": value}`` or
            ``{"d": s, "err": class name}``; the last one repeats.
        signals: ``[at, name]``, by time of arrival.
        mail: Times at which a message arrives.
        asked: Times at which its sender submits a run to the first agent, which waits for its turn.
        retry: Arguments of the `RetryPolicy`.
        cast: Programs of other agents, by type; each run of such an agent runs it.
        budget: Arguments of the root's `SpawnBudget`.
        tenant: Whose all agents are; empty: the default one. See `in_tenant`.
        is_even: Every run does the same at the same time, so that much coincides.
        retention: Of the turns of conversations; empty: nobody talks to a model.
        remembers: Agents keep memories; the script says by a text's words how it is embedded.
    """

    program: Block
    script: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    signals: list[tuple[float, str]] = field(default_factory=list)
    mail: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    retry: dict[str, Any] = field(default_factory=dict)
    cast: dict[str, Block] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)
    tenant: str = ""
    is_even: bool = False
    retention: str = ""
    remembers: bool = False

    @property
    def arrivals(self) -> list[tuple[float, str, str, dict[str, int]]]:
        """All that outsiders send, by time: when, its id, the name if it is a signal, and the payload."""
        sent = [(at, f"{name}{n}", name, {"n": n}) for n, (at, name) in enumerate(self.signals)]
        for what, times in (("mail", self.mail), ("asked", self.asked)):
            sent += [(at, f"{what}{n}", "", {what: n}) for n, at in enumerate(times)]
        return sorted(sent, key=lambda arrival: arrival[0])

    @property
    def root(self) -> str:
        """The agent of the submitted run."""
        return self.named("program/one")

    @property
    def sink(self) -> str:
        """Where messages go that nobody reads."""
        return self.named("sink/model")

    def named(self, name: str) -> str:
        """Return an agent, or a topic, of the case's tenant."""
        return f"{self.tenant}:{name}" if self.tenant else name

    def outcome(self, name: str, execution: int) -> dict[str, Any]:
        """Return what the execution with this number (0 is the first) of an effect does."""
        label, _, rest = name.partition("@")
        outcomes = self.script.get(label) or [{"d": 0.0, "ok": None}]
        outcome = outcomes[min(execution, len(outcomes) - 1)]
        return {**outcome, "d": outcome["d"] * self.pace_of(rest.partition("/")[2])}

    def pace_of(self, tag: str) -> float:
        """Return how slow a run is: two runs of one program do not do the same at the same time."""
        if self.is_even or not tag:
            return 1.0
        part = int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=4).digest(), "big") / 2**32
        return 1.0 + 0.4 * part

    def code(self, type_: str, payloads: list[Json], tag: str) -> Code:
        """Return one start of the program of a type's agents, with what they were given."""
        program = self.program_of(type_)
        return Interpreter(program, payloads, tag, pace=self.pace_of(tag)).main()

    def program_of(self, type_: str) -> Block:
        """Return what agents of a type run."""
        return self.cast.get(type_.rpartition(":")[2], self.program)


def in_tenant(case: Case, tenant: str) -> Case:
    """Return the case with everything in a tenant, where it meets no other."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: f"{tenant}:{part}" if key in ("to", "topic") else moved(part)
            for key, part in value.items()
        }

    cast = {type_: moved(part) for type_, part in case.cast.items()}
    return replace(case, program=moved(case.program), cast=cast, tenant=tenant)


BACK: Final = "back"
"""What the questions say that may close a cycle; who gets one calls nobody, so that there is an end."""
BAD: Final = "bad"
"""What a message says on which programs fail that look for it."""
CALLS_OTHERS: Final = ("ask", "ask_back", "emit", "spawn", "tell")

DEFAULT_RETRY: Final = {"max_retries": 2, "backoff_s": 1.3, "factor": 2.0, "jitter": 0.0}


class Interpreter:
    """One start of a program from its top."""

    def __init__(self, program: Block, payloads: list[Json], tag: str, *, pace: float) -> None:
        boot = payloads[0] if payloads else None
        self._program, self._is_bad = program, BAD in payloads
        self._tag, self._pace = f"/{tag}" if tag else "", pace
        self._is_back = boot == BACK
        self._children: list[Json] = []
        self._boot = boot if isinstance(boot, dict) else {}
        self._generation = int(self._boot.get("generation", 0))
        self._vars: dict[str, Json] = {}
        self._trace: list[Json] = list(self._boot.get("trace", []))
        self._is_gone = False

    def main(self) -> Code:
        """Yield the program's calls; return its output: the variables and what was seen in which order."""
        results = yield from self._block(self._program, {})
        return {"results": results, "vars": self._vars, "trace": self._trace}

    def _block(self, block: Block, children: dict[int, Any]) -> Code:
        results = []
        for stmt in block:
            if self._is_back and stmt["op"] in CALLS_OTHERS:
                continue
            result = yield from getattr(self, f"_do_{stmt['op']}")(stmt, children)
            results.append(result)
        return results

    def _ask(self, label: str, verb: str, *args: Any) -> Code:
        """Yield one call and note what came of it."""
        try:
            value = yield Call(verb, label, args)
        except GeneratorExit:
            self._is_gone = True
            raise
        except BaseException as exc:
            self._trace.append([label, "!", type(exc).__name__, _text(exc)])
            raise
        self._trace.append([label, value])
        return value

    def _value(self, expr: Json) -> Json:
        if isinstance(expr, dict) and "var" in expr:
            return self._vars.get(expr["var"])
        if isinstance(expr, dict) and "big" in expr:
            return "x" * expr["big"]
        if isinstance(expr, dict) and "list" in expr:
            return [self._value(item) for item in expr["list"]]
        return expr

    def _paced(self, seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * self._pace, 6)

    def _keep(self, stmt: Stmt, value: Json) -> Json:
        if stmt.get("into"):
            self._vars[stmt["into"]] = value
        return value

    def _do_step(self, stmt: Stmt, _: Any) -> Code:
        args = [self._value(arg) for arg in stmt.get("args", [])]
        mode, label = stmt.get("mode", "idempotent"), stmt["label"]
        name = f"{label}@{self._generation}{self._tag}"
        return self._keep(stmt, (yield from self._ask(label, "step", name, mode, args)))

    def _do_tool(self, stmt: Stmt, _: Any) -> Code:
        args: dict[str, Any] = {"what": [self._value(arg) for arg in stmt.get("args", [])]}
        mode, label = stmt.get("mode", "idempotent"), stmt["label"]
        args["called"] = f"{label}@{self._generation}{self._tag}"
        return self._keep(stmt, (yield from self._ask(label, "tool", mode, args)))

    def _do_sleep(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "sleep", self._paced(stmt["d"])))

    def _do_sleep_until(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "sleep_until", self._paced(stmt["d"])))

    def _do_signal(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "signal", stmt["name"])))

    def _do_receive(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(
            stmt, (yield from self._ask(stmt["label"], "receive", self._paced(stmt["d"])))
        )

    def _do_now(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "now"))

    def _do_random(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "random")))

    def _do_uuid(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "uuid")))

    def _do_get(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "get", stmt["key"])))

    def _do_set(self, stmt: Stmt, _: Any) -> Code:
        value = self._value(stmt["value"])
        return (yield from self._ask(stmt["label"], "set", stmt["key"], value))

    def _do_clear(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "clear", stmt["key"]))

    def _do_send(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "send", self._value(stmt["payload"])))

    def _do_patched(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "patched", stmt["id"]))

    def _do_check(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "check"))

    def _do_continue(self, stmt: Stmt, _: Any) -> Code:
        if self._generation >= stmt["limit"]:
            return None
        boot = {"generation": self._generation + 1, "trace": list(self._trace)}
        return (yield from self._ask(stmt["label"], "continue", boot))

    def _do_gather(self, stmt: Stmt, _: Any) -> Code:
        branches = [self._block(branch, {}) for branch in stmt["branches"]]
        return (yield from self._ask(stmt["label"], "gather", branches))

    def _do_select(self, stmt: Stmt, _: Any) -> Code:
        branches = [self._block(branch, {}) for branch in stmt["branches"]]
        return (yield from self._ask(stmt["label"], "select", branches))

    def _do_scope(self, stmt: Stmt, _: Any) -> Code:
        def body(scope: Any) -> Code:
            children: dict[int, Any] = {}
            for index, branch in enumerate(stmt["branches"]):
                children[index] = yield Call("start", "", (scope, self._block(branch, {})))
            return (yield from self._block(stmt["body"], children))

        return (yield from self._ask(stmt["label"], "scope", body))

    def _do_join(self, stmt: Stmt, children: dict[int, Any]) -> Code:
        return (yield from self._ask(stmt["label"], "join", children[stmt["child"]]))

    def _do_cancel(self, stmt: Stmt, children: dict[int, Any]) -> Code:
        return (yield from self._ask(stmt["label"], "cancel", children[stmt["child"]]))

    def _do_ask(self, stmt: Stmt, _: Any) -> Code:
        payload, limit = self._value(stmt["payload"]), self._paced(stmt["d"])
        code = self._ask(stmt["label"], "ask", stmt["to"], payload, limit)
        return self._keep(stmt, (yield from code))

    def _do_ask_back(self, stmt: Stmt, _: Any) -> Code:
        limit = self._paced(stmt["d"])
        code = self._ask(stmt["label"], "ask", stmt["to"], BACK, limit)
        return self._keep(stmt, (yield from code))

    def _do_ask_child(self, stmt: Stmt, _: Any) -> Code:
        child = self._child(stmt)
        payload, limit = self._value(stmt["payload"]), self._paced(stmt["d"])
        if child is None:
            return None
        code = self._ask(stmt["label"], "ask_run", child, payload, limit)
        return self._keep(stmt, (yield from code))

    def _do_approval(self, stmt: Stmt, _: Any) -> Code:
        code = self._ask(stmt["label"], "approval", stmt["label"], self._paced(stmt["d"]))
        return self._keep(stmt, (yield from code))

    def _do_reply(self, stmt: Stmt, _: Any) -> Code:
        value = self._value(stmt["value"])
        return (yield from self._ask(stmt["label"], "reply", stmt["which"], value))

    def _do_spawn(self, stmt: Stmt, _: Any) -> Code:
        boot = self._value(stmt["boot"])
        child = yield from self._ask(stmt["label"], "spawn", stmt["type"], boot)
        self._children.append(child)
        return child

    def _child(self, stmt: Stmt) -> Json:
        n = len(self._children)
        return self._children[stmt["child"] % n] if n else None

    def _do_await_child(self, stmt: Stmt, _: Any) -> Code:
        child = self._child(stmt)
        if child is None:
            return None
        return self._keep(stmt, (yield from self._ask(stmt["label"], "await_run", child)))

    def _do_stop_child(self, stmt: Stmt, _: Any) -> Code:
        child = self._child(stmt)
        if child is None:
            return None
        return (yield from self._ask(stmt["label"], "stop_run", child))

    def _do_tell(self, stmt: Stmt, _: Any) -> Code:
        payload = self._value(stmt["payload"])
        return (yield from self._ask(stmt["label"], "tell", stmt["to"], payload))

    def _do_emit(self, stmt: Stmt, _: Any) -> Code:
        payload = self._value(stmt["payload"])
        return (yield from self._ask(stmt["label"], "emit", stmt["topic"], payload))

    def _do_follow(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "follow", stmt["topic"]))

    def _do_unfollow(self, stmt: Stmt, _: Any) -> Code:
        return (yield from self._ask(stmt["label"], "unfollow", stmt["topic"]))

    def _do_append(self, stmt: Stmt, _: Any) -> Code:
        texts = [str(self._value(text)) for text in stmt["texts"]]
        return (yield from self._ask(stmt["label"], "append", texts, stmt["session"]))

    def _do_count(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "count", stmt["session"])))

    def _do_turns(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "turns", stmt["session"])))

    def _do_generate(self, stmt: Stmt, _: Any) -> Code:
        label, text = stmt["label"], str(self._value(stmt["text"]))
        name = f"{label}@{self._generation}{self._tag}"
        code = self._ask(label, "generate", name, text, stmt["session"])
        return self._keep(stmt, (yield from code))

    def _do_remember(self, stmt: Stmt, _: Any) -> Code:
        code = self._ask(stmt["label"], "remember", stmt["text"], stmt["key"], stmt["about"])
        return self._keep(stmt, (yield from code))

    def _do_recall(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(
            stmt, (yield from self._ask(stmt["label"], "recall", QUERY, stmt["about"]))
        )

    def _do_forget(self, stmt: Stmt, _: Any) -> Code:
        what = str(self._value(stmt["what"]))
        return (yield from self._ask(stmt["label"], "forget", what, stmt["about"]))

    def _do_block(self, stmt: Stmt, _: Any) -> Code:
        return self._keep(stmt, (yield from self._ask(stmt["label"], "block", stmt["name"])))

    def _do_set_block(self, stmt: Stmt, _: Any) -> Code:
        block_value = self._value(stmt["expected"])
        expected = block_value[1] if isinstance(block_value, list) else block_value
        expected = expected if isinstance(expected, int) else 0
        args = (stmt["name"], stmt["text"], expected)
        return (yield from self._ask(stmt["label"], "set_block", *args))

    def _do_try(self, stmt: Stmt, children: dict[int, Any]) -> Code:
        try:
            return (yield from self._block(stmt["body"], children))
        except Exception as exc:
            error_name = stmt.get("catch")
            if error_name is None or error_name not in ("Exception", type(exc).__name__):
                raise
            self._trace.append([stmt["label"], "caught", type(exc).__name__, _text(exc)])
            return (yield from self._block(stmt["handler"], children))
        finally:
            if not self._is_gone:
                yield from self._block(stmt.get("final", []), children)

    def _do_raise(self, stmt: Stmt, _: Any) -> Code:
        yield from ()
        raise make_error(stmt["error"], stmt["label"])

    def _do_if_bad(self, stmt: Stmt, _: Any) -> Code:
        yield from ()
        if self._is_bad:
            raise make_error(stmt["error"], stmt["label"])

    def _do_reraise(self, stmt: Stmt, _: Any) -> Code:
        yield from ()
        raise  # noqa: PLE0704 - stands in handlers only

    def _do_if(self, stmt: Stmt, children: dict[int, Any]) -> Code:
        branch = stmt["then"] if self._value(stmt["cond"]) else stmt.get("else", [])
        return (yield from self._block(branch, children))


def text_of(exc: BaseException) -> str:
    """Return the text of an error as it is recorded."""
    if isinstance(exc, MuteError):
        return "(its text cannot be had: ValueError)"
    return str(exc)


def _text(exc: BaseException) -> str:
    return text_of(exc) if isinstance(exc, Exception) else ""
