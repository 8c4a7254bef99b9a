"""The bytes of rows and lines: a release writes what the release before wrote."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.durable import WRAPPED, durable_copy, plain_copy
from actors._workflow.machine.variables import changes
from actors.errors import NotSerializableError
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    HashChainedLedgerStore,
    RetryPolicy,
    RunStatus,
    StepPlan,
    StepRecord,
    StepStatus,
    WorkflowSpec,
)
from tests.conformance.workflow.stores import end_node

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores

T = EffectType
ODD: dict[str, Any] = {
    "tiny": 1e-05,
    "big": 1e16,
    "one": 1.0,
    "text": 'ä "q" \\ \n \x7f \u2028 🙂',
    "int": 2**70,
}
DIGESTS = {
    "plain": "73b2420fc02e08ed78ac52e72e0246a235655e22953244b4221194c41fab01bb",
    "chained": "d28d90b58129cce18a473493b95da9459a0a56c3163a0a1dd46bd11652c33016",
    "run": "c376b98f2c6d29f7db6da08701c1361c6f0c6d312abf1a440eb7c0daff5d6103",
    "head": "012fec7fb92d4339a6cbb1f1a62fc2031ca9bbb532a500acb049e91441e42c70",
}
"""SHA-256 of the ledger's rows and of the run's row, and the head of the chain."""


def work(run: RunState, _ctx: Any) -> StepPlan:
    """Ask for effects that fail, succeed and wait, then fork."""
    n = run.vars["n"] = run.vars.get("n", 0) + 1
    run.vars["odd"] = {**ODD, "list": [n, (1, 2)]}
    if n == 1:
        return StepPlan("work", next_node="work")
    if n == 2:
        return StepPlan("work", Effect(T.TOOL_CALLS, {"odd": ODD}, "got.it"), "work")
    if n == 3:
        return StepPlan(
            "work", Effect(T.LLM_CALL, {"p": "?"}, None, EffectMode.AT_MOST_ONCE), "work"
        )
    if n == 4:
        return StepPlan("work", parallel={"l": "side", "r": "side"}, next_node="ask")
    return StepPlan("work", next_node="end")


def side(run: RunState, _ctx: Any) -> StepPlan:
    """Change the vars of a branch."""
    run.vars[run.vars["_runtime"]["branch"][-1]] = {"in": 0.1}
    return StepPlan("side", next_node="ask")


def ask(_run: RunState, _ctx: Any) -> StepPlan:
    """Wait for a person."""
    effect = Effect(T.ASK_USER, {"prompt": "?", "wait_key": "k", "choices": ["ä"]}, "answer")
    return StepPlan("ask", effect, "work")


def played(stores: Stores, *, is_chained: bool) -> str:
    """Run the graph under a fixed clock; return the id of the run."""
    calls: list[int] = []

    def handle(_run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(1)
        if len(calls) == 1:
            return EffectOutcome.failed("no \x00 luck")
        return EffectOutcome.completed({**effect.payload, "odd": ODD})

    more = {"ledger_store": HashChainedLedgerStore(stores.ledger)} if is_chained else {}
    spec = WorkflowSpec("golden", "work", {"work": work, "side": side, "ask": ask, "end": end_node})
    runtime = stores.runtime(
        spec,
        effect_handlers={T.TOOL_CALLS: handle, T.LLM_CALL: handle},
        effect_policy=RetryPolicy(),
        **more,
    )
    run_id = runtime.start(spec, vars={"é": 1}, run_id="golden", actor_id="ann", session_id="s")
    runtime.tick(spec, run_id)
    runtime.resume(spec, run_id, "k", {"response": "yes"})
    return run_id


def rows_of(stores: Stores) -> tuple[str, str]:
    """Return the text of the ledger's rows, and of the run's row."""
    if stores.kind == "files":
        ledger = (stores.folder / "ledger_golden.jsonl").read_text()
        return ledger.strip(), (stores.folder / "run_golden.json").read_text()
    connection = stores.database.connection()
    ledger_rows = connection.execute("select record_json from ledger order by seq").fetchall()
    (run,) = connection.execute("select state_json from runs").fetchall()
    return "\n".join(row[0] for row in ledger_rows), run[0]


@pytest.mark.item(411, 459)
@pytest.mark.parametrize("is_chained", [False, True], ids=["plain", "chained"])
def test_rows_have_the_bytes_of_the_release_before(disk_stores: Stores, is_chained: bool) -> None:
    """Of records, of the chain and of the checkpoint, in SQLite and in files alike."""
    played(disk_stores, is_chained=is_chained)

    ledger, run = rows_of(disk_stores)

    name = "chained" if is_chained else "plain"
    assert hashlib.sha256(ledger.encode()).hexdigest() == DIGESTS[name]
    assert hashlib.sha256(run.encode()).hexdigest() == DIGESTS["run"]
    if is_chained:
        assert disk_stores.ledger.list("golden")[-1]["record_hash"] == DIGESTS["head"]


@pytest.mark.item(411, 459)
def test_only_json_data_is_marked_as_checked(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not checked again is what a check would give. Most records of the machine are such."""
    records: list[StepRecord] = []
    append = stores.ledger.append_many

    def keep(new_records: Any) -> None:
        records.extend(new_records)
        append(new_records)

    monkeypatch.setattr(stores.ledger, "append_many", keep)
    played(stores, is_chained=False)

    checked = [r for r in records if r.checked]
    assert len(checked) > len(records) / 2
    for record in checked:
        own = record.values()
        assert durable_copy(own, "record", deepest=WRAPPED) == own
        assert plain_copy(own) == own  # marshal refuses subclasses of text, too
        assert record.to_dict() == own
        assert not own["delta"] or record.to_dict()["delta"] is not own["delta"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": True}, [(["a"], True, True)]),
        ({"a": {"b": 1.0}}, {"a": {"b": 1}}, [(["a", "b"], 1, True)]),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, [(["c"], 2, True), (["b"], None, False)]),
        ({"a": {"b": {}}}, {"a": {}}, [(["a", "b"], None, False)]),
        ({"a": {}}, {"a": {"b": None}}, [(["a", "b"], None, True)]),
        ({"a": {"b": 1}}, {"a": []}, [(["a"], [], True)]),
        ({"a": [1]}, {"a": [1]}, []),
    ],
)
def test_changes_of_vars_have_their_paths(
    before: dict[str, Any], after: dict[str, Any], expected: list[Any]
) -> None:
    """A value of another type is a change, too. What is gone comes last."""
    found_changes = changes(before, after)

    assert found_changes == expected
    assert [type(value) for _, value, _ in found_changes] == [
        type(value) for _, value, _ in expected
    ]


def test_a_record_that_a_host_makes_is_checked() -> None:
    """Also one that is made from a record of the machine."""
    record = StepRecord(
        run_id="r", step_id="s", node_id="n", status=StepStatus.STARTED, checked=True
    )
    for bad_record in (record.finish_success({1, 2}), record.finish_failure("\x00")):
        with pytest.raises(NotSerializableError):
            bad_record.told()


@pytest.mark.item(410)
@pytest.mark.parametrize("what", ["node", "key", "next", "branch"])
def test_a_text_that_cannot_be_stored_is_refused_before_its_record(
    stores: Stores, what: str
) -> None:
    """A name of a node when the graph is made; a path of a result when the node asks: the run fails."""
    bad = "a\x00"
    plans = {
        "key": lambda: StepPlan("work", Effect(T.TOOL_CALLS, {}, bad), "end"),
        "next": lambda: StepPlan("work", next_node=Name.END),
        "branch": lambda: StepPlan("work", parallel={bad: "end"}, next_node="end"),
    }
    if what == "node":
        with pytest.raises(NotSerializableError, match="nodes of graph"):
            WorkflowSpec("g", "work", {"work": end_node, bad: end_node})
        return
    spec = WorkflowSpec("g", "work", {"work": lambda _r, _c: plans[what](), "end": end_node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    state = runtime.tick(spec, run_id)
    if what == "next":  # an enum is its text
        assert stores.ledger.list(run_id)[1]["delta"]["node"] == "end"
        assert (state.status, type(state.current_node)) == (RunStatus.COMPLETED, str)
        return
    assert state.status is RunStatus.FAILED
    assert "NUL" in (state.error or "")


class Name(StrEnum):
    """Names of nodes."""

    END = "end"
