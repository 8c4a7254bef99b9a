"""Drawings of graphs: what the code of nodes names, where nodes are, and what a run changes in a drawing."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from typing_extensions import override

from actors._kernel.workflow.effects import Effect, EffectType, StepPlan
from actors._workflow.machine.spec import RetryPolicy, WorkflowSpec
from actors.workflow import load_flow
from compose._web.pages.flows.drawing import MAX_NODES, GraphMarks, facts_of, layout_of, svg_of

EVIL: Final = "<script>alert(1)</script>\"'&{{7*7}}"
LAST: Final = "last"


def ask(_run: Any, _ctx: Any) -> StepPlan:
    """Ask a person.

    Not of last, which is only in these words.
    """
    payload = {"prompt": "Go on?", "timeout_s": 60}
    return StepPlan("ask", Effect(EffectType.ASK_USER, payload, "answer"), next_node="fork")


def fork(_run: Any, _ctx: Any) -> StepPlan:
    """Begin branches."""
    return StepPlan("fork", parallel={"a": "tool", "b": "made"}, next_node=LAST)


def _asking(kind: EffectType, after: str) -> Any:
    return lambda run, _ctx: StepPlan(run.current_node, Effect(kind, {}), next_node=after)


def _going(target: str, _run: Any, _ctx: Any) -> StepPlan:
    return StepPlan("made", next_node=target)


class Ending:
    """A node that is an object."""

    def __call__(self, run: Any, _ctx: Any) -> StepPlan:
        """End, or begin anew."""
        return (
            StepPlan("last", next_node="ask") if run.vars else StepPlan("last", complete_output=1)
        )


SPEC: Final = WorkflowSpec(
    "flow",
    "ask",
    {
        "ask": ask,
        "fork": fork,
        "tool": _asking(EffectType.TOOL_CALLS, "last"),
        "made": partial(_going, "last"),
        "last": Ending(),
        "chosen": lambda run, _ctx: StepPlan("chosen", next_node=run.vars["next"]),
    },
)


def test_the_code_of_nodes_names_effects_and_moves() -> None:
    """In functions, closures, partials, objects and constants of a module; not in their documentation."""
    facts = {node.name: node for node in facts_of(SPEC, RetryPolicy())}

    assert {name: node.goes_to for name, node in facts.items()} == {
        "ask": ("fork",),
        "fork": ("tool", "made", "last"),
        "tool": ("last",),
        "made": ("last",),
        "last": ("ask",),
        "chosen": (),
    }
    assert {name: (node.kind, node.attempts, node.deadline) for name, node in facts.items()} == {
        "ask": ("ask user", 1, "named"),
        "fork": ("branches", 0, ""),
        "tool": ("tool calls", 2, ""),
        "made": ("step", 0, ""),
        "last": ("step", 0, ""),
        "chosen": ("step", 0, ""),
    }
    assert (facts["ask"].says, facts["ask"].code) == ("Ask a person.", f"{__name__}.ask")


def test_a_document_declares_its_nodes() -> None:
    """With the words for its moves, and the node behind a wait that has a deadline."""
    spec = load_flow(Path(__file__).parents[3] / "docs" / "graphs" / "refund.json")
    facts = facts_of(spec, RetryPolicy())

    assert {node.name: (node.kind, node.attempts, node.deadline, node.ways) for node in facts} == {
        "ask": ("ask user", 1, "3 days, 0:00:00", (("", "ask~"),)),
        "ask~": ("timeout", 0, "", (("", "check"), ("timeout", "no"))),
        "check": ("switch", 0, "", (("vars.answer.response == 'yes'", "pay"), ("else", "no"))),
        "pay": ("tool calls", 3, "", (("", "end"),)),
        "no": ("end", 0, "", ()),
        "end": ("end", 0, "", ()),
    }


def test_a_policy_that_cannot_say_hides_no_node() -> None:
    """An app's own policy may want more of an effect than its type."""

    class Odd(RetryPolicy):
        @override
        def max_attempts(self, effect: Effect) -> int:
            return int(effect.payload["tries"])

    assert {node.attempts for node in facts_of(SPEC, Odd())} == {0}


def test_a_run_changes_classes_and_never_the_layout() -> None:
    """Whatever a run did: the same drawing, with other classes, words and dashed lines."""
    nodes, edges = ["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "a")]
    first, again = layout_of(nodes, edges), layout_of(nodes, edges)
    assert first is not None
    assert first == again
    marks = GraphMarks(
        classes={"a": "done", "b": "waiting"},
        notes={"a": "done, twice and more than its box can show of it"},
        taken_edges=[("a", "b")],
        unnamed_edges=[("a", "c"), ("c", "b"), ("b", "b"), ("a", "gone")],
    )
    plain, marked = (str(svg_of(first, m, title="x")) for m in (GraphMarks(), marks))

    def geometry(svg: str) -> list[str]:
        bare = re.sub(r'<g id="seen">.*?</g>', "", svg)
        return re.findall(r'(?:viewBox|width|height| x| y| d)="([^"]*)"', bare)

    assert geometry(plain) == geometry(marked)
    assert 'id="n-1" class="node waiting"' in marked
    assert len(re.findall(r'class="edge seen" d="M[-\d. ]+C[-\d. ]+"', marked)) == 3
    assert marked.count('class="edge taken"') == 1
    assert "done, twice and…" in marked


@pytest.mark.parametrize("name", [EVIL, "", "\u202egnp.exe", "字" * 80, "x" * 5000, "a\nb"])
def test_names_are_text(name: str) -> None:
    """Of any kind; a long one is cut in its box, and whole as a title."""
    layout = layout_of([name, "b"], [(name, "b")])
    assert layout is not None
    marks = GraphMarks(classes={name: EVIL}, notes={name: EVIL}, unnamed_edges=[("b", name)])
    svg = str(svg_of(layout, marks, title=EVIL))

    assert "<script" not in svg
    assert "alert(1)</script>" not in svg
    assert len(svg) < 20_000
    assert max(box.width for box in layout.boxes.values()) < 300


def test_what_is_too_large_has_no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes have one; more, or lines across all of them, or no package: none."""

    def node_names(count: int) -> list[str]:
        return [f"node {n}" for n in range(count)]

    def chain(count: int) -> list[tuple[str, str]]:
        return [(f"node {n}", f"node {n + 1}") for n in range(count - 1)]

    assert layout_of(node_names(MAX_NODES), chain(MAX_NODES)) is not None
    assert layout_of(node_names(MAX_NODES + 1), chain(MAX_NODES + 1)) is None
    across = [(f"node {n}", f"node {MAX_NODES - n - 1}") for n in range(0, 400, 3)]
    assert layout_of(node_names(MAX_NODES), chain(MAX_NODES) + across) is None
    assert layout_of([], []) is None
    monkeypatch.setitem(sys.modules, "graphlay", None)
    assert layout_of(node_names(2), chain(2)) is None
