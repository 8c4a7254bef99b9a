"""The contract of every `Journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.kernel.runtime.effects import Effect, EffectResult
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind, NewEntry

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from tests.conformance.source import Source

EFFECT = Effect.make_id(RunId("r"), "0", "step", {"n": 1})
OTHER = Effect.make_id(RunId("r"), "1", "step", {"n": 1})


@pytest.mark.item(148, 187)
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


@pytest.mark.item(116)
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
    found = await journal.lookup(EFFECT)
    assert found is not None
    assert isinstance(found.value, list)
    found.value.append(3)

    assert await journal.lookup(EFFECT) == EffectResult(EFFECT, "ok", [1])


@pytest.mark.item(144, 187)
async def test_the_journal_of_a_store_is_its_log(source: Source) -> None:
    """What a run recorded in its log is found in every process, before any note of this one."""
    if source.bed is None:
        pytest.skip("in-memory: the journal stands alone, there is no log beside it")
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
