"""`callboard approvals`: people look at what runs may not do by themselves, and decide."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext, Runtime
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


class Cashier:
    """Asks whether it may pay what its message says."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the decision."""
        approval = await ctx.approval("pay", inbox[0].payload, timeout=3600)
        return approval.model_dump(mode="json")


async def _ask(runtime: Runtime, amount: int) -> RunId:
    """A run that waits for a person, as rows."""
    run_id = await runtime.submit(AgentId("cashier", str(amount)), {"amount": amount})
    async with asyncio.timeout(20):
        while not await runtime.approvals.open(run_id=run_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return run_id


async def test_people_list_and_decide(cli: Cli) -> None:
    """Oldest first; a decision with a comment, by a beginning of the id, goes to the run."""
    async with cli.host(suspend_after=0) as runtime:
        await runtime.register_type("cashier", Cashier)
        first, second = await _ask(runtime, 1), await _ask(runtime, 2)
        rows = (await cli.call("approvals", "list", "--json")).data
        table = await cli.call("approvals", "list", "--limit", "1")
        ids = [row["id"] for row in rows]
        approve_output = await cli.call(
            "approvals", "approve", ids[0][:16], "--by", "Kim", "--comment", "called back"
        )
        deny_output = await cli.call("approvals", "deny", ids[1], "--json")
        async with asyncio.timeout(20):
            results: list[Any] = [await runtime.result(run_id) for run_id in (first, second)]
        none_left = await cli.call("approvals", "list")
        nothing = await cli.call("approvals", "list", "--json")

    assert [row["run_id"] for row in rows] == [first, second]
    assert [row["args"] for row in rows] == [{"amount": 1}, {"amount": 2}]
    assert {row["what"] for row in rows} == {"pay"}
    assert ids[0] in table.out
    assert ids[1] not in table.out
    assert approve_output.out == "approved: pay of cashier/1; the run continues\n"
    assert deny_output.data == {"id": ids[1], "run": second, "status": "denied"}
    assert results[0] == {"status": "approved", "by": "Kim", "comment": "called back"}
    assert (results[1]["status"], results[1]["comment"]) == ("denied", "")
    assert results[1]["by"]
    assert none_left.out == "no pending approvals\n"
    assert nothing.data == []


async def test_a_decision_waits_for_a_host(cli: Cli) -> None:
    """Made while no host runs; it counts when one does, and it is not listed meanwhile."""
    async with cli.host(suspend_after=0) as runtime:
        await runtime.register_type("cashier", Cashier)
        run_id = await _ask(runtime, 1)
    (request,) = (await cli.call("approvals", "list", "--json")).data
    first = await cli.call("approvals", "approve", request["id"], "--by", "Kim")
    second = await cli.call("approvals", "deny", request["id"], "--by", "Robin")
    list_output = await cli.call("approvals", "list", "--json")
    async with cli.host(suspend_after=0) as runtime:
        await runtime.register_type("cashier", Cashier)
        async with asyncio.timeout(20):
            decided = await runtime.result(run_id)

    assert (first.code, second.code) == (0, 4)
    assert list_output.data == []
    assert decided == {"status": "approved", "by": "Kim", "comment": ""}


def test_what_nobody_waits_for_is_refused(cli: Cli) -> None:
    """With 4 and the way to those that are open."""
    for word in ("approve", "deny"):
        output = cli("approvals", word, "3f2a")

        assert output.code == 4
        assert "3f2a" in output.err
        assert "approvals list" in output.err
