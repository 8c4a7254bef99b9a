"""The same random graphs leave equal ledgers with both drivers."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors.workflow import FlowRuns
from tests.conformance.workflow.stores import RunningClock, Stores
from tests.harness.slow import IS_SLOW
from tests.properties.flows import FlowPlay, flows_of
from tests.properties.graphs import Weather, World

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.behaviour.bed import Bed

COUNT: Final = int(os.environ.get("CALLBOARD_GRAPHS") or (500 if IS_SLOW else 100))
SEED: Final = int(os.environ.get("CALLBOARD_SEED", "0")) * 100_000
AT_ONCE: Final = 25
SUB: Final = "start_subworkflow"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")
_NAME: Final = r'"available_listeners_in_session"'
_HINT: Final = re.compile(rf", \[\[[^][]*{_NAME}\], \[[^\]]*\]\]|{_NAME}: \[[^\]]*\], ")
"""Records of the embedded driver for an event without a waiting run; actors would have to scan rows."""
_ID: Final = re.compile(r"\b(?:[0-9a-f]{32}|ear-[\w-]+)\b")


def records_of(ledger: list[dict[str, Any]], *, with_ids: bool) -> list[str]:
    """Return the records that must be equal for both drivers, in the order of each branch.

    The actor driver waits also for a sub-graph that ends at once. That wait is left out, and the
    numbers of the steps after it differ, so `with_ids` is for graphs without one.
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    began: dict[tuple[str, ...], Any] = {}
    for record in ledger:
        delta = {**(record["delta"] or {})}
        branch = tuple(key.partition(".")[2] for key in delta.pop("branch", ()))
        effect = record["effect"] and {name: record["effect"][name] for name in ("type", "payload")}
        status, error = record["status"], record["error"]
        if effect and effect["type"] == SUB:
            began[branch] = effect
            if status == "waiting":
                continue
        if effect and effect["type"] == "resume" and effect["payload"]["reason"] == "subworkflow":
            effect = began[branch]
            del delta["status"]
        if status == "failed" and (began.pop(branch, None) or {}):
            effect, error = None, None  # of the effect, or of the wait
        result = record["result"]
        if isinstance(result, dict) and "delivered" in result:
            result = result["delivered"]
        ids = [record["step_id"], record["idempotency_key"]] if with_ids else []
        if not with_ids:
            delta = {
                name: value for name, value in delta.items() if name not in {"seq", "open", "start"}
            }
        words = [
            list(branch),
            record["node_id"],
            status,
            record["attempt"],
            effect,
            result,
            error,
            delta,
        ]
        text = _HINT.sub("", _TIME.sub("AT", json.dumps(words, sort_keys=True)))
        lines.setdefault(branch, []).append(_ID.sub("ID", text) + json.dumps(ids))
    return [line for branch in sorted(lines) for line in lines[branch]]


def has_sub(program: list[Any]) -> bool:
    """Return whether a program waits for a sub-graph."""
    return "('sub'" in str(program)


async def of_actors(
    client: Runtime, runs: FlowRuns, run_id: RunId, *, with_ids: bool
) -> Counter[str]:
    """Return the ledgers of a run and of the runs below it."""
    state = await runs.state(run_id)
    ledger = records_of(await runs.ledger(run_id), with_ids=with_ids)
    ledgers = Counter(["\n".join([state.workflow_id, *ledger])])
    for child in await client.children(run_id):
        ledgers += await of_actors(client, runs, child.run_id, with_ids=with_ids)
    return ledgers


def of_embedded(stores: Stores, run_id: str, *, with_ids: bool) -> Counter[str]:
    """Return the same for the embedded driver."""
    state = stores.runs.load(run_id)
    ledger = records_of(stores.ledger.list(run_id), with_ids=with_ids)
    ledgers = Counter(["\n".join([state.workflow_id, *ledger])])
    for child in stores.runs.list_children(parent_run_id=run_id):
        ledgers += of_embedded(stores, child.run_id, with_ids=with_ids)
    return ledgers


async def played(client: Runtime, app: str, play: FlowPlay) -> str | None:
    """Run a program on both drivers; return how their ledgers differ, or None."""
    runs = FlowRuns(client, app)
    for ear in play.compiled.ears:
        run_id = await runs.start(f"ear {ear}", id=ear)
        while not await runs.waits(run_id):  # noqa: ASYNC110 - rows
            await asyncio.sleep(play.look_s)
    main = await runs.start(play.name, vars={"a": 0, "b": 1, "r": {}}, id="main")
    while not await play._is_over(client, runs, main):  # noqa: ASYNC110 - rows
        await asyncio.sleep(play.look_s)
    stores = Stores("memory", Path(), clock=RunningClock())
    World(stores, play.compiled, Weather(steps=3)).run(play.name, main)
    with_ids = not has_sub(play.program)
    on_actors = await of_actors(client, runs, main, with_ids=with_ids)
    embedded = of_embedded(stores, main, with_ids=with_ids)
    if on_actors == embedded:
        return None
    was, now = (
        "\n".join(sorted(ledgers.elements())).split("\n") for ledgers in (embedded, on_actors)
    )
    diff = difflib.unified_diff(was, now, "embedded", "on actors", lineterm="", n=1)
    return "\n".join([f"seed {play.seed}", *diff])


@pytest.mark.slow
@pytest.mark.item(391, 398, 408, 415, 439, 440)
@pytest.mark.timeout(3600)
async def test_both_drivers_write_equal_ledgers(bed: Bed) -> None:
    """Compared for each branch: node, status, attempt, effect, result, error, and the change of the state."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip("what a driver decides; where it is kept is in the other tests")
    wrong: list[str] = []
    first = SEED + 30_000
    for begin in range(first, first + COUNT, AT_ONCE):
        plays = [FlowPlay(seed, 500, 25) for seed in range(begin, begin + AT_ONCE)]
        app = bed.name().type
        await flows_of(app, plays).register(bed.runtime)
        async with bed.client() as client:
            differences = await asyncio.gather(*(played(client, app, play) for play in plays))
        wrong += [difference for difference in differences if difference is not None]
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong[:3])
