"""The contract of every `RunStore`: events answer the waits of graphs, run by run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.waits import Wait
from tests.conformance.talk import answers, rest

if TYPE_CHECKING:
    from tests.conformance.bed import Bed


@pytest.mark.item(420, 458)
async def test_an_event_answers_all_waits_of_each_run_in_pages(bed: Bed) -> None:
    """A page starts after a run id. A run that waits for the event again is not in a later page."""
    runs = [await bed.begin(agent=AgentId("clerk", str(n))) for n in range(5)]
    by_id = sorted(runs, key=lambda run: run.run_id)
    ids = [run.run_id for run in by_id]
    for run in runs:
        waits = [Wait(str(n), "event", f"w{n}", request={"event": "e"}) for n in range(2)]
        await rest(run, *waits, Wait("2", "event", "other", request={"event": "f"}))
    emit = bed.store.arrivals.emit

    first = await emit("e", {"n": 1}, limit=2)
    second = await emit("e", {"n": 1}, after=first[-1][0], limit=2)
    third = await emit("e", {"n": 1}, after=second[-1][0], limit=2)

    assert [run_id for run_id, _ in (*first, *second, *third)] == ids
    assert [agent for _, agent in third] == [by_id[4].agent]
    assert await emit("e", {"n": 2}) == []
    assert await emit("e", {"n": 2}, after=ids[-1]) == []
    for run in runs:
        event_answers = [(f"w{n}", "resumed", {"n": 1}) for n in range(2)]
        found_answers = [
            (answer.key, answer.status, answer.result) for answer in await answers(bed, run)
        ]
        assert sorted(found_answers, key=repr)[: len(event_answers)] == event_answers
    assert [run_id for run_id, _ in await emit("f", None, after=ids[2])] == ids[3:]
