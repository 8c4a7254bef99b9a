"""`callboard flows … --server` and `callboard graphs … --server`, with an API that is served at a socket."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from actors._inmemory.administration import BEARER, digest_of, new_secret
from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.administration import NewToken
from actors._workflow.installed import InstalledFlows
from compose._client import callboard
from compose._commands.output import Exit
from tests.behaviour.test_http_installs import REFUND
from tests.harness.proxy import FaultProxy
from tests.integration.compose.commandline import Cli
from tests.system.web.refunds import flows_served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from actors._runtime import Runtime
    from actors._workflow.hosted.runs import FlowRuns
    from tests.integration.compose.commandline import Said

pytestmark = pytest.mark.item(469)
GONE = ("show", "draw", "remove")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands of which none may use a database."""
    for name in ("CALLBOARD_POSTGRES_URL", "CALLBOARD_DATA_DIR", "CALLBOARD_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return Cli("", "", capsys)


async def run_command(cli: Cli, *words: object, at: str) -> Said:
    """Give one command, at this server."""
    return await asyncio.to_thread(cli.bare, *map(str, words), "--server", at)


def saved(folder: Path, name: str, **changes: Any) -> Path:
    """Save the flow `refund` with changes; return its file."""
    file = folder / name
    file.write_text(json.dumps({**REFUND, **changes}), encoding="utf-8")
    return file


async def token_of(runtime: Runtime, *scopes: Any, tenant: str = "default") -> str:
    """Create a token with these scopes."""
    secret = new_secret(BEARER)
    name = f"t{len(await runtime.store.data.tokens.list())}"
    new = NewToken(
        id=name,
        digest=digest_of(secret),
        name=name,
        tenant=tenant,
        principal="ada",
        scopes=scopes,
        expires_at=None,
    )
    await runtime.store.data.tokens.create(new)
    return secret


async def key_of_wait(runs: FlowRuns, run: RunId) -> str:
    """Return the key of a run's wait when it waits."""
    while not (waits := await runs.waits(run)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return str(waits[0].wait_key)


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """Yield the address of a server that gives each connection the next of these answers, and then ends it."""
    remaining_answers = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(remaining_answers.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_flows_of_a_server_are_checked_installed_and_shown(cli: Cli, tmp_path: Path) -> None:
    """The output is that of a folder or a database."""
    file, other = saved(tmp_path, "refund.json"), saved(tmp_path, "other.json", title="Other")
    wrong = saved(tmp_path, "wrong.json", start="aks")
    async with flows_served() as (url, _, _):
        empty = await run_command(cli, "flows", "list", at=url)
        fits = await run_command(cli, "flows", "check", file, at=url)
        still = await run_command(cli, "flows", "list", "--json", at=url)
        done = await run_command(cli, "flows", "install", file, at=url)
        again = await run_command(cli, "flows", "install", file, "--json", at=url)
        odd = await run_command(cli, "flows", "install", other, at=url)
        bad = await run_command(cli, "flows", "check", file, other, wrong, "--json", at=url)
        [bundle] = (await run_command(cli, "flows", "list", "--json", at=url)).data
        table = await run_command(cli, "flows", "list", at=f"{url}/")
        view = await run_command(cli, "flows", "show", "refund", "--json", at=url)
        drawn = await run_command(cli, "flows", "draw", "refund@1.2", at=url)
        both = await run_command(cli, "flows", "draw", "refund", "--flow", "x", at=url)
    assert empty.out.strip() == f"no bundles in {url}"
    assert fits.out.strip() == "1 flow document is right"
    assert still.data == []
    assert done.out.strip() == f"refund@1.2 is in {url}"
    assert again.data["hash"] == bundle["hash"] == view.data["hash"]
    assert (bundle["bundle_id"], bundle["installed_by"]) == ("refund", "local")
    assert bundle["file"] == f"{url}/v1/flows/refund@1.2/bundle"
    assert "refund@1.2" in table.out
    assert (odd.code, "other content" in odd.err) == (Exit.USAGE, True)
    findings = bad.data["findings"]
    assert [(finding["file"], finding["pointer"]) for finding in findings] == [
        (str(other), ""),
        (str(wrong), "/start"),
    ]
    assert "Give it another version" in findings[0]["remedy"]
    assert view.data["graphs"]["refund@1.2"]["entry_node"] == "ask"
    assert ET.fromstring(drawn.out).tag.endswith("svg")
    assert (both.code, "--flow do not go together" in both.err) == (Exit.USAGE, True)


async def test_a_flow_of_a_server_is_removed_when_no_run_needs_it(cli: Cli, tmp_path: Path) -> None:
    """All versions by the id. What is not there is not found."""
    file = saved(tmp_path, "refund.json")
    begin = ("graphs", "start", "installed", "refund@1.2", '{"order": {"total": 4}}', "--json")
    async with flows_served() as (url, _, runtime):
        await InstalledFlows().register(runtime)
        for version in ("1.2", "1.3"):
            await run_command(cli, "flows", "install", file, "--version", version, at=url)
        run = RunId((await run_command(cli, *begin, at=url)).data["run"])
        refusal = await run_command(cli, "flows", "remove", "refund@1.2", at=url)
        await runtime.cancel(run)
        await runtime.wait(run)
        removed = await run_command(cli, "flows", "remove", "refund", "--json", at=url)
        outputs = [await run_command(cli, "flows", word, "refund@1.2", at=url) for word in GONE]

    assert (refusal.code, "1 of its runs is open" in refusal.err) == (Exit.USAGE, True)
    assert removed.data == {"removed": 2}
    assert [output.code for output in outputs] == [Exit.NOT_FOUND] * len(GONE)


async def test_a_run_at_a_server_is_started_once_and_followed(cli: Cli) -> None:
    """Its records are printed as they are written; the exit code is that of its end."""
    begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--id", "r-7")
    async with flows_served() as (url, runs, _):
        first = (await run_command(cli, *begin, "--json", at=url)).data
        run = first["run"]
        following = asyncio.ensure_future(run_command(cli, *begin, "--follow", "--json", at=url))
        key = await key_of_wait(runs, run)
        await runs.resume(run, key, {"response": "no"})
        ended = await following
        text = await run_command(cli, *begin, "-f", at=url)
        failing = ("graphs", "start", "billing", "charges", '{"next": "charge"}', "--follow")
        failed = await run_command(cli, *failing, at=url)
        unknown = await run_command(cli, "graphs", "start", "billing", "nothing", at=url)
        ledger = await runs.ledger(run)

    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert (first["is_new"], lines[0]) == (True, {"run": run, "is_new": False})
    assert lines[1:-1] == ledger
    assert (ended.code, lines[-1]) == (Exit.OK, {"run": run, "status": "completed"})
    assert text.out.splitlines()[-1] == f"{run} is completed"
    assert "ask_user" in text.out
    assert (failed.code, failed.out.splitlines()[-1].split()[1:]) == (Exit.FAILED, ["is", "failed"])
    assert (unknown.code, "unknown_flow" in unknown.err) == (Exit.NOT_FOUND, True)


async def test_a_run_at_a_server_is_shown_and_answered(cli: Cli) -> None:
    """Its waits, records and chain, as with a database. A wait takes one answer."""
    async with flows_served() as (url, runs, _):
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--id", "r-7", "--json")
        run = (await run_command(cli, *begin, at=url)).data["run"]
        key = await key_of_wait(runs, run)
        open_ = await run_command(cli, "graphs", "show", run, at=url)
        view = (await run_command(cli, "graphs", "show", run, "--json", at=url)).data
        done = await run_command(cli, "graphs", "resume", run, key, '{"response": "yes"}', at=url)
        late = await run_command(cli, "graphs", "resume", run, key, '{"response": "no"}', at=url)
        event = ("graphs", "emit", "opened", "--json")
        while not (await run_command(cli, *event, at=url)).data["delivered"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        followed = await run_command(cli, "graphs", "ledger", run, "--follow", "--json", at=url)
        ledger = await runs.ledger(run)
        table = await run_command(cli, "graphs", "ledger", run, at=url)
        verdict = await run_command(cli, "graphs", "verify", run, "--json", at=url)
        wrong = await run_command(cli, "graphs", "verify", run, "--head", "0" * 64, at=url)
        run_list = await run_command(cli, "graphs", "list", "billing", "--limit", "1", at=url)
        pages = (
            await run_command(
                cli, "graphs", "list", "billing", "--flow", "refund", "--json", at=url
            )
        ).data
        over = await run_command(cli, "graphs", "cancel", run, at=url)
        unknown = await run_command(cli, "graphs", "show", "none", at=url)

    assert f"waits for user {key}: Refund 40 EUR? (yes / no)" in open_.out
    assert f"callboard graphs resume {run} {key} JSON --server {url}" in open_.out
    assert (view["wait"]["key"], view["node"]) == (key, "ask")
    assert done.out.strip() == f"answered {key}: the run continues"
    assert (late.code, "stale_resume" in late.err) == (Exit.FAILED, True)
    assert [json.loads(line) for line in followed.out.splitlines()] == ledger
    assert "wait_event" not in table.out
    assert "ask_user" in table.out
    assert verdict.data["count"] == len(ledger)
    assert (verdict.code, wrong.code, "IS BROKEN" in wrong.out) == (Exit.OK, Exit.FAILED, True)
    assert "there may be more: --after " in run_list.out
    assert [(row["run"], row["status"]) for row in pages] == [(run, "completed")]
    assert over.out.strip() == f"run {run} has ended COMPLETED already"
    assert (unknown.code, "none" in unknown.err) == (Exit.NOT_FOUND, True)


async def test_a_run_at_a_server_is_controlled(cli: Cli) -> None:
    """Paused, steered, limited, continued and stopped."""
    async with flows_served() as (url, runs, _):
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--json")
        run = (await run_command(cli, *begin, at=url)).data["run"]
        key = await key_of_wait(runs, run)
        outputs = [
            await run_command(cli, "graphs", "pause", run, "--reason", "look", at=url),
            await run_command(cli, "graphs", "steer", run, "be careful", at=url),
            await run_command(cli, "graphs", "limits", run, '{"max_iterations": 9}', at=url),
            await run_command(cli, "graphs", "resume", run, key, '{"response": "yes"}', at=url),
        ]
        while not (state := await runs.state(run)).vars["_runtime"].get("inbox"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        view = (await run_command(cli, "graphs", "show", run, "--json", at=url)).data
        outputs.append(await run_command(cli, "graphs", "resume-run", run, at=url))
        outputs.append(await run_command(cli, "graphs", "cancel", run, "--json", at=url))
        while not (await runs.state(run)).status.is_terminal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = await run_command(cli, "graphs", "list", "billing", "--status", "cancelled", at=url)
        two = ("--status", "failed", "--status", "running")
        many = await run_command(cli, "graphs", "list", "billing", *two, at=url)
        odd = await run_command(cli, "graphs", "list", "billing", "--status", "odd", at=url)

    assert [output.code for output in outputs] == [Exit.OK] * 6
    assert "be careful" in str(state.vars["_runtime"]["inbox"])
    assert (view["is_paused"], view["limits"]["iterations"]["max"]) == (True, 9)
    assert run in ended.out
    assert (many.code, "there is no such run" in many.out) == (Exit.OK, True)
    assert (odd.code, "cancelled" in odd.err) == (Exit.USAGE, True)


async def test_snapshots_at_a_server_are_stored_restored_and_deleted(cli: Cli) -> None:
    """By the app's name and the snapshot's id. The author is the token's principal."""
    begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--json")
    async with flows_served() as (url, runs, _):
        run = (await run_command(cli, *begin, at=url)).data["run"]
        await key_of_wait(runs, run)
        keep = ("graphs", "snapshot", run, "before the payment", "--tag", "prices")
        id_ = (await run_command(cli, *keep, at=url)).out.strip()
        printed = (await run_command(cli, *keep, "--print", at=url)).data
        by = await run_command(cli, *keep, "--by", "eve", at=url)
        few = ("graphs", "snapshots", "billing", "--tag", "prices", "--limit", "1")
        table = await run_command(cli, *few, at=url)
        snapshots = (await run_command(cli, *few, "--run", run, "--json", at=url)).data
        back = ("graphs", "restore", "billing", id_, "--id", "r-8", "--json")
        first, again = [(await run_command(cli, *back, at=url)).data["run"] for _ in range(2)]
        await key_of_wait(runs, RunId(first))
        other = await run_command(cli, "graphs", "restore", "other", id_, at=url)
        value = await run_command(cli, "graphs", "restore", "billing", json.dumps(printed), at=url)
        deletion = await run_command(cli, "graphs", "delete-snapshot", "billing", id_, at=url)
        late = await run_command(cli, "graphs", "delete-snapshot", "billing", id_, at=url)
        final_list = await run_command(cli, *few, at=url)

    assert (printed["name"], printed["tags"]) == ("before the payment", ["prices"])
    assert printed["run_state"]["current_node"] == "ask"
    assert (by.code, "the name of the token" in by.err) == (Exit.USAGE, True)
    assert id_ in table.out
    assert [(snapshot["snapshot"], snapshot["created_by"]) for snapshot in snapshots] == [
        (id_, "local")
    ]
    assert first == again != run
    assert (other.code, "is kept" in other.err) == (Exit.NOT_FOUND, True)
    assert (value.code, "the id of a stored snapshot" in value.err) == (Exit.USAGE, True)
    assert deletion.out.strip() == f"deleted {id_}"
    assert late.code == Exit.NOT_FOUND
    assert "there is no such snapshot of a run of billing" in final_list.out


async def test_the_token_is_in_a_file_or_a_variable(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, or without its scope, the refusal says what to give. It decides the tenant."""
    file, flow = tmp_path / "token", saved(tmp_path, "refund.json")
    async with flows_served(is_guarded=True) as (url, _, runtime):
        none = await run_command(cli, "flows", "list", at=url)
        file.write_text(await token_of(runtime, "flows:run", "flows:install") + "\n", "utf-8")
        by = ("--token-file", file)
        done = await run_command(cli, "flows", "install", flow, *by, "--json", at=url)
        monkeypatch.setenv("CALLBOARD_API_TOKEN", await token_of(runtime, "flows:run"))
        mine = await run_command(cli, "flows", "list", "--json", at=url)
        weak = await run_command(cli, "flows", "remove", "refund", at=url)
        far = await token_of(runtime, "flows:run", tenant="acme")
        monkeypatch.setenv("CALLBOARD_API_TOKEN", far)
        theirs = await run_command(cli, "flows", "list", "--json", at=url)
        away = await run_command(cli, "flows", "list", at="http://192.0.2.1:8123")
        monkeypatch.setenv("CALLBOARD_API_TOKEN", "two words")
        odd = await run_command(cli, "flows", "list", at=url)

    assert none.code == Exit.USAGE
    assert all(part in none.err for part in (url, "--token-file FILE", "CALLBOARD_API_TOKEN"))
    assert done.data["installed_by"] == "ada"
    assert [bundle["bundle_id"] for bundle in mine.data] == ["refund"]
    assert (weak.code, "flows:install" in weak.err) == (Exit.USAGE, True)
    assert theirs.data == []
    assert (away.code, "use https" in away.err) == (Exit.USAGE, True)
    assert (odd.code, "copy it again" in odd.err, "two words" in odd.err) == (2, True, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("flows", "list", "--directory", "x"), "--server and --directory do not go together"),
        (("flows", "list", "--shared"), "--server and --shared do not go together"),
        (("flows", "remove", "x", "--data", "d"), "--server and --data do not go together"),
        (("flows", "show", "x", "--tenant", "acme"), "the tenant of --server is that of the token"),
        (("graphs", "start", "a", "f", "--schema", "s"), "--server and --schema do not go"),
        (("graphs", "show", "x", "--data", "d"), "--server and --data do not go together"),
        (
            ("graphs", "emit", "x", "--tenant", "acme"),
            "the tenant of --server is that of the token",
        ),
        (("flows", "list", "--token-file", "/nothing/here"), "/nothing/here: No such file"),
    ],
)
async def test_options_of_another_place_are_refused(
    cli: Cli, words: tuple[str, ...], message: str
) -> None:
    """Before any request."""
    answer = await run_command(cli, *words, at="http://127.0.0.1:1")

    assert (answer.code in {Exit.USAGE, Exit.NOT_FOUND}, message in answer.err) == (True, True), (
        answer
    )


@pytest.mark.parametrize(
    "address",
    ["nowhere", "ftp://a", "http://", "http://a:b@c", "http://a?b=c", "http://[", "http://a:x"],
)
async def test_what_is_no_address_is_refused(cli: Cli, address: str) -> None:
    """With an example, and without a login that is in it."""
    answer = await run_command(cli, "flows", "list", at=address)

    assert answer.code == Exit.USAGE
    assert "--server" in answer.err
    assert "a:b@" not in answer.err
    alone = await asyncio.to_thread(cli.bare, "flows", "list", "--token-file", "x")
    assert (alone.code, "is for --server URL" in alone.err) == (Exit.USAGE, True)


async def test_servers_that_do_not_answer_are_named(cli: Cli, tmp_path: Path) -> None:
    """One that is not there, one of another kind, one that redirects, and one that dies in its answer."""
    page = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>"
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n"
    cut = b"HTTP/1.1 201 Created\r\ncontent-length: 500\r\n\r\n{"
    start = ("graphs", "start", "billing", "refund")
    steer = ("graphs", "steer", "0f3c", "be careful")
    closed = await run_command(cli, "flows", "list", at="http://127.0.0.1:1")
    bare = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    async with answering(page, moved, cut, cut, cut, cut, *[bare] * 4) as url:
        odd = await run_command(cli, "flows", "list", at=url)
        away = await run_command(cli, "flows", "list", "--json", at=url)
        lost = await run_command(cli, "flows", "install", saved(tmp_path, "refund.json"), at=url)
        begun = await run_command(cli, *start, at=url)
        steered = await run_command(cli, *steer, at=url)
        emitted = await run_command(cli, "graphs", "emit", "paid", at=url)
        bares = [
            await run_command(cli, "graphs", *words, at=url)
            for words in (["show", "x"], ["list", "a"], ["ledger", "x"], ["snapshots", "a"])
        ]

    assert (closed.code, "http://127.0.0.1:1: no answer" in closed.err) == (Exit.UNREACHABLE, True)
    assert "Start `callboard serve`, or correct --server" in closed.err
    assert (odd.code, "'<html>'" in odd.err, url in odd.err) == (Exit.FAILED, True, True)
    assert (away.code, "a redirect" in json.loads(away.err)["error"]) == (Exit.FAILED, True)
    assert (lost.code, "it is executed once" in lost.err) == (Exit.UNREACHABLE, True)
    assert (begun.code, "with --id " in begun.err) == (Exit.UNREACHABLE, True)
    look = f"Before you repeat it, look with `callboard graphs ledger 0f3c --server {url}`"
    assert (steered.code, look in steered.err) == (Exit.UNREACHABLE, True)
    assert (emitted.code, "with --id " in emitted.err) == (Exit.UNREACHABLE, True)
    assert [(output.code, "is none of the API" in output.err) for output in bares] == [
        (Exit.FAILED, True)
    ] * 4


async def test_a_start_whose_answer_is_lost_is_repeated_once(cli: Cli) -> None:
    """With the id that the error names, there is one run."""
    async with flows_served() as (url, runs, _), FaultProxy.to(url) as proxy:
        loss = proxy.lose_response(request_has=b"POST /v1/flows", response_ends=b"}")
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}')
        lost = await run_command(cli, *begin, at=proxy.through(url))
        await loss.happened.wait()
        key = lost.err.partition("--id ")[2].split()[0]
        again = await run_command(cli, *begin, "--id", key, "--json", at=url)
        records = await runs.ledger(again.data["run"])

    assert lost.code == Exit.UNREACHABLE
    assert again.data["is_new"] is False
    assert records


async def test_a_lost_stream_is_continued(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last record: none is missing and none comes twice. If it stays away, the run is named."""
    monkeypatch.setattr(callboard, "PAUSE_S", 0.01)
    begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--follow", "--json")
    async with flows_served() as (url, runs, _), FaultProxy.to(url) as proxy:
        at = proxy.through(url)
        run = (await run_command(cli, *begin[:-2], "--id", "a", "--json", at=url)).data["run"]
        loss = proxy.lose_response(request_has=b"/ledger?", response_ends=b"\r\n")
        following = asyncio.ensure_future(run_command(cli, *begin, "--id", "a", at=at))
        key = await key_of_wait(runs, run)
        await loss.happened.wait()
        await runs.resume(run, key, {"response": "no"})
        ended = await following
        ledger = await runs.ledger(run)
        other = (await run_command(cli, *begin[:-2], "--id", "b", "--json", at=url)).data["run"]
        loss = proxy.lose_response(request_has=b"/ledger?", response_ends=b"\r\n")
        following = asyncio.ensure_future(run_command(cli, *begin, "--id", "b", at=at))
        await loss.happened.wait()
        await proxy.__aexit__(None, None, None)
        cut_output = await following

    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert lines[1:-1] == ledger
    assert lines[-1]["status"] == "completed"
    assert cut_output.code == Exit.UNREACHABLE
    assert f"callboard graphs show {other}" in cut_output.err
