"""Expressions at pins, and the functions of a flow that they call."""

from __future__ import annotations

from typing import Any

import pytest

from actors.workflow import compile_visualflow
from tests.unit.workflow.visual.drawn import (
    edges,
    flow,
    literal,
    node,
    output_of,
    play,
    problems,
    setting,
)


def ended(expressions: dict[str, Any], *wires: str, **defaults: Any) -> dict[str, Any]:
    """Return a flow whose end has expressions at its pins."""
    pins = dict.fromkeys([*expressions, *defaults])
    end = node("e", "on_flow_end", *pins, pinDefaults=defaults, pinExpressions=expressions)
    return flow(literal("v", {"n": 3}), end, wires=edges("s > e", *wires))


@pytest.mark.item(464)
def test_an_expression_takes_the_place_of_the_value_of_its_pin() -> None:
    """It sees the vars without those of the runtime, and the value that the pin had: of an edge or its own."""
    expressions = {"a": "vars.n * 2", "b": "value['n']", "c": "value.upper()", "d": "value is None"}
    drawn = ended(
        {**expressions, "e": "vars", "f": " ", "g": None}, "v.value > e.b", c="x", f=1, g=2
    )
    output = output_of(drawn, variables={"n": 21})
    assert output.pop("e")["n"] == 21
    assert output == {"a": 42, "b": 3, "c": "X", "d": True, "f": 1, "g": 2}
    assert "_temp" not in output_of(ended({"x": "vars"}))["x"]


@pytest.mark.item(464)
def test_expressions_of_nodes_that_compute_and_of_loops_are_evaluated_each_time() -> None:
    """A condition reads the vars as they are then."""
    drawn = flow(
        node("w", "while", pinExpressions={"condition": "vars.get('n', 0) < 3"}),
        setting("set", "n", value=1),
        node("o", "make_object", "x", pinExpressions={"x": "vars.n * 10"}),
        node("e", "on_flow_end", "o"),
        wires=edges("s > w", "w.loop > set", "w.done > e", "o.result > e.o"),
    )
    drawn["nodes"][2]["data"]["pinExpressions"] = {"value": "value + vars.get('n', 0)"}
    assert output_of(drawn) == {"o": {"x": 30}}


@pytest.mark.item(464)
def test_an_expression_behind_a_choice_of_ways_sees_the_chosen_value() -> None:
    """The pin's own at first, then the answer."""
    routes = [
        {"key": "first", "sourceNodeId": "s"},
        {"key": "again", "sourceNodeId": "q", "sourceHandle": "exec-out"},
    ]
    override = {"again": {"sourceNodeId": "q", "sourceHandle": "response"}}
    more: dict[str, Any] = {
        "pinDefaults": {"prompt": "start"},
        "pinExpressions": {"prompt": "value + '?'"},
        "entryRoutes": routes,
        "inputRouteOverrides": {"prompt": override},
    }
    drawn = flow(node("q", "ask_user", "prompt", **more), wires=edges("s > q", "q > q"))
    waits = [play(drawn, *answers).waiting for answers in ([], [{"response": "again"}])]
    assert [wait and wait.prompt for wait in waits] == ["start?", "again?"]


@pytest.mark.item(464)
def test_expressions_call_the_functions_of_the_flow() -> None:
    """These call each other; their code is part of the graph's hash, of flows that call one."""
    shout = "def _up(text):\n    return text.upper()\ndef shout(text):\n    return mark(_up(text))"
    functions = [
        {"name": "shout", "code": shout},
        {"name": "mark", "code": "def mark(text):\n    return text + '!'"},
    ]
    drawn = {**ended({"x": "shout(value)"}, x="go"), "functions": functions}
    assert output_of(drawn) == {"x": "GO!"}
    other = [functions[0], {"name": "mark", "code": "def mark(text):\n    return text + '?'"}]
    first = compile_visualflow(drawn).hash
    assert compile_visualflow({**drawn, "functions": other}).hash != first
    alone = {**ended({}, x="go")}
    hashes = {compile_visualflow({**alone, "functions": f}).hash for f in (functions, other)}
    assert hashes == {compile_visualflow(alone).hash}


@pytest.mark.item(464)
def test_an_expression_without_a_value_fails_the_run_by_node_and_pin() -> None:
    """Where a step reads it, through nodes that compute, too."""
    state = play(ended({"x": "vars.nothing"}))
    assert state.error is not None
    assert "node 'e'" in state.error
    assert "pin 'x': vars.nothing: there is no vars.nothing" in state.error
    pure = node("o", "make_object", "x", pinExpressions={"x": "1 / 0"})
    drawn = flow(pure, node("e", "on_flow_end", "o"), wires=edges("s > e", "o.result > e.o"))
    assert "node 'o' (make_object): pin 'x': 1 / 0: ZeroDivisionError" in str(play(drawn).error)


@pytest.mark.item(464)
@pytest.mark.parametrize(
    ("text", "value", "output"),
    [
        ("parse_json(value)['a']", '{"a": 1}', 1),
        ("parse_json(value)", [1], [1]),
        ("to_json(value)", {"x": "\u00e4"}, '{"x": "\\u00e4"}'),
        ("'cd \\'' + shq(value) + '\\''", "it's", "cd 'it'\\''s'"),
        ("shq(value) + shq(0)", None, "0"),
        ("text_of(value)", "plain", "plain"),
        ("text_of(value)", {"stdout": "out", "stderr": "err"}, "out\nerr"),
        ("text_of(value)", {"output": {"stdout_preview": "o"}}, "o"),
        ("text_of(value)", {"results": [{"output": {"stdout": "a"}}, {"output": "b"}]}, "b\na"),
        ("text_of(value) + text_of(42) + text_of({})", None, ""),
    ],
)
def test_expressions_and_code_have_functions_for_json_and_tools(
    text: str, value: Any, output: Any
) -> None:
    """Of the same meaning in both; a line of the author's code is still the author's."""
    assert output_of(ended({"x": text}, x=value)) == {"x": output}
    pins = {"inputs": [{"id": "value"}], "pinDefaults": {"value": value}}
    for code in (
        {"codeBody": f"return [{text}]"},
        {"code": f"def transform(p):\n    value = p['value']\n    return [{text}]"},
    ):
        drawn = flow(
            node("c", "code", **pins, **code),
            node("e", "on_flow_end", "x"),
            wires=edges("s > c", "c > e", "c.result > e.x"),
        )
        assert output_of(drawn) == {"x": [output]}
    wrong = node("c", "code", codeBody=f"x = {text}\nreturn 1 / 0", **pins)
    assert "(line 2)" in str(play(flow(wrong, wires=edges("s > c"))).error)


def test_the_host_is_out_of_reach_of_expressions() -> None:
    """Names that are not given are refused, and the sandbox has nothing behind the others."""
    for text in ("__import__('os')", "os.getcwd()", "open('/etc/passwd').read()"):
        drawn = ended({"x": text})
        if not problems(drawn):
            assert play(drawn).status == "failed"
