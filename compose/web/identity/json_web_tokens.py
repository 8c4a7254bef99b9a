"""JSON web tokens: another system names the principal, and signs the token."""

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
from actors.kernel.stores.administration import Scope
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
"""Algorithms by type or curve of a key. HS256 is missing, so a public key is never used as its secret."""
_ALL: Final = frozenset[str]().union(*_ALGORITHMS.values())
_OPTIONS: Final[Options] = {
    "enforce_minimum_key_length": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
"""PyJWT does not check instants: `JsonWebTokens` compares them with the database's time."""
_LAST: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
_REMEDY: Final = "get a new token from the system that signs them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The claims that name the principal.

    Attributes:
        issuer: The required claim ``iss``. If None, ``iss`` is ignored.
        audience: The required audience in ``aud``. If None, tokens with an audience are refused.
        tenant: Name of the claim with the tenant. If empty, all tokens are of the default tenant.
        principal: Name of the claim with the principal.
        scopes: Name of the claim with scopes: a list, or text with spaces. Unknown scopes are ignored.
        leeway_s: Tolerated difference between clocks, in seconds.
    """

    issuer: str | None = None
    audience: str | None = None
    tenant: str = "tenant"
    principal: str = "sub"
    scopes: str = "scope"
    leeway_s: float = 30.0


class JsonWebTokens:
    """Authenticates bearer tokens of another system. See `Recognize`.

    Args:
        keys: The public keys that verify the tokens.
        names: The names of the claims.
        now: Returns the time that `exp` is compared with.
    """

    def __init__(self, keys: KeySet, names: ClaimNames, now: Callable[[], datetime]) -> None:
        self._keys, self._names, self._now = keys, names, now

    async def __call__(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises:
            ProblemError: The token is not valid, or the keys could never be read.
        """
        try:
            head = jwt.get_unverified_header(token)
        except PyJWTError:
            raise refused("bad_token", "the token is not a signed JSON web token") from None
        algorithm, kid = str(head.get("alg")), head.get("kid")
        if algorithm not in _ALL or "crit" in head:
            problem = "the token is not signed with an allowed algorithm: RS, PS, ES or EdDSA"
            raise refused("bad_token", problem, _REMEDY)
        key = await self._keys.find(kid if isinstance(kid, str) else None)
        if key is None or algorithm not in _taken(key):
            raise refused("bad_token", "no key of the signing system matches the token", _REMEDY)
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
            raise refused("bad_token", f"the token has no claim {exc.claim}", _REMEDY) from None
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise refused("bad_token", "the token cannot be read", _REMEDY) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        names, now = self._names, self._now().timestamp()
        end, begin = _instant(claims, "exp"), _instant(claims, "nbf")
        if end is None:
            raise refused("bad_token", "the token has no claim exp", _REMEDY)
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
    """Return the algorithms that a key may verify: those of its type, or only the one in its ``alg``."""
    facts: Any = key._jwk_data  # noqa: SLF001 - PyJWT offers the curve nowhere else
    kind = facts["kty"] if facts["kty"] == "RSA" else facts.get("crv")
    found = _ALGORITHMS.get(kind, frozenset())
    return found & {facts["alg"]} if "alg" in facts else found


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    """Return an instant in seconds; None if the claim is missing."""
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) < math.inf:  # false for NaN, too
        return float(min(max(value, -_LAST), _LAST))
    raise refused("bad_token", f"the token's {name} is not an instant", _REMEDY)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if isinstance(value, str) and value:
        return value
    raise refused("bad_token", f"the token has no claim {name}", _REMEDY)


def _scopes(said: object) -> frozenset[Scope]:
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    named = {one for one in words if isinstance(one, str)}
    return SCOPES & named
