"""What principals of the API leave: tokens, and changes for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._kernel.stores.administration import NewAuditRow, NewToken

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.stores.administration import AuditStore, TokenStore


async def take_token(tokens: TokenStore, name: str, owner: str) -> None:
    """Make a token, use it and end it."""
    new = NewToken(
        id=name, digest=name, name=name, tenant="default", principal=owner, scopes=("operate",)
    )
    await tokens.create(new)
    assert await tokens.find(name) is not None
    assert await tokens.over([name]) == {}
    assert await tokens.revoke(name) is not None


async def make_change(audit: AuditStore, agent: AgentId, owner: str) -> None:
    """Write a change of an agent's session, and read it."""
    thing = f"session:{agent}"
    await audit.add(
        NewAuditRow(tenant="default", principal=owner, action="x", thing=thing, agent=agent)
    )
    for only in (None, thing):
        [row] = await audit.list("default", thing=only, limit=1)
        await audit.list("default", thing=only, after=row.id, limit=1)
