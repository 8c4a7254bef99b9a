"""Flows that are installed over HTTP: identified by content, refused as a whole, shown, drawn, removed."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pytest

from actors._workflow.bundles import open_workflow_bundle
from compose._web.flows import flows
from compose._web.pages.flows import flows as flow_pages
from compose.web import app
from tests.behaviour.guarded import guarded_on
from tests.behaviour.test_pages import page_of
from tests.behaviour.web import WebClient
from tests.harness import slow
from tests.unit.workflow.spoiling import spoilt
from tests.unit.workflow.test_bundles import CHILD, ROOT, files_of, zipped
from tests.unit.workflow.visual.drawn import edges, flow, node, reading

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed

pytestmark = pytest.mark.item(470, 471)
REFUND: Final[dict[str, Any]] = {
    "flow": 1,
    "id": "refund",
    "version": "1.2",
    "title": "Refunds",
    "start": "ask",
    "nodes": {
        "ask": {
            "effect": "ask_user",
            "with": {"prompt": "Refund ${vars.order.total}?", "wait_key": "ok"},
            "into": "answer",
            "next": "e",
        },
        "e": {"end": "${vars.answer.response}"},
    },
}
YAML: Final = b"flow: 1\nid: plain\nstart: e\nnodes:\n  e: {end: 1}\n"
DRAWN: Final[dict[str, Any]] = {
    **flow(reading("n", "n"), node("e", "on_flow_end", "x"), wires=edges("s > e", "n.value > e.x")),
    "id": "drawn",
    "version": "3",
}
MUTATED: Final = 2000 if slow.IS_SLOW else 200
WIDE: Final[dict[str, Any]] = {
    **flow(
        node("p", "parallel"),
        node("l", "loop", pinDefaults={"items": [1]}),
        node("q", "ask_user", "prompt", entryRoutes=[], inputRouteOverrides={"prompt": {}}),
        node("w", "switch", switchConfig={"cases": [{"id": "1", "value": 1}]}),
        node("f", "function", expression="a + 1"),
        node("c", "concat", concatConfig={"separator": ","}),
        node("g", "agent", subflowId="root"),
        node("t", "on_schedule", eventConfig={"schedule": "5m"}),
        node("e", "on_flow_end", "x", pinExpressions={"x": "value + vars.n"}),
        wires=edges("s > p", "p.then:0 > l", "l.loop > q", "p.completed > w", "w.case:1 > e")
        + edges("c.result > q.prompt", "l.item > c.a", "c.result > e.x", "f.result > c.b")
        + edges("p.then:1 > g", "g.response > f.a", "t > q"),
    ),
    "id": "child",
    "sequential": False,
    "functions": [{"name": "f", "code": "def f(x):\n    return x"}],
}
DRAWN["nodes"][0]["data"] = {
    **DRAWN["nodes"][0].get("data", {}),
    "outputs": [{"id": "exec-out", "type": "execution"}, {"id": "n", "type": "number"}],
}


def with_own_name(bed: Bed, data: dict[str, Any]) -> tuple[str, bytes]:
    """Return the same flow under a name of this test, and its bytes."""
    name = f"{data['id']}-{bed.name().type}"
    return name, json.dumps({**data, "id": name}).encode()


def bundle_at(bed: Bed) -> tuple[str, dict[str, bytes]]:
    """Return a name of this test, and the files of a bundle."""
    name = f"b-{bed.name().type}"
    return name, files_of(bundle_id=name)


async def test_flows_of_each_kind_are_told_apart_by_content(bed: Bed) -> None:
    """A flow document, YAML, a VisualFlow and a bundle; an installed flow is found in any process."""
    web = WebClient(app(bed.runtime))
    refund, document = with_own_name(bed, REFUND)
    drawn, drawing = with_own_name(bed, DRAWN)
    name, files = bundle_at(bed)
    plain = f"plain-{name}"
    yaml = YAML.replace(b"plain", plain.encode())
    first = await web("POST", "/v1/flows", document)
    again = await web("POST", "/v1/flows", document)
    await web.post("/v1/flows?version=7", yaml)
    await web.post("/v1/flows", drawing)
    await web.post("/v1/flows", zipped(files))

    assert (first.status, again.status, again.data) == (201, 200, first.data)
    assert first.headers["location"] == f"/v1/flows/{refund}@1.2"
    assert first.data["title"] == "Refunds"
    assert first.data["installed_by"] == "local"
    async with bed.client("serve") as elsewhere:
        other_web = WebClient(app(elsewhere))
        installed_flows = {flow["flow"] for flow in (await other_web.get("/v1/flows"))["installed"]}
        assert installed_flows >= {f"{refund}@1.2", f"{plain}@7", f"{drawn}@3", f"{name}@1"}
        assert await other_web.get(f"/v1/flows/{refund}") == first.data
        assert await other_web.get(f"/v1/flows/{refund}@1.2") == first.data
        svg = await other_web("GET", f"/v1/flows/{refund}/svg")
        assert (svg.status, svg.headers["content-type"]) == (200, "image/svg+xml")
        assert b"<svg" in svg.body
        schema = await other_web.get(f"/v1/flows/{refund}/schema")
        assert schema["properties"] == {"order": {}}
        schema = await other_web.get(f"/v1/flows/{drawn}@3/schema")
        assert schema["properties"] == {"n": {"type": "number"}}


async def test_other_content_of_one_version_is_a_conflict(bed: Bed) -> None:
    """The installed content stays."""
    web = WebClient(app(bed.runtime))
    name, document = with_own_name(bed, REFUND)
    first = await web.post("/v1/flows", document)
    other = await web("POST", "/v1/flows", document.replace(b"Refunds", b"Others"))

    assert (other.status, other.data["code"], other.data["name"]) == (
        409,
        "flow_exists",
        f"{name}@1.2",
    )
    assert await web.get(f"/v1/flows/{name}") == first


async def test_a_dry_run_checks_a_flow_and_installs_nothing(bed: Bed) -> None:
    """Like an install, with its refusals; it needs the scope of an install and is in no audit."""
    name, document = with_own_name(bed, REFUND)
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "flows:install", "flows:run", "operate")
        runner = await guarded.client("bob", "flows:run")
        first = await ada("POST", "/v1/flows?dry_run=true", document)
        assert (await ada("GET", f"/v1/flows/{name}")).status == 404
        assert (await runner("POST", "/v1/flows?dry_run=true", document)).status == 403
        installation = await ada.post("/v1/flows", document)
        again = await ada("POST", "/v1/flows?dry_run=true", document)
        other = document.replace(b"Refunds", b"Others")
        odd = await ada("POST", "/v1/flows?dry_run=true", other)
        rows = (await ada.get(f"/v1/audit?thing=flow:{name}"))["changes"]
        file = await runner("GET", f"/v1/flows/{name}@1.2/bundle")

    assert (first.status, first.data["hash"]) == (200, installation["hash"])
    assert (first.data["installed_by"], first.data["installed_at"]) == ("", None)
    assert (again.status, again.data) == (200, installation)
    assert (odd.status, odd.data["code"]) == (409, "flow_exists")
    assert [row["action"] for row in rows] == ["flow.install"]
    assert open_workflow_bundle(file.body).hash == installation["hash"]
    assert len(file.body) == installation["size_bytes"]
    assert file.headers["content-disposition"] == f'attachment; filename="{name}@1.2.flow"'


async def test_all_mistakes_are_reported_at_once(bed: Bed) -> None:
    """With file, pointer and remedy; nothing is installed."""
    web = WebClient(app(bed.runtime))
    name, files = bundle_at(bed)
    child = {**CHILD, "start": "x", "colour": "red"}
    wrong = await web("POST", "/v1/flows", json.dumps(child).encode())
    files["flows/child.json"] = json.dumps({**CHILD, "start": "x"}).encode()
    packed = await web("POST", "/v1/flows", zipped(files))
    lone = await web("POST", "/v1/flows", json.dumps(ROOT).encode())
    bare = await web("POST", "/v1/flows", json.dumps(CHILD).encode())

    assert (wrong.status, wrong.data["code"]) == (422, "flow_refused")
    assert wrong.data["errors"][0]["where"] == "flow.json#/colour"
    assert packed.data["errors"][0]["where"] == f"{name}@1/flows/child.json#/start"
    assert all(error["remedy"] for error in (*wrong.data["errors"], *packed.data["errors"]))
    assert (lone.status, lone.data["code"]) == (422, "bundle_refused")
    assert "refers to flow 'child'" in lone.data["detail"]
    assert "has no version" in bare.data["detail"]
    assert (await web("GET", f"/v1/flows/{name}")).status == 404
    for path in ("nothing@1", "nothing/svg", "nothing/schema"):
        assert (await web("GET", f"/v1/flows/{path}")).data["code"] == "unknown_flow"


async def test_unsafe_or_too_large_bundles_are_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the limits of bundles, and of the body before it is parsed."""
    web = WebClient(app(bed.runtime))
    name, files = bundle_at(bed)
    bad = {
        "out": zipped({**files, "../out": b"x"}),
        "absolute": zipped({**files, "/out": b"x"}),
        "link": zipped({**files, "link": b"/etc/passwd"}, link=0o120777),
        "twins": zipped({**files, "FLOWS/CHILD.json": b"{}"}),
        "bomb": zipped({**files, "assets/bomb": bytes(8 * 2**20)}),
        "cut": zipped(files)[:-30],
        "name": json.dumps({**DRAWN, "id": "a/b"}).encode(),
        "title": json.dumps({**DRAWN, "name": "\ud800"}).encode(),
        "description": json.dumps({**DRAWN, "description": "\ud800"}).encode(),
        "text": zipped({**files, "manifest.json": b'{"metadata": "\\ud800"}'}),
        "surrogate": zipped(files_of(bundle_id=name, metadata={"a": "\ud800"})),
        "deep": zipped(files_of(bundle_id=name, metadata={"a": json.loads("[" * 400 + "]" * 400)})),
    }
    for what, data in bad.items():
        answer = await web("POST", "/v1/flows", data)
        assert (answer.status, answer.data["code"]) == (422, "bundle_refused"), (what, answer)
    monkeypatch.setattr(flows, "MAX_BUNDLE_BYTES", 100)
    large = await web("POST", "/v1/flows", zipped(files))

    assert (large.status, large.data["code"]) == (413, "too_large")
    assert (await web("GET", f"/v1/flows/{name}")).status == 404


async def test_mutated_bundles_are_never_partly_installed(bed: Bed) -> None:
    """Bits, cuts and doubled bytes; values, names and nodes that are wrong: installed whole, or refused."""
    web, chance = WebClient(app(bed.runtime)), random.Random(7)
    _, files = bundle_at(bed)
    statuses = set()
    for n in range(MUTATED):
        data = (_cut if n % 2 else _misdrawn)(files, n // 2, chance)
        answer = await web("POST", f"/v1/flows?version=m{n}", data)
        assert answer.status in {200, 201, 400, 409, 422}, (n, answer)
        statuses.add(answer.status)
        if answer.status == 201:
            flow_path = f"/v1/flows/{quote(answer.data['flow'], safe='@')}"
            assert await web.get(flow_path) == answer.data
            assert (await web("GET", f"{flow_path}/svg")).status in {200, 404}, n
            assert (await web("DELETE", flow_path)).status == 204

    assert statuses >= {201, 422}


def _cut(files: dict[str, bytes], n: int, chance: random.Random) -> bytes:
    kinds = [zipped(files), files["flows/child.json"], json.dumps(DRAWN).encode(), YAML]
    data = bytearray(kinds[n % len(kinds)])
    for _ in range(chance.randrange(1, 6)):
        position = chance.randrange(len(data) or 1)
        match chance.randrange(3):
            case 0 if data:
                data[position] ^= 1 << chance.randrange(8)
            case 1:
                del data[position : position + chance.randrange(1, 40)]
            case _:
                data[position:position] = data[position : position + 20]
    return bytes(data)


def _misdrawn(files: dict[str, bytes], n: int, chance: random.Random) -> bytes:
    name = [None, *files][n % (len(files) + 1)]
    if name is None:
        return spoilt(DRAWN if n % 2 else REFUND, chance)
    flow = WIDE if name != "manifest.json" and chance.random() < 0.5 else json.loads(files[name])
    return zipped({**files, name: spoilt(flow, chance)})


async def test_one_of_concurrent_installs_wins(bed: Bed) -> None:
    """The others are conflicts."""
    web = WebClient(app(bed.runtime))
    name, document = with_own_name(bed, REFUND)
    bodies = [document.replace(b"Refunds", b"Refund%d" % n) for n in range(4)]
    answers = await asyncio.gather(*(web("POST", "/v1/flows", body) for body in bodies))

    assert sorted(answer.status for answer in answers) == [201, 409, 409, 409]
    [won] = [answer.data for answer in answers if answer.status == 201]
    assert await web.get(f"/v1/flows/{name}") == won


async def test_flows_belong_to_a_tenant_and_installs_need_a_scope(bed: Bed) -> None:
    """Another tenant does not see them; the scope to run flows does not allow to install them."""
    async with guarded_on(bed) as guarded:
        name, document = with_own_name(bed, REFUND)
        ada = await guarded.client("ada", "flows:install", "flows:run")
        runner = await guarded.client("bob", "flows:run")
        far = await guarded.client("ada", "flows:install", "flows:run", tenant="acme")
        installation = await ada.post("/v1/flows", document)

        assert (await runner("POST", "/v1/flows", document)).status == 403
        assert (await runner("DELETE", f"/v1/flows/{name}")).status == 403
        assert (await runner.get(f"/v1/flows/{name}"))["installed_by"] == installation[
            "installed_by"
        ]
        assert (await far("GET", f"/v1/flows/{name}")).status == 404
        assert (await far("DELETE", f"/v1/flows/{name}")).status == 404
        assert (await ada("DELETE", f"/v1/flows/{name}@1.2")).status == 204
        assert (await ada("GET", f"/v1/flows/{name}")).status == 404


async def test_a_removal_reads_the_rows_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a version, of all versions, and of what is not there."""
    web = WebClient(app(bed.runtime))
    name, document = with_own_name(bed, REFUND)
    kind = type(bed.runtime.store.data.flow_bundles)
    reads: list[str] = []
    for verb in ("get", "list"):
        read = getattr(kind, verb)

        def counted(*args: Any, read: Any = read, verb: str = verb) -> Any:
            reads.append(verb)
            return read(*args)

        monkeypatch.setattr(kind, verb, counted)
    for version in ("1.2", "1.3"):
        await web.post(f"/v1/flows?version={version}", document)

    for flow_id, status in ((f"{name}@1.2", 204), (name, 204), (name, 404), (f"{name}@1.3", 404)):
        reads.clear()
        assert (await web("DELETE", f"/v1/flows/{flow_id}")).status == status
        assert reads == ["list"], flow_id


async def test_pages_show_installed_flows(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the list, and each with its drawing; the cache holds few of them."""
    monkeypatch.setattr(flow_pages, "MOST_INSTALLED", 1)
    web = WebClient(app(bed.runtime))
    refund, document = with_own_name(bed, REFUND)
    drawn, drawing = with_own_name(bed, DRAWN)
    for body in (document, drawing):
        await web.post("/v1/flows", body)

    links = (await page_of(web, "/flows")).links()
    for name, nodes in ((f"{refund}@1.2", 2), (f"{drawn}@3", 2), (f"{refund}@1.2", 2)):
        [here] = [link for link in links if unquote(link) == f"/flows/installed/{name}"]
        page = await page_of(web, here)
        assert name in page.text
        assert len(page.all("g", "node")) == nodes
    assert "no flow" in (await page_of(web, "/flows/installed/nothing", 404)).text
    assert (await page_of(web, f"/flows/installed/{refund}")).text.count(f"{refund}@1.2") > 0
