"""Random small cases for Hypothesis.

A strategy that is made while a case is drawn is looked at anew, which takes longer than to draw from it:
whatever depends on little is made once.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from tests.model.memories import QUERY, TEXTS
from tests.model.program import BAD, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.program import Block, Stmt

ERRORS: Final = (
    *("ScriptedError", "ScriptedError", "ScriptedError", "ValueError", "ValueError"),
    *("AwkwardError", "RetryAfter", "TerminalError", "SystemExit", "MuteError"),
)
CATCHES: Final = (
    "Exception",
    "SpawnDenied",
    "ScriptedError",
    "ValueError",
    "EffectError",
    "RetryAfter",
    None,
)
SIGNALS: Final = ("go", "stop")
UNIT_S: Final = 0.7
"""Durations are small multiples of it, each a little off, so that no two events coincide."""

_ticks = st.integers(0, 6)
_var = st.sampled_from(["x", "y"])
_value = st.integers(0, 2)
_expr = st.one_of(_value, _var.map(lambda name: {"var": name}))


def _stmt(op: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Stmt]:
    return st.fixed_dictionaries({"op": st.just(op), **parts})


_result = st.one_of(_value, _value.map(lambda n: {"n": [n]}))
"""Results of effects: also those that code can change in place, as `ProgramAgent` does."""
_ok = st.fixed_dictionaries({"d": _ticks, "ok": _result})
_bad = st.fixed_dictionaries({"d": _ticks, "err": st.sampled_from(ERRORS)})
_mode = st.sampled_from(["idempotent", "idempotent", "idempotent", "at_most_once"])
_args = st.lists(_expr, max_size=1)


def _effect(op: str, outcomes: st.SearchStrategy[Any]) -> st.SearchStrategy[Stmt]:
    return _stmt(op, mode=_mode, args=_args, into=_var, outcomes=outcomes)


_good_outcomes = st.lists(_ok, min_size=1, max_size=2)
_good_step = _effect("step", _good_outcomes)
_bad_step = _effect("step", st.tuples(_bad, st.one_of(_ok, _bad), _ok).map(list))
_tool = _effect("tool", st.lists(st.one_of(_ok, _bad), min_size=1, max_size=2))
NAMES: Final = ("a\x00b", "\ud800", "x" * 1025, "\u00e9" * 512)
"""Names that no database takes, and the longest one that all take."""
_key = st.sampled_from(["k", "l"] * 12 + list(NAMES))
_instants = st.one_of(
    _stmt("get", key=_key, into=_var),
    _stmt(
        "set",
        key=_key,
        value=st.one_of(st.integers(1, 9), _var.map(lambda v: {"list": [{"var": v}]})),
    ),
    _stmt("clear", key=_key),
    _stmt("now"),
    _stmt("random", into=_var),
    _stmt("uuid"),
    _stmt("send", payload=st.one_of(_value, _var.map(lambda v: {"list": [{"var": v}]}))),
    _stmt("patched", id=st.sampled_from(["p", "q"] * 8 + list(NAMES))),
    _stmt("check"),
)
_waits = st.one_of(
    _stmt("sleep", d=st.integers(0, 12)),
    _stmt("sleep_until", d=st.integers(0, 12)),
    _stmt("signal", name=st.sampled_from(SIGNALS), into=_var),
    _stmt("receive", d=st.one_of(st.none(), st.integers(0, 12)), into=_var),
)
_raise = _stmt("raise", error=st.sampled_from(ERRORS))


def _weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of these, as often as its weight says; `one_of` would drop repetitions."""
    return st.sampled_from([choice for n, choice in choices for _ in range(n)]).flatmap(_itself)


LARGE: Final = (256 * 1024 - 2, 256 * 1024 - 1)
"""Lengths of the largest text that a message may hold, and of a larger one."""


def _itself(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return strategy


leaves: Final = _weighted(
    (5, _good_step), (2, _bad_step), (1, _tool), (4, _instants), (3, _waits), (1, _raise)
)


def _composites(inner: st.SearchStrategy[Stmt]) -> st.SearchStrategy[Stmt]:
    block = st.lists(inner, max_size=3)
    full = st.lists(inner, min_size=1, max_size=3)
    branches = st.lists(st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=3)
    handler = st.tuples(block, st.booleans()).map(
        lambda both: [*both[0], {"op": "reraise"}] if both[1] else both[0]
    )
    ask = st.sampled_from(["join", "cancel"])
    asks = st.lists(st.tuples(ask, st.integers(0, 2)), max_size=2)
    attempt = st.fixed_dictionaries(
        {
            "op": st.just("try"),
            "body": full,
            "catch": st.sampled_from(CATCHES),
            "handler": handler,
            "final": block,
        }
    )
    choice = st.fixed_dictionaries(
        {"op": st.just("if"), "cond": _expr, "then": block, "else": block}
    )
    return _weighted(
        (3, attempt),
        (3, _stmt("gather", branches=branches)),
        (3, _stmt("select", branches=branches)),
        (2, st.tuples(branches, block, asks).map(_scope)),
        (1, choice),
    )


def _scope(parts: tuple[list[Block], Block, list[tuple[str, int]]]) -> Stmt:
    branches, body, asks = parts
    rest = [{"op": op, "child": child % len(branches)} for op, child in asks]
    return {"op": "scope", "branches": branches, "body": [*body, *rest]}


_once = _weighted((3, leaves), (1, _composites(leaves)))
_twice = _weighted((2, leaves), (3, _composites(_once)))

_retry = st.fixed_dictionaries(
    {
        "max_retries": st.sampled_from([2, 3, 1, 0]),
        "on_exhausted": st.sampled_from(["dead_letter", "fail", "pause"]),
        "non_retryable": st.sampled_from([(), (), ("ValueError",)]),
    }
)

LEVELS: Final = 3
"""An agent asks, tells and spawns only those of higher levels: no cycles, and an end."""
_which = st.integers(0, 2)
_lead = _effect("step", st.lists(_ok, min_size=1, max_size=1))


def type_of(level: int) -> str:
    """Return the type of the agents of a level; the first is the submitted run's."""
    return "program" if level == 0 else f"p{level}"


_sent = _weighted((5, _expr), (1, st.sampled_from([{"big": length} for length in LARGE])))


def _led(stmt: tuple[Stmt, Stmt | None]) -> Stmt:
    """A statement that begins at a time of its own, if it is led by a step."""
    talk, lead = stmt
    return talk if lead is None else {"op": "if", "cond": 1, "then": [lead, talk], "else": []}


@functools.cache
def _talk(level: int, *, back: bool = False) -> st.SearchStrategy[Stmt]:
    limit = st.integers(1, 16)
    choices: list[tuple[int, st.SearchStrategy[Any]]] = []
    if level + 1 < LEVELS:
        type_ = st.sampled_from([type_of(n) for n in range(level + 1, LEVELS)])
        to = st.tuples(type_, st.sampled_from(["a", "a", "b"])).map("/".join)
        choices += [
            (4, _stmt("ask", to=to, payload=_sent, d=limit, into=_var)),
            (4, _stmt("spawn", type=type_, boot=st.one_of(st.none(), _sent))),
            (3, _stmt("await_child", child=_which, into=_var)),
            (2, _stmt("ask_child", child=_which, payload=_expr, d=limit, into=_var)),
            (2, _stmt("stop_child", child=_which)),
            (2, _stmt("tell", to=to, payload=_sent)),
            (2, _stmt("emit", topic=st.just(f"news{level}/default"), payload=_expr)),
        ]
    if level > 0:
        choices += [(8, _stmt("reply", which=_which, value=_expr))]
    if back and level > 0:
        up = st.sampled_from(["program/one", *[f"{type_of(n)}/a" for n in range(1, level + 1)]])
        choices += [(12, _stmt("ask_back", to=up, d=limit, into=_var))]
    topics = [f"news{n}/default" for n in range(level or 2)]
    for op in ("follow", "follow", "unfollow"):
        choices += [(1, _stmt(op, topic=st.sampled_from(topics)))]
    lead = _weighted((3, _lead), (1, st.none()))
    return st.tuples(_weighted(*choices), lead).map(_led)


def _talker(level: int) -> st.SearchStrategy[Stmt]:
    """A statement of an agent that talks."""
    leaf = _weighted((2, leaves), (4, _talk(level)))
    return _weighted((4, leaf), (2, _composites(leaf)))


def _part(level: int) -> st.SearchStrategy[Block]:
    """A program of the cast; it rarely does anything in the instant in which it starts."""
    lead = st.lists(_lead, min_size=1, max_size=1)
    first = _weighted((5, lead), (1, st.just([])))
    rest = st.lists(_talker(level), max_size=4)
    return st.tuples(first, rest).map(lambda both: [*both[0], *both[1]])


_parts = [_part(level) for level in range(LEVELS)]
_budgets = st.fixed_dictionaries(
    {}, optional={"max_runs": st.integers(1, 3), "max_concurrent": st.integers(1, 2)}
)


_some_signals = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(SIGNALS)), max_size=2)
_some_mail = st.lists(st.integers(0, 12), max_size=2)
_talkers = st.lists(_talker(0), min_size=2, max_size=5)
_some_budget = _weighted((2, st.just({})), (1, _budgets))


@st.composite
def talking_cases(draw: st.DrawFn, *, even: bool = False) -> Case:
    """Return a small random case of several agents.

    Args:
        draw: Draws.
        even: Much coincides, and most cases decide nothing for the model.
    """
    program, signals, mail = draw(_talkers), draw(_some_signals), draw(_some_mail)
    cast = {type_of(level): draw(_parts[level]) for level in range(1, LEVELS)}
    budget = draw(_some_budget)
    case = finish(program, signals, mail, draw(_retry), cast=cast, budget=budget)
    return evened(case) if even else case


_session = _weighted((4, st.none()), (1, st.just("side")))
_misheard = st.fixed_dictionaries(
    {"d": _ticks, "err": st.sampled_from([*ERRORS, "ModelError", "ModelError", "ModelError"])}
)
_answers = _weighted((4, _good_outcomes), (1, st.tuples(_misheard, _ok).map(list)))
_converse = _weighted(
    (6, _stmt("generate", text=_expr, session=_session, into=_var, outcomes=_answers)),
    (2, _stmt("append", texts=st.lists(_expr, min_size=1, max_size=3), session=_session)),
    (1, _stmt("count", session=_session, into=_var)),
    (1, _stmt("turns", session=_session)),
)


def _conversing(level: int) -> st.SearchStrategy[Stmt]:
    """A statement of an agent that talks to a model, and sometimes to others."""
    leaf = _weighted((2, leaves), (6, _converse), (2, _talk(level)))
    return _weighted((5, leaf), (1, _composites(leaf)))


_conversing_at = [_conversing(level) for level in range(LEVELS)]
_conversers = st.lists(_conversing_at[0], min_size=2, max_size=5)
_conversing_parts = [st.lists(statement, max_size=4) for statement in _conversing_at]
_retention = _weighted((3, st.just("permanent")), (1, st.just("run")))


@st.composite
def conversation_cases(draw: st.DrawFn) -> Case:
    """Return a small random case of agents that talk to models, in sessions that outlast their runs."""
    program, signals, mail = draw(_conversers), draw(_some_signals), draw(_some_mail)
    cast = {
        type_of(level): [draw(_lead), *draw(_conversing_parts[level])] for level in range(1, LEVELS)
    }
    case = finish(program, signals, mail, draw(_retry), cast=cast)
    return replace(case, retention=draw(_retention))


_about = st.sampled_from(["agent", "user:1"])
_fact = st.sampled_from(TEXTS)
_label = st.sampled_from(["a", "b"])
_key_or_var = st.sampled_from(["k", "l", {"var": "m"}])
_expected = st.sampled_from([0, 1, {"var": "b"}, {"var": "b"}, {"var": "b"}])


def _caught(stmt: Stmt) -> Stmt:
    return {"op": "try", "body": [stmt], "catch": "MemoryConflictError", "handler": [], "final": []}


_memory_key = st.sampled_from([None, "k", "k", "k", "l"])
_memorise = _weighted(
    (6, _stmt("remember", text=_fact, key=_memory_key, about=_about, into=st.just("m"))),
    (3, _stmt("recall", about=_about, into=_var)),
    (2, _stmt("forget", what=_key_or_var, about=_about)),
    (2, _stmt("block", name=_label, into=st.just("b"))),
    (3, _stmt("set_block", name=_label, text=_fact, expected=_expected).map(_caught)),
)


def _remembering(level: int) -> st.SearchStrategy[Stmt]:
    """A statement of an agent that keeps memories, and sometimes talks to others."""
    leaf = _weighted((2, leaves), (6, _memorise), (2, _talk(level)))
    return _weighted((5, leaf), (1, _composites(leaf)))


_remembering_at = [_remembering(level) for level in range(LEVELS)]
_rememberers = st.lists(_remembering_at[0], min_size=2, max_size=6)
_remembering_parts = [st.lists(statement, max_size=4) for statement in _remembering_at]
_vectors = _weighted((4, _good_outcomes), (1, st.tuples(_ok, _bad, _ok).map(list)))


@st.composite
def memory_cases(draw: st.DrawFn) -> Case:
    """Return a small random case of agents that keep memories, some in a scope that they share."""
    program, signals, mail = draw(_rememberers), draw(_some_signals), draw(_some_mail)
    cast = {
        type_of(level): [draw(_lead), *draw(_remembering_parts[level])]
        for level in range(1, LEVELS)
    }
    case = finish(program, signals, mail, draw(_retry), cast=cast)
    return remembering(case, [draw(_vectors) for _ in (*TEXTS, QUERY)])


def remembering(case: Case, outcomes: list[list[dict[str, Any]]]) -> Case:
    """Return the case with what each execution of the embedder does, for the texts and the query."""
    script = {
        text.replace(" ", "-"): [
            {**outcome, "d": _seconds(outcome["d"], f"{text} {n}")}
            for n, outcome in enumerate(outcomes_of)
        ]
        for text, outcomes_of in zip((*TEXTS, QUERY), outcomes, strict=True)
    }
    return replace(case, script={**case.script, **script}, remembers=True)


_replies = st.lists(_stmt("reply", which=st.just(0), value=_value), max_size=2)
_last_words = st.sampled_from([[], [], [{"op": "raise", "error": "TerminalError"}]])


@functools.cache
def _limited(limit: int) -> tuple[st.SearchStrategy[Stmt], st.SearchStrategy[Stmt | None]]:
    """A question that waits for so many ticks, and what waits in its place: nothing, or something else."""
    ask = _stmt("ask", to=st.just("p1/a"), payload=_value, d=st.just(limit), into=_var)
    waits = _stmt("receive", d=st.just(limit), into=_var), _stmt("signal", name=st.just("go"))
    return ask, _weighted((3, st.none()), (1, waits[0]), (1, waits[1]))


@functools.cache
def _work_of(ticks: int) -> st.SearchStrategy[Stmt]:
    return _effect("step", st.just([{"d": ticks, "ok": 1}]))


@st.composite
def limit_cases(draw: st.DrawFn) -> Case:
    """Return a small random case in which a time limit falls on the instant of what it waits for."""
    ticks = draw(st.integers(1, 6))
    reply_program = [draw(_work_of(ticks)), *draw(_replies), *draw(_last_words)]
    limit = draw(st.sampled_from([ticks, ticks, ticks + 1]))
    asks, others = _limited(limit)
    ask = draw(asks)
    body = draw(others) or ask
    if body["op"] == "signal" or draw(st.booleans()):
        body = {"op": "select", "branches": [[body], [{"op": "sleep", "d": limit + draw(_value)}]]}
    led = [draw(_lead)] if draw(st.booleans()) else []
    start = sum(stmt["outcomes"][0]["d"] for stmt in led)
    case = finish(
        [*led, body], [(start + limit - 1, "go")], [start + ticks - 1], cast={"p1": reply_program}
    )
    return evened(case)


_once_only = _stmt("step", mode=st.just("at_most_once"), args=st.just([]), outcomes=_good_outcomes)
_approval = _stmt("approval", d=st.one_of(st.none(), st.integers(1, 16)), into=_var)
_doubtful = st.lists(
    _weighted((6, _once_only), (1, _good_step), (2, _raise), (1, _approval), (1, _waits)),
    min_size=1,
    max_size=3,
)


@st.composite
def doubtful_cases(draw: st.DrawFn) -> Case:
    """Return a small random case about which operators have to decide, where its hosts die."""
    return finish(draw(_doubtful), [(5, "go"), (7, "stop")], [], draw(_retry))


@functools.cache
def _asks(to: str) -> st.SearchStrategy[Stmt]:
    return _stmt("ask", to=st.just(to), payload=_value, d=st.integers(6, 16), into=_var)


_round_work = [
    st.lists(_weighted((2, _lead), (1, _talk(level, back=True))), max_size=2) for level in range(2)
]
_up = st.sampled_from(["program/one", "p1/a", "p2/a"])
_asks_back = _stmt("ask_back", to=_up, d=st.integers(1, 16), into=_var)


@st.composite
def cycle_cases(draw: st.DrawFn) -> Case:
    """Return a small random case in which questions close cycles; the model knows nothing of them."""

    def part(to: str, level: int) -> Block:
        ask, work = draw(_asks(to)), draw(_round_work[level])
        return [*([draw(_lead)] if level else []), ask, *work]

    back = draw(_asks_back)
    catch: Stmt = {"op": "try", "body": [back], "catch": "Exception", "handler": [], "final": []}
    last = [draw(_lead), draw(st.sampled_from([back, catch])), draw(_lead)]
    return finish(part("p1/a", 0), retry=draw(_retry), cast={"p1": part("p2/a", 1), "p2": last})


_sleep = _stmt("sleep", d=st.integers(1, 12))
_hear = _stmt("receive", d=st.integers(1, 12), into=_var)
_sleepy = st.lists(
    _weighted((4, _sleep), (1, _hear), (1, _lead), (1, _bad_step)), min_size=1, max_size=4
)


@st.composite
def sleeping_cases(draw: st.DrawFn) -> Case:
    """Return a small random case that waits for times."""
    return finish(draw(_sleepy), retry=draw(_retry))


_perhaps_bad = _weighted((2, _value), (1, st.just(BAD)))
_batch_tell = _stmt("tell", to=st.just("p1/a"), payload=_perhaps_bad)
_batch_ask = _stmt("ask", to=st.just("p1/a"), payload=_perhaps_bad, d=st.integers(1, 16), into=_var)
_batch = st.lists(_weighted((4, _batch_tell), (1, _batch_ask), (1, _lead)), min_size=2, max_size=5)
_look = _stmt("if_bad", error=st.sampled_from(ERRORS))
_hear_soon = _stmt("receive", d=st.integers(1, 6), into=_var)
_batch_work = _weighted((2, _lead), (1, _instants), (1, _talk(1)), (1, _hear_soon))
_batch_before, _batch_after = st.lists(_batch_work, max_size=1), st.lists(_batch_work, max_size=2)


@st.composite
def batch_cases(draw: st.DrawFn) -> Case:
    """Return a small random case in which agents are given several messages at once, some of them bad."""
    rest, before = draw(_batch), draw(_batch_before)
    part = [*before, draw(_look), draw(_lead), *draw(_batch_after)]
    cast = {"p1": part, "p2": [draw(_lead)]}
    return finish([draw(_batch_tell), draw(_lead), *rest], retry=draw(_retry), cast=cast)


_wait_for_mail = _stmt("receive", d=st.one_of(st.none(), st.integers(0, 12)), into=_var)
_mailed = st.lists(
    _weighted((4, _wait_for_mail), (2, _lead), (1, _waits), (1, _bad_step)), min_size=1, max_size=5
)
_much_mail = st.lists(st.integers(0, 12), min_size=2, max_size=6)
_three_times = st.lists(st.integers(0, 12), max_size=3)


@st.composite
def mail_cases(draw: st.DrawFn) -> Case:
    """Return a small random case in which much mail comes."""
    program, mail = draw(_mailed), draw(_much_mail)
    retry, asked_ticks = draw(_retry), draw(_three_times)
    return finish(program, [(5, "go"), (7, "stop")], mail, retry, asked=asked_ticks)


_program = st.lists(_twice, min_size=2, max_size=5)
_more_signals = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(SIGNALS)), max_size=4)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return a small random case."""
    program = draw(_program)
    if draw(st.integers(0, 5)) == 5:
        program = [*program, {"op": "continue", "limit": 1}]
    signals, mail = draw(_more_signals), draw(_three_times)
    retry, asked_ticks = draw(_retry), draw(_some_mail)
    return finish(program, signals, mail, retry, asked=asked_ticks)


def finish(
    program: Block,
    signals: list[tuple[int, str]] | None = None,
    mail: list[int] | None = None,
    retry: dict[str, Any] | None = None,
    *,
    asked: list[int] | None = None,
    cast: dict[str, Block] | None = None,
    budget: dict[str, Any] | None = None,
) -> Case:
    """Return the case of a raw program: labels given, ticks made into seconds that differ."""
    script: dict[str, list[dict[str, Any]]] = {}
    labels = (f"{letter}{n or ''}" for n in range(99) for letter in "abcdefghijklmnopqrstuvwxyz")
    return Case(
        program=_finish(program, labels, script),
        script=script,
        signals=[(_seconds(at, f"signal {n}"), name) for n, (at, name) in enumerate(signals or [])],
        mail=[_seconds(at, f"mail {n}") for n, at in enumerate(mail or [])],
        asked=[_seconds(at, f"asked {n}") for n, at in enumerate(asked or [])],
        retry=dict(retry or {}),
        cast={type_: _finish(part, labels, script) for type_, part in (cast or {}).items()},
        budget=dict(budget or {}),
    )


def evened(case: Case) -> Case:
    """Return the case with all times whole ticks, so that what may coincide does."""

    def even(value: Any) -> Any:
        if isinstance(value, list):
            return [even(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: _ticks_of(item) if key == "d" else even(item) for key, item in value.items()}

    return replace(
        case,
        program=even(case.program),
        script={label: even(outcomes) for label, outcomes in case.script.items()},
        signals=[(_ticks_of(at + UNIT_S), name) for at, name in case.signals],
        mail=[_ticks_of(at + UNIT_S) for at in case.mail],
        asked=[_ticks_of(at + UNIT_S) for at in case.asked],
        cast=even(case.cast),
        is_even=True,
    )


def _ticks_of(seconds: float | None) -> Any:
    """Return the time without the part of a tick that only it has."""
    return None if seconds is None else round(UNIT_S * int(seconds / UNIT_S), 6)


def _finish(block: Block, labels: Iterator[str], script: dict[str, list[dict[str, Any]]]) -> Block:
    return [_labelled(stmt, labels, script) for stmt in block]


def _labelled(stmt: Stmt, labels: Iterator[str], script: dict[str, list[dict[str, Any]]]) -> Stmt:
    label = next(labels)
    done: Stmt = {}
    for key, value in stmt.items():
        match key:
            case "outcomes":
                script[label] = [
                    {**outcome, "d": _seconds(outcome["d"], f"{label} {n}")}
                    for n, outcome in enumerate(value)
                ]
            case "branches":
                done[key] = [_finish(branch, labels, script) for branch in value]
            case "final":
                done[key] = _finish(_without_raise(value), labels, script)
            case "body" | "handler" | "then" | "else":
                done[key] = _finish(value, labels, script)
            case "d":
                done[key] = None if value is None else _seconds(value, label)
            case _:
                done[key] = value
    return {**done, "label": label}


def _without_raise(block: Block) -> Block:
    """Return clean-up that raises by itself nowhere: that would swallow a suspension."""
    statements = [stmt for stmt in block if stmt["op"] != "raise"]
    return [{key: _cleaned(key, value) for key, value in stmt.items()} for stmt in statements]


def _cleaned(key: str, value: Any) -> Any:
    if key == "branches":
        return [_without_raise(branch) for branch in value]
    if key in ("body", "handler", "final", "then", "else"):
        return _without_raise(value)
    return value


def _seconds(ticks: int, what: str) -> float:
    """Return the ticks in seconds and a part of a tick that only `what` has."""
    part = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=4).digest(), "big") / 2**32
    return round(UNIT_S * (ticks + 0.02 + 0.6 * part), 6)
