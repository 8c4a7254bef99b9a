"""Memory of flows on agents: stored and found on any host, also after crashes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import from_json

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.stores.memory import NewMemory
from actors._workflow.hosted import graph_run
from actors._workflow.machine.records import OpenStep
from actors._workflow.notes.evidence import evidence_in, evidence_of
from actors._workflow.notes.host_memory import HostMemory
from actors._workflow.notes.spans import spans_of
from actors.errors import RegistrationError
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    InMemoryArtifactStore,
    RunState,
    RunStatus,
    StepPlan,
    WorkflowSpec,
    get_artifact_id,
    load_flow,
    tool_calls,
)
from persistence.files import FileArtifactStore
from tests.behaviour.flow_stage import Stage, asking, ending, single, staged
from tests.behaviour.test_conversation_deaths import is_a_runs
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.behaviour.bed import Bed

T = EffectType


def talk(*words: str) -> dict[str, Any]:
    """Return vars with a context of these messages."""
    return {"context": {"messages": [{"role": "user", "content": word} for word in words]}}


def words(state: RunState) -> list[str]:
    """Return the texts of a context's messages, without ids of spans."""
    contents = [message["content"] for message in state.vars["context"]["messages"]]
    return [content.rpartition("]: ")[2] for content in contents]


async def summarized(_run: RunState, effect: Effect) -> EffectOutcome:
    """Return a summary after a while."""
    await asyncio.sleep(0)
    return EffectOutcome.completed({"content": f"{effect.payload['prompt'].count('user: ')} said"})


OUTLASTED = ["2 said", "a", "b", "[MEMORY NOTE]\nAlice owns it", "c"]


def remembering() -> WorkflowSpec:
    """Return a flow of all memory effects."""
    query = {"query": "alice", "tags": {"who": ["ann"]}, "return": "both"}
    nodes = {
        "note": asking(T.MEMORY_NOTE, {"note": "Alice owns it"}, key="noted", after="tag"),
        "tag": asking(T.MEMORY_TAG, {"span_id": 1, "tags": {"who": "ann"}}, after="compact"),
        "compact": asking(T.MEMORY_COMPACT, {"preserve_recent": 1}, key="short", after="query"),
        "query": asking(T.MEMORY_QUERY, query, key="found", after="back"),
        "back": asking(T.MEMORY_REHYDRATE, {"span_ids": [2, 1]}, key="back"),
        "end": ending,
    }
    return WorkflowSpec("flow", "note", nodes)


@pytest.mark.item(422, 423, 424, 425, 426, 478)
async def test_a_flow_stores_notes_and_archives_as_files(bed: Bed, tmp_path: Path) -> None:
    """Notes and archived messages are files.

    Index and context are in its log, which gives the same state on replay.
    """
    artifacts = FileArtifactStore(tmp_path)
    stage = await staged(
        bed, remembering(), artifact_store=artifacts, effect_handlers={T.LLM_CALL: summarized}
    )

    state = await stage.play("flow", vars=talk("a", "b", "c"), actor_id="ann")

    assert state.status is RunStatus.COMPLETED
    note, archived = spans_of(state.vars)
    assert (note["kind"], note["tags"]) == ("memory_note", {"who": "ann"})
    assert artifacts.load_json(note["artifact_id"])["note"] == "Alice owns it"
    [result] = state.output["found"]["results"]
    assert "Alice owns it" in result["output"]
    assert result["meta"]["span_ids"] == [note["artifact_id"]]
    assert [
        message["content"] for message in artifacts.load_json(archived["artifact_id"])["messages"]
    ] == ["a", "b"]
    assert words(state) == OUTLASTED
    assert state.output["back"]["inserted"] == 3


@pytest.mark.item(422)
async def test_branches_of_a_flow_note_at_the_same_time(bed: Bed) -> None:
    """No span is lost."""
    names = [f"n{at}" for at in range(5)]
    fork = dict(zip(names, names, strict=True))
    nodes: dict[str, Any] = {
        name: asking(T.MEMORY_NOTE, {"note": name}, key=f"of.{name}") for name in names
    }
    nodes["fork"] = lambda _run, _ctx: StepPlan("fork", parallel=fork, next_node="end")
    spec = WorkflowSpec("flow", "fork", {**nodes, "end": ending})
    stage = await staged(bed, spec, artifact_store=InMemoryArtifactStore())

    state = await stage.play("flow")

    assert sorted(span["note_preview"] for span in spans_of(state.vars)) == names


@pytest.mark.item(422, 425, 441)
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
async def test_memory_survives_a_crash_at_each_write(
    bed: Bed, manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One note, one archive, and the context of an undisturbed run; also if the run continues as new."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip("in memory each call is a place to die, and a replay")
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 4)
    nth, is_struck, opened = 0, True, bed.open_store
    while is_struck:
        nth += 1
        faults, artifacts = (
            Faults(nth=nth, manner=manner, wanted=is_a_runs),
            InMemoryArtifactStore(),
        )
        flows = Flows(
            bed.name().type,
            [remembering()],
            artifact_store=artifacts,
            effect_handlers={T.LLM_CALL: summarized},
        )
        died, stage = asyncio.Event(), Stage(bed, flows)
        bed.go_wrong(faults, died.set)
        await stage.restart()

        play = partial(stage.play, "flow", vars=talk(*"abc"), id="r")
        state = await outlasting(stage, died, play)

        where = f"died {manner} at call {nth}"
        assert words(state) == OUTLASTED, where
        assert len(spans_of(state.vars)) == 2, where
        assert len(artifacts.list_all()) == 2, where
        is_struck, bed.open_store = faults.struck, opened
    assert nth > 6


async def outlasting(stage: Stage, died: asyncio.Event, work: Callable[[], Any]) -> RunState:
    """Do something; if the host crashes meanwhile, repeat it with the next one."""
    while True:
        doing, dead = (asyncio.ensure_future(awaitable) for awaitable in (work(), died.wait()))
        await asyncio.wait({doing, dead}, return_when=asyncio.FIRST_COMPLETED)
        for task in (doing, dead):
            task.cancel()
        await asyncio.wait({doing, dead})
        if not died.is_set():
            ended: RunState = doing.result()
            return ended
        died.clear()
        await stage.restart()


@pytest.mark.item(425)
async def test_a_blocking_summarizer_runs_in_a_thread(bed: Bed) -> None:
    """Handlers have threads, too. Its result is in the log once."""

    class Summarizer:
        def summarize_chat_history(self, messages: list[Any], **_more: Any) -> dict[str, Any]:
            return {"summary": f"{len(messages)} in short"}

    spec = single(T.MEMORY_COMPACT, {"preserve_recent": 0})
    more: dict[str, Any] = {"chat_summarizer": Summarizer(), "blocking": bed.backend != "memory"}
    stage = await staged(bed, spec, artifact_store=InMemoryArtifactStore(), **more)
    run_id = await stage.runs.start("flow", vars=talk("a", "b"))

    state = await stage.ended(run_id)

    assert words(state) == ["2 in short"]
    assert len(await bed.log(run_id, K.EFFECT_RESULT)) == 1


def shared(scope: str) -> list[WorkflowSpec]:
    """Flows that keep, tag, find and bring back what runs share."""
    effects: dict[str, tuple[EffectType, dict[str, Any]]] = {
        "note": (T.MEMORY_NOTE, {"note": "Alice owns it", "tags": {"n": "1"}}),
        "tag": (T.MEMORY_TAG, {"span_id": 1, "tags": {"who": "ann"}}),
        "query": (T.MEMORY_QUERY, {"query": "alice", "return": "both"}),
        "all": (T.MEMORY_QUERY, {"return": "meta"}),
        "back": (T.MEMORY_REHYDRATE, {"span_ids": [1]}),
    }
    return [
        single(kind, payload | {"scope": "all" if name == "all" else scope}, name=name)
        for name, (kind, payload) in effects.items()
    ]


@pytest.mark.item(422, 423, 424)
@pytest.mark.parametrize("scope", ["session", "global"])
async def test_runs_of_an_app_share_memory(bed: Bed, scope: str) -> None:
    """Those of a session, or all of the tenant; on the next host, too. No other tenant finds it."""
    stage = await staged(bed, *shared(scope), artifact_store=InMemoryArtifactStore())
    assert (await stage.play("query", session_id="s")).output["out"]["results"][0]["meta"][
        "span_ids"
    ] == []
    noted = await stage.play("note", session_id="s")
    assert spans_of(noted.vars) == []
    await stage.restart()
    tagged = (await stage.play("tag", session_id="s")).output["out"]["results"][0]
    assert tagged["success"], tagged

    async def matches_of(flow: str, session_id: str) -> list[dict[str, Any]]:
        state = await stage.play(flow, session_id=session_id)
        return list(state.output["out"]["results"][0]["meta"]["matches"])

    (match,) = await matches_of("query", "s")
    assert match["tags"] == {"n": "1", "who": "ann"}
    assert match["owner_run_id"] == ("global" if scope == "global" else "session:s")
    for flow in ("query", "all"):
        assert len(await matches_of(flow, "t")) == (scope == "global")
    state = await stage.play("back", session_id="s")
    assert words(state) == ["[MEMORY NOTE]\nAlice owns it"]
    stage.runs = FlowRuns(bed.runtime, stage.flows.app, tenant="other")
    assert await matches_of("query", "s") == []


@pytest.mark.item(422)
async def test_runs_of_a_tree_share_memory_without_a_session(bed: Bed) -> None:
    """A sub-graph finds what its parent kept; the next tree does not."""
    note = asking(T.MEMORY_NOTE, {"note": "n", "scope": "session"}, after="sub")
    sub = asking(T.START_SUBWORKFLOW, {"workflow_id": "query"}, key="found")
    tree = WorkflowSpec("tree", "note", {"note": note, "sub": sub, "end": ending})
    query = single(T.MEMORY_QUERY, {"return": "meta", "scope": "session"}, name="query")
    stage = await staged(bed, tree, query, artifact_store=InMemoryArtifactStore())
    for _ in range(2):
        state = await stage.play("tree")
        (row,) = state.output["found"]["output"]["out"]["results"]
        assert len(row["meta"]["matches"]) == 1


@pytest.mark.item(422)
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
async def test_a_shared_note_is_kept_once_whoever_dies(bed: Bed, manner: Manner) -> None:
    """At each write of its run."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip("in memory each call is a place to die, and a replay")
    nth, is_struck, opened = 0, True, bed.open_store
    while is_struck:
        nth += 1
        faults, session_id = Faults(nth=nth, manner=manner, wanted=is_a_runs), f"s{nth}"
        more: dict[str, Any] = {"artifact_store": InMemoryArtifactStore()}
        flows = Flows(bed.name().type, shared("session"), **more)
        died, stage = asyncio.Event(), Stage(bed, flows)
        bed.go_wrong(faults, died.set)
        await stage.restart()
        await outlasting(stage, died, partial(stage.play, "note", session_id=session_id, id="r"))
        is_struck, bed.open_store = faults.struck, opened
        await stage.restart()
        (row,) = (await stage.play("all", session_id=session_id)).output["out"]["results"]
        assert len(row["meta"]["matches"]) == 1, f"died {manner} at call {nth}"
    assert nth > 2


@pytest.mark.item(422)
async def test_a_note_that_is_executed_again_leaves_the_tags_of_others(bed: Bed) -> None:
    """They came between its first execution and the next one. Tags may be what they were before."""
    artifacts = InMemoryArtifactStore()
    tagging = [
        single(T.MEMORY_TAG, {"span_id": 1, "tags": {"who": who}, "scope": "session"}, name=who)
        for who in ("ann", "bob")
    ]
    stage = await staged(bed, *shared("session"), *tagging, artifact_store=artifacts)
    run_id = await stage.runs.start("note", session_id="s")
    run = await stage.ended(run_id)
    rows = bed.runtime.store.data.memories.of("default")
    about = f"flows:{stage.flows.app}:session:s"
    await rows.put(NewMemory(id="0" * 32, about=about, text="by another program"))
    (first,) = [row for row in await rows.page(about=about) if row.key]
    records = await stage.runs.ledger(run_id)
    key = next(record["idempotency_key"] for record in records if record["effect"])

    async def tags() -> dict[str, str]:
        (row,) = (await stage.play("query", session_id="s")).output["out"]["results"]
        (match,) = row["meta"]["matches"]
        return dict(match["tags"])

    for who in ("ann", "bob", "ann"):
        await stage.play(who, session_id="s")
        assert await tags() == {"n": "1", "who": who}
    memory = HostMemory(rows=rows, app=stage.flows.app, root_id="r")
    await memory.load(run, opened_note({"note": "n", "scope": "session"}, key))
    memory.put(memory.owner(run, "session"), from_json(first.text))
    await memory.keep()
    assert await tags() == {"n": "1", "who": "ann"}


def opened_note(payload: dict[str, Any], key: str) -> OpenStep:
    """A note that is executed."""
    return OpenStep(
        seq=0,
        node_id="work",
        effect=Effect(T.MEMORY_NOTE, payload),
        next_node="end",
        changed={},
        attempt=1,
        key=key,
        step_id="s",
        started_at="",
    )


@pytest.mark.item(422)
async def test_memory_of_a_named_run_is_refused_on_hosts(bed: Bed) -> None:
    """By name, and with the remedy."""
    spec = single(T.MEMORY_NOTE, {"note": "n", "target_run_id": "r"})
    stage = await staged(bed, spec, artifact_store=InMemoryArtifactStore())

    state = await stage.play("flow", session_id="s")

    assert state.status is RunStatus.FAILED
    assert "Leave target_run_id out" in (state.error or "")


@pytest.mark.item(422, 425)
@pytest.mark.parametrize("missing", ["artifact_store", "chat_summarizer"])
async def test_a_document_that_needs_more_is_refused_when_it_is_served(
    bed: Bed, missing: str
) -> None:
    """The error names the argument to pass."""
    compact = {"effect": "memory_compact", "next": "end"}
    nodes = {"work": compact, "end": {"end": None}}
    spec = load_flow({"flow": 1, "id": "f", "start": "work", "nodes": nodes})
    parts: dict[str, Any] = {
        "artifact_store": InMemoryArtifactStore(),
        "effect_handlers": {T.LLM_CALL: summarized},
    }
    Flows(bed.name().type, [spec], **parts)
    del parts["artifact_store" if missing == "artifact_store" else "effect_handlers"]

    with pytest.raises(RegistrationError, match=f"Pass {missing}="):
        Flows(bed.name().type, [spec], **parts)


@pytest.mark.item(461, 462)
async def test_evidence_of_tools_is_kept_on_hosts(bed: Bed) -> None:
    """As in one process; the references are in the log, the texts are not."""
    artifacts = InMemoryArtifactStore()
    tools = {"execute_command": lambda command: {"stdout": f"out of {command}"}}
    calls = [{"name": "execute_command", "arguments": {"command": "ls"}}]
    stage = await staged(
        bed,
        single(T.TOOL_CALLS, {"tool_calls": calls}),
        effect_handlers={T.TOOL_CALLS: tool_calls(tools)},
        artifact_store=artifacts,
    )
    run_id = await stage.runs.start("flow")

    state = await stage.ended(run_id)

    [evidence] = evidence_of(state)
    stored_evidence = evidence_in(artifacts, evidence["evidence_id"]) or {}
    text = artifacts.load_text(get_artifact_id(stored_evidence["artifacts"]["stdout"]))
    assert text == "out of ls"
    assert "out of ls" not in str([entry.payload for entry in await bed.log(run_id)])
