"""The life cycle of `AgentRuntime`, its project and its files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.agents import ReActAgent
from actors.sessions import AgentRuntime, ClosedError, ProjectError, project_folder, user_home
from actors.testing import ScriptedModel


class Resource:
    """Counts how often it was closed."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    async def aclose(self) -> None:
        """Close it."""
        self._log.append(self._name)


class Closing(ScriptedModel):
    """A model that counts how often it was closed."""

    def __init__(self, log: list[str]) -> None:
        super().__init__("hello")
        self._log = log

    async def aclose(self) -> None:
        """Close it."""
        self._log.append("model")


def list_entries(folder: Path) -> list[Path]:
    """Everything in a folder."""
    return sorted(folder.rglob("*"))


def agent(model: Any = None) -> ReActAgent:
    """An agent with one answer."""
    return ReActAgent("main", model=model or ScriptedModel("hello"))


@pytest.mark.item(344, 345)
async def test_leaving_the_block_closes_each_resource_once() -> None:
    """No task is left either."""
    log: list[str] = []
    before = asyncio.all_tasks()
    shared = agent(Closing(log))
    modes = {"normal": shared, "orchestrator": shared}
    resources = [Resource(log, "first"), Resource(log, "second")]
    async with AgentRuntime(agents=modes, resources=resources) as runtime:
        run = await runtime.start("hi")
        assert await run.result() == "hello"
    await runtime.close()
    assert log == ["second", "first", "model"]
    assert asyncio.all_tasks() == before


async def test_an_error_of_a_close_leaves_nothing_open() -> None:
    """It is raised when the others are closed."""
    log: list[str] = []
    before = asyncio.all_tasks()

    class Broken:
        def close(self) -> None:
            raise ValueError("broken")

    resources = [Resource(log, "first"), Broken(), Resource(log, "second")]
    runtime = AgentRuntime(agents=agent(Closing(log)), resources=resources)
    await runtime.open()
    with pytest.raises(ValueError, match="broken"):
        await runtime.close()

    assert log == ["second", "first", "model"]
    assert asyncio.all_tasks() == before


@pytest.mark.item(346, 347)
async def test_it_is_opened_and_closed_without_a_block_too() -> None:
    """Each twice; a closed one says so."""
    runtime = AgentRuntime(agents=agent())
    with pytest.raises(ClosedError, match="is not open"):
        await runtime.start("hi")
    await runtime.open()
    await runtime.open()
    assert await (await runtime.start("hi")).result() == "hello"
    await runtime.close()
    await runtime.close()
    with pytest.raises(ClosedError, match="was closed"):
        await runtime.start("hi")
    with pytest.raises(ClosedError, match="make another one"):
        await runtime.open()


@pytest.mark.item(357, 358)
def test_a_project_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present one by default, of a file the one that holds it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "app.py"
    file.write_text("")
    assert AgentRuntime().project == tmp_path
    assert AgentRuntime(file).project == tmp_path
    assert AgentRuntime(str(tmp_path)).project == tmp_path


@pytest.mark.item(359)
@pytest.mark.parametrize("name", ["missing", "missing/deeper", "a\0b"])
def test_a_project_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is made."""
    with pytest.raises(ProjectError, match="Name a folder that is there"):
        AgentRuntime(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_is_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    """It leads nowhere."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ProjectError):
        project_folder(tmp_path / "a")


@pytest.mark.item(360)
async def test_nothing_is_written_outside_of_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the project nor in the home of the user."""
    home, project, own = tmp_path / "home", tmp_path / "project", tmp_path / "own"
    for folder in (home, project):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert user_home() == home / ".callboard"
    monkeypatch.setenv("CALLBOARD_HOME", str(own))
    assert user_home() == own
    async with AgentRuntime(project, agents=agent()) as runtime:
        await (await runtime.start("hi", session_id="s")).result()
        await runtime.delete_session("s")
    assert list_entries(tmp_path) == [home, project]
