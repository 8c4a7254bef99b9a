"""VisualFlow in bundles, at the command line and on hosts' folders."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._runtime import Runtime
from actors._workflow.bundles import (
    WorkflowBundleError,
    WorkflowBundleRegistry,
    open_workflow_bundle,
    pack_workflow_bundle,
)
from actors._workflow.bundles.bundle import input_schema
from actors.workflow import FlowError, FlowRuns
from compose._commands.output import Exit
from compose._host.loader import find_served, serve_all
from tests.unit.workflow.test_bundles import files_of, zipped
from tests.unit.workflow.test_flows_commands import run_flows
from tests.unit.workflow.visual.drawn import edges, flow, node, reading, runtime

if TYPE_CHECKING:
    from pathlib import Path

CHILD: dict[str, Any] = {
    **flow(
        reading("n", "n"),
        node("two", "multiply", pinDefaults={"b": 2}),
        node("e", "on_flow_end", "double"),
        wires=edges("s > e", "n.value > two.a", "two.result > e.double"),
    ),
    "id": "child",
}
ROOT: dict[str, Any] = {
    **flow(
        reading("n", "n"),
        node("c", "subflow", "n", subflowId="child"),
        node("e", "on_flow_end", "x"),
        wires=edges("s > c", "c > e", "n.value > c.n", "c.double > e.x"),
    ),
    "id": "root",
    "name": "The root",
    "interfaces": ["chat"],
}
ROOT["nodes"][2]["data"]["outputs"] = [{"id": "double"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two flows."""
    for drawing in (ROOT, CHILD):
        (tmp_path / f"{drawing['id']}.json").write_text(json.dumps(drawing), encoding="utf-8")
    return tmp_path


@pytest.mark.item(464, 467, 468)
def test_a_flow_is_packed_with_its_sub_flows_and_runs(folder: Path) -> None:
    """The same bytes each time; a sub-flow is that of the same bundle."""
    out = folder / "root.flow"
    pack_workflow_bundle(folder / "root.json", out, bundle_version="2")
    raw = out.read_bytes()
    bundle = pack_workflow_bundle(folder / "root.json", out, bundle_version="2")
    assert out.read_bytes() == raw
    assert bundle.manifest.entry.name == "The root"
    assert bundle.manifest.entry.interfaces == ("chat",)
    assert bundle.flow_json("child") == CHILD
    specs = {spec.workflow_id: spec for spec in bundle.specs()}
    assert sorted(specs) == ["root@2", "root@2.child"]
    driver = runtime(*specs.values())
    run_id = driver.start(specs["root@2"], vars={"n": 4})
    assert driver.tick(specs["root@2"], run_id).output == {"success": True, "x": 8}


@pytest.mark.item(468)
def test_a_sub_flow_that_is_not_there_is_named(folder: Path) -> None:
    """And one with mistakes; nothing is written."""
    out = folder / "root.flow"
    (folder / "child.json").write_text(json.dumps({**CHILD, "entryNode": "x"}), encoding="utf-8")
    with pytest.raises(FlowError, match=r"child\.json#/entryNode: there is no node 'x'"):
        pack_workflow_bundle(folder / "root.json", out, bundle_version="2")
    (folder / "child.json").unlink()
    with pytest.raises(WorkflowBundleError, match="refers to flow 'child'"):
        pack_workflow_bundle(folder / "root.json", out, bundle_version="2")
    assert not out.exists()


@pytest.mark.item(469)
def test_a_bundle_with_a_wrong_drawing_is_not_installed(tmp_path: Path) -> None:
    """One in which nothing is drawn yet is kept."""
    registry = WorkflowBundleRegistry(tmp_path)
    unknown = {**CHILD, "nodes": [*CHILD["nodes"][:1], {"id": "n", "type": "edit_image"}]}
    unknown["edges"] = edges("s > n")
    with pytest.raises(FlowError, match="nothing here executes the type 'edit_image'"):
        registry.install_bytes(zipped(files_of({"flows/child.json": json.dumps(unknown).encode()})))
    empty = json.dumps({"id": "child", "nodes": [], "edges": []}).encode()
    registry.install_bytes(zipped(files_of({"flows/child.json": empty})))
    with pytest.raises(FlowError, match="no node that execution could begin with"):
        open_workflow_bundle(zipped(files_of({"flows/child.json": empty}))).specs()


@pytest.mark.item(464)
async def test_commands_and_hosts_take_drawings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are checked and drawn; a host serves those of a folder."""
    done = await asyncio.to_thread(run_flows, capsys, "check", folder / "root.json")
    assert done[0] == Exit.OK
    (folder / "wrong.json").write_text(json.dumps({**ROOT, "entryNode": "x"}), encoding="utf-8")
    code, text = await asyncio.to_thread(run_flows, capsys, "check", folder / "wrong.json")
    assert (code, "wrong.json#/entryNode: there is no node 'x'" in text) == (Exit.FAILED, True)
    (folder / "wrong.json").unlink()
    code, text = await asyncio.to_thread(run_flows, capsys, "draw", folder / "root.json")
    assert (code, "<svg" in text) == (Exit.OK, True)
    async with Runtime() as host:
        await serve_all(host, {"f": find_served(str(folder))})
        run_id = await FlowRuns(host, "flows").start("root", vars={"n": 5})
        assert await host.result(run_id) == {"success": True, "x": 10}


@pytest.mark.item(464, 468)
def test_sequential_is_packed_into_each_flow(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a flow that is installed as it is; flows of a bundle stay as they are."""
    out, options = folder / "root.flow", ("--version", "2", "--sequential")
    assert run_flows(capsys, "pack", folder / "root.json", "-o", out, *options)[0] == Exit.OK
    bundle = open_workflow_bundle(out)
    assert [bundle.flow_json(name)["sequential"] for name in ("root", "child")] == [True, True]
    where = ("--directory", folder / "installed", *options)
    assert run_flows(capsys, "install", folder / "child.json", *where)[0] == Exit.OK
    installed = WorkflowBundleRegistry(folder / "installed").open("child")
    assert installed.flow_json("child") == {**CHILD, "sequential": True}
    code, text = run_flows(capsys, "install", out, *where)
    assert code != Exit.OK
    assert "Pack them again with --sequential" in text


@pytest.mark.item(471)
def test_inputs_are_those_pins_of_the_begin_that_can_be_read() -> None:
    """Whatever else an editor left there."""
    pins = [{"id": "a", "type": "list"}, {"id": {}}, {"id": "b", "type": {}}, 5]
    drawn = copy.deepcopy(ROOT)
    for outputs, names in ((pins, {"a": {"type": "array"}, "b": {}}), (5, {}), ({}, {})):
        drawn["nodes"][0]["data"] = {"outputs": outputs}
        assert input_schema(drawn)["properties"] == names
