"""JSON web tokens: another system names the principal, and signs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import jwt
from jwt import PyJWK
from jwt.exceptions import (
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT, check_name
from actors.kernel.storage.token import Scope
from actors.kernel.text import check_name_of
from compose.web.identity.bearer import refused
from compose.web.identity.key_set import KeySet
from compose.web.principal import SCOPES, Principal

if TYPE_CHECKING:
    from jwt.types import Options

_ALGORITHMS: Final[Mapping[str, frozenset[str]]] = {
    "RSA": frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
    "P-256": frozenset(("ES256",)),
    "P-384": frozenset(("ES384",)),
    "P-521": frozenset(("ES512",)),
    "Ed25519": frozenset(("EdDSA",)),
}
"""By type or curve of a key. A public key is never taken for a secret of HS256."""
_ALL: Final = frozenset[str]().union(*_ALGORITHMS.values())
_OPTIONS: Final[Options] = {
    "enforce_minimum_key_length": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
"""Instants are compared with the database's time, below."""
_LAST: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
_REMEDY: Final = "get a new token from the system that signs them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The claims that name the principal.

    Attributes:
        issuer: The claim ``iss`` has to be this; None: it says nothing.
        audience: The claim ``aud`` has to name this; None: tokens with an audience are refused.
        tenant: The claim with the tenant; empty: all are of the default one.
        principal: The claim with the principal.
        scopes: The claim with scopes: a list, or text with spaces. What is no scope of ours says nothing.
        leeway_s: So much clocks may differ.
    """

    issuer: str | None = None
    audience: str | None = None
    tenant: str = "tenant"
    principal: str = "sub"
    scopes: str = "scope"
    leeway_s: float = 30.0


class JsonWebTokens:
    """Knows bearer tokens of another system. See `Recognize`.

    Args:
        keys: That sign them.
        names: The claims that count.
        now: Returns the time at which `exp` is compared.
    """

    def __init__(self, keys: KeySet, names: ClaimNames, now: Callable[[], datetime]) -> None:
        self._keys, self._names, self._now = keys, names, now

    async def __call__(self, token: str) -> Principal:
        """Return the principal whom a token names.

        Raises:
            ProblemError: It names no principal, or no keys could be read.
        """
        try:
            head = jwt.get_unverified_header(token)
        except PyJWTError:
            raise refused("bad_token", "the token is no signed JSON web token") from None
        algorithm, kid = str(head.get("alg")), head.get("kid")
        if algorithm not in _ALL or "crit" in head:
            problem = "the token is not signed in a way that is taken: RS, PS, ES or EdDSA"
            raise refused("bad_token", problem, _REMEDY)
        key = await self._keys.find(kid if isinstance(kid, str) else None)
        if key is None or algorithm not in _taken(key):
            raise refused("bad_token", "no key of the signing system fits the token", _REMEDY)
        return self._principal(self._claims(token, key, algorithm))

    def _claims(self, token: str, key: PyJWK, algorithm: str) -> dict[str, Any]:
        names = self._names
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=names.audience,
                issuer=names.issuer,
                options=_OPTIONS,
            )
        except InvalidSignatureError:
            raise refused("bad_token", "the token's signature is wrong", _REMEDY) from None
        except InvalidAudienceError:
            raise refused("bad_token", "the token is for another audience (aud)", _REMEDY) from None
        except InvalidIssuerError:
            raise refused("bad_token", "the token is of another issuer (iss)", _REMEDY) from None
        except MissingRequiredClaimError as exc:
            raise refused("bad_token", f"the token does not say {exc.claim}", _REMEDY) from None
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise refused("bad_token", "the token cannot be read", _REMEDY) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        names, now = self._names, self._now().timestamp()
        end, begin = _instant(claims, "exp"), _instant(claims, "nbf")
        if end is None:
            raise refused("bad_token", "the token does not say exp", _REMEDY)
        if end + names.leeway_s <= now:
            raise refused("token_expired", "the token is expired", _REMEDY)
        if begin is not None and begin - names.leeway_s > now:
            raise refused("bad_token", "the token is not valid yet (nbf)", "use it later")
        tenant = _text(claims, names.tenant) if names.tenant else DEFAULT_TENANT
        name = _text(claims, names.principal)
        try:
            check_name("tenant", tenant)
            check_name_of("principal", name)
        except ContractError as exc:
            raise refused("bad_token", f"the token names no principal: {exc}", _REMEDY) from None
        expires_at = datetime.fromtimestamp(min(end + names.leeway_s, _LAST), UTC)
        return Principal(tenant, name, _scopes(claims.get(names.scopes)), expires_at=expires_at)


def _taken(key: PyJWK) -> frozenset[str]:
    """Return the algorithms that a key signs by: those of its kind, or the one that it names."""
    facts: Any = key._jwk_data  # noqa: SLF001 - PyJWT has no other way to the curve
    kind = facts["kty"] if facts["kty"] == "RSA" else facts.get("crv")
    found = _ALGORITHMS.get(kind, frozenset())
    return found & {facts["alg"]} if "alg" in facts else found


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    """Return an instant in seconds; None: it is not said."""
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) < math.inf:  # also not NaN, which nothing is less than
        return float(min(max(value, -_LAST), _LAST))
    raise refused("bad_token", f"the token's {name} is no instant", _REMEDY)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if isinstance(value, str) and value:
        return value
    raise refused("bad_token", f"the token does not say {name}", _REMEDY)


def _scopes(said: object) -> frozenset[Scope]:
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    named = {one for one in words if isinstance(one, str)}
    return SCOPES & named
