"""Contract of every ledger store, alone and under wrappers."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import LedgerBrokenError
from actors._kernel.workflow.step_record import FIELDS
from actors._kernel.workflow.stores import ChainableLedgerStore, PagedLedgerStore
from actors.errors import NotSerializableError
from actors.workflow import (
    HashChainedLedgerStore,
    LedgerStore,
    ObservableLedgerStore,
    OffloadingLedgerStore,
    StepRecord,
    StepStatus,
    verify_ledger_chain,
)
from persistence.files import JsonlLedgerStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.workflow.stores import Stores


def record_of(step: str, *, run: str = "r1", **more: Any) -> StepRecord:
    """Return a record with this step id."""
    return StepRecord(run_id=run, step_id=step, node_id="n", status=StepStatus.COMPLETED, **more)


def steps(records: Any) -> list[str]:
    """Return the step ids."""
    return [record["step_id"] for record in records]


@pytest.mark.item(398, 408, 443)
def test_records_are_returned_in_order_with_all_fields(stores: Stores) -> None:
    """By run. No method changes a record."""
    full = StepRecord(
        run_id="r1",
        step_id="s0",
        node_id="n",
        status=StepStatus.WAITING,
        effect={"type": "ask_user", "payload": {"prompt": "ü"}, "result_key": "a"},
        result={"wait": {"reason": "user"}},
        error="e",
        started_at="2030-01-01T00:00:00+00:00",
        ended_at="2030-01-01T00:00:01+00:00",
        actor_id="ar_1",
        session_id="s1",
        attempt=2,
        idempotency_key="k",
        delta={"seq": 0},
        prev_hash="p",
        record_hash="h",
        signature="s",
    )
    stores.ledger.append(full)
    stores.ledger.append_many([record_of("s1"), record_of("s2")])
    stores.ledger.append(record_of("other", run="r2"))
    ledger = stores.reopen().ledger

    records = ledger.list("r1")
    assert steps(records) == ["s0", "s1", "s2"]
    assert records[0] == full.to_dict()
    assert all(records[0][field] is not None for field in FIELDS)
    assert ledger.list("nobody") == []
    assert isinstance(ledger, LedgerStore)
    assert isinstance(ledger, PagedLedgerStore)
    assert isinstance(ledger, ChainableLedgerStore)
    verbs = {name for name in dir(ledger) if not name.startswith("_")}
    assert verbs == {
        "append",
        "append_chained",
        "append_many",
        "append_unsynced",
        "count",
        "count_many",
        "delete",
        "list",
        "list_after",
        "mend",
        "metrics_many",
        "sync",
    }


@pytest.mark.item(443)
def test_pages_go_on_from_a_cursor(stores: Stores) -> None:
    """Also backwards, and if records are appended between two pages."""
    stores.ledger.append_many([record_of(f"s{n}") for n in range(3)])

    page, cursor = stores.ledger.list_after(run_id="r1", after=0, limit=2)
    assert (steps(page), cursor) == (["s0", "s1"], 2)
    stores.ledger.append(record_of("s3"))
    page, cursor = stores.ledger.list_after(run_id="r1", after=cursor, limit=10)
    assert (steps(page), cursor) == (["s2", "s3"], 4)
    assert stores.ledger.list_after(run_id="r1", after=4) == ([], 4)
    page, cursor = stores.ledger.list_after(run_id="r1", after=1, limit=1)
    assert (steps(page), cursor) == (["s1"], 2)
    assert stores.ledger.count("r1") == 4
    assert stores.ledger.count_many(["r1", "r2"]) == {"r1": 4}
    assert stores.ledger.metrics_many(["r1", "r2"]) == {
        "r1": {"steps": 4, "llm_calls": 0, "tool_calls": 0, "tokens_total": 0}
    }


@pytest.mark.item(396, 398)
def test_a_record_that_is_no_json_is_refused(stores: Stores) -> None:
    """With its path. Of a group no record is stored."""
    bad = record_of("s1", result={"a": [float("inf")]})

    with pytest.raises(NotSerializableError, match=r"record\.result\.a\[0\]"):
        stores.ledger.append_many([record_of("s0"), bad])
    with pytest.raises(NotSerializableError, match=r"record\.result: a lock"):
        stores.ledger.append_many([record_of("s0"), record_of("s1", result=threading.Lock())])

    assert stores.ledger.list("r1") == []


@pytest.mark.item(398)
def test_only_all_records_of_a_run_are_deleted(stores: Stores) -> None:
    """Records of other runs stay; the run's numbers start again."""
    stores.ledger.append_many([record_of("s0"), record_of("s1")])
    stores.ledger.append(record_of("s0", run="r2"))

    assert stores.ledger.delete("r1") == 2
    assert stores.ledger.delete("r1") == 0
    assert stores.ledger.list("r1") == []
    assert stores.ledger.count("r2") == 1
    stores.ledger.append(record_of("again"))
    assert steps(stores.reopen().ledger.list("r1")) == ["again"]


@pytest.mark.item(443)
@pytest.mark.parametrize("torn", [b'{"step_id": "s9", "resu', b"\xff\xfe", b"{"])
def test_a_partial_last_line_is_ignored_and_truncated(tmp_path: Path, torn: bytes) -> None:
    """A process crashed while it wrote the line, so no caller was told that it is stored."""
    ledger = JsonlLedgerStore(tmp_path)
    ledger.append(record_of("s0"))
    path = tmp_path / "ledger_r1.jsonl"
    path.write_bytes(path.read_bytes() + torn)

    assert steps(JsonlLedgerStore(tmp_path).list("r1")) == ["s0"]
    JsonlLedgerStore(tmp_path).append(record_of("s1"))

    assert steps(ledger.list("r1")) == ["s0", "s1"]
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


@pytest.mark.item(443)
def test_a_complete_last_line_without_a_newline_is_kept(tmp_path: Path) -> None:
    """Only the newline was lost."""
    ledger = JsonlLedgerStore(tmp_path)
    ledger.append_many([record_of("s0"), record_of("s1")])
    path = tmp_path / "ledger_r1.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))

    page, cursor = ledger.list_after(run_id="r1", after=0)
    assert (steps(page), cursor) == (["s0", "s1"], 2)
    ledger.append(record_of("s2"))

    assert steps(ledger.list("r1")) == ["s0", "s1", "s2"]
    page, _ = ledger.list_after(run_id="r1", after=cursor)
    assert steps(page) == ["s2"]


def test_a_link_of_a_chain_reads_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of n records costs n reads of one, also of a large record and behind a line that was torn."""
    store = JsonlLedgerStore(tmp_path)
    chain = HashChainedLedgerStore(store)
    monkeypatch.setattr("persistence._files.stores.read_lines", None)
    for size in (1, 100_000, 1):
        chain.append(record_of("a", result={"x": "y" * size}))
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"torn": ')
    chain.append(record_of("b"))
    monkeypatch.undo()

    verification = verify_ledger_chain(chain.list("r1"))
    assert (verification["ok"], verification["count"]) == (True, 4)
    path.write_bytes(path.read_bytes() + b"\0\0\n")
    with pytest.raises(LedgerBrokenError, match="last line is not JSON"):
        chain.append(record_of("b"))


def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """It is not skipped: later records are valid."""
    path = tmp_path / "ledger_r1.jsonl"
    path.write_text('{"step_id": "s0"}\n{"step\n{"step_id": "s2"}\n', encoding="utf-8")

    with pytest.raises(LedgerBrokenError, match="line 2"):
        JsonlLedgerStore(tmp_path).list("r1")


@pytest.mark.item(446, 447)
def test_a_chain_shows_each_manipulation(stores: Stores) -> None:
    """A change, a missing record, a changed order, a cut end: each is reported with its place."""
    chain = HashChainedLedgerStore(stores.ledger)
    for n in range(5):
        chain.append(record_of(f"s{n}", result={"n": n}))
    records = stores.reopen().ledger.list("r1")
    head = chain.head("r1")

    report = verify_ledger_chain(records, head_hash=head)
    assert (report["ok"], report["count"], report["head_hash"]) == (True, 5, head)
    assert [record["prev_hash"] for record in records] == [None] + [
        record["record_hash"] for record in records[:-1]
    ]

    def first_bad(changed: list[dict[str, Any]]) -> Any:
        verification = verify_ledger_chain(changed, head_hash=head)
        assert not verification["ok"]
        return verification["first_bad_index"]

    assert first_bad([*records[:3], records[3] | {"result": {"n": 9}}, records[4]]) == 3
    assert first_bad([*records[:2], *records[3:]]) == 2
    assert first_bad(records[1:]) == 0
    assert first_bad([records[0], records[2], records[1], *records[3:]]) == 1
    assert first_bad(records[:4]) == 4
    assert first_bad([]) == 0
    assert first_bad([*records[:4], records[4] | {"record_hash": None}]) == 4
    assert verify_ledger_chain([])["ok"]


@pytest.mark.item(447)
def test_two_handles_do_not_fork_the_chain(stores: Stores) -> None:
    """Each reads the last hash when it appends."""
    first = HashChainedLedgerStore(stores.ledger)
    second = HashChainedLedgerStore(stores.reopen().ledger)
    for n, chain in enumerate([first, second, first, first, second]):
        chain.append(record_of(f"s{n}"))

    report = verify_ledger_chain(second.list("r1"))
    assert (report["ok"], report["count"]) == (True, 5)


@pytest.mark.item(445)
def test_subscribers_get_each_record(stores: Stores) -> None:
    """Of their run or of all runs, until they unsubscribe. An error of one does not affect the others."""
    ledger = ObservableLedgerStore(stores.ledger)
    mine: list[str] = []
    everyones: list[str] = []

    def broken(_record: dict[str, Any]) -> None:
        raise RuntimeError("not me")

    ledger.subscribe(broken)
    leave = ledger.subscribe(lambda record: mine.append(record["step_id"]), run_id="r1")
    ledger.subscribe(lambda record: everyones.append(record["step_id"]))
    ledger.append(record_of("s0"))
    ledger.append_many([record_of("s1"), record_of("s2")])
    ledger.append(record_of("other", run="r2"))
    leave()
    leave()
    ledger.append(record_of("s3"))

    assert mine == ["s0", "s1", "s2"]
    assert everyones == ["s0", "s1", "s2", "other", "s3"]
    assert steps(stores.ledger.list("r1")) == ["s0", "s1", "s2", "s3"]


@pytest.mark.item(451)
def test_large_parts_of_records_are_stored_as_artifacts(stores: Stores) -> None:
    """Text and JSON. Small parts, and references made by others, are unchanged."""
    ledger = OffloadingLedgerStore(
        stores.ledger, artifact_store=stores.artifacts, max_inline_bytes=200
    )
    result = {"text": "ü" * 300, "rows": [{"n": n} for n in range(100)], "ref": {"$artifact": "a"}}
    ledger.append(
        record_of("s0", result=result, effect={"type": "llm_call", "payload": {"p": "x" * 500}})
    )
    ledger.append_many([record_of("s1", result="small"), record_of("s2", result="y" * 400)])

    inner_text = json.dumps(stores.ledger.list("r1"))
    assert "xxx" not in inner_text
    assert "yyy" not in inner_text
    records = OffloadingLedgerStore(stores.reopen().ledger, artifact_store=stores.artifacts).list(
        "r1"
    )
    assert records[0]["result"] == result
    assert records[0]["effect"]["payload"] == {"p": "x" * 500}
    assert [record["result"] for record in records[1:]] == ["small", "y" * 400]
    page, _ = ledger.list_after(run_id="r1", after=2)
    assert page[0]["result"] == "y" * 400
    assert all(a.run_id == "r1" for a in stores.artifacts.list_all())


def test_a_record_with_a_missing_artifact_is_an_error(stores: Stores) -> None:
    """The reference is not returned in its place."""
    ledger = OffloadingLedgerStore(
        stores.ledger, artifact_store=stores.artifacts, max_inline_bytes=100
    )
    ledger.append(record_of("s0", result="x" * 400))
    stores.artifacts.delete_by_run("r1")

    with pytest.raises(LedgerBrokenError, match="missing"):
        ledger.list("r1")
