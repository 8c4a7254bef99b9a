"""Secrets at a call: looked up, handed in, and taken out of whatever comes back."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

from actors._kernel.json import JsonValue, recordable
from actors._kernel.json_data import MAX_ERROR
from actors._kernel.secrets import Secret, SecretProvider, UnknownSecretError
from actors._runtime.replay.failures import rebuild_error, record_failure

VARIABLE: Final = "CALLBOARD_SECRET_"
MIN_REDACTED: Final = 6
"""Shorter values are not looked for in results: they would be found in what has nothing to do with them."""


class EnvSecrets:
    """Secrets from variables ``CALLBOARD_SECRET_<NAME>``; no other variable can be asked for."""

    async def get(self, name: str) -> str | None:
        """Return the variable's value, or None if it is not set."""
        return os.environ.get(f"{VARIABLE}{name}")


class FileSecrets:
    """Secrets from files of one folder, as Docker and Kubernetes mount them; without a last newline.

    Args:
        folder: Each file is named like its secret.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def get(self, name: str) -> str | None:
        """Return the file's text, or None if there is no such file.

        Raises:
            InvalidNameError: The name cannot be that of a `Secret`: it could lead out of the folder.
        """
        Secret(name)
        try:
            text = await asyncio.to_thread((self._folder / name).read_text, "utf-8")
        except FileNotFoundError:
            return None
        return text.removesuffix("\n").removesuffix("\r")


class Secrets:
    """The secrets of a host.

    Attributes:
        provider: The source of secrets; may be set before the host starts.
    """

    def __init__(self, provider: SecretProvider | None = None) -> None:
        self.provider: SecretProvider = provider or EnvSecrets()

    def seal(self, arguments: Mapping[Any, Any]) -> SealedCall | None:
        """Return what a call with these arguments needs, or None if none of them is a `Secret`."""
        secret_of = {key: value for key, value in arguments.items() if type(value) is Secret}
        return SealedCall(self, arguments, secret_of) if secret_of else None

    def seal_args(self, args: tuple[Any, ...]) -> SealedCall | None:
        """Do the same as `seal` for arguments that are named by their positions."""
        if Secret not in map(type, args):
            return None  # nearly always, and on the path of every step
        return self.seal(dict(enumerate(args)))

    async def values(self, secrets: Iterable[Secret]) -> dict[str, str]:
        """Return the values by name.

        Raises:
            UnknownSecretError: One is not known here, or empty.
        """
        values: dict[str, str] = {}
        for secret in secrets:
            value = await self.provider.get(secret.name)
            if not value:
                raise UnknownSecretError(secret.name)
            values[secret.name] = value
        return values


class SealedCall:
    """A call with secrets among its arguments. Made by `Secrets.seal`.

    Attributes:
        recorded_arguments: The arguments as they are recorded, with handles.
    """

    def __init__(
        self, secrets: Secrets, arguments: Mapping[Any, Any], secret_of: Mapping[Any, Secret]
    ) -> None:
        self.recorded_arguments: dict[Any, Any] = {
            **arguments,
            **{key: secret.handle for key, secret in secret_of.items()},
        }
        self._secrets, self._arguments, self._secret_of = secrets, arguments, secret_of

    def execute(
        self, call: Callable[[dict[Any, Any]], Awaitable[Any]], *, what: str
    ) -> Callable[[], Awaitable[JsonValue]]:
        """Return `run` of the call, as an effect executes it."""
        return functools.partial(self.run, call, what=what)

    async def run(
        self, execute: Callable[[dict[Any, Any]], Awaitable[Any]], *, what: str
    ) -> JsonValue:
        """Return what `execute(arguments)` returns, the secrets' values replaced by their names.

        Raises:
            UnknownSecretError: See `Secrets.values`.
            Exception: What `execute` raised, made anew from its type and text without the values, and
                without the errors that it came from.
        """
        values = await self._secrets.values(self._secret_of.values())
        values_of_arguments = {key: values[secret.name] for key, secret in self._secret_of.items()}
        try:
            value = recordable(
                await execute({**self._arguments, **values_of_arguments}), where=what
            )
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - raised again below, without its secrets
            clean_record = _clean_record(exc, values)
        else:
            return redacted(value, values)
        # Outside of the handler: inside, the error with the secrets would be the context of this one.
        raise rebuild_error(clean_record)


def _clean_record(exc: BaseException, secrets: Mapping[str, str]) -> dict[str, JsonValue]:
    record = record_failure(exc)
    text = str(record["message"])
    message = str(redacted(text, secrets))
    if len(text) == MAX_ERROR:  # cut off, maybe inside of a value: without what is left of it
        longest = max(len(form) for value in secrets.values() for form in _forms(value))
        return {"type": record["type"], "message": message[:-longest]}
    record["message"] = message
    for name in ("args", "attributes"):
        if name in record:
            record[name] = redacted(record[name], secrets)
    return record


def redacted(value: JsonValue, secrets: Mapping[str, str]) -> JsonValue:
    """Return JSON data without these texts: as they stand, or as URLs, JSON and Python write them.

    Args:
        value: What is to be recorded.
        secrets: Values by the names that replace them.
    """
    names_by_form = {
        form: name
        for name, secret in secrets.items()
        if len(secret) >= MIN_REDACTED
        for form in _forms(secret)
    }
    if not names_by_form:
        return value
    # All in one pass, the longest first: what one of them has replaced is no place to find another.
    pattern = re.compile("|".join(map(re.escape, sorted(names_by_form, key=len, reverse=True))))
    return _replace_texts(
        value, lambda text: pattern.sub(lambda m: f"[secret {names_by_form[m[0]]}]", text)
    )


def _forms(secret: str) -> set[str]:
    """Return how a text is written in what calls give back and raise."""
    urls = {
        quote(secret, errors="surrogateescape"),
        quote(secret, safe="", errors="surrogateescape"),
        quote_plus(secret, errors="surrogateescape"),
    }
    lower = {re.sub("%..", lambda escape: escape[0].lower(), url) for url in urls}
    texts = {json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)}
    return {secret, *urls, *lower, *(text[1:-1] for text in texts)}


def _replace_texts(value: JsonValue, clean: Callable[[str], str]) -> JsonValue:
    match value:
        case str():
            return clean(value)
        case list():
            return [_replace_texts(item, clean) for item in value]
        case dict():
            return {clean(key): _replace_texts(item, clean) for key, item in value.items()}
        case _:
            return value
