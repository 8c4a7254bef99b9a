"""Spans of `ctx.memory`: searches and embeddings, once each, without their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import StatusCode

from tests.behaviour.test_traces import CANARY, Backend, in_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Model:
    """An embedder with a name that embeds queries differently, and refuses one text."""

    model = "openai:small"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        self.asked += [("text", text) for text in texts]
        if "bad" in texts[0]:
            raise ValueError(texts[0])
        return [(1.0, len(text)) for text in texts]

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `QueryEmbeddingClient.embed_queries`."""
        self.asked += [("question", text) for text in texts]
        return [(1.0, len(text)) for text in texts]


@in_memory
async def test_embeddings_and_hits_have_one_span_without_texts(bed: Bed) -> None:
    """Below the effect that needed them; a replay embeds nothing and exports nothing."""
    backend, model = Backend(), Model()
    await bed.stop()
    await bed.start(tracing=backend.tracing)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.memory.remember(CANARY)
        await ctx.memory.recall(f"{CANARY}?")
        with pytest.raises(ValueError, match="bad"):
            await ctx.memory.remember(f"bad {CANARY}")
        await ctx.sleep(1)
        await ctx.memory.recall("canary", mode="words")

    run_id = await bed.submit(await bed.serve(act, embedder=model))
    await bed.result(run_id)
    await backend.root_span(bed, run_id)

    texts = [("text", CANARY), ("question", f"{CANARY}?"), ("text", f"bad {CANARY}")]
    assert model.asked == texts
    searches = backend.spans_named("step memory.recall")
    assert [attributes_of(span)["callboard.memory.hits"] for span in searches] == [1, 1]
    embeddings = backend.spans_named("embeddings")
    assert [span.name for span in embeddings] == ["embeddings small"] * 3
    for span in embeddings:
        assert attributes_of(span)["gen_ai.operation.name"] == "embeddings"
        assert attributes_of(span)["gen_ai.provider.name"] == "openai"
        assert attributes_of(span)["gen_ai.agent.name"]
    parents = [span.parent.span_id for span in embeddings if span.parent is not None]
    step_names = ("step memory.remember", "step memory.recall")
    effects = [
        span.context.span_id
        for name in step_names
        for span in backend.spans_named(name)
        if span.context
    ]
    assert set(parents) < set(effects)
    assert len(set(parents)) == 3
    assert [span.status.status_code for span in embeddings][2] is StatusCode.ERROR
    assert attributes_of(embeddings[2])["error.type"] == "ValueError"
    assert all(CANARY not in span.to_json() for span in backend.spans)


def attributes_of(span: Any) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})
