"""The audit: each change over HTTP is a row, with who made it, of what, and the values before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._runtime.client.approvals import Approvals
from tests.behaviour.agui import Counter, Thread, approve
from tests.behaviour.guarded import guarded_on
from tests.behaviour.test_http_access import crew, prepared
from tests.behaviour.test_pages import EVIL, page_of
from tests.behaviour.web import run_message, web_on

if TYPE_CHECKING:
    import pytest

    from tests.behaviour.bed import Bed
    from tests.behaviour.guarded import Guarded

HIDDEN = "[redacted]"


async def changes(guarded: Guarded, thing: str, tenant: str = "default") -> list[Any]:
    """Return what an operator sees of a thing's changes, the oldest first."""
    web = await guarded.client("eve", "operate", tenant=tenant)
    rows = (await web.get(f"/v1/audit?thing={thing}"))["changes"]
    assert {row["thing"] for row in rows} <= {thing}
    return [(row["action"], row["before"], row["after"], row["outcome"]) for row in reversed(rows)]


async def test_changes_of_a_session_tell_who_did_what(bed: Bed) -> None:
    """A change that is refused too; what was there already, reads and messages are no changes."""
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "sessions:own")
        thing = f"session:{guarded.app}/s"
        secret = {"password": "p", "note": "n"}
        for _ in range(2):
            await ada.post(
                "/v1/sessions",
                {"session_id": "s", "title": "one", "metadata": {"size": "x" * 5000}},
            )
        await run_message(ada, "/v1/sessions/s", "the user's words")
        await ada("PATCH", "/v1/sessions/s", {"title": "two"})
        await ada("PATCH", "/v1/sessions/s", {"metadata": secret})
        [node, *_] = (await ada.get("/v1/sessions/s/nodes"))["nodes"]
        last = (await ada.get("/v1/sessions/s"))["active_node"]
        node_path = "/v1/sessions/s/active-node"
        assert (await ada("PUT", node_path, {"node_id": "nowhere"})).status == 404
        assert (await ada("PUT", node_path, {"node_id": node["node_id"]})).status == 204
        session_changes = await changes(guarded, thing)
        rows = (await (await guarded.client("eve", "operate")).get("/v1/audit"))["changes"]

        assert [change[0] for change in session_changes] == [
            *("session.create", "session.relabel", "session.relabel"),
            *("session.switch", "session.switch"),
        ]
        assert session_changes[0][2].keys() == {"size_bytes"}, "it is too large"
        assert session_changes[0][2]["size_bytes"] > 5000
        assert session_changes[1] == ("session.relabel", {"title": "one"}, {"title": "two"}, "done")
        assert session_changes[2][2] == {"metadata": {"password": HIDDEN, "note": "n"}}
        assert session_changes[3][1:] == (
            {"active_node": last},
            {"active_node": "nowhere"},
            "unknown_node",
        )
        assert session_changes[4][1:] == (
            {"active_node": last},
            {"active_node": node["node_id"]},
            "done",
        )
        assert {row["principal"] for row in rows if row["thing"] == thing} == {f"ada-{guarded.app}"}
        assert "the user's words" not in str(rows)


async def test_rows_of_a_deleted_session_stay_without_values(bed: Bed) -> None:
    """They tell who deleted it; other sessions' rows keep theirs."""
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "sessions:own")
        for key in ("s", "other"):
            await ada.post("/v1/sessions", {"session_id": key, "title": "personal"})
        assert (await ada("DELETE", "/v1/sessions/s")).status == 200
        deleted_changes = await changes(guarded, f"session:{guarded.app}/s")
        other_changes = await changes(guarded, f"session:{guarded.app}/other")

        assert [change[0] for change in deleted_changes] == ["session.create", "session.delete"]
        assert "personal" not in str(deleted_changes)
        assert "personal" in str(other_changes)


async def test_changes_of_runs_approvals_and_graphs(bed: Bed) -> None:
    """A decision is of the session whose run asked; an answer to a wait is of the run, without its payload."""
    async with guarded_on(bed, await crew(bed)) as guarded:
        names = await prepared(bed, guarded)
        ada = await guarded.client("ada", "sessions:own", "flows:operate", "flows:run")
        approval, run = names["approval"], f"/v1/graph-runs/{names['graph_run']}"
        await ada.post(f"/v1/approvals/{approval}", {"approve": False, "comment": "private words"})
        await ada.post(f"{run}/limits", {"updates": {"max_iterations": 7}})
        await ada.post(f"{run}/steer", {"message": "private words"})
        await ada.post(f"{run}/waits/ok%2F1", {"payload": "private words"})
        late = await ada("POST", f"{run}/waits/ok%2F1", {"payload": 1})
        session_changes = await changes(guarded, f"session:{guarded.app}/s")
        graph = await changes(guarded, f"run:{names['graph_run']}")

        action, before, after, outcome = session_changes[-1]
        assert (action, outcome) == ("approval.decide", "done")
        assert (before["status"], after["status"]) == ("pending", "denied")
        assert after["approval"] == approval
        assert [change[0] for change in graph] == [
            *("snapshot.create", "run.limits", "run.steer"),
            *("wait.answer", "wait.answer"),
        ]
        assert graph[1][1].keys() == graph[1][2].keys() == {"max_iterations"}
        assert graph[1][2] == {"max_iterations": 7}
        assert graph[3][2:] == ({"wait": "ok/1"}, "done")
        assert graph[4][3] == late.data["code"]
        assert "private words" not in str((session_changes, graph))
        assert await changes(guarded, f"run:{names['graph_run']}", tenant="acme") == []


async def test_pages_of_the_audit_have_each_change_once(bed: Bed) -> None:
    """Of the principal's tenant alone; the query is checked."""
    async with guarded_on(bed) as guarded:
        ada = await guarded.client("ada", "sessions:own", tenant="acme")
        boss = await guarded.client("eve", "operate", tenant="acme")
        keys = [f"{n}-{guarded.app}" for n in range(3)]
        for key in keys:
            await ada.post("/v1/sessions", {"session_id": key})
        listed_keys: list[str] = []
        after = ""
        while True:
            page = await boss.get(f"/v1/audit?limit=1{after}")
            listed_keys += [change["thing"].rpartition("/")[2] for change in page["changes"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        statuses = [
            (await boss("GET", f"/v1/audit?{query}")).status
            for query in ("after=x", "after=0", "limit=501", "thing=", "thing=%00", "odd=1")
        ]

        assert [key for key in listed_keys if key in keys] == keys[::-1]
        assert await changes(guarded, f"session:{guarded.app}/{keys[0]}") == []
        assert statuses == [422, 422, 422, 422, 400, 422]


async def test_a_decision_by_ag_ui_is_a_change_of_the_thread(bed: Bed, app: str) -> None:
    """The same answer again changes nothing."""
    async with web_on(bed, Counter().agent(), app_name=app) as web:
        thread = Thread(web, f"/agui/{app}")
        first_events = await thread.ask("r1", "refund look_up")
        before = [*thread.messages]
        await thread.run("r2", resume=approve(first_events[-1]))
        await Thread(web, f"/agui/{app}", messages=before).run(
            "r2", resume=approve(first_events[-1])
        )
        [change] = (await web.get(f"/v1/audit?thing=session:{app}/t"))["changes"]

        assert (change["action"], change["outcome"]) == ("approval.decide", "done")
        assert change["after"]["status"] == "approved"
        assert change["principal"] == "local"


async def test_a_decision_that_another_client_made_first_is_not_this_ones(
    bed: Bed, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made between the look at the thread and the decision by AG-UI, which changes nothing then."""
    decide = Approvals.decide

    async def decide_second(approvals: Approvals, approval_id: str, **decision: Any) -> Any:
        await decide(approvals, approval_id, approve=True, by="somebody faster")
        return await decide(approvals, approval_id, **decision)

    desk = Counter()
    async with web_on(bed, desk.agent(), app_name=app) as web:
        thread = Thread(web, f"/agui/{app}")
        asked = await thread.ask("r1", "refund look_up")
        monkeypatch.setattr(Approvals, "decide", decide_second)
        await thread.run("r2", resume=approve(asked[-1]))
        found = (await web.get(f"/v1/audit?thing=session:{app}/t"))["changes"]

        assert found == []
        assert desk.paid == ["7"]


async def test_pages_show_changes_to_operators_and_nothing_in_them_acts(bed: Bed) -> None:
    """Of a session and of a run of a graph; others who see the page do not see them."""
    async with guarded_on(bed, await crew(bed)) as guarded:
        names = await prepared(bed, guarded)
        ada = await guarded.client("ada", "sessions:own", "flows:operate", "flows:run")
        boss = await guarded.client("eve", "sessions:all", "flows:run", "operate")
        session, run = f"/chat/{guarded.app}/s", f"/graph-runs/{names['graph_run']}"
        await ada("PATCH", "/v1/sessions/s", {"title": EVIL})
        await ada.post(f"/v1{run}/pause", {"reason": EVIL})
        for path, action in ((session, "session.relabel"), (run, "run.pause")):
            boss_page, ada_page = await page_of(boss, path), await page_of(ada, path)
            assert f"{action} by ada-{guarded.app}" in " ".join(boss_page.text.split())
            assert "alert(1)" in boss_page.text
            assert action not in ada_page.text
