"""Branches of a flow that evaluate code: the order of their records survives a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.workflow import load_flow
from tests.behaviour.flow_stage import staged

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed


def flow(name: str, nodes: dict[str, Any]) -> Any:
    """Return a graph whose run starts at node ``a``."""
    return load_flow({"flow": 1, "id": name, "start": "a", "nodes": nodes})


def asking(after: str) -> dict[str, Any]:
    """Return a node that asks a person."""
    return {"effect": "ask_user", "with": {"prompt": "?"}, "into": f"by.{after}", "next": after}


async def test_branches_of_code_replay_after_a_crash(bed: Bed) -> None:
    """Branches evaluate code, ask, and evaluate code again; a crash comes while they wait."""
    nodes: dict[str, Any] = {"a": {"parallel": {"l": "l1", "r": "r1"}, "join": "e"}}
    for name in "lr":
        code = {"code": f"sum([{ord(name)}, 1])", "into": f"one.{name}", "next": f"{name}2"}
        nodes |= {f"{name}1": code, f"{name}2": asking(f"{name}3")}
        nodes[f"{name}3"] = {
            "set": {f"two.{name}": f"${{len(vars.one.{name!r}) + 1}}"},
            "next": "e",
        }
        nodes[f"{name}3"]["set"] = {f"two.{name}": f"${{max([vars.one.{name}, 1])}}"}
    nodes["e"] = {"end": {"one": "${vars.one}", "two": "${vars.two}"}}
    stage = await staged(bed, flow("branches", nodes))

    run_id = await stage.runs.start("branches")
    await stage.waits(run_id, 2)
    await stage.restart()
    for wait in await stage.waits(run_id, 2):
        assert wait.wait_key is not None
        await stage.runs.resume(run_id, wait.wait_key, "yes")
    run = await stage.ended(run_id)

    assert run.output == {"one": {"l": 109, "r": 115}, "two": {"l": 109, "r": 115}}
