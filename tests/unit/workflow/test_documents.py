"""Flow documents: what they become, and what is said of those that are wrong."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.documents.document import FlowDocument, seconds_in
from actors._workflow.documents.reading import LARGEST, read_flow
from actors.workflow import (
    EffectOutcome,
    EffectType,
    FlowError,
    InMemoryLedgerStore,
    InMemoryRunStore,
    WorkflowRuntime,
    check_flow,
    load_flow,
)
from tests.unit.documents import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from actors.workflow import RunState

REFUND: dict[str, Any] = json.loads((ROOT / "docs" / "graphs" / "refund.json").read_text("utf-8"))


def drive(
    flow: Mapping[str, Any], answers: Mapping[str, Any] | None = None, **variables: Any
) -> RunState:
    """Run a document in memory to its end, or to a wait that nobody answers."""
    spec = load_flow(flow)
    runtime = WorkflowRuntime(
        run_store=InMemoryRunStore(),
        ledger_store=InMemoryLedgerStore(),
        effect_handlers={
            EffectType.TOOL_CALLS: lambda _, effect: EffectOutcome.completed(effect.payload)
        },
    )
    run_id = runtime.start(spec, vars=variables)
    state = runtime.tick(spec, run_id)
    while state.waiting is not None and state.waiting.wait_key in (answers or {}):
        key = str(state.waiting.wait_key)
        state = runtime.resume(spec, run_id, key, (answers or {})[key])
    return state


def end_of(output: Any, **variables: Any) -> Any:
    """Return the output of a document that ends at once."""
    state = drive(
        {"flow": 1, "id": "f", "start": "e", "nodes": {"e": {"end": output}}}, **variables
    )
    assert state.status == "completed", state.error
    return state.output


def problems(document: Any, **nodes: Any) -> list[str]:
    """Return pointer and problem of each finding; `nodes` take the place of those of the document."""
    whole = {**document, "nodes": {**document["nodes"], **nodes}}
    return [f"{finding.pointer}: {finding.problem}" for finding in check_flow(whole)]


@pytest.mark.item(464)
def test_a_document_asks_decides_and_ends() -> None:
    """The one of the documentation, with both answers and without one."""
    refund = {**REFUND, "nodes": copy.deepcopy(REFUND["nodes"])}
    refund["nodes"]["ask"]["with"]["wait_key"] = "q"
    variables = {"order": {"id": 7, "total": 40}}
    waiting_state = drive(refund, **variables)
    paid_state = drive(refund, {"q": {"response": "yes"}}, **variables)
    refused_state = drive(refund, {"q": {"response": "no"}}, **variables)
    late_state = drive(refund, {"q": {"timed_out": True}}, **variables)

    assert waiting_state.waiting is not None
    assert waiting_state.waiting.prompt == "Refund 40?"
    assert waiting_state.waiting.until is not None
    calls = [{"name": "pay", "arguments": {"order": 7}}]
    assert paid_state.output == {"paid": {"tool_calls": calls, "retry": {"max_attempts": 3}}}
    assert refused_state.output == late_state.output == {"paid": False}


@pytest.mark.item(464)
def test_holes_keep_values_or_become_text() -> None:
    """A text that is one hole is the value; around other text it is shown."""
    variables = {"n": 2, "l": [1, "b"], "o": {"x": None}, "s": "é"}
    assert end_of("${vars.l}", **variables) == [1, "b"]
    assert end_of("${vars.n}${vars.s} ${vars.o}", **variables) == '2é {"x": null}'
    assert end_of({"a": ["${vars.l[-1]}", "$${vars.n}"]}, **variables) == {"a": ["b", "${vars.n}"]}
    assert end_of("${ {'k': vars.n + 1}['k'] }", **variables) == 3
    assert end_of("${vars.s.upper()}", **variables) == "É"
    assert end_of("${[x * 2 for x in vars.l]}", **variables) == [2, "bb"]
    assert end_of("${vars.o.x == null and true}", **variables) is True
    assert end_of("${sorted(vars)[:2]}", **variables) == ["context", "l"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${vars.a.b}", "there is no vars.a; there are x"),
        ("${vars.x.b}", "there is no vars.x.b: the value before it is a int"),
        ("${vars.x / 0}", "ZeroDivisionError"),
        ("${open('/etc/passwd').read()}", "PermissionError"),
        ("${(lambda: [0] * 10**9)()}", "MemoryError"),
        ("${vars.x.foo()}", "AttributeError"),
        ("${len}", "cannot be recorded"),
    ],
)
def test_a_hole_without_a_value_fails_the_step(text: str, words: str) -> None:
    """By the name of the node, with the expression."""
    flow = {"flow": 1, "id": "f", "start": "e", "nodes": {"e": {"end": [text]}}}
    state = drive(flow, x=1)
    assert state.status == "failed"
    assert state.error is not None
    assert words in state.error
    assert "'e'" in state.error


@pytest.mark.item(464)
def test_loops_branches_and_code() -> None:
    """A loop over items within branches of a list; code puts the values together."""
    flow = {
        "flow": 1,
        "id": "f",
        "start": "split",
        "nodes": {
            "split": {"each": "${vars.names}", "do": "over", "join": "sum"},
            "over": {"loop": "${vars.sizes}", "as": "size", "do": "count", "next": "sum"},
            "count": {"set": {"total": "${vars.total + vars.size}"}, "next": "note"},
            "note": {
                "code": "seen = list(old)\nseen.append(name * size)\nseen",
                "with": {"old": "${vars.seen}", "name": "${branch[0]}", "size": "${vars.size}"},
                "into": "seen",
                "next": "over",
            },
            "sum": {"end": {"total": "${vars.total}", "seen": "${vars.seen}"}},
        },
        "reducers": {"total": "add", "seen": "append", "size": "last"},
    }
    state = drive(flow, names=["a", "b"], sizes=[1, 2], total=0, seen=[])
    assert state.output == {"total": 6, "seen": ["a", "aa", "b", "bb"]}, state.error
    assert not [key for key in state.vars["_temp"] if "@" in key]


def test_code_is_stopped() -> None:
    """A loop without an end, and one that eats memory, fail their step; the next one executes."""
    code = {"code": "while True: pass", "into": "x", "next": "e", "limits": {"seconds": 0.05}}
    flow = {"flow": 1, "id": "f", "start": "c", "nodes": {"c": code, "e": {"end": "${vars.x}"}}}
    stopped = drive(flow)
    assert (stopped.status, "TimeoutError" in str(stopped.error)) == ("failed", True)
    code["code"] = "x = []\nwhile True: x.append('a' * 100000)"
    code["limits"] = {"seconds": 10, "memory_mib": 4}
    assert "MemoryError" in str(drive(flow).error)
    code["code"] = "print('a' * 10**6)\n1"
    assert "MemoryError" in str(drive(flow).error)
    code["code"] = "import os\nos.environ"
    assert drive(flow).status == "failed"
    code["code"] = "1 + 1"
    assert drive(flow).output == 2


@pytest.mark.item(466)
def test_all_mistakes_are_found_at_once() -> None:
    """Each with its place, and nothing is compiled."""
    wrong = problems(
        REFUND,
        ask={"effect": "ask_user", "deadline": 1, "next": "chekc", "with": {"prompt": "${vars."}},
        check={"switch": [{"when": "vars.a = 1", "next": "pay"}], "else": "nowhere"},
        pay={"effect": "tool_calls", "deadline": "3d", "on_timeout": "no", "next": "end"},
        code={"code": "def f(:\n  pass", "into": "x", "next": "end"},
        no={"end": "${order.id}"},
    )
    assert wrong == [
        "/nodes/ask/next: there is no node 'chekc'",
        "/nodes/ask/with/prompt: ${vars.: ${ has no }. Write $${ for the characters ${",
        "/nodes/check/else: there is no node 'nowhere'",
        "/nodes/check/switch/0/when: vars.a = 1: it is no expression (invalid syntax)",
        wrong[4],
        "/nodes/no/end: order.id: 'order' is no name here. Vars are read as vars.order",
        "/nodes/pay/deadline: tool_calls has no deadline",
        "/nodes/pay/with: tool_calls needs tool_calls",
    ]
    assert wrong[4].startswith("/nodes/code/code: ")
    assert "(line 1)" in wrong[4]
    (alone,) = check_flow({**REFUND, "nodes": {**REFUND["nodes"], "alone": {"end": 1}}})
    assert (alone.level, alone.pointer) == ("warning", "/nodes/alone")
    sub = {"flow": "other", "with": {"_runtime": {}, "_limits": {}}, "next": "e"}
    (finding,) = check_flow({**REFUND, "start": "s", "nodes": {"s": sub, "e": {"end": 1}}})
    assert (finding.level, finding.pointer) == ("warning", "/nodes/s/with/_runtime")


@pytest.mark.item(466)
def test_what_is_no_document_is_said_by_place() -> None:
    """Shapes: an unknown word, a node of two kinds, of none, of a kind that nobody knows."""
    wrong = problems(
        {**REFUND, "id": "a:b", "colour": 1},
        ask={"effect": "fly", "next": "check"},
        check={"end": 1, "set": {}},
        pay={"frobnicate": 1},
        no={"set": {"_runtime.x": 1}, "next": "end", "deadline": "3 days"},
    )
    assert [problem.partition(":")[0] for problem in wrong] == [
        "/colour",
        "/id",
        "/nodes/ask/effect",
        "/nodes/check",
        "/nodes/no/deadline",
        "/nodes/no/set/_runtime.x",
        "/nodes/pay",
    ]
    assert "it has end and set" in "\n".join(wrong) or "it has set and end" in "\n".join(wrong)
    with pytest.raises(FlowError, match="is no word here") as refused:
        load_flow({**REFUND, "colour": 1})
    assert refused.value.findings[0].remedy == "Remove it, or correct it"


@pytest.mark.parametrize(
    ("raw", "name", "words"),
    [
        (b"{", "f", "it is no JSON"),
        (b"\xff\xfe", "f", "it is no JSON"),
        (b'{"a": 1, "a": 2}', "f", "'a' is there twice"),
        (b'{"a": NaN}', "f", "NaN is no number"),
        (b"[" * 100_000, "f", "it is"),
        (b'{"a": ' * 200 + b"1" + b"}" * 200, "f", "more than 100 levels"),
        (b" " * (LARGEST + 1), "f", "more than 8 MiB"),
        (b"a: &x [1]\nb: *x", "f.yaml", "aliases are not read (line 2)"),
        (b"a: 1\na: 2", "f.yaml", "'a' is there twice"),
        (b"? [a]\n: 1", "f.yaml", "a name is no text (line 1)"),
        (b"a: !!python/object/apply:os.system [ls]", "f.yaml", "it is not YAML"),
        (b"[]", "f", "should be"),
    ],
)
def test_bytes_that_are_no_document(raw: bytes, name: str, words: str) -> None:
    """One finding, whatever it is."""
    (finding,) = check_flow(raw, file=name)
    assert words in str(finding)
    assert finding.file == name


def test_yaml_is_the_same_document(tmp_path: Path) -> None:
    """A file that a person wrote; its graph has the same hash."""
    (tmp_path / "f.yaml").write_text(
        "flow: 1\nid: f\nstart: e\nnodes:\n  e: {end: '${vars.x}'}\n", encoding="utf-8"
    )
    (tmp_path / "g.yaml").write_text(
        "flow: 1\nid: no\nstart: no\nnodes:\n  no: {end: {a: [no, 2026-11-27, 1:30, 010, ~, true], 1: 1.5}}\n",
        encoding="utf-8",
    )
    texts = {"a": ["no", "2026-11-27", "1:30", "010", None, True], "1": 1.5}
    assert read_flow(tmp_path / "g.yaml").to_dict()["nodes"] == {"no": {"end": texts}}
    same = {"flow": 1, "id": "f", "start": "e", "nodes": {"e": {"end": "${vars.x}"}}}
    assert load_flow(tmp_path / "f.yaml").hash == load_flow(same).hash


def test_the_flow_of_the_readme_is_right() -> None:
    """It is compiled, and ends as the person says."""
    (block,) = blocks("README.md", "yaml")
    spec = load_flow(block.encode(), file="leave.yaml")
    assert spec.workflow_id == "leave"
    assert check_flow(block.encode(), file="leave.yaml") == []


def test_the_hash_is_of_what_the_graph_does() -> None:
    """A title changes nothing, a value does; so does the version, which is in the graph's name."""
    spec = load_flow(REFUND)
    titled = copy.deepcopy(REFUND) | {"title": "Money back"}
    titled["nodes"]["ask"]["title"] = "Ask"
    other = copy.deepcopy(REFUND)
    other["nodes"]["ask"]["deadline"] = "2d"
    assert spec.workflow_id == "refund@1.2"
    assert load_flow(titled).hash == spec.hash
    assert load_flow(other).hash != spec.hash
    assert load_flow({**REFUND, "version": "1.3"}).hash != spec.hash


def test_a_document_is_read_back_as_it_is_written() -> None:
    """And the schema that is published is that of the model."""
    (block,) = blocks("docs/graphs/documents.md", "json")
    document = read_flow(REFUND)
    assert json.loads(block) == REFUND
    assert read_flow(document.to_dict()) == document
    published = (ROOT / "docs" / "graphs" / "flow.schema.json").read_text(encoding="utf-8")
    assert json.loads(published) == FlowDocument.model_json_schema(), (
        "write it with `callboard flows schema > docs/graphs/flow.schema.json`"
    )


def test_durations() -> None:
    """Seconds, or texts with units."""
    texts = ["90s", "15m", "2h30m", "3d", "250ms", "1.5h"]
    assert [seconds_in(text) for text in texts] == [90, 900, 9000, 259200, 0.25, 5400]
    for wrong in ["3 days", "", "-1s", -1, True, None, "9999999999d", float("nan")]:
        with pytest.raises(ValueError, match=r"no duration|not between"):
            seconds_in(wrong)


def test_documents_that_were_damaged_are_refused_or_run() -> None:
    """Mutations of names, values and shapes: a list of findings, or a graph; never another error."""
    rng = random.Random(1)
    values: list[Any] = ["", "x", "${", "${vars.", None, True, -1, 1e308, [], {}, "a" * 5000, "\0"]
    outcomes = set()
    for _ in range(400):
        document = copy.deepcopy(REFUND)
        for _ in range(rng.randint(1, 3)):
            container: Any = document
            while isinstance(container, dict | list) and container and rng.random() < 0.85:
                key = rng.choice(
                    [*container] if isinstance(container, dict) else range(len(container))
                )
                if rng.random() < 0.3 or not isinstance(container[key], dict | list):
                    change = rng.random()
                    if change < 0.3:
                        del container[key]
                    elif change < 0.6 and isinstance(container, dict):
                        container[rng.choice(["", "~", "end", "next", "set", "\0"])] = (
                            container.pop(key)
                        )
                    else:
                        container[key] = rng.choice(values)
                    break
                container = container[key]
        findings = check_flow(document)
        outcomes.add(bool(findings))
        assert all(finding.pointer.startswith("/") or finding.pointer == "" for finding in findings)
    assert outcomes == {True, False}
