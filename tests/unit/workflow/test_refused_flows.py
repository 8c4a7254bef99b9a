"""Flows that cannot run are refused: Python that the sandbox lacks, reserved names, files of other systems."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

import pytest

from actors._workflow.documents import sandbox
from actors._workflow.documents.expressions import ExpressionError, parse
from actors._workflow.documents.findings import MOST_FINDINGS
from actors._workflow.visual.report import report_flow
from actors.workflow import FlowError, check_flow

CODE: Final[dict[str, str]] = {
    "AnnAssign": "x: int = 1\nx",
    "Assert": "assert True\n1",
    "Assign": "(a, *b), c = (1, 2), 3\nc",
    "AsyncFor": "async def f():\n  async for x in y: pass\n1",
    "AsyncFunctionDef": "async def f(): return 1\nawait f()",
    "AsyncWith": "async def f():\n  async with y: pass\n1",
    "Attribute": "'a'.upper()",
    "AugAssign": "x = [1]\nx[0] += 1\nx",
    "Await": "async def f(): return 1\nawait f()",
    "BinOp": "1 + 2 ** 3 // 4 % 5 << 1 | 2 & 3 ^ 4",
    "BoolOp": "True and 1 or 2",
    "Break": "for x in [1]: break\nx",
    "Call": "max(*[1, 2], **{})",
    "ClassDef": "class A:\n  def __init__(self): self.x = 1\nA().x",
    "Compare": "1 < 2 <= 3 != 4 and 1 in [1] and 2 is not None",
    "Constant": "[1, 2.0, 'a', None, True]",
    "Continue": "for x in [1]: continue\nx",
    "Delete": "x = {'a': 1}\ndel x['a']\nx",
    "Dict": "{'a': 1, **{'b': 2}}",
    "DictComp": "{str(x): x for x in [1]}",
    "Expr": "1",
    "For": "for x in [1]: pass\nelse: y = 2\ny",
    "FormattedValue": "f'{1:>5}'",
    "FunctionDef": "def f(a, /, b=1, *c, d=2, **e): return a\nf(1)",
    "GeneratorExp": "sum(x for x in [1])",
    "Global": "x = 1\ndef f():\n  global x\n  x = 2\nf()\nx",
    "If": "if True: x = 1\nelif False: x = 2\nelse: x = 3\nx",
    "IfExp": "1 if True else 2",
    "Import": "import json\njson.dumps(1)",
    "ImportFrom": "from json import dumps\ndumps(1)",
    "Interpolation": "t'{1}'",
    "JoinedStr": "f'{1!r}'",
    "Lambda": "(lambda a, b=1: a)(1)",
    "List": "[1, *[2]]",
    "ListComp": "[x for x in [1] if x]",
    "Match": "match [1, 2]:\n  case [a, *_]: x = a\n  case _: x = 0\nx",
    "Name": "x = 1\nx",
    "NamedExpr": "(x := 1) + x",
    "Nonlocal": "def f():\n  x = 1\n  def g():\n    nonlocal x\n    x = 2\n  g()\n  return x\nf()",
    "Pass": "pass\n1",
    "Raise": "try:\n  raise ValueError from KeyError()\nexcept ValueError: x = 1\nx",
    "Return": "def f(): return 1\nf()",
    "Set": "len({1, 2})",
    "SetComp": "len({x for x in [1]})",
    "Slice": "[1, 2, 3][0:2]",
    "Starred": "[*[1]]",
    "Subscript": "[1][0]",
    "TemplateStr": "t'{1}'",
    "Try": "try: x = 1\nexcept ValueError as e: x = 2\nelse: x = 3\nfinally: y = 4\nx",
    "TryStar": "try: x = 1\nexcept* ValueError: x = 2\nx",
    "Tuple": "(1, 2)[0]",
    "TypeAlias": "type X = int\n1",
    "UnaryOp": "[not 1, -1, +1, ~1]",
    "While": "x = 0\nwhile x < 3: x += 1\nelse: x = 9\nx",
    "With": "class C:\n  def __enter__(self): return 1\n  def __exit__(self, *a): return False\n"
    "with C() as c: pass\nc",
    "Yield": "def f():\n  yield 1\nlist(f())",
    "YieldFrom": "def f():\n  yield from [1]\nlist(f())",
}
"""By class of Python's parser: code that has such a statement or expression, and a value in Python."""
FORMS: Final = {
    "unused del": "def f():\n  x = {}\n  del x[1]\n1",
    "async comprehension": "async def f():\n  return [x async for x in y]\n1",
    "inheritance": "class A(ValueError): pass\n1",
    "decorated method": "class A:\n  @property\n  def x(self): return 1\nA().x",
    "relative import": "from . import x\n1",
    "relative import below": "def f():\n  from .a import x\n1",
    "star import": "from json import *\n1",
    "missing module": "import numpy\n1",
    "missing name": "from json import nothing\n1",
    "missing module in the called function": "def f():\n  import numpy\n  return 1\nf()",
    "too deep": "(" * 5_000 + "1" + ")" * 5_000,
    "module that may be missing": "try: import numpy\nexcept ImportError: x = 1\nx",
    "module that is not imported": "def f():\n  import numpy\n1",
}


def test_each_statement_and_expression_of_python_has_its_code() -> None:
    """A class that a new Python adds needs code here."""
    classes = [*ast.stmt.__subclasses__(), *ast.expr.__subclasses__()]
    names = {node_class.__name__ for node_class in classes if node_class.__module__ == "ast"}

    assert names - {"AugLoad", "Num", "Str", "Bytes", "NameConstant", "Ellipsis"} <= CODE.keys()


@pytest.mark.parametrize("name", sorted(CODE | FORMS))
def test_code_is_refused_by_the_check_or_runs(name: str) -> None:
    """The check refuses exactly the code that the sandbox cannot execute."""
    code = (CODE | FORMS)[name]

    problem = sandbox.unreadable(code)

    try:
        sandbox.evaluate(code, {}, sandbox.SandboxLimits())
    except sandbox.SandboxError:
        assert problem is not None
    else:
        assert problem is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("(yield 1)", "yield"),
        ("[(yield from x) for x in vars.a]", "yield from"),
        ("[x async for x in vars.a]", "async for"),
        ("await vars.a", "await"),
    ],
)
def test_an_expression_that_the_sandbox_cannot_execute_is_refused(text: str, word: str) -> None:
    """The error names what is not supported."""
    with pytest.raises(ExpressionError, match=f"{word} is not supported in expressions"):
        parse(text)


def test_the_line_of_a_refused_statement_is_the_authors() -> None:
    """The check executes nothing of the code before it."""
    problem = sandbox.unreadable("x = 1 / 0\nfor y in [1]:\n  del x")

    assert problem == "the sandbox does not support the 'del' statement (line 3)"


END: Final = {"id": "e", "type": "on_flow_end", "data": {}}


def drawn(kind: str, data: dict[str, Any], literal: Any = None) -> dict[str, Any]:
    """Return a VisualFlow of one node, whose pin ``name`` may get a literal."""
    ends = {"source": "a", "sourceHandle": "exec-out", "target": "e", "targetHandle": "exec-in"}
    name_edge = {"source": "l", "sourceHandle": "value", "target": "a", "targetHandle": "name"}
    text = {"id": "l", "type": "literal_string", "data": {"literalValue": literal}}
    nodes = [{"id": "a", "type": kind, "data": data}, END, text]
    edges = [ends, name_edge] if literal else [ends]
    return {"id": "f", "entryNode": "a", "nodes": nodes, "edges": edges}


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        (drawn("set_var", {"pinDefaults": {"name": "_temp.x"}}), "'_temp.x' is one"),
        (drawn("set_var", {}, "_runtime"), "'_runtime' is one"),
        (drawn("set_vars", {"pinDefaults": {"updates": {"_limits": {}}}}), "'_limits' is one"),
        (drawn("set_vars", {"pinDefaults": {"updates": '{"_temp": 1}'}}), "'_temp' is one"),
        (drawn("set_var_property", {"pinDefaults": {"name": "_temp", "key": "x"}}), "'_temp'"),
        (drawn("add_to_list", {"pinDefaults": {"name": "_temp.x"}}), "'_temp.x' is one"),
        (
            drawn("subflow", {"subflowId": "f", "pinDefaults": {"inherit_context": True}}),
            "inherit_context is not supported",
        ),
        (
            drawn("subflow", {"subflowId": "f", "effectConfig": {"inheritContext": True}}),
            "inherit_context is not supported",
        ),
    ],
)
def test_a_drawing_that_can_only_fail_is_refused(flow: dict[str, Any], problem: str) -> None:
    """What a node can never do is found before a run."""
    problems = [finding.problem for finding in check_flow(flow) if finding.level == "error"]

    assert [problem in text for text in problems] == [True]


@pytest.mark.parametrize(
    "flow",
    [
        drawn("set_var", {"pinDefaults": {"name": "a_"}}),
        drawn("set_var", {"pinDefaults": {"name": "_a"}}, "a"),
        drawn("set_var", {"pinDefaults": {"name": "_a"}, "pinExpressions": {"name": "'a'"}}),
        drawn("subflow", {"subflowId": "f", "pinDefaults": {"inherit_context": False}}),
    ],
)
def test_a_drawing_whose_names_are_free_or_computed_is_right(flow: dict[str, Any]) -> None:
    """A value at a wire takes the place of the default."""
    assert [finding for finding in check_flow(flow) if finding.level == "error"] == []


FOREIGN: Final[dict[str, Any]] = {
    "LangFlow": {
        "name": "Basic Prompting",
        "data": {"nodes": [{"id": "a", "type": "genericNode", "data": {}}], "edges": []},
    },
    "Flowise": {"nodes": [{"id": "a", "type": "customNode", "data": {}}], "edges": []},
    "n8n": {
        "name": "My workflow",
        "nodes": [{"name": "a", "type": "n8n-nodes-base.set", "parameters": {}, "typeVersion": 1}],
        "connections": {},
    },
    "Conductor": {
        "name": "a",
        "schemaVersion": 2,
        "tasks": [{"name": "a", "taskReferenceName": "a", "type": "SIMPLE"}],
    },
    "Serverless Workflow": {"document": {"dsl": "1.0.0", "name": "a"}, "do": [{"a": {"set": {}}}]},
    "Dify": {"app": {"mode": "workflow"}, "workflow": {"graph": {"nodes": [], "edges": []}}},
    "Amazon States Language": {"StartAt": "a", "States": {"a": {"Type": "Pass", "End": True}}},
    "ComfyUI": {"3": {"class_type": "KSampler", "inputs": {}}},
    "Node-RED": [{"id": "a", "type": "inject", "wires": [[]]}],
}


@pytest.mark.parametrize("system", FOREIGN)
def test_a_file_of_another_system_is_named(system: str) -> None:
    """Check and report name the system and say what to do; no part is called supported."""
    raw = json.dumps(FOREIGN[system]).encode()

    (finding,) = check_flow(raw)
    with pytest.raises(FlowError) as refused:
        report_flow(raw)

    assert finding.problem.startswith(f"it is a workflow of {system}, ")
    assert finding.remedy.startswith("Write it as a flow document")
    assert refused.value.findings[0].problem == finding.problem


def test_an_older_serverless_workflow_is_named() -> None:
    """Version 0.8 of the format has other words."""
    (finding,) = check_flow({"id": "a", "specVersion": "0.8", "states": [{"name": "a"}]})

    assert "Serverless Workflow" in finding.problem


def test_a_report_calls_no_node_supported_that_nothing_executes() -> None:
    """A flow of unknown nodes without edges is not supported, and none of its nodes is."""
    nodes = [{"id": name, "type": f"Other{name}", "data": {}} for name in "ab"]

    report = report_flow({"id": "f", "nodes": nodes, "edges": []})

    assert not report.is_supported
    assert [node.is_supported for node in report.nodes] == [False, False]


def test_a_check_names_the_mistakes_of_form_and_of_meaning_at_once() -> None:
    """A node with a wrong word does not hide the mistakes of other nodes. They are in the order of places."""
    nodes = {
        "a": {"set": {"x": "${vars.(}"}, "next": "b"},
        "b": {"set": {"x": 1}, "next": "nowhere"},
        "c": {"set": {"x": 1}, "nxt": "d", "next": "d"},
        "d": {"end": 1},
        "e": {"code": "del x", "into": "_temp.x", "next": "d"},
    }

    findings = check_flow({"flow": 1, "start": "a", "nodes": nodes})

    assert [finding.pointer for finding in findings] == [
        "/id",
        "/nodes/a/set/x",
        "/nodes/b/next",
        "/nodes/c/nxt",
        "/nodes/e/into",
    ]


def test_a_check_says_how_many_findings_it_does_not_list() -> None:
    """The places are in the order of numbers."""
    nodes = [
        {"id": "s", "type": "on_flow_start", "data": {}},
        *([{"id": "", "type": "code"}] * 250),
    ]

    findings = check_flow({"id": "f", "entryNode": "s", "nodes": nodes, "edges": []})

    assert [finding.pointer for finding in findings[:3]] == [f"/nodes/{n}/id" for n in (1, 2, 3)]
    assert len(findings) == MOST_FINDINGS
    assert findings[-1].problem == "51 more findings are not listed"
