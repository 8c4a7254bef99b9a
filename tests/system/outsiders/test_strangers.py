"""External services with other clients: Node.js, a plain socket, a shell.

They run the programs of `examples/outside` against a host, and know one URL.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings
from examples.outside.agents import AGENTS
from tests.harness.proxy import FaultProxy
from tests.system.waiting import until
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.servers import OwnNats, TestPostgres

OUTSIDE: Final = ROOT / "examples" / "outside"
SOCKET: Final = (sys.executable, "-I", "-S", str(OUTSIDE / "socket_ask.py"))
"""Python without any installed package."""
PATIENCE_S: Final = 20.0
ERRORS: Final = [
    ("ask.v1.default.desk.k.crm", "{", "ce-id:1", 400),
    ("ask.v1.default.desk.k.crm", "{}", "Actor-Timeout:soon", 400),
    ("ask.v1.default.desk.%7Efan.crm", "{}", "ce-id:1", 403),
    ("ask.v1.default.nobody.k.crm", "{}", "ce-id:1", 404),
    ("ask.v1.default.desk.k.crm", '{"no": "text"}', "ce-id:1", 422),
    ("api.v1.default.crm.status", '{"run": "none"}', "ce-id:1", 404),
    ("api.v1.default.crm.dance", "{}", "ce-id:1", 400),
]
"""Subject, body, a header, and the code of the error."""
ENTRIES: Final = ["run.started", "llm.call", "run.completed"]
"""Some event names that every watched run has."""


class Output(NamedTuple):
    """Output and exit code of a program."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)

    @property
    def headers(self) -> dict[str, str]:
        """The output of the socket's program besides the answer."""
        return dict(line.split(": ", 1) for line in self.err.splitlines())


@dataclass(frozen=True, slots=True)
class Strangers:
    """Runs programs that know the URL of a broker, and reads the state of its host."""

    url: str
    runtime: Runtime

    async def run(self, *program: str) -> Output:
        """Run a program to its end."""
        async with self.running(*program) as process, asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Output(process.returncode, out.decode(), err.decode())

    @asynccontextmanager
    async def running(self, *program: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a program inside the block."""
        process = await asyncio.create_subprocess_exec(
            *program,
            env={**os.environ, "CALLBOARD_NATS_URL": self.url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def request(self, subject: str, body: object, *headers: str) -> Output:
        """Send a request over a plain socket; a body that is no text is sent as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)
        return await self.run(*SOCKET, self.url, subject, text, *headers)

    async def api(self, verb: str, body: object) -> Output:
        """Call an API verb as the service `crm`."""
        return await self.request(f"api.v1.default.crm.{verb}", body)

    async def waiting(self, key: str) -> str:
        """Start a run that waits for the signal `ok`, and return its id."""
        order = {"agent": f"desk/{key}", "payload": {"text": "to be or not", "wait": True}}
        started = await self.api("submit", order)
        assert started.code == 0, started
        return str(started.data["run"])

    async def watched(
        self, run: str, *program: str, disturb: Callable[[], None] = lambda: None
    ) -> tuple[str, int]:
        """Let a program watch a run that waits; signal the run when an event was received."""
        async with self.running(*program) as process, asyncio.timeout(PATIENCE_S):
            assert process.stdout is not None
            seen = [await process.stdout.readline()]
            disturb()
            signal_answer = await self.api(
                "signal", {"run": run, "name": "ok", "payload": None, "id": "s-1"}
            )
            assert signal_answer.data == {"accepted": True}
            seen += [line async for line in process.stdout]
            return b"".join(seen).decode(), await process.wait()


@pytest.fixture
async def strangers(
    postgres_server: TestPostgres, own_nats: OwnNats, schema: str
) -> AsyncIterator[Strangers]:
    """Yield a host that serves the example's agents, on a broker of its own: subjects have no prefix."""
    url = own_nats().url
    settings = Settings(db_schema=schema, suspend_after=0.05)
    async with build_runtime(url, postgres_server.url, settings=settings) as runtime:
        for name, factory in AGENTS.items():
            await runtime.register_type(name, factory)
        yield Strangers(url, runtime)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs in JavaScript, with the packages of NATS."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on this machine: install Node.js 18 or newer")
    folder = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(OUTSIDE / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    npm = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        problem = f"npm cannot install the packages of NATS: {done.stderr[-500:]}"
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)
    return folder


async def test_a_socket_asks_and_gets_the_answer(strangers: Strangers) -> None:
    """Hosts are found as a NATS service. The same id is the same run and the same answer, a CloudEvent."""
    event = ("ce-specversion:1.0", "ce-id:q-1", "ce-source:/orders", "ce-type:question")
    subject = "ask.v1.default.desk.a%20b.crm"

    service = await strangers.request("$SRV.PING.callboard", "")
    answers = [await strangers.request(subject, {"text": "to be"}, *event) for _ in range(2)]

    assert service.data["name"] == "callboard"
    assert [answer.data for answer in answers] == [{"answer": "TO BE", "source": "shelf 5"}] * 2
    first, second = (answer.headers for answer in answers)
    assert first["actor-run"] == second["actor-run"]
    assert first["actor-status"] == "COMPLETED"
    assert first["ce-specversion"] == "1.0"
    assert {"ce-id", "ce-source", "ce-type"} <= set(first)
    assert first["ce-id"] == second["ce-id"]


async def test_a_shell_asks_and_publishes(strangers: Strangers) -> None:
    """Bash alone is enough, also for characters of two bytes."""
    program = ("bash", str(OUTSIDE / "ask.sh"))
    answer = await strangers.run(*program, "ask.v1.default.desk.k.crm", '{"text": "große Wale"}')
    stored = await strangers.run(
        *program, "agent.v1.default.desk.k.ext.crm", '{"text": "x"}', "m-1"
    )
    failed = await strangers.run(*program, "ask.v1.default.desk.k.crm", "[")

    assert answer.data == {"answer": "GROSSE WALE", "source": "shelf 10"}
    assert stored.data["stream"].startswith("EDGE_")
    assert (failed.code, failed.data["error"]["code"]) == (1, 400)


async def test_errors_have_code_sentence_and_remedy(strangers: Strangers) -> None:
    """Each error has a code, a sentence and a remedy, and the program exits with 1."""
    for subject, body, header, code in ERRORS:
        answer = await strangers.request(subject, body, header)
        case = (subject, body, header, answer)

        assert (answer.code, answer.headers.get("nats-service-error-code")) == (1, str(code)), case
        assert answer.headers["nats-service-error"], case
        error = answer.data["error"]
        assert error["code"] == code, case
        assert error["type"], case
        assert error["message"], case
        assert error["remedy"], case


async def test_the_answer_of_a_timed_out_ask_can_be_read_later(strangers: Strangers) -> None:
    """408 has the run, which continues: it can be inspected, signalled and awaited."""
    question = {"text": "to be", "wait": True}
    late = await strangers.request(
        "ask.v1.default.desk.k.crm", question, "Nats-Msg-Id:q-1", "Actor-Timeout:1.5"
    )
    run = late.data["error"]["run"]
    status = await strangers.api("status", {"run": run})
    signal_answer = await strangers.api(
        "signal", {"run": run, "name": "ok", "payload": None, "id": "s-1"}
    )
    ended = await strangers.api("result", {"run": run, "timeout": 10})
    again = await strangers.api("cancel", {"run": run, "reason": "too late"})

    assert (late.code, late.data["error"]["code"]) == (1, 408)
    assert late.headers["actor-run"] == run
    assert status.data["status"] in {"PENDING", "RUNNING", "SUSPENDED"}
    assert signal_answer.data == {"accepted": True}
    assert ended.data["output"] == {"answer": "TO BE", "source": "shelf 5"}
    assert again.data == {"cancelled": False}


async def test_a_service_lets_an_agent_follow_and_posts(strangers: Strangers) -> None:
    """The post reaches the follower once, and after unfollow none does."""
    wish = {"agent": "reader/ann", "topic": "news/daily", "mode": "eager"}
    first = await strangers.api("follow", wish)
    post = {"headline": "rain"}
    stored = await strangers.request("topic.v1.default.news.daily.ext.crm", post, "Nats-Msg-Id:n-1")

    async def has_read() -> bool:
        runs = await strangers.runtime.store.lists.runs(limit=10)
        return any(run.result == [post] for run in runs)

    await until(has_read, "the reader has the post")
    unfollow_answers = [await strangers.api("unfollow", wish) for _ in range(2)]

    assert (first.code, first.data) == (0, {})
    assert stored.data["stream"].startswith("EDGE_")
    assert [answer.data["followed"] for answer in unfollow_answers] == [True, False]


async def test_a_socket_watches_a_run(strangers: Strangers) -> None:
    """Every entry once and in order, the pieces of the model's answer between them, then the end."""
    run = await strangers.waiting("k")
    body = json.dumps({"run": run, "from_seq": 0})
    subject = "api.v1.default.crm.events"

    text, code = await strangers.watched(run, *SOCKET, strangers.url, subject, body)
    rest = await strangers.api("events", {"run": run, "from_seq": 2})

    events = [json.loads(line) for line in text.splitlines()]
    entries = [event["seq"] for event in events if event["kind"] == "entry"]
    pieces = [event["data"]["text"] for event in events if event["kind"] == "delta"]
    assert code == 0
    assert entries == list(range(entries[0], entries[0] + len(entries)))
    assert set(ENTRIES) <= {event["name"] for event in events}
    assert "".join(pieces) == "TO BE OR NOT"
    assert (events[-1]["kind"], events[-1]["name"]) == ("end", "COMPLETED")
    later = [json.loads(line) for line in rest.out.splitlines()]
    assert [event["seq"] for event in later if event["kind"] == "entry"] == entries[
        entries.index(2) :
    ]


@pytest.mark.costly
async def test_node_publishes_asks_and_watches(strangers: Strangers, node: Path) -> None:
    """With the packages of NATS and none of our code."""

    def program(name: str, *arguments: str) -> tuple[str, ...]:
        return ("node", str(node / name), *arguments)

    published = await strangers.run(
        *program("publish.mjs", "desk", "n", "crm", "m-1", '{"text": "x"}')
    )
    asking = program("ask.mjs", "desk", "eu.west/a b", "crm", "q-1", '{"text": "große Wale"}')
    answers = [await strangers.run(*asking) for _ in range(2)]
    failed = await strangers.run(*program("ask.mjs", "desk", "n", "crm", "q-2", "{}"))
    run = await strangers.waiting("w")
    text, code = await strangers.watched(run, *program("watch.mjs", "crm", run))
    unknown = await strangers.run(*program("watch.mjs", "crm", "none"))

    assert published.data["stream"].startswith("EDGE_")
    assert [answer.data for answer in answers] == [
        {"answer": "GROSSE WALE", "source": "shelf 10"}
    ] * 2
    assert answers[0].err == answers[1].err  # the same run
    assert failed.code == 1
    assert failed.err.startswith("422 ")
    assert "\nTO BE OR NOT\n" in text
    assert text.splitlines()[-1].startswith('COMPLETED {"answer":"TO BE OR NOT"')
    assert code == 0
    assert unknown.code == 1


@pytest.mark.costly
async def test_node_continues_after_a_lost_connection(strangers: Strangers, node: Path) -> None:
    """No entry twice and none missing."""
    run = await strangers.waiting("w")
    async with FaultProxy.to(strangers.url) as proxy:
        far = replace(strangers, url=proxy.through(strangers.url))
        watch = ("node", str(node / "watch.mjs"), "crm", run)
        text, code = await far.watched(run, *watch, disturb=proxy.reset)

    seqs = [int(line.split()[0]) for line in text.splitlines() if re.match(r"\d+ [a-z.]+ ", line)]
    assert seqs == list(range(len(seqs)))
    assert "run.completed" in text
    assert code == 0
