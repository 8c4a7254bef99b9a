"""Random graphs end as the model predicts, on every store, with any disturbance."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.flow_stage import without_doubts
from tests.conformance.workflow.stores import KINDS, RunningClock, Stores
from tests.harness import slow
from tests.model.graphs import Expected, expected
from tests.properties.documents import Written
from tests.properties.graphs import Compiled, Weather, World, program_of, smaller
from tests.properties.visual import Drawn

if TYPE_CHECKING:
    from pathlib import Path

    from actors.workflow import RunState

GRAPHS = 500
"""For each store; 5,000 with `CALLBOARD_TEST_SLOW`, or as many as `CALLBOARD_GRAPHS` sets."""
TIMERS = {"waited_until", "timed_out"}
WAYS = {"": Compiled, "written": Written, "drawn": Drawn}
"""The forms of a program."""


def weather_of(rng: random.Random) -> Weather:
    """Return the disturbances of a run."""
    return Weather(
        steps=rng.choice([1, 2, 3, 7, 100]),
        dies=rng.choice([0, rng.randint(1, 60)]),
        pauses=rng.random() < 0.2,
        cancels=rng.choice([0, 0, 0, 0, rng.randint(1, 9)]),
        written=rng.choice(["", "written", "drawn"]),
    )


def plain(value: Any) -> Any:
    """Return an output in the model's form."""
    if not isinstance(value, dict):
        return value
    if TIMERS & value.keys():
        return "timer"
    if "delivered" in value:
        return "emit"
    if {"success", "a", "b", "r"} == value.keys():  # of a drawing
        value = {name: item for name, item in value.items() if name != "success"}
    if "sub_run_id" in value:
        return "async" if value.get("async") else plain(value["output"])
    return {name: plain(item) for name, item in value.items()}


class Mismatch(AssertionError):  # noqa: N818 - what a test finds
    """The product and the model disagree."""


def tell(
    records: dict[tuple[str, ...], list[tuple[str, str, int]]],
    branch: tuple[str, ...],
    record: dict[str, Any],
    compiled: Compiled,
) -> None:
    """Add a record of a branch in the model's form, which has no joins and one node for a loop."""
    node = record["node_id"]
    if node not in compiled.joins:
        step = (node.removesuffix("~"), record["status"], record["attempt"])
        names = tuple(part.removeprefix("then:") for part in branch)
        records.setdefault(names, []).append(step)


def subs_of(ledger: list[dict[str, Any]]) -> set[str]:
    """Return the nodes of a ledger that start a sub-graph.

    Not every record of such a node has that effect: a run's first record names its first node, and
    has none; the end of a wait has another one.
    """
    starts = [
        record for record in ledger if (record["effect"] or {}).get("type") == "start_subworkflow"
    ]
    return {record["node_id"] for record in starts}


def unheld(
    records: dict[tuple[str, ...], list[tuple[str, str, int]]], subs: set[str]
) -> dict[tuple[str, ...], list[tuple[str, str, int]]]:
    """Return records without waits for sub-graphs: a sub-graph in doubt also makes its parent wait."""
    return {
        branch: [step for step in steps if step[1] != "waiting" or step[0] not in subs]
        for branch, steps in records.items()
    }


def compare(stores: Stores, run: RunState, model: Expected, world: World, *, whole: bool) -> None:
    """Compare a run and the runs below it with the model; if not `whole`, they are its first parts."""
    records: dict[tuple[str, ...], list[tuple[str, str, int]]] = {}
    ledger = without_doubts(stores.ledger.list(run.run_id))
    for record in ledger:
        if (record["effect"] or {}).get("type") not in {"pause", "unpause"}:
            keys = (record["delta"] or {}).get("branch") or ()
            branch = tuple(key.partition(".")[2] for key in keys)
            tell(records, branch, record, world.compiled)
    done = Counter((node, n) for run_id, node, n in world.executions if run_id == run.run_id)
    if whole:
        subs = subs_of(ledger) if world.doubts else set[str]()
        observed = (run.status.value, plain(run.output), unheld(records, subs))
        predicted = (model.status, model.output, unheld(model.records, subs))
        if observed != predicted:
            raise Mismatch(f"{run.workflow_id}: {observed}\nmodel: {predicted}\n{run.error}")
    elif run.status.value == "completed" and plain(run.output) != model.output:
        raise Mismatch(f"{run.workflow_id}: {run.output}\nmodel: {model.output}")
    promised = Counter(model.executions)
    more = done - promised
    once = any(node in world.compiled.once for node, _ in more)
    if once or more.total() > (1 if world.died_at == "executed" else 0):
        raise Mismatch(f"{run.workflow_id}: executed too often: {more}")
    if whole and promised - done:
        raise Mismatch(f"{run.workflow_id}: not executed: {promised - done}")
    children = stores.runs.list_children(parent_run_id=run.run_id)
    if whole and len(children) != len(model.children):
        raise Mismatch(f"{run.workflow_id}: {len(children)} children, not {len(model.children)}")
    unmatched_children = [*model.children]
    for (
        child
    ) in children:  # those of one name are made in order, others in that of the branches' turns
        below = next((c for c in unmatched_children if c.name == child.workflow_id), None)
        if below is None:
            raise Mismatch(f"{run.workflow_id}: child {child.workflow_id} more than the model has")
        unmatched_children.remove(below)
        compare(stores, child, below, world, whole=whole)


def play(kind: str, folder: Path, program: list[Any], weather: Weather) -> None:
    """Run a program, and compare the outcome with the model.

    Raises: Mismatch: They disagree.
    """
    stores = Stores(kind, folder, clock=RunningClock())
    compiled = WAYS[weather.written]()
    compiled.graph("g", program)
    world = World(stores, compiled, weather)
    world.run("g")
    stores = stores.reopen()
    run = stores.runs.load("main")
    everyone = stores.runs.list_runs(limit=999)
    open_runs = [run for run in everyone if not run.status.is_terminal]
    if any(not run.workflow_id.startswith("ear ") for run in open_runs):
        raise Mismatch(f"not at its end: {open_runs}")
    if world.doubts and world.died_at not in {"started", "executed"}:
        raise Mismatch(f"in doubt, and nobody died: {world.died_at!r}")
    cut = any(run.status.value == "cancelled" for run in everyone)
    model = expected("g", program, {})
    compare(stores, run, model, world, whole=not cut)
    ears = {run.output for run in everyone if run.output and run.workflow_id.startswith("ear ")}
    if ears != model.emitters and not (cut and ears <= model.emitters):
        raise Mismatch(f"heard {ears}, not {model.emitters}")
    stores.close()


def shrunk(kind: str, folder: Path, program: list[Any], weather: Weather) -> list[Any]:
    """Return a smaller program that still disagrees with the model."""
    for number, less in enumerate(smaller(program)):
        shrink_folder = folder / f"s{number}"
        shrink_folder.mkdir()
        try:
            play(kind, shrink_folder, less, weather)
        except AssertionError:
            return shrunk(kind, shrink_folder, less, weather)
    return program


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.item(391, 392, 401, 410, 421, 437, 441, 442, 443, 480)
@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_end_as_the_model_predicts(kind: str, tmp_path: Path) -> None:
    """Output, vars, the order of records and the number of executions, over pauses, cancels and crashes."""
    first = int(os.environ.get("CALLBOARD_SEED", "0"))
    most = 5000 if slow.IS_SLOW else GRAPHS
    graphs = int(os.environ.get("CALLBOARD_GRAPHS", most))
    for seed in range(first, first + graphs):
        rng = random.Random(seed)
        program = program_of(rng, *((3, 4) if kind == "memory" else (2, 3)))
        weather = weather_of(rng)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            play(kind, folder, program, weather)
        except AssertionError as exc:
            shrink_folder = tmp_path / f"shrink{seed}"
            shrink_folder.mkdir()
            least = shrunk(kind, shrink_folder, program, weather)
            pytest.fail(f"seed {seed}, {weather}: {exc}\nprogram: {program}\nleast: {least}")


def test_the_second_round_of_a_loop_is_in_doubt(tmp_path: Path) -> None:
    """Found by seed 819: that the first round's effect happened says nothing about the second one's."""
    loop = ("loop", 2, [("work", 0, 19, True)])
    emits = [[("emit", 1)], [], [("emit", 1), ("emit", 1)]]
    first = [("switch", "b", emits), ("sub", [("work", 0, 29, False)], False)]
    program = [("work", 0, 36, False), ("par", [first, [loop, ("switch", "b", [[("emit", 1)]])]])]
    for dies in range(1, 60):
        folder = tmp_path / str(dies)
        folder.mkdir()
        play("memory", folder, program, Weather(steps=100, dies=dies, written="drawn"))


def test_the_parent_of_an_effect_in_doubt_waits_at_its_first_node(tmp_path: Path) -> None:
    """Found by seed 3165: the waits of a sub-graph that is its parent's first node were not left out."""
    blocks = [[("work", 0, 17, True)], [("work", 0, 71, True)]]
    for dies in range(1, 16):
        folder = tmp_path / str(dies)
        folder.mkdir()
        play("memory", folder, [("sub", [("par", blocks)], False)], Weather(steps=7, dies=dies))
