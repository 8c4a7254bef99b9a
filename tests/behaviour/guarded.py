"""The API with authentication, and its clients, each with the token of one principal."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors._inmemory.administration import BEARER, digest_of, new_secret
from actors._kernel.stores.administration import NewToken
from compose.web import Authentication, app
from tests.behaviour.talks import Echo, sessions_on
from tests.behaviour.web import WebClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from compose._web.identity.authentication import Recognize
    from tests.behaviour.bed import Bed


@dataclass(slots=True)
class Guarded:
    """An API that authenticates its clients.

    Attributes: bed: The host behind it. app: The type of its sessions. web: A client without a
    token. authentication: The API's authentication. secrets: The secrets of all tokens that were
    made.
    """

    bed: Bed
    app: str
    web: WebClient
    authentication: Authentication
    secrets: list[str] = field(default_factory=list)

    async def token(
        self,
        name: str,
        *scopes: str,
        tenant: str = "default",
        expires_at: datetime | None = None,
        called: str = "",
    ) -> str:
        """Make a token of a principal of this test, and return its secret."""
        secret = new_secret(BEARER)
        self.secrets.append(secret)
        new = NewToken(
            id=secrets.token_hex(8),
            digest=digest_of(secret),
            name=called or secrets.token_hex(8),
            tenant=tenant,
            principal=f"{name}-{self.app}",
            scopes=scopes,
            expires_at=expires_at,
        )
        await self.bed.runtime.store.data.tokens.create(new)
        return secret

    async def client(self, name: str, *scopes: str, tenant: str = "default") -> WebClient:
        """Return a client with a token of this principal."""
        return self.with_token(await self.token(name, *scopes, tenant=tenant))

    def with_token(self, secret: str) -> WebClient:
        """Return a client that sends this bearer token."""
        return WebClient(self.web._app, headers={"authorization": f"Bearer {secret}"})


@asynccontextmanager
async def guarded_on(
    bed: Bed, agents: Any = None, *, recognize: Recognize | None = None, **options: Any
) -> AsyncIterator[Guarded]:
    """Yield an API with authentication, of sessions of a new type with these agents."""
    name = bed.name().type
    agents = Echo().agent() if agents is None else agents
    modes = tuple(agents) if isinstance(agents, dict) else ("normal",)
    async with sessions_on(bed, agents, app=name) as talks:
        runtime = bed.runtime
        who = Authentication(runtime.store.data.tokens, runtime.clock, recognize)
        web = WebClient(app(talks, modes=modes, authenticate=who, **options))
        yield Guarded(bed, name, web, who)
