"""The effects of memory in one process, on every store, and what a death leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    OffloadingRunStore,
    RetryPolicy,
    RunStatus,
    StepPlan,
    WorkflowSpec,
)
from actors.workflow.memory.spans import spans_of
from tests.conformance.workflow.stores import effect_then, end_node, one_effect
from tests.conformance.workflow.test_effects import Deaths, Dying

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores

T = EffectType


def talk(*words: str) -> dict[str, Any]:
    """Vars with a context of these messages."""
    said = [{"role": "user", "content": one, "metadata": {"message_id": one}} for one in words]
    return {"context": {"messages": [{"role": "system", "content": "sys"}, *said]}}


def memory(*asked: tuple[EffectType, dict[str, Any]], name: str = "graph") -> WorkflowSpec:
    """A graph of these effects; their results are at `out0`, `out1` and so on."""
    nodes: dict[str, Any] = {"end": end_node}
    for at, (kind, payload) in enumerate(asked):
        after = f"n{at + 1}" if at + 1 < len(asked) else "end"
        nodes[f"n{at}"] = effect_then(kind, payload, key=f"out{at}", after=after)
    return WorkflowSpec(name, "n0", nodes)


def row(state: RunState, at: int = 0) -> dict[str, Any]:
    """The row of a result."""
    assert state.status is RunStatus.COMPLETED, state.error
    found: dict[str, Any] = state.output[f"out{at}"]["results"][0]
    return found


def words(state: RunState) -> list[str]:
    """What the messages of a context say."""
    return [one["content"] for one in state.vars["context"]["messages"]]


class Summarizer:
    """A summarizer that counts, and may fail at first."""

    def __init__(self, fails: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails = fails

    def summarize_chat_history(self, messages: Any, **more: Any) -> dict[str, Any]:
        """Say how many there are."""
        self.asked.append({"words": [one["content"] for one in messages]} | more)
        if len(self.asked) <= self.fails:
            raise ConnectionError("away")
        return {"summary": f"{len(messages)} messages", "key_points": ["k"], "confidence": 1.0}


NOTE = (
    T.MEMORY_NOTE,
    {"note": "Alice owns the API", "tags": {"topic": "api"}, "location": "Paris"},
)


@pytest.mark.item(422, 423, 424, 478)
def test_a_note_is_kept_tagged_and_found(stores: Stores) -> None:
    """As an artifact and a span of the run; the ledger alone tells the same state."""
    query = {"query": "owns alice", "tags": {"who": "ann"}, "authors": ["ANN"], "return": "both"}
    spec = memory(
        NOTE, (T.MEMORY_TAG, {"span_id": 1, "tags": {"who": "ann"}}), (T.MEMORY_QUERY, query)
    )
    rt = stores.runtime()
    run_id = rt.start(spec, actor_id="ann")

    state = rt.tick(spec, run_id)

    [span] = spans_of(state.vars)
    assert span["artifact_id"] == row(state)["meta"]["span_id"]
    assert span["tags"] == {"topic": "api", "who": "ann"}
    assert (span["kind"], span["location"]) == ("memory_note", "Paris")
    kept = stores.artifacts.load_json(span["artifact_id"])
    assert kept["note"] == "Alice owns the API"
    assert kept["sources"] == {"run_id": run_id, "span_ids": [], "message_ids": []}
    found = row(state, 2)
    assert "Alice owns the API" in found["output"]
    assert found["meta"]["matches"] == [{**span, "owner_run_id": run_id}]
    deltas = [one["delta"] for one in stores.ledger.list(run_id) if one["status"] == "completed"]
    assert [[put[2] for put in one["put"]] for one in deltas if one and "put" in one] == [
        [{**span, "tags": {"topic": "api"}}],
        [span],
    ]
    assert stores.reopen().runtime().get_state(run_id).vars == state.vars


@pytest.mark.item(423)
def test_artifacts_are_read_for_words_that_the_index_lacks(stores: Stores) -> None:
    """Unless the level of recall is urgent; what was lowered is told."""
    long = f"{'x' * 300} needle"
    query: dict[str, Any] = {"query": "needle", "return": "meta", "limit_spans": 10}
    spec = memory(
        (T.MEMORY_NOTE, {"note": long}),
        (T.MEMORY_QUERY, query),
        (T.MEMORY_QUERY, query | {"recall_level": "urgent"}),
    )
    rt = stores.runtime()

    state = rt.tick(spec, rt.start(spec))

    assert len(row(state, 1)["meta"]["span_ids"]) == 1
    urgent = row(state, 2)["meta"]
    assert urgent["span_ids"] == []
    assert urgent["effort"]["applied"]["limit_spans"] == 3
    assert urgent["warnings"] == ["limit_spans 10 is lowered to 3 by recall_level urgent"]


COMPACT = {"preserve_recent": 1, "focus": "the price"}


@pytest.mark.item(425, 426)
def test_old_messages_make_room_and_come_back(stores: Stores) -> None:
    """The summary has the id of the span; what was archived is put back behind it, once."""
    summarizer = Summarizer()
    back = {"span_ids": [1]}
    spec = memory(
        (T.MEMORY_COMPACT, COMPACT), (T.MEMORY_REHYDRATE, back), (T.MEMORY_REHYDRATE, back)
    )
    rt = stores.runtime(chat_summarizer=summarizer)
    run_id = rt.start(spec, vars=talk("a", "b", "c"))
    compacted = rt.tick(spec, run_id, max_steps=1)
    [span] = spans_of(compacted.vars)
    summary = f"[SUMMARY span_id={span['artifact_id']}]: 2 messages"

    state = rt.tick(spec, run_id)

    assert words(compacted) == ["sys", summary, "c"]
    assert [one["words"] for one in summarizer.asked] == [["a", "b"]]
    assert (summarizer.asked[0]["focus"], span["message_count"]) == ("the price", 2)
    assert words(state) == ["sys", summary, "a", "b", "c"]
    assert [(state.output[f"out{at}"]["inserted"]) for at in (1, 2)] == [2, 0]
    meta = row(state)["meta"]
    assert (meta["compacted"], meta["preserved"], meta["key_points"]) == (2, 1, ["k"])
    kept = stores.artifacts.load_json(span["artifact_id"])["messages"]
    assert [one["content"] for one in kept] == ["a", "b"]


@pytest.mark.item(425)
def test_the_hosts_model_makes_a_summary(stores: Stores) -> None:
    """By its LLM_CALL, with the run's provider and model, and the key of the effect."""
    asked: list[dict[str, Any]] = []

    def answer(_run: RunState, effect: Effect) -> EffectOutcome:
        asked.append(effect.payload)
        return EffectOutcome.completed({"content": " short "})

    spec = memory((T.MEMORY_COMPACT, COMPACT))
    rt = stores.runtime(effect_handlers={T.LLM_CALL: answer})
    own = talk("a", "b", "c") | {"_runtime": {"provider": "p", "model": "m"}}

    state = rt.tick(spec, rt.start(spec, vars=own))

    assert row(state)["output"].endswith("]: short")
    [payload] = asked
    assert "user: a\nuser: b" in payload["prompt"]
    assert "the price" in payload["prompt"]
    assert (payload["provider"], payload["model"]) == ("p", "m")
    assert payload["params"]["trace_metadata"]["attempt"] == 1


@pytest.mark.item(425)
@pytest.mark.parametrize("answer", [{"n": 1}, "  ", None, {"content": "\x00"}])
def test_messages_stay_without_a_summary(stores: Stores, answer: Any) -> None:
    """The step fails by name; the context is as it was, and the archive is there for the next attempt."""
    spec = memory((T.MEMORY_COMPACT, COMPACT))
    handlers = {T.LLM_CALL: lambda _run, _effect: EffectOutcome.completed(answer)}
    rt = stores.runtime(effect_handlers=handlers)

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b", "c")))

    assert state.status is RunStatus.FAILED
    assert "memory_compact" in (state.error or "")
    assert words(state) == ["sys", "a", "b", "c"]
    assert spans_of(state.vars) == []
    assert len(stores.artifacts.list_all()) == 1


@pytest.mark.item(425)
def test_another_attempt_archives_nothing_again(stores: Stores) -> None:
    """A summarizer that was away is asked again for the same messages."""
    summarizer = Summarizer(fails=2)
    spec = memory((T.MEMORY_COMPACT, {**COMPACT, "retry": {"max_attempts": 3}}))
    rt = stores.runtime(chat_summarizer=summarizer, effect_policy=RetryPolicy())

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b", "c")))

    assert row(state)["meta"]["compacted"] == 2
    assert [one["words"] for one in summarizer.asked] == [["a", "b"]] * 3
    assert len(stores.artifacts.list_all()) == 1


@pytest.mark.item(422, 425, 441)
@pytest.mark.parametrize("point", ["started", "executed", "ended", "saved"])
def test_a_death_leaves_one_note_and_every_message(stores: Stores, point: str) -> None:
    """What the dead driver kept is kept once; the messages left with their summary or not at all."""
    spec = memory(
        (T.MEMORY_NOTE, {"note": "n", "scope": "global"}),
        (T.MEMORY_NOTE, {"note": "n", "keep_in_context": True}),
        (T.MEMORY_COMPACT, COMPACT),
    )
    if stores.kind == "sqlite" and point == "ended":
        point = "saved"  # its record and the checkpoint are one write
    nth = 0
    while True:
        nth += 1
        fault = Dying(point, nth)
        first = stores.runtime(chat_summarizer=Summarizer(), fault=fault)
        run_id = first.start(spec, vars=talk("a", "b", "c"))
        try:
            first.tick(spec, run_id)
        except Deaths:
            pass
        else:
            break
        left = stores.reopen().runtime().get_state(run_id)
        assert {"a", "b", "c"} <= {*words(left)} or any("SUMMARY" in one for one in words(left))

        stores.clock.advance(60)
        state = stores.reopen().runtime(chat_summarizer=Summarizer()).tick(spec, run_id)

        assert len(spans_of(state.vars)) == 2
        assert [one["kind"] for one in spans_of(state.vars)] == ["memory_note", "conversation_span"]
        assert [one[:9] for one in words(state)] == ["sys", "[MEMORY N", "[SUMMARY ", "c"]
        assert len(stores.artifacts.search(run_id=run_id)) == 2
        assert len(spans_of(stores.runs.load("global_memory").vars)) == nth
    assert nth > 2
    assert len(stores.artifacts.search(run_id="global_memory")) == nth
    assert (
        len(stores.ledger.list("global_memory")) == nth + 1
    )  # its beginning, and a record of each note


@pytest.mark.item(422, 423, 424)
def test_a_session_and_all_runs_have_memory_of_their_own(stores: Stores) -> None:
    """Runs that hold nothing else: what one run noted there, another one finds and tags."""
    for scope in ("session", "global"):
        asked = (T.MEMORY_NOTE, {"note": f"for {scope}", "scope": scope})
        tags = (T.MEMORY_TAG, {"span_id": 1, "scope": scope, "tags": {"x": "y"}})
        writes = memory(asked, tags, name="writes")
        rt = stores.runtime()
        rt.tick(writes, rt.start(writes, session_id="s 1", actor_id="ann"))
    reads = memory(
        *((T.MEMORY_QUERY, {"scope": scope, "return": "both"}) for scope in ("run", "all"))
    )
    rt = stores.reopen().runtime()

    state = rt.tick(reads, rt.start(reads, session_id="s 1"))
    other = rt.tick(reads, rt.start(reads, session_id="s 2"))

    assert row(state)["meta"]["span_ids"] == []
    matches = row(state, 1)["meta"]["matches"]
    assert {one["note_preview"] for one in matches} == {"for session", "for global"}
    assert [one["tags"] for one in matches] == [{"x": "y"}] * 2
    assert [one["note_preview"] for one in row(other, 1)["meta"]["matches"]] == ["for global"]
    for owner in {one["owner_run_id"] for one in matches}:
        assert rt.get_state(owner).status is RunStatus.COMPLETED
        assert rt.delete_run(owner) == 1
    assert stores.artifacts.list_all() == []


@pytest.mark.item(425)
def test_what_the_node_changed_stays(stores: Stores) -> None:
    """The changes of its effect come on top, and are made of the context as the node left it."""

    def work(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["x"] = 1
        run.vars["context"]["messages"].append({"role": "user", "content": "d"})
        return StepPlan("work", Effect(T.MEMORY_COMPACT, COMPACT, "out0"), next_node="end")

    spec = WorkflowSpec("graph", "work", {"work": work, "end": end_node})
    rt = stores.runtime(chat_summarizer=Summarizer())

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b", "c")))

    assert state.vars["x"] == 1
    assert row(state)["meta"]["compacted"] == 3
    assert words(state)[-1] == "d"


@pytest.mark.item(422)
def test_a_run_below_notes_for_the_run_above_it(stores: Stores) -> None:
    """Which is being driven by the same thread: its step goes on, and has the note."""
    child = memory((T.MEMORY_NOTE, {"note": "from below", "scope": "session"}), name="child")
    parent = memory(
        (T.START_SUBWORKFLOW, {"workflow_id": "child"}), (T.MEMORY_NOTE, {"note": "own"})
    )
    rt = stores.runtime(child, parent)
    run_id = rt.start(parent)

    state = rt.tick(parent, run_id)

    assert [one["note_preview"] for one in spans_of(state.vars)] == ["from below", "own"]
    assert stores.reopen().runtime().get_state(run_id).vars == state.vars


@pytest.mark.item(422)
def test_branches_note_beside_each_other(stores: Stores) -> None:
    """Each span is put into the index as it is then: none is lost."""
    fork = {"a": "left", "b": "right"}
    nodes = {
        "fork": lambda _run, _ctx: StepPlan("fork", parallel=fork, next_node="end"),
        "left": effect_then(T.MEMORY_NOTE, {"note": "l"}, key="l"),
        "right": effect_then(T.MEMORY_NOTE, {"note": "r"}, key="r"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    rt = stores.runtime()

    state = rt.tick(spec, rt.start(spec))

    assert [one["note_preview"] for one in spans_of(state.vars)] == ["l", "r"]


@pytest.mark.item(425, 426, 478)
def test_a_context_that_was_offloaded_is_followed(stores: Stores) -> None:
    """References to large parts of a context are read before anything is archived."""
    runs = OffloadingRunStore(stores.runs, artifact_store=stores.artifacts, max_inline_bytes=200)
    long = [f"{name}{'x' * 300}" for name in "abc"]
    spec = memory((T.MEMORY_COMPACT, COMPACT), (T.MEMORY_REHYDRATE, {"span_ids": [1]}))
    rt = stores.runtime(run_store=runs, chat_summarizer=Summarizer())
    run_id = rt.start(spec, vars=talk(*long))
    rt.tick(spec, run_id, max_steps=1)

    state = rt.tick(spec, run_id)

    [span] = spans_of(state.vars)
    kept = stores.artifacts.load_json(span["artifact_id"])["messages"]
    assert [one["content"] for one in kept] == long[:2]
    assert state.vars["_runtime"]["node_traces"]["n1"]["steps"][0]["result"]["inserted"] == 2


@pytest.mark.item(422, 423, 425, 426)
@pytest.mark.parametrize(
    ("kind", "payload", "problem"),
    [
        (T.MEMORY_NOTE, {"note": "n"}, "artifact_store="),
        (T.MEMORY_NOTE, {"note": " "}, "payload.note"),
        (T.MEMORY_NOTE, {"note": "n", "tags": {"a": {}}}, "payload.tags"),
        (T.MEMORY_NOTE, {"note": "n", "scope": "world"}, "none of run, session, global"),
        (T.MEMORY_NOTE, {"note": "n", "target_run_id": "nobody"}, "run 'nobody'"),
        (T.MEMORY_COMPACT, {"preserve_recent": 1}, "artifact_store="),
        (T.MEMORY_COMPACT, {"compression_mode": "none"}, "standard, light, heavy"),
        (T.MEMORY_QUERY, {"query": "x", "since": "soon"}, "payload.since"),
        (T.MEMORY_QUERY, {"limit_spans": 0}, "payload.limit_spans"),
        (T.MEMORY_REHYDRATE, {"span_ids": ["x"], "placement": "top"}, "after_summary"),
        (T.MEMORY_REHYDRATE, {"span_ids": ["x"]}, "artifact_store="),
        (T.MEMORY_TAG, {"span_id": 1, "tags": {}}, "payload.tags"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    stores: Stores, kind: EffectType, payload: dict[str, Any], problem: str
) -> None:
    """Once: no attempt would help. Nothing is kept."""
    spec = one_effect(kind, payload | {"retry": {"max_attempts": 3}})
    given = None if "store" in problem else stores.artifacts
    rt = stores.runtime(artifact_store=given)

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b")))

    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")
    assert "first attempt" in (state.error or "")
    assert stores.artifacts.list_all() == []


@pytest.mark.item(424, 426)
def test_a_span_that_is_not_there_is_told(stores: Stores) -> None:
    """In the result, as a tool tells it: the run goes on."""
    tag = (T.MEMORY_TAG, {"span_id": "gone", "tags": {"a": "b"}, "call_id": "c1"})
    spec = memory(tag, (T.MEMORY_REHYDRATE, {"span_ids": ["gone"]}), (T.MEMORY_COMPACT, {}))
    rt = stores.runtime(chat_summarizer=Summarizer())

    state = rt.tick(spec, rt.start(spec))

    assert (row(state)["success"], row(state)["call_id"]) == (False, "c1")
    assert "no span 'gone'" in row(state)["error"]
    assert state.output["out1"]["artifacts"][0]["error"] == "there is no such memory"
    assert row(state, 2)["meta"] == {"span_id": None, "compacted": 0}


@pytest.mark.item(422)
@pytest.mark.parametrize(
    "changes",
    [
        {"set": 7},
        {"put": [[["a"], "id", {}]]},
        {"del": []},
        {"set": [[[], 1]]},
        {"set": [[["x", "y"], 1]]},
    ],
)
def test_changes_of_a_handler_that_have_no_place_fail_the_step(
    stores: Stores, changes: dict[str, Any]
) -> None:
    """Not the driver."""
    handlers = {T.LLM_CALL: lambda _run, _effect: EffectOutcome.completed(1, changes=changes)}
    spec = one_effect(T.LLM_CALL, {})
    rt = stores.runtime(effect_handlers=handlers)

    state = rt.tick(spec, rt.start(spec, vars={"x": "text"}))

    assert state.status is RunStatus.FAILED
    assert "changes" in (state.error or "") or "vars path" in (state.error or "")
