"""JSON web tokens: another system names the principal, and signs the token.

The public keys of that system (RFC 7517) are read from a file or a URL.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import jwt
from jwt import PyJWK
from jwt.exceptions import (
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)
from typing_extensions import override

from actors._kernel.runtime.ids import DEFAULT_TENANT, check_name
from actors._kernel.text import check_name_of
from actors.errors import ContractError
from compose._host.own_address import is_own_address
from compose._web.identity.authentication import authentication_error
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import SCOPES, Principal

if TYPE_CHECKING:
    from jwt.types import Options

_log = logging.getLogger("callboard.web")

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
REFRESH_S: Final = 300.0
"""Seconds after which keys are read again."""
RETRY_S: Final = 10.0
"""Seconds between two attempts to read the keys, also if a token names an unknown key."""
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 1024 * 1024
_KINDS: Final = ("RSA", "EC", "OKP")
"""Types of public keys. Shared secrets (``oct``) and private keys are left out."""
KeySource: TypeAlias = Callable[[], Awaitable[bytes]]


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
            raise authentication_error(
                "bad_token", "the token is not a signed JSON web token"
            ) from None
        algorithm, kid = str(head.get("alg")), head.get("kid")
        # A critical header is one that the reader has to understand (RFC 7515). None is understood here.
        if algorithm not in _ALL or "crit" in head:
            problem = "the token is not signed with an allowed algorithm: RS, PS, ES or EdDSA"
            raise authentication_error("bad_token", problem, _REMEDY)
        key = await self._keys.find(kid if isinstance(kid, str) else None)
        if key is None or algorithm not in _algorithms_of(key):
            raise authentication_error(
                "bad_token", "no key of the signing system matches the token", _REMEDY
            )
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
            raise authentication_error(
                "bad_token", "the token's signature is wrong", _REMEDY
            ) from None
        except InvalidAudienceError:
            raise authentication_error(
                "bad_token", "the token is for another audience (aud)", _REMEDY
            ) from None
        except InvalidIssuerError:
            raise authentication_error(
                "bad_token", "the token is of another issuer (iss)", _REMEDY
            ) from None
        except MissingRequiredClaimError as exc:
            raise authentication_error(
                "bad_token", f"the token has no claim {exc.claim}", _REMEDY
            ) from None
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise authentication_error("bad_token", "the token cannot be read", _REMEDY) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        names, now = self._names, self._now().timestamp()
        end, begin = _instant(claims, "exp"), _instant(claims, "nbf")
        if end is None:
            raise authentication_error("bad_token", "the token has no claim exp", _REMEDY)
        if end + names.leeway_s <= now:
            raise authentication_error("token_expired", "the token is expired", _REMEDY)
        if begin is not None and begin - names.leeway_s > now:
            raise authentication_error(
                "bad_token", "the token is not valid yet (nbf)", "use it later"
            )
        tenant = _text(claims, names.tenant) if names.tenant else DEFAULT_TENANT
        name = _text(claims, names.principal)
        try:
            check_name("tenant", tenant)
            check_name_of("principal", name)
        except ContractError as exc:
            raise authentication_error(
                "bad_token", f"the token names no principal: {exc}", _REMEDY
            ) from None
        scopes = claims.get(names.scopes)
        words = scopes.split() if isinstance(scopes, str) else scopes
        words = words if isinstance(words, list) else []
        known_scopes = SCOPES & {word for word in words if isinstance(word, str)}
        expires_at = datetime.fromtimestamp(min(end + names.leeway_s, _LAST), UTC)
        return Principal(tenant, name, known_scopes, expires_at=expires_at)


def _algorithms_of(key: PyJWK) -> frozenset[str]:
    """Return the algorithms that a key may verify: those of its type, or only the one in its ``alg``."""
    facts: Any = key._jwk_data  # noqa: SLF001 - PyJWT offers the curve nowhere else
    kind = facts["kty"] if facts["kty"] == "RSA" else facts.get("crv")
    algorithms = _ALGORITHMS.get(kind, frozenset())
    return algorithms & {facts["alg"]} if "alg" in facts else algorithms


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    """Return an instant in seconds; None if the claim is missing."""
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) < math.inf:  # false for NaN, too
        return float(min(max(value, -_LAST), _LAST))
    raise authentication_error("bad_token", f"the token's {name} is not an instant", _REMEDY)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if isinstance(value, str) and value:
        return value
    raise authentication_error("bad_token", f"the token has no claim {name}", _REMEDY)


def source_of(location: str) -> KeySource:
    """Return a function that reads keys from a path or a URL: https, or http on this machine.

    Raises:
        ContractError: The URL is http to another machine, where an attacker could replace the keys.
    """
    url = urlsplit(location)
    if url.scheme == "http" and not is_own_address(url.netloc.rpartition("@")[2]):
        raise ContractError(
            "CALLBOARD_JWT_JWKS: an attacker could replace the keys on their way; use https"
        )
    read = _fetch if url.scheme in ("http", "https") else _read_file
    return partial(asyncio.to_thread, read, location)


class KeySet:
    """Keys by their ids. The keys of the last successful read stay in use while the source is unavailable.

    Args:
        source: Returns a set of keys as JSON, or raises OSError or ValueError.
        monotonic: Returns monotonic seconds.
    """

    def __init__(self, source: KeySource, monotonic: Callable[[], float]) -> None:
        self._source, self._monotonic = source, monotonic
        self._keys: dict[str | None, PyJWK] | None = None
        self._read_at = self._tried_at = -REFRESH_S
        self._reading: asyncio.Event | None = None

    async def find(self, kid: str | None) -> PyJWK | None:
        """Return the key with this id, or the only key if `kid` is None; None if there is no such key.

        Raises:
            ProblemError: No read of the keys has succeeded so far.
        """
        key, now = self._key_of(kid), self._monotonic()
        is_fresh = key is not None and now - self._read_at < REFRESH_S
        # At most one attempt per `RETRY_S`: tokens with invented key ids would start a read each.
        if not is_fresh and now - self._tried_at >= RETRY_S:
            self._tried_at = now
            await self._read()
            key = self._key_of(kid)
        # The key may be in the set that another request is reading.
        elif key is None and self._reading is not None:
            await self._reading.wait()
            key = self._key_of(kid)
        if self._keys is None:
            problem = "the keys that sign tokens cannot be read at the moment"
            remedy = "try again; operators: see CALLBOARD_JWT_JWKS and the log of this process"
            again = {"retry-after": f"{RETRY_S:g}"}
            raise ProblemError(HttpProblem(503, "no_keys", problem, remedy, headers=again))
        return key

    def _key_of(self, kid: str | None) -> PyJWK | None:
        keys = self._keys or {}
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(kid)

    async def _read(self) -> None:
        self._reading = reading = asyncio.Event()
        try:
            self._keys, self._read_at = _keys_of(await self._source()), self._monotonic()
        except (OSError, ValueError, RecursionError) as exc:
            facts = {"error": f"{type(exc).__name__}: {exc}"[:500], "known": len(self._keys or {})}
            _log.warning("the keys that sign tokens cannot be read", extra=facts)
        finally:
            reading.set()
            self._reading = None


def _keys_of(data: bytes) -> dict[str | None, PyJWK]:
    """Return the usable keys.

    Raises:
        ValueError: The data is not a set of keys, or has no usable key.
    """
    document = json.loads(data)
    entries = document.get("keys") if isinstance(document, dict) else None
    keys_by_id: dict[str | None, PyJWK] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("kty") not in _KINDS or "d" in entry:
            continue
        if entry.get("use", "sig") != "sig":
            continue
        kid = entry.get("kid")
        try:
            keys_by_id[kid if isinstance(kid, str) else None] = PyJWK(entry)
        # A key that is broken, or of an unknown curve, must not make the others useless.
        except (PyJWTError, ValueError, TypeError, KeyError):
            _log.warning("a key that signs tokens cannot be used", extra={"kid": str(kid)[:100]})
    if not keys_by_id:
        raise ValueError("the key set has no usable public key")
    return keys_by_id


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return _check_size(file.read(MOST_BYTES + 1))


def _fetch(url: str) -> bytes:
    import http.client  # noqa: PLC0415 - as urllib.request
    import urllib.request  # noqa: PLC0415 - a slow import that files do not need

    class Here(urllib.request.HTTPRedirectHandler):
        """Follows no redirects, because their target could be any address."""

        @override
        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(Here)
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return _check_size(answer.read(MOST_BYTES + 1))
    # It is no OSError, which is what readers of keys handle.
    except http.client.HTTPException as exc:
        raise OSError(f"the answer is not HTTP: {exc}") from exc


def _check_size(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise ValueError(f"the key set has more than {MOST_BYTES} bytes")
    return data
