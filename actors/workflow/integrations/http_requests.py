"""JSON requests to a server of models. Secrets are read for each request and are sent in headers only."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from actors.errors import ContractError
from actors.kernel.secrets import Secret, SecretProvider
from actors.runtime.loop.tasks import in_thread
from actors.runtime.verbs.secrets import EnvSecrets, FileSecrets, Secrets, redacted

MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a response, in bytes."""
_SHOWN: Final = 500
_LOGINS: Final = ("authorization", "api-key", "apikey", "token", "secret", "cookie")
_TRY_AGAIN: Final = frozenset({408, 409, 425, 429})
_SERVER_ERROR: Final = 500
_OK: Final = range(200, 300)


class RemoteModelError(Exception):
    """A server of models gave no answer.

    Attributes:
        retryable: True if another attempt may succeed.
        status: The status of the response. None: there was no response.
    """

    def __init__(self, text: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(text)
        self.retryable, self.status = retryable, status


@dataclass(frozen=True, slots=True)
class HeaderSecret:
    """The value of a header: a secret with a prefix, such as ``Bearer``."""

    secret: Secret
    prefix: str = ""


class JsonServer:
    """A server of a JSON API. Redirects are not followed, since they would send keys to another server.

    Args:
        url: The base address of paths, such as ``http://127.0.0.1:8080/v1``.
        headers: The headers of each request. Headers with credentials are `Secret`.
        timeout_s: Seconds to connect, and between two pieces of a response.
        secrets: The source of secrets. None: the folder ``CALLBOARD_SECRETS_DIR``, as on hosts. If that is not
            set: the variables ``CALLBOARD_SECRET_<NAME>``.

    Raises:
        ContractError: The address is not an HTTP address or holds credentials, or a header with credentials is
            a plain text.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str | Secret | HeaderSecret],
        timeout_s: float,
        secrets: SecretProvider | None,
    ) -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme not in {"http", "https"} or not self._parts.hostname:
            raise ContractError("url: give the http://… or https://… address of a server of models")
        if self._parts.username or self._parts.query:
            raise ContractError("url: remove the login and the query. Give headers={…: Secret(…)}")
        for name, value in headers.items():
            if isinstance(value, str) and any(one in name.lower() for one in _LOGINS):
                raise ContractError(f"header {name!r} logs in: give Secret('NAME'), not its value")
        self._headers, self._timeout_s = dict(headers), timeout_s
        self._secrets = Secrets(secrets or _secrets_of_host())

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str | Secret | HeaderSecret] | None = None,
    ) -> Any:
        """Return the JSON of a response. Values of secrets in it are redacted.

        Raises:
            UnknownSecretError: The source of secrets does not have a secret.
            RemoteModelError: The connection failed, the response is no JSON or too large, or its status is not
                2xx.
        """
        given = {**self._headers, **(headers or {})}
        wanted = {name: _sealed(one) for name, one in given.items() if not isinstance(one, str)}
        values = await self._secrets.values(one.secret for one in wanted.values())
        sent = {name: one for name, one in given.items() if isinstance(one, str)}
        for name, one in wanted.items():
            sent[name] = _header(one, values[one.secret.name])
        text = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        try:
            status, raw = await in_thread(self._sent, method, path, text, sent)
        except (OSError, http.client.HTTPException) as exc:
            said = str(redacted(f"{type(exc).__name__}: {exc}", values))
            raise RemoteModelError(f"{self._where(path)}: {said}", retryable=True) from None
        return redacted(self._read(path, status, raw, values), values)

    def _read(self, path: str, status: int, raw: bytes, values: Mapping[str, str]) -> Any:
        if status not in _OK:
            said = str(redacted(raw.decode(errors="replace"), values))[:_SHOWN]
            again = status in _TRY_AGAIN or status >= _SERVER_ERROR
            problem = f"{self._where(path)}: status {status}: {said}"
            raise RemoteModelError(problem, retryable=again, status=status)
        if len(raw) > MOST_BYTES:
            problem = f"{self._where(path)}: more than {MOST_BYTES} bytes"
            raise RemoteModelError(problem, retryable=False)
        try:
            return json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError):
            problem = f"{self._where(path)}: the response is no JSON"
            raise RemoteModelError(problem, retryable=True) from None

    def _where(self, path: str) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path.rstrip('/')}{path}"

    def _sent(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        is_tls = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout_s)
        told = {"accept": "application/json", **headers}
        if body is not None:
            told["content-type"] = "application/json"
        try:
            connection.request(method, f"{self._parts.path.rstrip('/')}{path}", body, told)
            response = connection.getresponse()
            return response.status, response.read(MOST_BYTES + 1)
        finally:
            connection.close()


def _secrets_of_host() -> SecretProvider:
    folder = os.environ.get("CALLBOARD_SECRETS_DIR")
    return FileSecrets(Path(folder)) if folder else EnvSecrets()


def _sealed(value: Any) -> HeaderSecret:
    if isinstance(value, HeaderSecret):
        return value
    if isinstance(value, Secret):
        return HeaderSecret(value)
    raise ContractError(f"a header is a {type(value).__name__}: give a text or a Secret")


def _header(one: HeaderSecret, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        problem = (
            f"secret {one.secret.name} is no value of a header: it has other than printable ASCII"
        )
        raise ContractError(problem)
    return f"{one.prefix}{value}"
