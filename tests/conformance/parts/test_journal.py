"""The contract of every `Journal`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from actors._kernel.runtime.effects import Effect, EffectResult
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from persistence.redis import RedisJournal, open_redis_journal
from tests.conformance.clock import ManualClock
from tests.conformance.conftest import bed_of
from tests.conformance.source import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.effects import Journal

EFFECT = Effect.make_id(RunId("r"), "0", "step", {"n": 1})
OTHER = Effect.make_id(RunId("r"), "1", "step", {"n": 1})


@dataclass
class RedisSource(Source):
    """A source whose journal is Redis's; it has no other part."""

    redis: RedisJournal | None = None

    @override
    def journal(self) -> Journal:
        """See `Source.journal`."""
        assert self.redis is not None
        return self.redis


@pytest.fixture(
    params=[
        "in-memory",
        "memory-view",
        pytest.param("postgres-view", marks=pytest.mark.postgres),
        pytest.param("redis", marks=pytest.mark.redis),
    ]
)
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    """What a journal is made from: nothing, a view over each store, or Redis."""
    kind: str = request.param
    if kind == "in-memory":
        yield Source(kind, ManualClock())
    elif kind == "redis":
        url = request.getfixturevalue("redis_server").url
        async with open_redis_journal(url, namespace=f"t{secrets.token_hex(6)}") as journal:
            yield RedisSource(kind, ManualClock(), redis=journal)
    else:
        async with bed_of(kind.removesuffix("-view"), request) as bed:
            await bed.claim()
            yield Source(kind, bed.clock, bed)


@pytest.mark.item(148, 187, 482)
async def test_what_was_recorded_is_found_by_its_effect(source: Source) -> None:
    """Values and errors come back as they were; other effects have none."""
    journal = source.journal()
    value = EffectResult(EFFECT, "ok", {"b": 1, "a": [1.0]}, artifact_ref="ref")
    error = EffectResult(OTHER, "error", "no", "builtins:ValueError")
    before = await journal.lookup(EFFECT)

    await journal.record(value)
    await journal.record(error)

    assert before is None
    assert repr(await journal.lookup(EFFECT)) == repr(value)
    assert await journal.lookup(OTHER) == error


@pytest.mark.item(116, 141)
async def test_the_first_result_of_an_effect_stays(source: Source) -> None:
    """A second one is ignored without an error."""
    journal = source.journal()
    await journal.record(EffectResult(EFFECT, "ok", "first"))

    await journal.record(EffectResult(EFFECT, "error", "second", "builtins:ValueError"))

    assert await journal.lookup(EFFECT) == EffectResult(EFFECT, "ok", "first")


async def test_a_recorded_value_cannot_be_changed_from_outside(source: Source) -> None:
    """Neither through the object handed in nor through one that was looked up."""
    journal = source.journal()
    value: list[JsonValue] = [1]
    await journal.record(EffectResult(EFFECT, "ok", value))

    value.append(2)
    entry = await journal.lookup(EFFECT)
    assert entry is not None
    assert isinstance(entry.value, list)
    entry.value.append(3)

    assert await journal.lookup(EFFECT) == EffectResult(EFFECT, "ok", [1])


@pytest.mark.item(144, 187)
async def test_the_journal_of_a_store_is_its_log(source: Source) -> None:
    """What a run recorded in its log is found in every process, before any note of this one."""
    if source.bed is None:
        pytest.skip(f"{source.kind}: the journal stands alone, there is no log beside it")
    run = await source.turns_of(await source.new_run())
    effect = {"effect": "step", "name": "s", "hash": "0" * 16}
    error: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": "no"}
    await run.append(
        NewEntry(
            EntryKind.EFFECT_RESULT, "0", {**effect, "id": EFFECT, "status": "ok", "value": [1]}
        ),
        NewEntry(
            EntryKind.TOOL_RESULT, "1", {**effect, "id": OTHER, "status": "error", "error": error}
        ),
    )
    journal = source.journal()

    await journal.record(EffectResult(EFFECT, "ok", "something else"))

    assert await journal.lookup(EFFECT) == EffectResult(EFFECT, "ok", [1])
    assert await journal.lookup(OTHER) == EffectResult(OTHER, "error", "no", "builtins:ValueError")
