"""What the types of nodes compute, set and ask for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from actors._workflow.documents import sandbox
from actors._workflow.visual.checks import TYPES
from actors.workflow import EffectOutcome, FlowError
from tests.unit.documents import ROOT
from tests.unit.workflow.visual.drawn import (
    edges,
    flow,
    literal,
    node,
    output_of,
    play,
    reading,
    setting,
    value_of,
)

HUGE = 10**400
"""An integer that no float and no index of Python can be."""
COMPUTED: list[tuple[str, dict[str, Any], Any]] = [
    ("add", {"a": 1, "b": "2"}, 3.0),
    ("subtract", {"a": 1, "b": 2}, -1.0),
    ("multiply", {"a": 3, "b": 2}, 6.0),
    ("divide", {"a": 3, "b": 2}, 1.5),
    ("modulo", {"a": 7, "b": 4}, 3.0),
    ("power", {"base": 2, "exp": 3}, 8.0),
    ("abs", {"value": -2}, 2.0),
    ("round", {"value": 2.345, "decimals": 1}, 2.3),
    ("compare", {"a": 1, "b": 2, "op": "<"}, True),
    ("compare", {"a": "x", "b": 2, "op": "<"}, False),
    ("compare", {"a": [1], "b": [1]}, True),
    ("not", {"value": ""}, True),
    ("and", {"a": 1, "b": 0}, False),
    ("or", {"a": 1, "b": 0}, True),
    ("coalesce", {"a": None, "b": 0}, 0),
    ("concat", {"a": "x", "b": None, "c": 1}, "x  1"),
    ("split", {"text": "a, b,,c"}, ["a", "b", "c"]),
    ("split", {"text": "a\nb", "delimiter": "\\n", "maxsplit": 0}, ["a\nb"]),
    ("join", {"items": ["a", None, 2], "delimiter": "\\n"}, "a\n\n2"),
    ("uppercase", {"text": "a"}, "A"),
    ("lowercase", {"text": "A"}, "a"),
    ("trim", {"text": " a "}, "a"),
    ("substring", {"text": "abcd", "start": 1, "end": 3}, "bc"),
    ("substring", {"text": "abcd", "start": -math.inf, "end": math.inf}, "abcd"),
    ("substring", {"text": "abcd", "start": HUGE}, ""),
    ("length", {"text": "abc"}, 3),
    ("is_empty_string", {"text": ""}, True),
    ("contains", {"text": "abc", "pattern": "b"}, True),
    ("contains", {"text": "abc", "pattern": ""}, False),
    ("replace", {"text": "aaa", "pattern": "a", "replacement": "b"}, "bbb"),
    ("replace", {"text": "aaa", "pattern": "a", "mode": "first"}, "aa"),
    ("replace", {"text": "aaa", "pattern": "a", "replacement": "b", "mode": "2"}, "bba"),
    ("replace", {"text": "aaa", "pattern": "a", "replacement": "b", "mode": "9" * 30}, "bbb"),
    ("split", {"text": "a,b", "maxsplit": HUGE}, ["a", "b"]),
    ("round", {"value": 2.345, "decimals": 10**30}, 2.345),
    ("get", {"object": {"a": [1]}, "key": "a[²]", "default": "d"}, "d"),
    ("get", {"object": {"a": [1]}, "key": "a." + "9" * 5_000, "default": "d"}, "d"),
    ("string_template", {"template": "{{a.b[0]}} {{no}}", "a": {"b": ["x"]}}, "x "),
    ("string_template", {"template": "{{ l | join('-') }}", "l": [1, 2]}, "1-2"),
    ("string_template", {"template": "{{v}}{{v|json}}", "vars": {"v": {"a": 1}}}, '{"a": 1}{"a": 1}'),
    ("string_template", {"template": "{{t|trim|upper}}", "t": " x "}, "X"),
    ("get", {"object": {"a": {"b": 1}}, "key": "a.b"}, 1),
    ("get", {"object": {}, "key": "a", "default": 2}, 2),
    ("set", {"object": {"a": 1}, "key": "b.c", "value": 2}, {"a": 1, "b": {"c": 2}}),
    ("merge", {"a": {"x": 1, "y": 1}, "b": {"y": 2}}, {"x": 1, "y": 2}),
    ("make_object", {"a": 1, "b": None}, {"a": 1, "b": None}),
    ("make_array", {"a": [1], "b": None, "c": 2}, [[1], 2]),
    ("array_concat", {"a": [1], "b": None, "c": 2}, [1, 2]),
    ("get_element", {"array": [1, 2], "index": -1}, 2),
    ("get_element", {"array": [1], "index": "5", "default": "d"}, "d"),
    ("get_element", {"array": [1, 2], "index": "x", "default": "d"}, 1),
    ("get_element", {"array": [1], "index": math.inf, "default": "d"}, "d"),
    ("get_element", {"array": [1], "index": -math.inf, "default": "d"}, "d"),
    ("get_element", {"array": [1], "index": math.nan, "default": "d"}, "d"),
    ("get_element", {"array": [1], "index": "1e999", "default": "d"}, "d"),
    ("get_element", {"array": [1], "index": HUGE, "default": "d"}, "d"),
    ("get_element", {"array": [], "index": -0.5, "default": "d"}, "d"),
    ("array_length", {"array": [1, 2]}, 2),
    ("array_append", {"array": [1], "item": [2]}, [1, [2]]),
    ("array_dedup", {"array": [{"k": 1}, {"k": 1}, {"k": 2}], "key": "k"}, [{"k": 1}, {"k": 2}]),
    ("array_map", {"items": [{"k": 1}, {}], "key": "k"}, [1, None]),
    ("array_filter", {"items": [{"k": 1}, {"k": 2}], "key": "k", "value": 2}, [{"k": 2}]),
    ("parse_json", {"text": 'so: {"a": [1]} .'}, {"a": [1]}),
    ("parse_json", {"text": "```json\n[1]\n```"}, [1]),
    ("parse_json", {"text": "5"}, {"value": 5}),
    ("stringify_json", {"value": {"a": "ö"}, "mode": "minified"}, '{"a":"ö"}'),
]  # fmt: skip


@pytest.mark.item(464)
@pytest.mark.parametrize(("kind", "pins", "value"), COMPUTED)
def test_nodes_compute(kind: str, pins: dict[str, Any], value: Any) -> None:
    """The value is at any pin of theirs."""
    output = value_of(kind, **pins)
    assert (output, type(output)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "pins", "words"),
    [
        ("divide", {"a": 1, "b": 0}, "it divides by zero"),
        ("add", {"a": "x"}, "pin 'a' needs a number, not 'x'"),
        ("power", {"base": -1, "exp": 0.5}, "no real number"),
        ("compare", {"op": "~"}, "op '~' is none of ==, "),
        ("parse_json", {"text": "?"}, "it is no JSON: '?'"),
        ("add", {"a": HUGE}, "pin 'a' needs a number up to 1.8e308"),
        ("power", {"base": 10, "exp": 400}, "the power is more than 1.8e308"),
        ("round", {"value": 1, "decimals": math.inf}, "pin 'decimals' needs a whole number"),
        (
            "substring",
            {"text": "a", "start": math.nan},
            "pin 'start' needs a whole number, not nan",
        ),
        ("substring", {"text": "a", "end": "x"}, "pin 'end' needs a whole number, not 'x'"),
    ],
)
def test_a_value_that_cannot_be_computed_fails_the_run(kind: str, pins: Any, words: str) -> None:
    """The error names the node, and its type."""
    wires = edges("s > e", "n.result > e.found")
    drawn = flow(node("n", kind, pinDefaults=pins), node("e", "on_flow_end", "found"), wires=wires)
    state = play(drawn)
    assert state.status == "failed"
    assert f"node 'n' ({kind}): " in str(state.error)
    assert words in str(state.error)


@pytest.mark.parametrize(
    ("kind", "pins", "words"),
    [
        ("for", {"start": -1e308, "end": 1e308}, "it has more than 10000 passes"),
        ("for", {"start": 0, "end": 1, "step": 5e-324}, "it has more than 10000 passes"),
        ("for", {"start": 0, "end": HUGE}, "start, end and step need finite numbers"),
        ("loop_limit", {"max": math.inf}, "max needs a whole number, not inf"),
        ("loop_limit", {"max": math.nan}, "max needs a whole number, not nan"),
        ("delay", {"duration": HUGE}, "duration needs a number"),
        ("delay", {"duration": math.inf}, "duration needs a number, not inf"),
    ],
)
def test_a_number_without_bounds_fails_the_run(kind: str, pins: Any, words: str) -> None:
    """The run's error says which number the node needs, and no error of Python's arithmetic is in it."""
    drawn = flow(node("n", kind, pinDefaults=pins), node("e", "on_flow_end"), wires=edges("s > n"))
    state = play(drawn)

    assert state.status == "failed"
    assert words in str(state.error)
    assert "OverflowError" not in str(state.error)


def test_an_indent_of_any_size_takes_little_memory() -> None:
    """Lines of JSON text are indented by a hundred spaces at most."""
    text = value_of("stringify_json", value={"a": 1}, indent=10**12)

    assert len(text) < 200


@pytest.mark.item(464)
def test_variables_are_declared_set_and_read() -> None:
    """A value of another type than declared is not there; dots nest; nothing is the empty value of the type."""
    count = {"name": "n", "type": "number", "default": 3}
    typed = [{"id": "value", "type": "string"}]
    drawn = flow(
        node("d", "var_decl", literalValue=count),
        setting("a", "x.y"),
        node(
            "b", "set_vars", "z", "x.w", pinDefaults={"updates": {"z": 1, "v": 2}, "z": 3, "x.w": 4}
        ),
        node("c", "set_var", inputs=typed, pinDefaults={"name": "text"}),
        node("p", "set_var_property", pinDefaults={"name": "x", "key": "q.r", "value": 5}),
        node("g", "get_vars", outputs=[{"id": "x"}, {"id": "z"}, {"id": "none"}]),
        reading("t", "text", "default"),
        node("e", "on_flow_end", "x", "z", "none", "text", "name"),
        wires=edges(
            "s > a", "a > b", "b > c", "c > p", "p > e", "d.value > a.value", "d.name > e.name"
        )
        + edges("g.x > e.x", "g.z > e.z", "g.none > e.none", "t.value > e.text"),
    )
    output = output_of(drawn, variables={"n": "no number"})
    x = {"y": 3, "w": 4, "q": {"r": 5}}
    assert output == {"x": x, "z": 3, "none": None, "text": "", "name": "n"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (setting("n", " ._runtime.answers"), "are reserved: '_runtime.answers' is one"),
        (setting("n", ".."), "it needs the name of a variable"),
        (setting("n", ""), "it needs the name of a variable"),
        (node("n", "add_to_list", pinDefaults={"name": "text", "item": 1}), "'text' holds a str"),
        (node("n", "add_to_list", pinDefaults={"name": "l", "items": 1}), "items must be a list"),
        (node("n", "for", pinDefaults={"start": 0}), "start, end and step need numbers"),
        (node("n", "for", pinDefaults={"start": 0, "end": 1, "step": 0}), "a step other than 0"),
        (node("n", "for", pinDefaults={"start": 0, "end": 1e9}), "more than 10000"),
        (node("n", "loop_limit", pinDefaults={"max": "x"}), "max needs a whole number"),
    ],
)
def test_a_step_that_cannot_be_done_fails_the_run(wrong: dict[str, Any], words: str) -> None:
    """By its name."""
    state = play(flow(wrong, wires=edges("s > n")), variables={"text": "t"})
    assert state.status == "failed"
    assert "node 'n'" in str(state.error)
    assert words in str(state.error)


@pytest.mark.parametrize(
    "wrong", [setting("n", "_x"), node("n", "set_vars", "_x", pinDefaults={"_x": 1})]
)
def test_a_reserved_name_is_refused_before_a_run(wrong: dict[str, Any]) -> None:
    """A name that the drawing itself has is known without a run."""
    with pytest.raises(FlowError, match="names that begin with _ are reserved: '_x' is one"):
        play(flow(wrong, wires=edges("s > n")))


@pytest.mark.item(464)
def test_code_has_its_pins_as_names() -> None:
    """Its result is at ``output`` and ``result``, and the names of its result are pins."""
    body = "total = a + b_c\nreturn {'total': total, 'all': _input}"
    drawn = flow(
        node("c", "code", "a", "b c", codeBody=body, pinDefaults={"a": 1, "b c": 2}),
        node("e", "on_flow_end", "total", "all", "ok"),
        wires=edges("s > e", "c.total > e.total", "c.all > e.all", "c.success > e.ok"),
    )
    assert output_of(drawn) == {"total": 3, "all": {"a": 1, "b c": 2}, "ok": True}
    whole = node("c", "code", code="def f(x):\n    return x['n'] * 2", functionName="f")
    drawn = flow(whole, node("e", "on_flow_end"), wires=edges("s > c", "c > e"))
    assert output_of(drawn, variables={"n": 4}) == {"response": 8}


@pytest.mark.item(464)
def test_a_value_is_computed_once_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that three pins read, over two ways, is interpreted once; once more for the next visit."""
    codes: list[str] = []
    evaluate = sandbox.evaluate

    def counted(code: str, *more: Any) -> Any:
        codes.append(code)
        return evaluate(code, *more)

    monkeypatch.setattr(sandbox, "evaluate", counted)
    drawn = flow(
        node("c", "code", codeBody="return 2"),
        node("n", "add"),
        node("l", "for", pinDefaults={"start": 0, "end": 2}),
        setting("x", "x"),
        wires=edges(
            "s > l", "l.loop > x", "c.result > n.a", "c.result > n.b", "n.result > x.value"
        ),
    )
    assert play(drawn).vars["x"] == 4
    assert len(codes) == 2


EFFECTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("tool_calls", {"tool_calls": '[{"name": "t"}]'}, {}, {"tool_calls": [{"name": "t"}]}),
    (
        "call_tool",
        {"tool_call": {"name": "t"}},
        {"effectConfig": {"allowed_tools": ["t"]}},
        {"tool_calls": [{"name": "t"}], "allowed_tools": ["t"]},
    ),
    (
        "llm_call",
        {"prompt": "p", "system": "s", "temperature": 0.5, "seed": -1},
        {"effectConfig": {"provider": "x", "model": ""}},
        {"prompt": "p", "system_prompt": "s", "provider": "x", "params": {"temperature": 0.5}},
    ),
    ("memory_note", {"content": "c", "tags": {"a": 1}}, {}, {"note": "c", "tags": {"a": 1}}),
    ("memory_query", {"query": "q", "limit": 3}, {}, {"query": "q", "limit_spans": 3}),
    ("memory_tag", {"span_id": "i", "tags": {"a": 1}}, {}, {"span_id": "i", "tags": {"a": 1}}),
    ("memory_compact", {"preserve_recent": 2}, {}, {"preserve_recent": 2}),
    ("memory_rehydrate", {"span_ids": ["i"]}, {}, {"span_ids": ["i"]}),
    ("memory_kg_assert", {"assertions": [{}]}, {}, {"assertions": [{}]}),
    ("memory_kg_query", {"query_text": "q", "limit": 2}, {}, {"query_text": "q", "limit": 2}),
    ("memory_kg_resolve", {"label": "l"}, {}, {"label": "l"}),
]


@pytest.mark.item(464)
@pytest.mark.parametrize(("kind", "pins", "data", "payload"), EFFECTS)
def test_effects_are_asked_for(kind: str, pins: Any, data: Any, payload: Any) -> None:
    """Their payload, of the pins and of what the editor configures."""
    payloads: list[Any] = []

    def handle(_run: Any, effect: Any) -> EffectOutcome:
        sent_payload = dict(effect.payload)
        if kind == "llm_call":
            sent_payload["params"] = {"temperature": sent_payload["params"]["temperature"]}
        payloads.append(sent_payload)
        return EffectOutcome.completed({})

    effect = "tool_calls" if kind == "call_tool" else kind
    drawn = flow(node("n", kind, *pins, pinDefaults=pins, **data), wires=edges("s > n"))
    handlers: dict[str, Any] = {effect: handle}
    state = play(drawn, **handlers)
    assert state.status == "completed", state.error
    assert payloads == [payload]


RESULTS: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "tool_calls",
        {"mode": "executed", "results": [{"success": True, "output": 1}]},
        {"success": True, "results": [{"success": True, "output": 1}]},
    ),
    (
        "call_tool",
        {"mode": "executed", "results": [{"success": False, "error": "no"}]},
        {"success": False, "result": "no"},
    ),
    (
        "call_tool",
        {"mode": "executed", "results": [{"success": True, "output": [1]}]},
        {"success": True, "result": [1]},
    ),
    ("call_tool", {"mode": "passthrough"}, {"success": False}),
    (
        "llm_call",
        {"content": "hi", "tool_calls": [{}], "model": "m"},
        {"response": "hi", "tool_calls": [{}], "success": True, "meta": {"model": "m"}},
    ),
    ("llm_call", {"data": {"a": 1}}, {"response": '{"a":1}', "data": {"a": 1}}),
    ("memory_note", {"span_id": "i"}, {"note_id": "i"}),
    (
        "memory_query",
        {"results": [{"output": "o", "meta": {"matches": [1], "span_ids": ["i"]}}]},
        {"rendered": "o", "results": [1], "span_ids": ["i"]},
    ),
    (
        "memory_tag",
        {"results": [{"success": True, "output": "o"}]},
        {"success": True, "rendered": "o"},
    ),
    (
        "memory_kg_query",
        {"items": [1], "count": 1, "ok": True},
        {"items": [1], "count": 1, "ok": True},
    ),
]


@pytest.mark.item(464)
@pytest.mark.parametrize(("kind", "result", "outputs"), RESULTS)
def test_results_are_outputs(kind: str, result: Any, outputs: dict[str, Any]) -> None:
    """By pin."""
    effect = "tool_calls" if kind == "call_tool" else kind
    drawn = flow(
        node("n", kind),
        node("e", "on_flow_end", *(f"o_{pin}" for pin in outputs)),
        wires=edges("s > n", "n > e", *(f"n.{pin} > e.o_{pin}" for pin in outputs)),
    )
    output = output_of(drawn, **{effect: lambda _run, _effect: EffectOutcome.completed(result)})
    assert output == {f"o_{name}": value for name, value in outputs.items()}


WAITS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    (
        node("n", "ask_user", pinDefaults={"prompt": "?", "choices": ["a"]}),
        {"response": "a"},
        {"response": "a"},
    ),
    (node("n", "wait_event", pinDefaults={"event_key": "k"}), {"x": 1}, {"event_data": {"x": 1}}),
    (node("n", "on_event", eventConfig={"name": "n"}), {"payload": 1}, {"payload": 1}),
]


@pytest.mark.item(464)
@pytest.mark.parametrize(("waits", "answer", "outputs"), WAITS)
def test_waits_give_their_answers(waits: Any, answer: Any, outputs: dict[str, Any]) -> None:
    """What whoever answers said is at their pins."""
    drawn = flow(
        waits,
        node("e", "on_flow_end", *outputs),
        wires=edges("s > n", "n > e", *(f"n.{pin} > e.{pin}" for pin in outputs)),
    )
    waiting = play(drawn).waiting
    assert waiting is not None
    pins = waits["data"].get("pinDefaults", {})
    assert (waiting.prompt, waiting.choices or []) == (pins.get("prompt"), pins.get("choices", []))
    assert output_of(drawn, answer) == outputs


@pytest.mark.item(464)
def test_events_pauses_and_messages() -> None:
    """An event is emitted, a message is told, and a pause that is over at once does not wait."""
    drawn = flow(
        node("a", "answer_user", pinDefaults={"message": 5, "level": "warn"}),
        node("w", "delay", pinDefaults={"duration": 0}, effectConfig={"durationType": "hours"}),
        node("m", "emit_event", pinDefaults={"name": "n", "payload": 1}),
        node("e", "on_flow_end", "message", "delivered"),
        wires=edges("s > a", "a > w", "w > m", "m > e", "a.message > e.message")
        + edges("m.delivered > e.delivered"),
    )
    output = output_of(drawn)
    assert output["message"] == "5"
    late = flow(
        node(
            "w", "wait_until", pinDefaults={"duration": 2}, effectConfig={"durationType": "hours"}
        ),
        wires=edges("s > w"),
    )
    waiting = play(late).waiting
    assert waiting is not None
    assert waiting.until is not None


def test_a_pin_takes_a_name_of_what_the_node_before_computed() -> None:
    """If it has no wire and no default of its own; nodes that set variables take their pins only."""
    drawn = flow(
        node("c", "code", codeBody="return {'message': 'm', 'item': 'stray', 'name': 'stray'}"),
        node("l", "add_to_list", pinDefaults={"name": "l"}),
        node("a", "answer_user"),
        node("e", "on_flow_end", "m"),
        wires=edges("s > c", "c > l", "l > a", "a > e", "a.message > e.m"),
    )
    state = play(drawn)
    assert state.output == {"success": True, "m": "m"}
    assert state.vars["l"] == []


def test_a_value_that_no_wire_needs_is_not_kept() -> None:
    """Outputs that nobody reads are not in the vars."""
    drawn = flow(
        node("a", "code", codeBody="return 1"),
        node("b", "code", codeBody="return 2"),
        node("e", "on_flow_end", "x"),
        literal("v", 1),
        wires=edges("s > a", "a > b", "b > e", "b.result > e.x"),
    )
    assert [*play(drawn).vars["_temp"]["flow"]["outputs"]] == ["b"]


def test_the_page_names_all_types() -> None:
    """`docs/graphs/visualflow.md` has each type that is executed."""
    page = (ROOT / "docs" / "graphs" / "visualflow.md").read_text(encoding="utf-8")
    internal = {"path_mux"}
    assert [name for name in sorted(TYPES - internal) if f"`{name}`" not in page] == []
