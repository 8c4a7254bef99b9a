"""All that the effects of memory write into vars and ledger is JSON data, whatever they are asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors._workflow.notes.effects import MEMORY_EFFECTS
from actors._workflow.notes.spans import spans_of
from actors.workflow import (
    Effect,
    EffectType,
    InMemoryArtifactStore,
    InMemoryLedgerStore,
    InMemoryRunStore,
    RunStatus,
    StepPlan,
    WorkflowRuntime,
    WorkflowSpec,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(["1", "run", "session", "global", "all", "any", "2025-01-01", "both", "end"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
WORDS = st.text(min_size=1, max_size=8)
NUMBERS = st.integers(min_value=0, max_value=4)
FLAGS = st.booleans()
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "note": WORDS,
    "query": WORDS,
    "tags": st.dictionaries(WORDS, WORDS, max_size=2),
    "sources": st.dictionaries(WORDS, VALUES, max_size=2),
    "span_id": NUMBERS,
    "span_ids": st.lists(NUMBERS | WORDS, max_size=3),
    "location": WORDS,
    "authors": st.lists(WORDS, max_size=2),
    "scope": st.sampled_from(["run", "session", "global"]),
    "tags_mode": st.sampled_from(["all", "any"]),
    "keep_in_context": FLAGS,
    "merge": FLAGS,
    "connected": FLAGS,
    "deep": FLAGS,
    "preserve_recent": NUMBERS,
    "limit_spans": st.integers(min_value=1, max_value=4),
    "max_messages": NUMBERS,
    "since": st.sampled_from(["2025-01-01T00:00:00Z", "2999-01-01"]),
    "until": st.sampled_from(["2025-01-01T00:00:00Z", "2999-01-01"]),
    "return": st.sampled_from(["rendered", "meta", "both"]),
    "recall_level": st.sampled_from(["urgent", "standard", "deep"]),
    "placement": st.sampled_from(["after_summary", "after_system", "end"]),
    "call_id": WORDS,
}
OTHERS = {name: strategy for name, strategy in FIELDS.items() if name not in {"note", "tags"}}
SOUND = st.fixed_dictionaries({"note": WORDS, "tags": FIELDS["tags"]}, optional=OTHERS)
WILD = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, VALUES))
ASKED = st.lists(st.tuples(st.sampled_from(sorted(MEMORY_EFFECTS)), SOUND | WILD), max_size=6)
MESSAGES = st.lists(
    VALUES
    | st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool", "assistant"]), "content": VALUES},
        optional={"metadata": VALUES, "timestamp": VALUES, "tool_calls": VALUES},
    ),
    max_size=6,
)


class Summarizer:
    """A summarizer of few words."""

    def summarize_chat_history(self, messages: list[Any], **_more: Any) -> dict[str, Any]:
        """Say how many there are."""
        return {"summary": f"{len(messages)}", "confidence": 0.5}


@pytest.mark.item(478)
@settings(max_examples=40, deadline=None)
@given(effects=ASKED, messages=MESSAGES, tail=VALUES)
def test_what_memory_writes_is_json(
    effects: list[tuple[EffectType, dict[str, Any]]], messages: list[Any], tail: Any
) -> None:
    """It comes back equal from text, the stores have what the driver has, and no message is lost."""
    nodes: dict[str, Any] = {
        f"n{at}": lambda run, _ctx, at=at, request=request: StepPlan(
            run.current_node, Effect(request[0], request[1], f"out.n{at}"), next_node=f"n{at + 1}"
        )
        for at, request in enumerate(effects)
    }
    nodes[f"n{len(effects)}"] = lambda run, _ctx: StepPlan(run.current_node, complete_output={})
    spec = WorkflowSpec("graph", "n0", nodes)
    ledger, artifacts = InMemoryLedgerStore(), InMemoryArtifactStore()
    rt = WorkflowRuntime(
        run_store=InMemoryRunStore(),
        ledger_store=ledger,
        artifact_store=artifacts,
        chat_summarizer=Summarizer(),
    )
    given_vars = {"context": {"messages": messages, "tail": tail}}
    run_id = rt.start(spec, vars=given_vars, session_id="s")

    state = rt.tick(spec, run_id)

    assert state.status in {RunStatus.COMPLETED, RunStatus.FAILED}
    if state.status is RunStatus.FAILED:
        assert "memory_" in (state.error or "") or "node " in (state.error or "")
    assert json.loads(json.dumps(state.vars)) == state.vars == rt.get_state(run_id).vars
    assert json.loads(json.dumps(ledger.list(run_id))) == ledger.list(run_id)
    assert state.vars["context"]["tail"] == tail
    here = [
        message_text(message)
        for message in state.vars["context"]["messages"]
        if isinstance(message, dict)
    ]
    archived = [artifacts.load_json(span["artifact_id"]) or {} for span in spans_of(state.vars)]
    away = [message_text(message) for span in archived for message in span.get("messages", [])]
    assert all(
        message_text(message) in here + away for message in messages if isinstance(message, dict)
    )


def message_text(message: dict[str, Any]) -> str:
    """What a message says; the stores of artifacts sort the names in an object."""
    fields = [message.get(name) for name in ("role", "content", "tool_calls")]
    return json.dumps(fields, sort_keys=True)
