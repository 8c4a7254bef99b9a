"""A payment that waits for a person, for days if need be, and a person who decides.

Usage:
    python examples/approval/approval.py                # in memory: the person decides at once
    python examples/approval/approval.py --data DIR     # durable: three processes, one after the other
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import AgentId, Runtime
from compose import build_local_runtime

if TYPE_CHECKING:
    from actors import Message, RunContext

CASHIER = AgentId("cashier", "main")
LIMIT = 100
THREE_DAYS_S = 3 * 86_400.0


class Cashier:
    """Pays what it is asked to; above a limit a person has to agree first."""

    id = CASHIER

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return what became of the payment."""
        order: dict[str, Any] = inbox[0].payload  # type: ignore[assignment]
        if order["amount"] > LIMIT:
            # The decision counts for exactly this order, and once. Until it comes the run is a row.
            approval = await ctx.approval("pay", order, timeout=THREE_DAYS_S)
            if approval.status != "approved":
                return {"paid": False, "because": approval.status, "by": approval.by}
        await ctx.step("pay", pay, order, effect="at_most_once")
        return {"paid": True, "to": order["to"], "amount": order["amount"]}


def pay(order: dict[str, Any]) -> str:
    """Stand in for the bank."""
    print(f"  bank: {order['amount']} to {order['to']}")
    return "done"


async def ask(runtime: Runtime) -> None:
    """Order two payments; one needs no approval, the other one waits."""
    await runtime.register(Cashier())
    small = await runtime.submit(CASHIER, {"to": "Kim", "amount": 20})
    print("small payment:", await runtime.result(small))
    large = await runtime.submit(CASHIER, {"to": "Robin", "amount": 9000})
    async for entry in runtime.tail(large):
        if entry.kind == "ask.sent":
            break
    print(f"large payment: waits for a person (run {large[:8]})")


async def decide(runtime: Runtime) -> None:
    """Do what a person does: list the pending approvals, and approve them."""
    for request in await runtime.approvals.open():
        print(f"open: {request.what} {request.args}, asked by {request.agent_id}")
        await runtime.approvals.decide(request.id, approve=True, by="Alex", comment="checked")
        print("Alex approved it")


async def finish(runtime: Runtime) -> None:
    """Serve the cashier again and wait for the payment that was decided."""
    await runtime.register(Cashier())
    [newest] = await runtime.store.lists.runs(agent=CASHIER, limit=1)
    print("large payment:", await runtime.result(newest.run_id))


PARTS = {"ask": ask, "decide": decide, "finish": finish}


async def part(name: str, data: Path) -> None:
    """One process of three: nothing of it is in memory when the next one begins."""
    async with build_local_runtime(data, serve=name != "decide") as runtime:
        await PARTS[name](runtime)


async def in_memory() -> None:
    """All three in one process."""
    async with Runtime() as runtime:
        for one in PARTS.values():
            await one(runtime)


def main() -> None:
    """Run in memory, or as three processes over one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of durable servers; left out: memory")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data is None:
        asyncio.run(in_memory())
    elif given.part is not None:
        asyncio.run(part(given.part, given.data))
    else:
        for name in PARTS:
            command = [sys.executable, __file__, "--data", str(given.data), "--part", name]
            subprocess.run(command, check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    main()
