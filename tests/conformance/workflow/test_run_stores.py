"""Contract of every store of runs."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import GraphError, LedgerBrokenError, StoreBusyError
from actors._kernel.workflow.run_state import GraphBranch, GraphFork
from actors._kernel.workflow.stores import CreatingRunStore, EventWaitStore
from actors.errors import ContractError, NotSerializableError
from actors.workflow import (
    EffectType,
    QueryableRunIndexStore,
    QueryableRunStore,
    RunState,
    RunStatus,
    RunStore,
    Snapshot,
    WaitReason,
    WaitState,
    WorkflowSpec,
)
from persistence._run_locks import RunFileLocks
from persistence.files import JsonFileRunStore, JsonSnapshotStore
from persistence.sqlite import SqliteDatabase, SqliteRunStore, SqliteSnapshotStore
from tests.conformance.workflow.stores import Stores, at_once, end_node, one_effect

if TYPE_CHECKING:
    from pathlib import Path


def run_of(name: str, **more: Any) -> RunState:
    """Return a run with this id."""
    run = RunState.new(workflow_id="graph", entry_node="begin", run_id=name, vars={"n": 1})
    for field, value in more.items():
        setattr(run, field, value)
    return run


def waiting(name: str, reason: WaitReason, *, key: str = "k", until: str | None = None) -> RunState:
    """Return a run that waits."""
    wait = WaitState(reason, wait_key=key, until=until)
    return run_of(name, status=RunStatus.WAITING, waiting=wait)


def cyclic() -> dict[str, Any]:
    """Return a list that contains itself."""
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(depth: int) -> Any:
    """Return nested lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.item(442)
def test_a_store_has_the_protocols(stores: Stores) -> None:
    """Drivers check for the protocols by name."""
    for protocol in (
        RunStore,
        QueryableRunStore,
        QueryableRunIndexStore,
        CreatingRunStore,
        EventWaitStore,
    ):
        assert isinstance(stores.runs, protocol)


@pytest.mark.item(405, 406, 407, 442)
def test_a_stored_run_is_returned_unchanged(stores: Stores) -> None:
    """All its fields, those of its wait, and its status as text."""
    wait = WaitState(
        WaitReason.USER,
        wait_key="k",
        until="2030-01-01T00:00:00+00:00",
        resume_to_node="next",
        result_key="a.b",
        prompt="Well?",
        choices=["yes", "no"],
        allow_free_text=False,
        details={"x": [1, None, "ü"]},
    )
    inner = GraphBranch(
        name="b.1",
        node="ask",
        status=RunStatus.WAITING,
        seq=3,
        patch={"set": [[["a", "b"], {"c": None}]], "unset": [["d"]]},
        wait=wait,
        output=[1],
        error="none",
    )
    fork = GraphFork(seq=0, join="f", branches=(inner,))
    run = RunState(
        run_id="r1",
        workflow_id="graph",
        status=RunStatus.WAITING,
        current_node="ask",
        vars={"deep": {"list": [1, 2.5, True, None, "ü"]}},
        waiting=wait,
        output={"o": 1},
        error="none",
        created_at="2030-01-01T00:00:00+00:00",
        updated_at="2030-01-02T00:00:00+00:00",
        actor_id="ar_1",
        session_id="s1",
        parent_run_id="r0",
        fork=GraphFork(
            seq=1, join="end", branches=(inner, GraphBranch(name="c", node="e", fork=fork))
        ),
    )
    stores.runs.save(run)

    stored = stores.reopen().runs.load("r1")

    assert stored == run
    assert all(getattr(stored, field.name) is not None for field in fields(RunState))
    assert stored.to_dict()["status"] == "waiting"
    assert {*RunStatus} == {"running", "waiting", "completed", "failed", "cancelled"}
    assert {*WaitReason} == {"user", "until", "event", "job", "subworkflow", "branches"}


def test_a_store_keeps_a_copy_and_returns_one(stores: Stores) -> None:
    """A later change of the object does not change the stored run."""
    run = run_of("r1", vars={"list": [1]})
    stores.runs.save(run)
    run.vars["list"].append(2)
    stores.runs.load("r1").vars["list"].append(3)

    assert stores.runs.load("r1").vars == {"list": [1]}
    assert stores.runs.load("nobody") is None


@pytest.mark.item(396)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [0, float("nan")]}}, r"vars\.a\.b\[1\]"),
        ({"a": {1, 2}}, r"vars\.a: a set"),
        ({"a": [{"b": object()}]}, r"vars\.a\[0\]\.b"),
        ({"a": {1: 2}}, r"vars\.a\[1\]"),
        ({"a": b"x"}, r"vars\.a: a bytes"),
        ({"a": "\ud800"}, r"vars\.a: a str"),
        ({"a": nested(65)}, r"vars\.a\[0\]"),
        (cyclic(), r"vars\.self\.self"),
    ],
)
def test_a_value_that_is_no_json_is_refused_with_its_path(
    stores: Stores, value: Any, path: str
) -> None:
    """By every store, in memory included; the stored run stays."""
    stores.runs.save(run_of("r1"))

    with pytest.raises(NotSerializableError, match=path):
        stores.runs.save(run_of("r1", vars=value))
    with pytest.raises(NotSerializableError, match=path):
        stores.runs.create_if_absent(run_of("r2", vars=value))

    assert stores.runs.load("r1").vars == {"n": 1}
    assert stores.runs.load("r2") is None


def test_large_deep_and_odd_values_are_kept(stores: Stores) -> None:
    """10 MB, 63 levels, keys with dots."""
    value = {"large": "x" * 10_000_000, "deep": nested(63), "a.b": {"": 1}, "ü.": [{}]}
    stores.runs.save(run_of("r1", vars=value))

    assert stores.reopen().runs.load("r1").vars == value


@pytest.mark.item(444)
def test_runs_are_found_by_their_fields(stores: Stores) -> None:
    """By status, kind of wait, graph, session; the last updated first, up to the limit."""
    for n, run in enumerate(
        [
            run_of("r1", session_id="s1"),
            waiting("r2", WaitReason.USER),
            waiting("r3", WaitReason.EVENT),
            run_of("r4", status=RunStatus.COMPLETED, workflow_id="other"),
            run_of("r5", parent_run_id="r1", session_id="s1"),
        ]
    ):
        run.updated_at = f"2030-01-0{n + 1}T00:00:00+00:00"
        stores.runs.save(run)
    runs = stores.reopen().runs

    assert [r.run_id for r in runs.list_runs()] == ["r5", "r4", "r3", "r2", "r1"]
    assert [r.run_id for r in runs.list_runs(limit=2)] == ["r5", "r4"]
    assert [r.run_id for r in runs.list_runs(status=RunStatus.WAITING)] == ["r3", "r2"]
    assert [r.run_id for r in runs.list_runs(wait_reason=WaitReason.EVENT)] == ["r3"]
    assert [r.run_id for r in runs.list_runs(workflow_id="other")] == ["r4"]
    assert [r.run_id for r in runs.list_children(parent_run_id="r1")] == ["r5"]
    assert runs.list_children(parent_run_id="r1", status=RunStatus.FAILED) == []
    rows = runs.list_run_index(session_id="s1", root_only=True)
    assert [row["run_id"] for row in rows] == ["r1"]
    assert "vars" not in rows[0]
    assert rows[0]["run_lifecycle"] is None
    assert len(runs.list_run_index(limit=3)) == 3


@pytest.mark.item(444)
@pytest.mark.parametrize(
    ("lifecycle", "expected"),
    [
        (
            {"source": " editor ", "purpose": "x" * 300, "flow_id": "", "other": {"private": 1}},
            {"source": "editor", "purpose": "x" * 240},
        ),
        (
            {"retention": {"mode": "ephemeral", "ttl_s": "120", "other": 1}},
            {"retention": {"mode": "ephemeral", "ttl_s": 120}},
        ),
        ({"retention": {"ttl_s": 60.5}}, {"retention": {"ttl_s": 60}}),
        *(({"retention": {"ttl_s": odd}}, None) for odd in (True, -1, 0.5, "soon", "9" * 5000)),
        ({"purpose": 7, "retention": []}, None),
        ("draft", None),
    ],
)
def test_an_index_shows_why_a_run_was_started(
    stores: Stores, lifecycle: Any, expected: Any
) -> None:
    """The known texts and limits of its `_run_lifecycle`, cut and converted; nothing else of its vars."""
    run = run_of("r1")
    run.vars["_run_lifecycle"] = lifecycle
    stores.runs.save(run)

    assert stores.reopen().runs.list_run_index()[0]["run_lifecycle"] == expected


@pytest.mark.item(444)
def test_due_runs_are_found_the_earliest_first(stores: Stores) -> None:
    """Instants and deadlines. One that is now is due, a later one is not."""
    stores.runs.save(waiting("late", WaitReason.UNTIL, until="2030-01-01T00:00:02+00:00"))
    stores.runs.save(waiting("now", WaitReason.UNTIL, until="2030-01-01T00:00:01+00:00"))
    stores.runs.save(waiting("event", WaitReason.EVENT, until="2030-01-01T00:00:00.5+00:00"))
    stores.runs.save(waiting("user", WaitReason.USER))
    runs = stores.reopen().runs

    due = runs.list_due_wait_until(now_iso="2030-01-01T00:00:01+00:00")

    assert [r.run_id for r in due] == ["event", "now"]
    assert len(runs.list_due_wait_until(now_iso="2031", limit=2)) == 2


def test_runs_that_wait_for_an_event_are_found_by_its_key(stores: Stores) -> None:
    """Runs with another wait, or without a wait any more, are not found."""
    stores.runs.save(waiting("r1", WaitReason.EVENT, key="evt:a"))
    stores.runs.save(waiting("r2", WaitReason.EVENT, key="evt:b"))
    stores.runs.save(waiting("r3", WaitReason.USER, key="evt:a"))
    stores.runs.save(waiting("r4", WaitReason.EVENT, key="evt:a"))
    stores.runs.save(run_of("r4"))
    runs = stores.reopen().runs

    assert [r.run_id for r in runs.list_event_waiters(wait_keys=["evt:a"])] == ["r1"]
    assert len(runs.list_event_waiters(wait_keys=["evt:a", "evt:b"])) == 2
    assert runs.list_event_waiters(wait_keys=[]) == []


def test_one_of_many_creations_of_a_run_succeeds(stores: Stores) -> None:
    """The others get the existing run."""
    makers: list[tuple[str, bool]] = []
    ready = threading.Barrier(8)

    def make(n: int) -> None:
        ready.wait()
        stored, is_mine = stores.runs.create_if_absent(run_of("r1", vars={"maker": n}))
        makers.append((stored.vars["maker"], is_mine))

    at_once(partial(make, n) for n in range(8))

    assert sum(is_mine for _, is_mine in makers) == 1
    assert len({maker for maker, _ in makers}) == 1


def test_a_deleted_run_is_not_found(stores: Stores) -> None:
    """From lists, too; a second deletion finds nothing."""
    stores.runs.save(waiting("r1", WaitReason.EVENT))

    assert stores.runs.delete("r1")
    assert not stores.runs.delete("r1")
    assert stores.runs.load("r1") is None
    assert stores.runs.list_runs() == []
    assert stores.runs.list_event_waiters(wait_keys=["k"]) == []


def test_a_locked_run_excludes_others(disk_stores: Stores) -> None:
    """Another store over the same files waits, then names the lock's owner; other runs are not locked."""
    other = disk_stores.reopen()
    other.runs._locks._timeout_s = 0.05
    with disk_stores.runs.lock("r1"):
        with other.runs.lock("r2"):
            pass
        with pytest.raises(StoreBusyError, match=r"r1\.lock"), other.runs.lock("r1"):
            pass
    with other.runs.lock("r1"):
        pass
    other.close()


def test_an_id_is_no_path(tmp_path: Path) -> None:
    """A run is a file in its folder and nowhere else."""
    store = JsonFileRunStore(tmp_path)

    for name in ("../evil", "a/b", "", "..", "a\x00"):
        with pytest.raises(GraphError):
            store.load(name)


def test_pages_of_runs_come_to_all(stores: Stores) -> None:
    """In the order of their ids, by status, kind of wait and due instant, branches included."""
    until = {f"t{n}": f"2030-01-0{n}T00:00:00+00:00" for n in (3, 1, 2)}
    for name, at in until.items():
        stores.runs.save(waiting(name, WaitReason.UNTIL, until=at))
    stores.runs.save(waiting("e1", WaitReason.EVENT))
    fork = GraphFork(
        seq=1,
        join="end",
        branches=(
            GraphBranch(
                name="l", node="x", status=RunStatus.WAITING, wait=WaitState(WaitReason.USER)
            ),
        ),
    )
    forked = {"fork": fork, "status": RunStatus.WAITING, "waiting": WaitState(WaitReason.BRANCHES)}
    stores.runs.save(run_of("f1", **forked))
    stores.runs.save(run_of("r1"))

    def ids(after: str = "", limit: int = 9, **choice: Any) -> list[str]:
        return [r.run_id for r in stores.runs.list_page(after=after, limit=limit, **choice)]

    assert ids() == ["e1", "f1", "r1", "t1", "t2", "t3"]
    assert (ids("e1", 2), ids("t2"), ids("t3")) == (["f1", "r1"], ["t3"], [])
    assert ids(status=RunStatus.RUNNING) == ["r1"]
    assert (ids(wait_reason=WaitReason.USER), ids(wait_reason=WaitReason.EVENT)) == (["f1"], ["e1"])
    assert ids(due_by=until["t2"]) == ["t1", "t2"]
    assert ids("t1", due_by=until["t2"]) == ["t2"]


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_an_id_from_outside_touches_no_file(tmp_path: Path, kind: str) -> None:
    """No run has it, and nothing beside the stores is made, changed or removed, whatever a caller does."""
    stores = Stores(kind, tmp_path / "stores")
    rt, spec = stores.runtime(), WorkflowSpec("graph", "begin", {"begin": end_node})
    stores.runs.save(run_of("r1"))
    for folder in (tmp_path, stores.folder):
        (folder / "victim.lock").write_text("precious", encoding="utf-8")
    before = sorted(tmp_path.rglob("*.lock"))
    names = ["../victim", "../../victim", str(tmp_path / "victim"), "a/b", "..", ".", "", "a\x00"]
    names += ["C:\\x", "x" * 300, "é" * 200, "\ud800", "r1\nx", "~/x", "%2e%2e%2fvictim"]
    for name in names:
        for call in (
            partial(rt.tick, spec, name),
            partial(rt.resume, spec, name, "k", 1),
            partial(rt.answer, name, "k", 1),
            partial(rt.steer, name, "x"),
            partial(rt.cancel_run, name),
            partial(rt.update_limits, name, {"max_tokens": 1}),
            partial(rt.start, spec, run_id=name),
        ):
            with pytest.raises(ContractError):
                call()
        noting = one_effect(EffectType.MEMORY_NOTE, {"note": "n", "target_run_id": name or "/"})
        assert rt.tick(noting, rt.start(noting)).status is RunStatus.FAILED, name

    assert sorted(tmp_path.rglob("*.lock")) == before
    assert {path.read_text(encoding="utf-8") for path in before} == {"precious"}
    stores.close()


def test_every_run_of_a_database_can_be_locked(tmp_path: Path) -> None:
    """Also one whose id could be a path: its lock is a file in the folder of locks, and excludes others."""
    stores = Stores("sqlite", tmp_path)
    other = stores.reopen()
    other.runs._locks._timeout_s = 0.05
    for name in ("../a", "/a", "a" * 300, "a\x00b"):
        with stores.runs.lock(name):
            assert [*tmp_path.rglob("*.lock")] == [*(tmp_path / "graphs.db.locks").iterdir()]
            with pytest.raises(StoreBusyError), other.runs.lock(name):
                pass
            with other.runs.lock(f"{name}b"):
                pass
    other.close()
    stores.close()


def test_a_run_of_another_id_is_not_returned(tmp_path: Path) -> None:
    """A file system may take upper and lower case for the same; the error has both ids."""
    store = JsonFileRunStore(tmp_path)
    store.save(run_of("order"))
    (tmp_path / "run_order.json").rename(tmp_path / "run_Order.json")

    with pytest.raises(GraphError, match=r"'Order'.*has run 'order'"):
        store.load("Order")
    with pytest.raises(GraphError, match="Use another id"):
        store.create_if_absent(run_of("Order"))


def test_the_error_of_a_corrupt_file_has_its_name(tmp_path: Path) -> None:
    """It is neither an absent run nor an empty one."""
    store = JsonFileRunStore(tmp_path)
    (tmp_path / "run_r1.json").write_text('{"run_id": ', encoding="utf-8")

    with pytest.raises(LedgerBrokenError, match=r"run_r1\.json"):
        store.load("r1")


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_damaged_run_or_snapshot_hides_no_other_from_lists(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it; reading it by its id raises."""
    damage = '{"n": 1' + "0" * 5_000 + "}"
    runs: Any = JsonFileRunStore(tmp_path)
    snapshots: Any = JsonSnapshotStore(tmp_path)
    database = SqliteDatabase(tmp_path / "graphs.db")
    if kind == "sqlite":
        runs, snapshots = SqliteRunStore(database), SqliteSnapshotStore(database)
    for name in ("r1", "r2"):
        runs.save(run_of(name))
        snapshots.save(replace(Snapshot.from_run(run=run_of(name), name=name), snapshot_id=name))
    if kind == "sqlite":
        with database.transaction() as connection:
            connection.execute("update runs set state_json = ? where run_id = 'r1'", (damage,))
            connection.execute(
                "update snapshots set snapshot_json = ? where snapshot_id = 'r1'", (damage,)
            )
    else:
        (tmp_path / "run_r1.json").write_text(damage, encoding="utf-8")
        (tmp_path / "snapshot_r1.json").write_text(damage, encoding="utf-8")

    assert [run.run_id for run in runs.list_runs()] == ["r2"]
    assert [s.snapshot_id for s in snapshots.list()] == ["r2"]
    assert {record.message for record in caplog.records} == {
        "a run cannot be read",
        "a snapshot cannot be read",
    }
    for store in (runs, snapshots):
        with pytest.raises((LedgerBrokenError, ValueError)):
            store.load("r1")
    database.close()


def test_a_removed_lock_file_is_not_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opened the file before its removal opens the new one: two never hold a run."""
    holder, locks = contextlib.ExitStack(), RunFileLocks(tmp_path, timeout_s=0.05)
    holder.enter_context(locks.hold("r1"))
    real = os.open

    def opened_before(*words: Any) -> int:
        descriptor = real(*words)
        holder.close()
        return descriptor

    monkeypatch.setattr("persistence._run_locks.os.open", opened_before)
    with locks.hold("r1"):
        monkeypatch.undo()
        with pytest.raises(StoreBusyError), RunFileLocks(tmp_path, timeout_s=0).hold("r1"):
            pass
    assert [*tmp_path.iterdir()] == []
