"""Public keys of the system that signs tokens (RFC 7517), from a file or a URL."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from jwt import PyJWK
from jwt.exceptions import PyJWTError
from typing_extensions import override

from actors.errors import ContractError
from compose.host.own_address import is_own_address
from compose.web.problems import HttpProblem, ProblemError

_log = logging.getLogger("callboard.web")

REFRESH_S: Final = 300.0
"""Seconds after which keys are read again."""
RETRY_S: Final = 10.0
"""Seconds between two attempts to read the keys, also if a token names an unknown key."""
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 1024 * 1024
_KINDS: Final = ("RSA", "EC", "OKP")
"""Types of public keys. Shared secrets (``oct``) and private keys are left out."""


KeySource: TypeAlias = Callable[[], Awaitable[bytes]]


def source_of(place: str) -> KeySource:
    """Return a function that reads keys from a path or a URL: https, or http on this machine.

    Raises:
        ContractError: The URL is http to another machine, where an attacker could replace the keys.
    """
    url = urlsplit(place)
    if url.scheme == "http" and not is_own_address(url.netloc.rpartition("@")[2]):
        raise ContractError(
            "CALLBOARD_JWT_JWKS: an attacker could replace the keys on their way; use https"
        )
    read = _fetched if url.scheme in ("http", "https") else _text_of
    return partial(asyncio.to_thread, read, place)


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
        found, now = self._known(kid), self._monotonic()
        is_fresh = found is not None and now - self._read_at < REFRESH_S
        if not is_fresh and now - self._tried_at >= RETRY_S:
            self._tried_at = now
            await self._read()
            found = self._known(kid)
        elif found is None and self._reading is not None:
            await self._reading.wait()
            found = self._known(kid)
        if self._keys is None:
            problem = "the keys that sign tokens cannot be read at the moment"
            remedy = "try again; operators: see CALLBOARD_JWT_JWKS and the log of this process"
            again = {"retry-after": f"{RETRY_S:g}"}
            raise ProblemError(HttpProblem(503, "no_keys", problem, remedy, headers=again))
        return found

    def _known(self, kid: str | None) -> PyJWK | None:
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
    found = json.loads(data)
    listed = found.get("keys") if isinstance(found, dict) else None
    keys: dict[str | None, PyJWK] = {}
    for one in listed if isinstance(listed, list) else []:
        if not isinstance(one, dict) or one.get("kty") not in _KINDS or "d" in one:
            continue
        if one.get("use", "sig") != "sig":
            continue
        kid = one.get("kid")
        try:
            keys[kid if isinstance(kid, str) else None] = PyJWK(one)
        except (PyJWTError, ValueError, TypeError, KeyError):
            _log.warning("a key that signs tokens cannot be used", extra={"kid": str(kid)[:100]})
    if not keys:
        raise ValueError("the key set has no usable public key")
    return keys


def _text_of(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return _limited(file.read(MOST_BYTES + 1))


def _fetched(url: str) -> bytes:
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
            return _limited(answer.read(MOST_BYTES + 1))
    except http.client.HTTPException as exc:
        raise OSError(f"the answer is not HTTP: {exc}") from exc


def _limited(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise ValueError(f"the key set has more than {MOST_BYTES} bytes")
    return data
