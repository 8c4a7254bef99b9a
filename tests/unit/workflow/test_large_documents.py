"""Large documents, and documents with many mistakes: a check takes a time that grows with their size only.

Each document here would be checked for a minute or more if one part of the check were quadratic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from actors._workflow.documents.expressions import ExpressionError, NodeScope, ParsingBudget, parse
from actors._workflow.documents.findings import MOST_FINDINGS, FindingList
from actors._workflow.documents.templates import template
from actors.workflow import check_flow

Flow = dict[str, Any]


def of_nodes(nodes: Flow) -> Flow:
    """Return a flow document."""
    return {"flow": 1, "id": "x", "start": next(iter(nodes)), "nodes": nodes}


def drawn(nodes: list[Flow], edges: list[Flow]) -> Flow:
    """Return a VisualFlow."""
    return {"id": "x", "entryNode": nodes[0]["id"], "nodes": nodes, "edges": edges}


def node(name: str, kind: str, **data: Any) -> Flow:
    """Return a node of a VisualFlow."""
    return {"id": name, "type": kind, "data": data}


def edge(source: str, out: str, target: str, into: str = "exec-in", **more: Any) -> Flow:
    """Return an edge of a VisualFlow."""
    ends = {"source": source, "sourceHandle": out, "target": target, "targetHandle": into}
    return ends | more


def misspelled_names() -> Flow:
    """Return a flow whose nodes all lead to nodes that do not exist."""
    names = range(1_000)
    return of_nodes({f"number_{n:05}": {"set": {"a": 1}, "next": f"nunber_{n:05}"} for n in names})


def escaped_holes() -> Flow:
    """Return a flow with a text of many escapes."""
    return of_nodes({"a": {"set": {"a": "$${" * 200_000}, "next": "a"}})


def unclosed_hole() -> Flow:
    """Return a flow with a hole that is followed by a million braces."""
    return of_nodes({"a": {"set": {"a": '${"' + "}" * 1_000_000}, "next": "a"}})


def many_expressions() -> Flow:
    """Return a flow with 800,000 characters of expressions."""
    return of_nodes({"a": {"set": {"a": "${" + "1+" * 90 + "1}" * 4_000}, "next": "a"}})


def value_of_many_steps() -> Flow:
    """Return a flow of 1,500 steps that all read a chain of 1,500 computed values."""
    many = range(1_500)
    steps = [node(f"s{n}", "set_var", pinDefaults={"name": "a"}) for n in many]
    values = [node(f"v{n}", "concat") for n in many]
    chain = [edge(f"v{n}", "result", f"v{n + 1}", "a") for n in many[:-1]]
    reads = [edge(f"v{many[-1]}", "result", f"s{n}", "value") for n in many]
    ways = [edge(f"s{n}", "exec-out", f"s{n + 1}") for n in many[:-1]]
    return drawn([*steps, *values], [*chain, *reads, *ways])


def limited_ways_into_one_node() -> Flow:
    """Return a flow with 2,000 limited ways into one node, which names all of them."""
    many = range(2_000)
    routes = [{"sourceNodeId": f"i{n}", "sourceHandle": "true"} for n in many]
    nodes = [node("s", "sequence"), *(node(f"i{n}", "if") for n in many)]
    edges = [edge("s", f"then:{n}", f"i{n}") for n in many]
    edges += [edge(f"i{n}", "true", "e", data={"loopLimit": {"max": 2}}) for n in many]
    return drawn([*nodes, node("e", "set_var", entryRoutes=routes)], edges)


def ways_back() -> Flow:
    """Return a flow with a path of 1,000 nodes and 15,000 edges back to them."""
    many = range(1_000)
    nodes = [node(f"s{n}", "sequence") for n in many]
    edges = [edge(f"s{n}", "then:0", f"s{n + 1}") for n in many[:-1]]
    edges += [edge(f"s{n}", f"then:{k}", f"s{n * k % 1000}") for n in many for k in range(1, 16)]
    return drawn(nodes, edges)


def pins_with_edges() -> Flow:
    """Return a flow with a node of 4,000 pins, each of which has an edge."""
    pins = [{"id": f"p{n}", "type": "any"} for n in range(4_000)]
    nodes = [node("s", "set_vars", inputs=pins), node("v", "literal")]
    return drawn(nodes, [edge("v", "value", "s", pin["id"]) for pin in pins])


def circle_of_reroutes() -> Flow:
    """Return a flow with a circle of 3,000 reroutes."""
    many = range(3_000)
    nodes = [node("s", "on_flow_start"), *(node(f"r{n}", "reroute") for n in many)]
    return drawn(nodes, [edge(f"r{n}", "out", f"r{(n + 1) % 3000}", "in") for n in many])


@pytest.mark.parametrize(
    "flow",
    [
        misspelled_names,
        escaped_holes,
        unclosed_hole,
        many_expressions,
        value_of_many_steps,
        limited_ways_into_one_node,
        ways_back,
        pins_with_edges,
        circle_of_reroutes,
    ],
)
def test_a_large_document_is_checked_in_a_time_that_grows_with_its_size(
    flow: Callable[[], Flow],
) -> None:
    """No part of the check compares all parts of the document with all others."""
    findings = check_flow(json.dumps(flow()).encode())

    assert len(findings) <= MOST_FINDINGS


def test_a_name_repeated_in_an_object_of_many_names_is_named() -> None:
    """The search for the repeated name counts each name once."""
    names = ",".join(f'"k{n}":1' for n in range(50_000))

    (finding,) = check_flow(f'{{{names},"z":1,"z":2}}'.encode())

    assert "'z' is there twice in one object" in finding.problem


def test_a_document_with_too_many_expressions_is_refused() -> None:
    """Each expression counts its characters and ten more; a plain path does not count."""
    budget = ParsingBudget(characters_left=60)

    for text in ["vars.a", *["vars.a+1"] * 3, "vars.b"]:
        parse(text, budget=budget)
    with pytest.raises(ExpressionError, match="more than 500000 characters of expressions"):
        parse("vars.a+1", budget=budget)


def test_suggestions_stop_when_many_names_were_compared() -> None:
    """A few unknown names get the most similar name; thousands of them do not cost minutes."""
    findings, names = FindingList("f"), [f"number_{n:05}" for n in range(1_000)]

    remedies = [findings.suggestion(f"nunber_{n:05}", names, "Add it") for n in range(30)]

    assert remedies[0] == "Is it 'number_00000'?"
    assert remedies[-1] == "Add it"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{'a': {'b': 1}}['a']['b']} }", "1 }"),
        ("${'}' + '\"'}}", '}"}'),
        ("${len('''it's }''')}}", "6}"),
        ("${vars.a # a } b}", "1 b}"),
        ('${f"{vars.a}}}"}}', "1}}"),
    ],
)
def test_a_hole_ends_at_the_brace_that_closes_it(text: str, value: str) -> None:
    """Braces in texts, in objects and in f-strings are part of the expression."""
    text_template = template(text, lambda *_: pytest.fail("it is an expression"))

    assert text_template.value(NodeScope({"a": 1}, [], "")) == value
