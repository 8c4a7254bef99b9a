"""Text that no database takes is an error of the caller of sessions and runs of flows, on every backend."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from actors._kernel.stores.runs import RunFilter
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors.errors import ContractError
from actors.workflow import EffectType
from tests.behaviour.flow_stage import single, staged
from tests.behaviour.talks import Echo, sessions_on
from tests.behaviour.test_http_graphs import flowing, started

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.behaviour.bed import Bed

    Door = Callable[[Any], Awaitable[Any]]

ODD: Final = ("a\0b", "x\ud800")


async def refused(doors: Mapping[str, Door]) -> None:
    """Check that each call raises an error about its argument, or finds nothing."""
    for name, door in doors.items():
        for odd in ODD:
            outcome = None
            with suppress(ContractError, GraphError, StaleResumeError):
                outcome = await door(odd)
            assert not outcome, (name, odd, outcome)


async def test_calls_about_runs_of_flows_refuse_them(bed: Bed) -> None:
    """Also where they would be a part of a key."""
    ask = single(EffectType.ASK_USER, {"prompt": "?", "wait_key": "k"})
    stage = await staged(bed, ask)
    runs, run_id = stage.runs, await stage.runs.start("flow", id="r")
    await stage.waits(run_id)
    lists = bed.runtime.store.lists
    await refused(
        {
            "start": runs.start,
            "id": lambda odd: runs.start("flow", id=odd),
            "actor": lambda odd: runs.start("flow", actor_id=odd),
            "session": lambda odd: runs.start("flow", session_id=odd),
            "vars": lambda odd: runs.start("flow", vars={odd: 1}),
            "state": runs.state,
            "ledger": runs.ledger,
            "waits": runs.waits,
            "resume": lambda odd: runs.resume(odd, "k", 1),
            "resume key": lambda odd: runs.resume(run_id, odd, 1),
            "answer": lambda odd: runs.answer(odd, "k", 1),
            "answer key": lambda odd: runs.answer(run_id, odd, 1),
            "emit": runs.emit,
            "emit id": lambda odd: runs.emit("e", event_id=odd),
            "emit session": lambda odd: runs.emit("e", scope="session", session_id=odd),
            "emit workflow": lambda odd: runs.emit("e", scope="workflow", workflow_id=odd),
            "emit run": lambda odd: runs.emit("e", scope="run", run_id=odd),
            "cancel": runs.cancel,
            "cancel reason": lambda odd: runs.cancel(run_id, reason=odd),
            "pause": runs.pause_run,
            "pause reason": lambda odd: runs.pause_run(run_id, odd),
            "resume run": runs.resume_run,
            "steer": lambda odd: runs.steer(odd, "text"),
            "steer with": lambda odd: runs.steer(run_id, odd),
            "limits": lambda odd: runs.update_limits(odd, {"max_tokens": 5}),
            "limits with": lambda odd: runs.update_limits(run_id, {odd: 5}),
            "snapshot": lambda odd: runs.snapshot(odd, "name"),
            "snapshot name": lambda odd: runs.snapshot(run_id, odd),
            "snapshot tag": lambda odd: runs.snapshot(run_id, "name", tags=[odd]),
            "snapshot by": lambda odd: runs.snapshot(run_id, "name", by=odd),
            "snapshots": lambda odd: runs.snapshots(query=odd),
            "snapshots of": lambda odd: runs.snapshots(run=odd),
            "restore": runs.restore,
            "delete": runs.delete_snapshot,
            "runs of a type": lambda odd: lists.runs(among=RunFilter(type=odd)),
            "runs behind": lambda odd: lists.runs(among=RunFilter(after=odd)),
            "runs below": lambda odd: lists.runs(among=RunFilter(parent=odd)),
        }
    )
    state = await runs.state(run_id)
    assert (state.status.value, state.waiting is not None) == ("waiting", True)


async def test_calls_about_sessions_refuse_them(bed: Bed, app: str) -> None:
    """Those that the tests of sessions do not have: artifacts, rules for a busy session, nodes."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        await (await talks.start("x", session_id="s")).result()
        own = talks.artifacts("s")
        await own.put("name", b"1")

        async def read(odd: str) -> None:
            async for _ in own.read(odd):
                pass

        async def art_of(odd: str) -> Any:
            return await talks.artifacts(odd).list()

        await refused(
            {
                "conflict": lambda odd: talks.start("x", session_id="s", on_conflict=odd),
                "parent": lambda odd: talks.start("x", session_id="s", parent_node=odd),
                "switch": lambda odd: talks.switch_context("s", odd),
                "list": lambda odd: own.list(run_id=odd),
                "find": own.find,
                "read": read,
                "put": lambda odd: own.put(odd, b"2"),
                "delete": own.delete,
                "pins": own.pins,
                "artifacts": art_of,
            }
        )
        assert [artifact.name for artifact in await own.list()] == ["name"]


@pytest.mark.parametrize("odd", ODD)
async def test_over_http_they_are_errors_of_the_client(bed: Bed, odd: str) -> None:
    """In paths, queries and bodies."""
    async with flowing(bed) as (web, _, _):
        path = await started(web)
        for url in ("/v1/graph-runs/{}", "/v1/flows/{}", "/v1/graph-runs/{}/ledger"):
            answer = await web("GET", url.format(quote(odd, errors="surrogatepass")))
            assert answer.status in (400, 404, 422), (url, answer)
        for posted, body in (
            (f"{path}/waits/{quote(odd, errors='surrogatepass')}", {"payload": 1}),
            (f"{path}/cancel", {"reason": odd}),
            (f"{path}/pause", {"reason": odd}),
            (f"{path}/steer", {"message": odd}),
            (f"{path}/snapshots", {"name": odd}),
            ("/v1/flows/refund/runs", {"vars": {odd: odd}}),
            ("/v1/events", {"name": odd, "id": "e", "payload": {}}),
            ("/v1/events", {"name": "e", "scope": "session", "key": odd, "id": "e", "payload": {}}),
        ):
            answer = await web("POST", posted, body)
            assert 400 <= answer.status < 500, (posted, answer)
