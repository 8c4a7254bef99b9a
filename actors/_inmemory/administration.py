"""Administration of one process: audit rows, API tokens with their secrets, and totals of usage."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from typing_extensions import override

from actors._kernel.agent.transcript import ModelAnswer
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import (
    EACH,
    USED_EVERY_S,
    ApiToken,
    AuditRow,
    AuditStore,
    EraseRequest,
    EraseScope,
    NewAuditRow,
    NewToken,
    TokenState,
    TokenStore,
    UsageBy,
    UsageFilter,
    UsageStore,
    UsageTotal,
)
from actors._kernel.stores.errors import TokenExistsError
from actors._kernel.text import check_name_of


class InMemoryAudit(AuditStore):
    """An `AuditStore` whose rows are lost with its process.

    Args:
        now: The clock for the rows' instants.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._rows: dict[int, AuditRow] = {}
        self._written: dict[tuple[str, str], int] = {}
        self._last = 0

    @override
    async def add(self, new: NewAuditRow) -> AuditRow:
        if new.write_id is not None:
            earlier_id = self._written.setdefault((new.tenant, new.write_id), self._last + 1)
            if earlier_id <= self._last:
                return self._rows[earlier_id]
        self._last += 1
        facts = asdict(new) | {"agent": new.agent}
        row = self._rows[self._last] = AuditRow(**facts, id=self._last, at=self._now())
        return row

    @override
    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        check_name_of("thing", thing or "")
        rows = (
            row
            for row in reversed(self._rows.values())
            if row.tenant == tenant
            and thing in (None, row.thing)
            and (after is None or row.id < after)
        )
        return [*islice(rows, limit)]

    def forget(self, before: datetime, *, limit: int) -> int:
        """Delete rows from before an instant, the oldest first; return their number."""
        old = [id_ for id_, row in islice(self._rows.items(), limit) if row.at < before]
        for id_ in old:
            self._delete(id_)
        return len(old)

    def removals(self, what: EraseRequest) -> Iterator[Callable[[], object]]:
        """Yield for each row that an erase covers a function that deletes or clears it."""
        for id_, row in self._rows.items():
            if what.scope is EraseScope.TENANT and row.tenant == what.tenant:
                yield partial(self._delete, id_)
            is_clear = row.before is None and row.after is None
            if what.scope is EraseScope.AGENT and row.agent == what.agent and not is_clear:
                yield partial(self._clear, id_)

    def _delete(self, id_: int) -> None:
        row = self._rows.pop(id_, None)
        if row is not None:
            self._written.pop((row.tenant, row.write_id or ""), None)

    def _clear(self, id_: int) -> None:
        self._rows[id_] = replace(self._rows[id_], before=None, after=None)


SECRET_BYTES: Final = 32
BEARER: Final = "cb_"
LOGIN: Final = "cbl_"
"""The prefixes of the secrets of programs and of browsers. Secret scanners find secrets by them."""


def new_secret(prefix: str) -> str:
    """Return a secret of 256 random bits: the prefix and 43 URL-safe characters."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex.

    A secret is random, so neither a salt nor a slow hash is needed.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class InMemoryTokens(TokenStore):
    """A `TokenStore` whose rows are lost with its process.

    Args:
        now: The clock by which tokens expire.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._tokens: dict[str, ApiToken] = {}
        self._ids: dict[str, str] = {}
        self._parents: dict[str, str] = {}

    @override
    async def create(self, new: NewToken) -> ApiToken:
        if not new.is_login and self._find_by_name(new.name) is not None:
            raise TokenExistsError(new.name)
        # A copy: `_forget` removes from the dict.
        for token in [*self._tokens.values()]:
            is_its = (token.tenant, token.principal) == (new.tenant, new.principal)
            if is_its and token.is_login and self._state(token) == "expired":
                self._forget(token.id)
        self._ids[new.digest] = new.id
        if new.parent is not None:
            self._parents[new.id] = new.parent
        self._tokens[new.id] = ApiToken(
            id=new.id,
            name=new.name,
            tenant=new.tenant,
            principal=new.principal,
            scopes=new.scopes,
            is_login=new.is_login,
            state="valid",
            created_at=self._now(),
            expires_at=new.expires_at,
            revoked_at=None,
            last_used_at=None,
        )
        return self._with_state(new.id)

    @override
    async def find(self, digest: str) -> ApiToken | None:
        id_ = self._ids.get(digest)
        if id_ is None:
            return None
        token, now = self._with_state(id_), self._now()
        used_at = token.last_used_at
        if token.state == "valid" and (
            used_at is None or (now - used_at).total_seconds() > USED_EVERY_S
        ):
            self._tokens[id_] = token = replace(token, last_used_at=now)
        return token

    @override
    async def list(self) -> list[ApiToken]:
        return [self._with_state(token.id) for token in self._tokens.values() if not token.is_login]

    @override
    async def revoke(self, name_or_id: str) -> ApiToken | None:
        token = self._find_by_name(name_or_id) or self._tokens.get(name_or_id)
        if token is None:
            return None
        if token.revoked_at is None:
            self._tokens[token.id] = replace(token, revoked_at=self._now())
        return self._with_state(token.id)

    @override
    async def over(self, ids: Collection[str]) -> dict[str, TokenState]:
        states = {
            id_: self._state(self._tokens[id_]) if id_ in self._tokens else "revoked" for id_ in ids
        }
        return {id_: state for id_, state in states.items() if state != "valid"}

    def removals(self, tenant: str) -> Iterator[Callable[[], object]]:
        """Yield for each token of a tenant a function that removes it."""
        for token in self._tokens.values():
            if token.tenant == tenant:
                yield partial(self._forget, token.id)

    def _find_by_name(self, name: str) -> ApiToken | None:
        return next(
            (
                token
                for token in self._tokens.values()
                if token.name == name and token.revoked_at is None and not token.is_login
            ),
            None,
        )

    def _with_state(self, id_: str) -> ApiToken:
        token = self._tokens[id_]
        return replace(token, state=self._state(token))

    def _state(self, token: ApiToken) -> TokenState:
        parent = self._tokens.get(self._parents.get(token.id, ""))
        if token.revoked_at is not None or (parent is not None and parent.revoked_at is not None):
            return "revoked"
        is_over = token.expires_at is not None and token.expires_at <= self._now()
        return "expired" if is_over else "valid"

    def _forget(self, id_: str) -> None:
        del self._tokens[id_]
        self._parents.pop(id_, None)
        self._ids = {digest: token_id for digest, token_id in self._ids.items() if token_id != id_}


UsageKey: TypeAlias = "tuple[AgentId | str | date | None, ...]"
UsageRows: TypeAlias = "dict[UsageKey, UsageTotal]"


def count_usage(rows: UsageRows, agent: AgentId, answer: ModelAnswer, day: date) -> None:
    """Add an answer to the totals of its agent."""
    usage = answer.usage
    _add(
        rows,
        UsageTotal(
            tenant=agent.tenant,
            agent_id=agent,
            model=answer.model,
            day=day,
            calls=1,
            input=usage.input,
            output=usage.output,
            cached=usage.cached,
            cache_written=usage.cache_written,
            cost_usd=Decimal(0) if usage.cost_usd is None else Decimal(repr(usage.cost_usd)),
            unpriced=int(usage.cost_usd is None),
        ),
    )


class MemoryUsage(UsageStore):
    """A `UsageStore` on the rows of an in-memory store.

    Args:
        rows: Function that returns the current rows.
    """

    def __init__(self, rows: Callable[[], UsageRows]) -> None:
        self._rows = rows

    @override
    async def totals(
        self, wanted: UsageFilter, *, by: Sequence[UsageBy] = EACH
    ) -> list[UsageTotal]:
        sums: UsageRows = {}
        for row in self._rows().values():
            if _matches(row, wanted):
                summand = replace(
                    row,
                    tenant=row.tenant if "tenant" in by else None,
                    agent_id=row.agent_id if "agent" in by else None,
                    model=row.model if "model" in by else None,
                    day=row.day if "day" in by else None,
                )
                _add(sums, summand)
        return sorted(
            sums.values(),
            key=lambda row: (
                row.tenant or "",
                "" if row.agent_id is None else str(row.agent_id),
                row.model or "",
                row.day or date.min,
            ),
        )


def _add(rows: UsageRows, more: UsageTotal) -> None:
    key = (more.tenant, more.agent_id, more.model, more.day)
    total = rows.get(key)
    if total is None:
        rows[key] = more
        return
    rows[key] = replace(
        total,
        calls=total.calls + more.calls,
        input=total.input + more.input,
        output=total.output + more.output,
        cached=total.cached + more.cached,
        cache_written=total.cache_written + more.cache_written,
        cost_usd=total.cost_usd + more.cost_usd,
        unpriced=total.unpriced + more.unpriced,
    )


def _matches(row: UsageTotal, usage_filter: UsageFilter) -> bool:
    assert row.agent_id is not None
    assert row.day is not None
    return (
        usage_filter.tenant in (None, row.tenant)
        and usage_filter.type_ in (None, row.agent_id.type)
        and usage_filter.agent_id in (None, row.agent_id)
        and usage_filter.model in (None, row.model)
        and (usage_filter.since is None or usage_filter.since <= row.day)
        and (usage_filter.until is None or row.day <= usage_filter.until)
    )
