"""Evidence: external content that tools fetch, kept on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors.errors import PersistenceError
from actors.workflow import EffectType, RunStatus, get_artifact_id, tool_calls
from tests.conformance.workflow.stores import one_effect
from tests.conformance.workflow.test_effects import Deaths, Dying

if TYPE_CHECKING:
    from actors.workflow import WorkflowSpec
    from tests.conformance.workflow.stores import Stores

COUNT = iter(range(1000))
TOOLS: dict[str, Any] = {
    "execute_command": lambda command: {
        "command": command,
        "stdout": f"out {next(COUNT)}",
        "code": 0,
    },
    "web_search": lambda query: f"results of {query}",
    "add": lambda a, b: a + b,
}
CALLS = [
    {"name": "execute_command", "arguments": {"command": "ls"}, "call_id": "c1"},
    {"name": "add", "arguments": {"a": 1, "b": 2}, "call_id": "c2"},
    {"name": "web_search", "arguments": {"query": "q"}, "call_id": "c3"},
]
HANDLERS = {EffectType.TOOL_CALLS: tool_calls(TOOLS)}


def calling() -> WorkflowSpec:
    """Return a graph of three calls."""
    return one_effect(EffectType.TOOL_CALLS, {"tool_calls": CALLS})


@pytest.mark.item(461, 462)
def test_content_that_tools_fetch_is_kept_as_evidence(stores: Stores) -> None:
    """As artifacts with one index entry each; other tools have none."""
    rt, spec = stores.runtime(effect_handlers=HANDLERS), calling()
    run_id = rt.start(spec)

    state = rt.tick(spec, run_id)

    command, added, search = state.output["out"]["results"]
    assert "stdout" not in command["output"]
    text = stores.artifacts.load_text(get_artifact_id(command["output"]["stdout_artifact"]))
    assert text.startswith("out ")
    assert (added["output"], "meta" in added) == (3, False)
    rows = rt.list_evidence(run_id)
    assert [row["tool_name"] for row in rows] == ["execute_command", "web_search"]
    assert [row["evidence_id"] for row in rows] == [
        call["meta"]["evidence_id"] for call in (command, search)
    ]
    first, second = (rt.load_evidence(row["evidence_id"]) or {} for row in rows)
    assert (first["command"], first["code"], first["call_id"]) == ("ls", 0, "c1")
    assert (first["run_id"], first["node_id"]) == (run_id, "work")
    results = stores.artifacts.load_text(get_artifact_id(second["artifacts"]["results"]))
    assert results == "results of q"
    assert rt.load_evidence("nothing") is None


@pytest.mark.item(461)
@pytest.mark.parametrize("point", ["started", "executed", "ended", "saved"])
def test_evidence_is_that_of_the_recorded_result(stores: Stores, point: str) -> None:
    """After a crash the index has one entry for each call, of the recorded execution."""
    if stores.kind == "sqlite" and point == "ended":
        point = "saved"  # its record and the checkpoint are one write
    spec = calling()
    dying = stores.runtime(effect_handlers=HANDLERS, fault=Dying(point))
    run_id = dying.start(spec)
    with pytest.raises(Deaths):
        dying.tick(spec, run_id)
    rt = stores.reopen().runtime(effect_handlers=HANDLERS)

    state = rt.tick(spec, run_id)

    command, _, search = state.output["out"]["results"]
    rows = rt.list_evidence(run_id)
    assert [x["evidence_id"] for x in rows] == [x["meta"]["evidence_id"] for x in (command, search)]
    evidence = rt.load_evidence(rows[0]["evidence_id"]) or {}
    assert evidence["artifacts"]["stdout"] == command["output"]["stdout_artifact"]


@pytest.mark.item(461)
def test_evidence_that_cannot_be_kept_is_a_warning(stores: Stores) -> None:
    """The result is unchanged, and the run continues."""

    class Away:
        def load(self, _artifact_id: str) -> None:
            """Raise: the artifact is missing."""

        def store(self, *_args: Any, **_more: Any) -> None:
            raise PersistenceError("the bucket is away")

    rt, spec = stores.runtime(effect_handlers=HANDLERS, artifact_store=Away()), calling()
    run_id = rt.start(spec)

    state = rt.tick(spec, run_id)

    assert state.status is RunStatus.COMPLETED
    assert state.output["out"]["results"][0]["output"]["stdout"].startswith("out ")
    assert rt.list_evidence(run_id) == []
    warnings = state.vars["_runtime"]["evidence_warnings"]
    assert [(warning["tool_name"], warning["error"]) for warning in warnings] == [
        (name, "PersistenceError: the bucket is away") for name in ("execute_command", "web_search")
    ]


@pytest.mark.item(461)
def test_without_a_store_there_is_no_evidence(stores: Stores) -> None:
    """And no warning: results are unchanged."""
    rt, spec = stores.runtime(effect_handlers=HANDLERS, artifact_store=None), calling()

    state = rt.tick(spec, rt.start(spec))

    assert "stdout" in state.output["out"]["results"][0]["output"]
    assert not {"memory_spans", "evidence_warnings"} & {*state.vars["_runtime"]}
