"""Clean-up of sessions: what it deletes, a dry run that deletes nothing, and what is never deleted."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.boards import GlobalTaskStore
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.stores.data import Task
from actors._kernel.stores.memory import NewMemory
from actors._sessions.cleanup import delete_idle, delete_session
from actors.errors import ContractError
from actors.sessions import AgentRuntime, UnknownSessionError
from tests.behaviour.talks import Echo, path_texts, sessions_on

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

NO_RETRY = RetryPolicy(max_retries=0)
DAY = timedelta(days=1)
WORDS = ("done", "fails", "hangs", "helper")


async def some_artifacts(talks: AgentRuntime, session: str) -> None:
    """Put an artifact of each kind, of 10, 20 and 30 bytes, in this order."""
    await (await talks.start("hello", session_id=session)).result()
    own = talks.artifacts(session)
    await own.put("trace", b"d" * 10, kind="debug")
    await own.put("answer", b"r" * 20, kind="raw")
    await own.put("report", b"o" * 30)


async def names(talks: AgentRuntime, session: str) -> list[str]:
    """Return the names of a session's artifacts."""
    return [artifact.name for artifact in await talks.artifacts(session).list()]


@pytest.mark.item(386, 388)
def test_signatures_are_those_of_the_source_project() -> None:
    """Names, order and defaults; a dry run is the default."""

    def signature(method: Any) -> str:
        parts = list(inspect.signature(method).parameters.values())[1:]
        return ", ".join(
            part.name if part.default is part.empty else f"{part.name}={part.default}"
            for part in parts
            if part.kind is part.POSITIONAL_OR_KEYWORD
        )

    assert signature(AgentRuntime.cleanup_artifacts) == (
        "session_id=None, dry_run=True, include_all=False, older_than=None, max_bytes=None"
    )
    assert signature(AgentRuntime.cleanup_project_tasks) == (
        "project, dry_run=True, include_failed=False, include_cancelled=False, older_than=None"
    )


@pytest.mark.item(384, 388, 389)
async def test_debug_and_raw_artifacts_are_deleted_and_others_only_with_a_flag(
    bed: Bed, app: str
) -> None:
    """A dry run reports them, with bytes and reasons, and removes nothing."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        for session in ("s", "t"):
            await some_artifacts(talks, session)
        preview = await talks.cleanup_artifacts()
        assert preview.is_dry_run
        assert [
            (candidate.session_id, candidate.name, candidate.size_bytes)
            for candidate in preview.candidates
        ] == [("s", "trace", 10), ("s", "answer", 20), ("t", "trace", 10), ("t", "answer", 20)]
        assert preview.size_bytes == 60
        assert [candidate.reason for candidate in preview.candidates[:2]] == [
            "kind debug",
            "kind raw",
        ]
        whole = await talks.cleanup_artifacts("s", include_all=True)
        assert [candidate.reason for candidate in whole.candidates][
            -1
        ] == "kind ordinary, which include_all takes"
        assert await names(talks, "s") == ["answer", "report", "trace"]

        removal = await talks.cleanup_artifacts("s", dry_run=False)
        assert not removal.is_dry_run
        assert removal.candidates == preview.candidates[:2]
        assert await names(talks, "s") == ["report"]
        assert await names(talks, "t") == ["answer", "report", "trace"]
        await talks.cleanup_artifacts(dry_run=False, include_all=True)
        assert await names(talks, "s") == await names(talks, "t") == []
        while await talks.runtime.store.data.artifacts.collect(grace_s=0):
            pass
        assert (await talks.cleanup_artifacts(include_all=True)).candidates == ()


@pytest.mark.item(388)
async def test_age_and_bytes_limit_the_deletion(bed: Bed, app: str) -> None:
    """Old ones first, until the rest has at most the given bytes; young ones are never deleted."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        await some_artifacts(talks, "s")

        async def candidate_names(**options: Any) -> list[str]:
            report = await talks.cleanup_artifacts("s", include_all=True, **options)
            return [candidate.name for candidate in report.candidates]

        assert await candidate_names(max_bytes=60) == []
        assert await candidate_names(max_bytes=59) == ["trace"]
        assert await candidate_names(max_bytes=49) == ["trace", "answer"]
        assert await candidate_names(max_bytes=0) == ["trace", "answer", "report"]
        assert await candidate_names(older_than=DAY) == []
        assert await candidate_names(older_than=DAY, max_bytes=0) == []
        report = await talks.cleanup_artifacts("s", max_bytes=15)
        assert [candidate.name for candidate in report.candidates] == ["trace", "answer"]
        assert report.candidates[0].reason == "kind debug; the others would have more than 15 bytes"
        for wrong in ({"max_bytes": -1}, {"older_than": -DAY}):
            with pytest.raises(ContractError, match="0 or more"):
                await talks.cleanup_artifacts(**wrong)


class Worker:
    """A child whose message selects its end, and that keeps its messages."""

    def __init__(self, bed: Bed) -> None:
        self.id = bed.name("w")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Fail, wait without end, or answer."""
        task = str(inbox[0].payload)
        if task == "fails":
            raise ValueError("no")
        if task == "hangs":
            await ctx.sleep_until_signal("never")
        await ctx.memory.remember(f"{task} is done")
        return f"{task} done"


class Boss:
    """Spawns a task for each word of its message, and one child that is none."""

    def __init__(self, worker: Worker) -> None:
        self.id = worker.id
        self.worker = worker

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[str]:
        """Join the children that end."""
        ended = []
        text = str(inbox[0].payload)
        for word in [word for word in WORDS if word in text or word == "helper"]:
            handle = await ctx.spawn(
                self.worker.id.type,
                word,
                key=f"{ctx.agent_id.key}-{word}",
                retry_policy=NO_RETRY,
                task=None if word == "helper" else f"card {word}",
            )
            if word == "hangs":
                await ctx.cancel(handle)
            ended.append(str((await ctx.join(handle)).status))
        return ended


async def worked(bed: Bed, talks: AgentRuntime, session: str, words: str) -> dict[str, RunId]:
    """Run a session's tasks; return their runs by word."""
    run = await talks.start(words, session_id=session)
    await bed.result(run.run_id)
    return dict(zip([*words.split(), "helper"], await run.children(), strict=True))


async def boss_on(bed: Bed) -> Boss:
    """Return an agent that spawns tasks, and serve its worker."""
    worker = Worker(bed)
    await bed.runtime.register_type(worker.id.type, lambda _: worker)
    return Boss(worker)


@pytest.mark.item(383, 386, 387, 389)
async def test_logs_of_completed_tasks_are_deleted_and_others_only_with_a_flag(
    bed: Bed, app: str, tmp_path: Path
) -> None:
    """Of one project. The rows stay as tombstones with their status; a second clean-up finds nothing."""
    folder, other_folder = tmp_path / "here", tmp_path / "there"
    folder.mkdir()
    other_folder.mkdir()
    boss = await boss_on(bed)
    async with sessions_on(bed, {"normal": boss}, app=app, project_dir=folder) as talks:
        runs = await worked(bed, talks, "s", "done fails hangs")
        async with sessions_on(bed, None, app=app, project_dir=other_folder) as others:
            await worked(bed, others, "t", "done")

        preview = await talks.cleanup_project_tasks(folder)
        [candidate] = preview.candidates
        assert (candidate.run_id, candidate.session_id, candidate.task) == (
            runs["done"],
            "s",
            "card done",
        )
        assert (candidate.status, candidate.reason) == (RunStatus.COMPLETED, "task completed")
        assert candidate.entries == len(await bed.log(runs["done"]))
        assert preview.size_bytes == candidate.size_bytes > 0

        async def candidate_tasks(**options: Any) -> set[str]:
            report = await talks.cleanup_project_tasks(str(folder), **options)
            return {task.task for task in report.candidates}

        assert await candidate_tasks(include_failed=True) == {"card done", "card fails"}
        assert await candidate_tasks(include_cancelled=True) == {"card done", "card hangs"}
        assert await candidate_tasks(include_failed=True, older_than=DAY) == set()
        assert await bed.log(runs["done"]), "a dry run removes nothing"

        removal = await talks.cleanup_project_tasks(folder, dry_run=False)
        assert removal.candidates == preview.candidates
        row = await bed.row(runs["done"])
        assert (row.status, row.swept) == (RunStatus.COMPLETED, True)
        remaining = [word for word, run in runs.items() if not (await bed.row(run)).swept]
        assert remaining == ["fails", "hangs", "helper"]
        assert await candidate_tasks() == set()
        assert {
            candidate.session_id
            for candidate in (await talks.cleanup_project_tasks(other_folder)).candidates
        } == {"t"}
        assert (await talks.cleanup_project_tasks("/nowhere/at/all")).candidates == ()


@pytest.mark.item(390)
async def test_clean_up_never_deletes_memories_boards_or_nodes(bed: Bed, app: str) -> None:
    """They are the same before and after, with every flag on."""
    boss = await boss_on(bed)
    async with sessions_on(bed, {"normal": boss}, app=app) as talks:
        runs = await worked(bed, talks, "s", "done fails hangs")
        await (await talks.start("helper", session_id="s")).result()
        await talks.artifacts("s").put("report", b"x", kind="debug")
        agent = talks.agent_id("s")
        boards = GlobalTaskStore.get()
        cards = [Task(id=f"card {word}", title=word) for word in ("done", "fails")]
        await boards.create_task_list("s", agent, cards)
        tenant = bed.runtime.memory(talks.tenant)
        await tenant.put(NewMemory(id="m1", about="project:whales", text="whales are large"))

        async def stored_digest() -> str:
            store, digest = bed.runtime.store, hashlib.sha256()
            workers = [(await bed.row(run)).agent_id for run in runs.values()]
            memories = await tenant.page(limit=1000)
            assert len(memories) >= 3
            digest.update(repr(memories).encode())
            digest.update(repr(await boards.get_boards("s")).encode())
            for agent_id in [agent, *workers]:
                for info in await store.data.transcripts.sessions(agent_id):
                    digest.update(
                        repr(await store.data.transcripts.page(agent_id, info.name)).encode()
                    )
            digest.update(repr(await talks.path("s")).encode())
            return digest.hexdigest()

        before = await stored_digest()
        tasks = await talks.cleanup_project_tasks(talks.project, False, True, True, timedelta(0))
        artifacts = await talks.cleanup_artifacts(None, False, True, timedelta(0), 0)
        assert (len(tasks.candidates), len(artifacts.candidates)) == (3, 1)
        assert await stored_digest() == before


async def test_idle_sessions_are_deleted_and_no_others(bed: Bed, app: str) -> None:
    """Not a session with an open run, nor one used meanwhile; a deletion that started is completed."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        for key in ("idle", "begun", "used"):
            await (await talks.start("1", session_id=key)).result()
        gate = echo.hold("wait")
        waiting = await talks.start("wait", session_id="open")
        await bed.until(lambda: echo.asked[-1][-1] == "wait")
        await talks.artifacts("idle").put("x", b"1")
        store = talks.runtime.store.data.sessions
        await store.begin_delete(talks.agent_id("begun"))
        since = (await talks.session("used")).last_at
        assert await delete_session(bed.runtime, talks.agent_id("used"), unless_since=since) is None

        assert await delete_idle(bed.runtime, talks.tenant, app, ttl=DAY) == 0
        later = bed.runtime.clock.now() + timedelta(minutes=1)
        sessions = await store.idle(talks.tenant, app, before=later)
        assert {session.key for session in sessions} == {"idle", "begun", "used"}
        assert await delete_idle(bed.runtime, talks.tenant, app, ttl=-timedelta(minutes=1)) == 3
        for key in ("idle", "begun", "used"):
            with pytest.raises(UnknownSessionError):
                await talks.session(key)
        assert await names(talks, "idle") == []
        gate.set()
        await waiting.result()
        assert await path_texts(talks, "open") == ["wait", "echo: wait"]


async def test_a_host_of_an_app_deletes_long_idle_sessions(bed: Bed, app: str) -> None:
    """By the clock; a client does not."""
    if bed.backend != "memory":
        pytest.skip("minutes pass in virtual time")
    async with sessions_on(bed, Echo().agent(), app=app, ttl_days=600 / 86_400) as talks:
        await (await talks.start("1", session_id="old")).result()
        async with sessions_on(bed, None, app=app, ttl_days=60 / 86_400):
            await asyncio.sleep(540)
        await (await talks.start("2", session_id="young")).result()
        assert {row.agent_id.key for row in await talks.sessions()} == {"old", "young"}
        await asyncio.sleep(180)
        assert [row.agent_id.key for row in await talks.sessions()] == ["young"]
        await asyncio.sleep(540)
        assert await talks.sessions() == []


@pytest.mark.parametrize("days", [0, -1, float("nan"), 1e300])
def test_an_invalid_ttl_is_refused(days: float) -> None:
    """Days are above 0."""
    with pytest.raises(ContractError, match="ttl_days"):
        AgentRuntime(ttl_days=days)
