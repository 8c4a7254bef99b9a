"""`callboard flows`, and hosts that serve flows from files."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from actors._runtime import Runtime
from actors.errors import RegistrationError
from actors.workflow import FlowError, FlowRuns
from compose._cli import run
from compose._commands.output import Exit
from compose._host.loader import ServeError, find_served, serve_all
from tests.unit.workflow.test_bundles import CHILD, ROOT
from tests.unit.workflow.test_documents import REFUND

if TYPE_CHECKING:
    from pathlib import Path


def run_flows(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """Run a command; return its exit code and all that it said."""
    code = run(["flows", *map(str, words)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out + err


def test_check_says_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and programs; a warning refuses nothing, a file that is not there is named."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(ROOT), encoding="utf-8")
    bad.write_text(json.dumps({**ROOT, "start": "cal", "x": 1}), encoding="utf-8")
    alone = {**CHILD, "nodes": {**CHILD["nodes"], "alone": {"end": 1}}}
    (tmp_path / "warned.yaml").write_text(json.dumps(alone), encoding="utf-8")

    assert run_flows(capsys, "check", good) == (Exit.OK, "1 flow document is right\n")
    code, text = run_flows(capsys, "check", good, bad)
    assert (code, "bad.json#/x: 'x' is no word here. Remove it" in text) == (Exit.FAILED, True)
    code, text = run_flows(capsys, "check", tmp_path / "warned.yaml", "--json")
    (finding,) = json.loads(text)["findings"]
    assert (code, finding["level"], finding["pointer"]) == (Exit.OK, "warning", "/nodes/alone")
    code, text = run_flows(capsys, "check", tmp_path / "no.json")
    assert (code, "no.json: No such file" in text) == (Exit.NOT_FOUND, True)
    assert run_flows(capsys, "check")[0] == Exit.NOT_FOUND
    assert json.loads(run_flows(capsys, "schema")[1])["properties"]["flow"]["const"] == 1


@pytest.mark.item(468, 470)
def test_a_bundle_is_packed_installed_shown_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is refused says why, and changes nothing."""
    (tmp_path / "root.json").write_text(json.dumps(ROOT), encoding="utf-8")
    out, directory_option = tmp_path / "root.flow", ("--directory", tmp_path / "flows")
    code, text = run_flows(capsys, "pack", tmp_path / "root.json", "-o", out)
    assert (code, "refers to flow 'child', whose file is missing" in text) == (Exit.USAGE, True)
    (tmp_path / "child.json").write_text(json.dumps(CHILD), encoding="utf-8")

    assert run_flows(capsys, "pack", tmp_path / "root.json", "-o", out)[0] == Exit.OK
    assert run_flows(capsys, "list", *directory_option) == (
        Exit.OK,
        f"no bundles in {directory_option[1]}\n",
    )
    for _ in range(2):
        assert run_flows(capsys, "install", out, *directory_option) == (
            Exit.OK,
            f"root@1.0 is in {directory_option[1]}\n",
        )
    assert (
        run_flows(capsys, "pack", tmp_path / "root.json", "-o", out, "--asset", out)[0] == Exit.OK
    )
    code, text = run_flows(capsys, "install", out, *directory_option)
    assert (code, "Give it another version" in text) == (Exit.USAGE, True)
    assert (
        run_flows(capsys, "install", out, *directory_option, "--overwrite", "--json")[0] == Exit.OK
    )
    (bundle,) = json.loads(run_flows(capsys, "list", *directory_option, "--json")[1])
    assert (bundle["bundle_id"], bundle["bundle_version"]) == ("root", "1.0")
    view = json.loads(run_flows(capsys, "show", "root", *directory_option, "--json")[1])
    assert sorted(view["graphs"]) == ["root@1.0", "root@1.0.child"]
    assert "root@1.0.child" in run_flows(capsys, "show", "root@1.0", *directory_option)[1]
    assert run_flows(capsys, "remove", "root@1.0", *directory_option) == (Exit.OK, "1 removed\n")
    assert run_flows(capsys, "remove", "root@1.0", *directory_option)[0] == Exit.NOT_FOUND
    code, text = run_flows(capsys, "show", "root", *directory_option)
    assert (code, "not installed" in text) == (Exit.NOT_FOUND, True)


def test_a_foreign_flow_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Node by node: what it uses, what the host has to give, and what is not supported, with the way out."""
    nodes: list[dict[str, Any]] = [
        {"id": "begin", "type": "on_flow_start"},
        {"id": "ask", "type": "llm_call", "data": {"inputs": [{"id": "prompt", "type": "string"}]}},
        {"id": "odd", "type": "teleport"},
        {"id": "tell", "type": "answer_user"},
    ]
    names = [node["id"] for node in nodes]
    edges = [
        {"source": a, "sourceHandle": "exec-out", "target": b, "targetHandle": "exec-in"}
        for a, b in pairwise(names)
    ]
    edges += [edges[0] | {"target": "tell"}]
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text(json.dumps({"id": "f", "nodes": nodes, "edges": edges}), encoding="utf-8")
    good.write_text(json.dumps({"id": "f", "nodes": nodes[:2], "edges": edges[:1]}), "utf-8")

    code, text = run_flows(capsys, "import", "--report", bad, "--json")
    report = json.loads(text)
    assert (code, report["supported"]) == (Exit.FAILED, False)
    assert report["types"] == {"answer_user": 1, "llm_call": 1, "on_flow_start": 1, "teleport": 1}
    by_id = {node["id"]: node for node in report["nodes"]}
    assert [name for name in names if not by_id[name]["supported"]] == ["begin", "odd"]
    (finding,) = by_id["odd"]["findings"]
    assert (finding["pointer"], bool(finding["remedy"])) == ("/nodes/2/type", True)
    assert by_id["begin"]["findings"][0]["pointer"] == "/edges/3"
    assert by_id["ask"]["needs"] == "a handler of LLM_CALL"
    code, text = run_flows(capsys, "import", "--report", bad)
    assert (code, "nothing here executes the type 'teleport'" in text) == (Exit.FAILED, True)
    code, text = run_flows(capsys, "import", "--report", good)
    assert (code, "good.json: all of it is supported" in text) == (Exit.OK, True)
    (tmp_path / "own.json").write_text(json.dumps(ROOT), encoding="utf-8")
    code, text = run_flows(capsys, "import", "--report", tmp_path / "own.json")
    assert (code, "it is no VisualFlow" in text) == (Exit.USAGE, True)
    assert run_flows(capsys, "import", "--report", tmp_path / "no.json")[0] == Exit.NOT_FOUND


def test_a_flow_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a file of its own: well-formed, without anything from elsewhere, and hostile names stay text."""
    evil = "</text><script>alert(1)</script>"
    flow = {"flow": 1, "id": "f", "start": evil, "nodes": {evil: {"end": 1}}}
    (tmp_path / "f.json").write_text(json.dumps(flow), encoding="utf-8")
    (tmp_path / "refund.json").write_text(json.dumps(REFUND), encoding="utf-8")
    assert (
        run_flows(capsys, "draw", tmp_path / "refund.json", "-o", tmp_path / "r.svg")[0] == Exit.OK
    )
    code, text = run_flows(capsys, "draw", tmp_path / "f.json")
    drawn = ET.fromstring((tmp_path / "r.svg").read_text(encoding="utf-8"))
    names = [str(title.text) for title in drawn.iter("{http://www.w3.org/2000/svg}title")]

    assert sorted(names) == ["ask", "ask~", "check", "end", "no", "pay"]
    assert (code, "<script" in text) == (Exit.OK, False)
    ET.fromstring(text)
    assert json.loads(run_flows(capsys, "draw", tmp_path / "f.json", "--json")[1])["flow"] == "f"
    assert run_flows(capsys, "draw", tmp_path / "no.json")[0] == Exit.NOT_FOUND


async def test_a_host_serves_flows_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a document, a bundle, or a folder with both; what it cannot execute is refused at the start."""
    folder = tmp_path / "flows"
    folder.mkdir()
    (tmp_path / "root.json").write_text(json.dumps(ROOT), encoding="utf-8")
    (tmp_path / "child.json").write_text(json.dumps(CHILD), encoding="utf-8")
    (folder / "child.yaml").write_text(json.dumps(CHILD), encoding="utf-8")
    assert (
        run_flows(capsys, "pack", tmp_path / "root.json", "-o", folder / "root.flow")[0] == Exit.OK
    )
    async with Runtime() as runtime:
        await serve_all(runtime, {str(folder): find_served(str(folder))})
        runs = FlowRuns(runtime, "flows")
        assert await runtime.result(await runs.start("root@1.0", vars={"n": 4})) == 8
        assert await runtime.result(await runs.start("child", vars={"n": 1})) == 2

    (tmp_path / "refund.json").write_text(json.dumps(REFUND), encoding="utf-8")
    with pytest.raises(RegistrationError, match=r"node 'pay' has effect tool_calls, .*TOOL_CALLS"):
        find_served(str(tmp_path / "refund.json"))
    (tmp_path / "refund.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FlowError, match=r"refund\.json#/flow: 'flow' is missing"):
        find_served(str(tmp_path / "refund.json"))
    with pytest.raises(ServeError, match=r"nothing\.json: No such file"):
        find_served(str(tmp_path / "nothing.json"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServeError, match="no flow in it"):
        find_served(str(tmp_path / "empty"))


@pytest.mark.parametrize("ref", ["", ".", ".."])
def test_a_name_that_names_nothing_is_not_sent(
    capsys: pytest.CaptureFixture[str], ref: str
) -> None:
    """In a URL it would name all flows, or what is above them."""
    code, text = run_flows(capsys, "show", ref, "--server", "http://127.0.0.1:9")

    assert (code, "names nothing on the server" in text) == (Exit.USAGE, True)
