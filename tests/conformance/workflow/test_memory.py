"""The memory effects in one process, on every store, and their state after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.notes.spans import spans_of
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
from tests.conformance.workflow.stores import effect_then, end_node, one_effect
from tests.conformance.workflow.test_effects import Deaths, Dying

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores

T = EffectType


def talk(*words: str) -> dict[str, Any]:
    """Return vars with a context of these messages."""
    messages = [
        {"role": "user", "content": word, "metadata": {"message_id": word}} for word in words
    ]
    return {"context": {"messages": [{"role": "system", "content": "sys"}, *messages]}}


def memory(*effects: tuple[EffectType, dict[str, Any]], name: str = "graph") -> WorkflowSpec:
    """Return a graph of these effects; their results are at `out0`, `out1` and so on."""
    nodes: dict[str, Any] = {"end": end_node}
    for at, (kind, payload) in enumerate(effects):
        after = f"n{at + 1}" if at + 1 < len(effects) else "end"
        nodes[f"n{at}"] = effect_then(kind, payload, key=f"out{at}", after=after)
    return WorkflowSpec(name, "n0", nodes)


def row(state: RunState, at: int = 0) -> dict[str, Any]:
    """Return the row of a result."""
    assert state.status is RunStatus.COMPLETED, state.error
    first_row: dict[str, Any] = state.output[f"out{at}"]["results"][0]
    return first_row


def words(state: RunState) -> list[str]:
    """Return the texts of a context's messages."""
    return [message["content"] for message in state.vars["context"]["messages"]]


class Summarizer:
    """A summarizer that counts its calls, and may fail at first."""

    def __init__(self, fails: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails = fails

    def summarize_chat_history(self, messages: Any, **more: Any) -> dict[str, Any]:
        """Return a text with the number of messages."""
        self.asked.append({"words": [message["content"] for message in messages]} | more)
        if len(self.asked) <= self.fails:
            raise ConnectionError("away")
        return {"summary": f"{len(messages)} messages", "key_points": ["k"], "confidence": 1.0}


NOTE = (
    T.MEMORY_NOTE,
    {"note": "Alice owns the API", "tags": {"topic": "api"}, "location": "Paris"},
)


@pytest.mark.item(422, 423, 424, 478)
def test_a_note_is_kept_tagged_and_found(stores: Stores) -> None:
    """As an artifact and a span of the run; the ledger alone restores the same state."""
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
    note = stores.artifacts.load_json(span["artifact_id"])
    assert note["note"] == "Alice owns the API"
    assert note["sources"] == {"run_id": run_id, "span_ids": [], "message_ids": []}
    recalled_row = row(state, 2)
    assert "Alice owns the API" in recalled_row["output"]
    assert recalled_row["meta"]["matches"] == [{**span, "owner_run_id": run_id}]
    deltas = [
        record["delta"] for record in stores.ledger.list(run_id) if record["status"] == "completed"
    ]
    assert [[put[2] for put in delta["put"]] for delta in deltas if delta and "put" in delta] == [
        [{**span, "tags": {"topic": "api"}}],
        [span],
    ]
    assert stores.reopen().runtime().get_state(run_id).vars == state.vars


@pytest.mark.item(423)
def test_artifacts_are_read_for_words_that_the_index_lacks(stores: Stores) -> None:
    """Unless the level of recall is urgent. The result lists the reduced options."""
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
def test_old_messages_are_archived_and_can_be_restored(stores: Stores) -> None:
    """The summary has the id of the span. The archived messages are restored after it, once."""
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
    assert [call["words"] for call in summarizer.asked] == [["a", "b"]]
    assert (summarizer.asked[0]["focus"], span["message_count"]) == ("the price", 2)
    assert words(state) == ["sys", summary, "a", "b", "c"]
    assert [(state.output[f"out{at}"]["inserted"]) for at in (1, 2)] == [2, 0]
    meta = row(state)["meta"]
    assert (meta["compacted"], meta["preserved"], meta["key_points"]) == (2, 1, ["k"])
    archived_messages = stores.artifacts.load_json(span["artifact_id"])["messages"]
    assert [message["content"] for message in archived_messages] == ["a", "b"]


@pytest.mark.item(425)
def test_the_hosts_model_makes_a_summary(stores: Stores) -> None:
    """By its LLM_CALL, with the run's provider and model, and the key of the effect."""
    payloads: list[dict[str, Any]] = []

    def answer(_run: RunState, effect: Effect) -> EffectOutcome:
        payloads.append(effect.payload)
        return EffectOutcome.completed({"content": " short "})

    spec = memory((T.MEMORY_COMPACT, COMPACT))
    rt = stores.runtime(effect_handlers={T.LLM_CALL: answer})
    own = talk("a", "b", "c") | {"_runtime": {"provider": "p", "model": "m"}}

    state = rt.tick(spec, rt.start(spec, vars=own))

    assert row(state)["output"].endswith("]: short")
    [payload] = payloads
    assert "user: a\nuser: b" in payload["prompt"]
    assert "the price" in payload["prompt"]
    assert (payload["provider"], payload["model"]) == ("p", "m")
    assert payload["params"]["trace_metadata"]["attempt"] == 1


@pytest.mark.item(425)
@pytest.mark.parametrize("answer", [{"n": 1}, "  ", None, {"content": "\x00"}])
def test_messages_stay_without_a_summary(stores: Stores, answer: Any) -> None:
    """The step's error names it.

    The context is unchanged, and the archive is there for the next attempt.
    """
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
def test_a_second_attempt_does_not_archive_again(stores: Stores) -> None:
    """A summarizer that was unavailable is called again for the same messages."""
    summarizer = Summarizer(fails=2)
    spec = memory((T.MEMORY_COMPACT, {**COMPACT, "retry": {"max_attempts": 3}}))
    rt = stores.runtime(chat_summarizer=summarizer, effect_policy=RetryPolicy())

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b", "c")))

    assert row(state)["meta"]["compacted"] == 2
    assert [call["words"] for call in summarizer.asked] == [["a", "b"]] * 3
    assert len(stores.artifacts.list_all()) == 1


@pytest.mark.item(422, 425, 441)
@pytest.mark.parametrize("point", ["started", "executed", "ended", "saved"])
def test_a_crash_leaves_one_note_and_every_message(stores: Stores, point: str) -> None:
    """What the crashed driver stored exists once.

    Messages are removed together with their summary, or not at all.
    """
    spec = memory(
        (T.MEMORY_NOTE, {"note": "n", "scope": "global"}),
        (T.MEMORY_NOTE, {"note": "n", "keep_in_context": True}),
        (T.MEMORY_COMPACT, COMPACT),
    )
    saves = 2 if point == "saved" and stores.kind != "memory" else 3  # others are written later
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
        state_left = stores.reopen().runtime().get_state(run_id)
        assert {"a", "b", "c"} <= {*words(state_left)} or any(
            "SUMMARY" in word for word in words(state_left)
        )

        stores.clock.advance(60)
        state = stores.reopen().runtime(chat_summarizer=Summarizer()).tick(spec, run_id)

        assert len(spans_of(state.vars)) == 2
        assert [span["kind"] for span in spans_of(state.vars)] == [
            "memory_note",
            "conversation_span",
        ]
        assert [word[:9] for word in words(state)] == ["sys", "[MEMORY N", "[SUMMARY ", "c"]
        assert len(stores.artifacts.search(run_id=run_id)) == 2
        assert len(spans_of(stores.runs.load("global_memory").vars)) == nth
    assert nth >= saves
    assert len(stores.artifacts.search(run_id="global_memory")) == nth
    assert (
        len(stores.ledger.list("global_memory")) == nth + 1
    )  # its start, and a record of each note


@pytest.mark.item(422, 423, 424)
def test_a_session_and_all_runs_have_memory_of_their_own(stores: Stores) -> None:
    """They use runs that hold nothing else: another run finds and tags the notes of the first."""
    for scope in ("session", "global"):
        note = (T.MEMORY_NOTE, {"note": f"for {scope}", "scope": scope})
        tags = (T.MEMORY_TAG, {"span_id": 1, "scope": scope, "tags": {"x": "y"}})
        writes = memory(note, tags, name="writes")
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
    assert {match["note_preview"] for match in matches} == {"for session", "for global"}
    assert [match["tags"] for match in matches] == [{"x": "y"}] * 2
    assert [match["note_preview"] for match in row(other, 1)["meta"]["matches"]] == ["for global"]
    for owner in {match["owner_run_id"] for match in matches}:
        assert rt.get_state(owner).status is RunStatus.COMPLETED
        assert rt.delete_run(owner) == 1
    assert stores.artifacts.list_all() == []


@pytest.mark.item(425)
def test_changes_of_the_node_stay(stores: Stores) -> None:
    """The changes of the effect are added, and are based on the context as the node left it."""

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
def test_a_child_run_can_note_for_its_parent(stores: Stores) -> None:
    """The same thread drives the parent run: its step continues, and has the note."""
    child = memory((T.MEMORY_NOTE, {"note": "from below", "scope": "session"}), name="child")
    parent = memory(
        (T.START_SUBWORKFLOW, {"workflow_id": "child"}), (T.MEMORY_NOTE, {"note": "own"})
    )
    rt = stores.runtime(child, parent)
    run_id = rt.start(parent)

    state = rt.tick(parent, run_id)

    assert [span["note_preview"] for span in spans_of(state.vars)] == ["from below", "own"]
    assert stores.reopen().runtime().get_state(run_id).vars == state.vars


@pytest.mark.item(422)
def test_notes_of_concurrent_branches_are_all_kept(stores: Stores) -> None:
    """Each span is added to the current index: none is lost."""
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

    assert [span["note_preview"] for span in spans_of(state.vars)] == ["l", "r"]


@pytest.mark.item(425, 426, 478)
def test_a_context_that_was_offloaded_is_followed(stores: Stores) -> None:
    """References to large parts of a context are resolved before anything is archived."""
    runs = OffloadingRunStore(stores.runs, artifact_store=stores.artifacts, max_inline_bytes=200)
    long = [f"{name}{'x' * 300}" for name in "abc"]
    spec = memory((T.MEMORY_COMPACT, COMPACT), (T.MEMORY_REHYDRATE, {"span_ids": [1]}))
    rt = stores.runtime(run_store=runs, chat_summarizer=Summarizer())
    run_id = rt.start(spec, vars=talk(*long))
    rt.tick(spec, run_id, max_steps=1)

    state = rt.tick(spec, run_id)

    [span] = spans_of(state.vars)
    archived_messages = stores.artifacts.load_json(span["artifact_id"])["messages"]
    assert [message["content"] for message in archived_messages] == long[:2]
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
def test_invalid_payloads_are_refused_by_name(
    stores: Stores, kind: EffectType, payload: dict[str, Any], problem: str
) -> None:
    """Once: a retry would not help. Nothing is stored."""
    spec = one_effect(kind, payload | {"retry": {"max_attempts": 3}})
    artifact_store = None if "store" in problem else stores.artifacts
    rt = stores.runtime(artifact_store=artifact_store)

    state = rt.tick(spec, rt.start(spec, vars=talk("a", "b")))

    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")
    assert "first attempt" in (state.error or "")
    assert stores.artifacts.list_all() == []


@pytest.mark.item(424, 426)
def test_a_missing_span_is_reported(stores: Stores) -> None:
    """In the result, like a tool's error: the run continues."""
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
def test_changes_at_an_invalid_path_fail_the_step(stores: Stores, changes: dict[str, Any]) -> None:
    """The driver does not fail."""
    handlers = {T.LLM_CALL: lambda _run, _effect: EffectOutcome.completed(1, changes=changes)}
    spec = one_effect(T.LLM_CALL, {})
    rt = stores.runtime(effect_handlers=handlers)

    state = rt.tick(spec, rt.start(spec, vars={"x": "text"}))

    assert state.status is RunStatus.FAILED
    assert "changes" in (state.error or "") or "vars path" in (state.error or "")
