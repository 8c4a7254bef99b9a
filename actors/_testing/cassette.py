"""Recordings of a model: made once with the real one, without secrets, and played in tests without it."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from actors._context.tokens import ESTIMATE
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    collected,
)
from actors.errors import ContractError, Facts

_MAX_DIFF_LINES: Final = 60
REMOVED: Final = "[removed]"
"""Written in place of a secret."""
MIN_LENGTH: Final = 8
"""Shorter values of the environment are no secrets: removing them would spoil the text."""

_NAMED_SECRET: Final = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$|^CALLBOARD_SECRET_"
)
_LOGIN: Final = re.compile(
    r"(^|[_-])(authorization|api[_-]?key|key|token|secret|password|cookie|credentials)$",
    re.IGNORECASE,
)


class NotRecordedError(Facts, ContractError):
    """A cassette has no recording of this request, and no client to make one with.

    Attributes:
        path: The cassette's file.
        diff: Difference between the nearest recorded request and this one, as lines of a unified diff.
    """

    path: str
    diff: str

    @override
    def __str__(self) -> str:
        return (
            f"{self.path} has no recording of this request. Make the request as it was, or record it: "
            f"Cassette(path, client), with a client that reaches the model.\n{self.diff}"
        )


class Recording(BaseModel):
    """A line of a cassette: a request without secrets, and the events of its answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    digest: str
    request: dict[str, Any]
    events: list[StreamEvent]

    @property
    def model(self) -> str:
        """The name of the model that was asked."""
        return str(self.request["model"])


class Cassette:
    """A model that plays recorded answers, and records those that it does not have. See `LLMClient`.

    The file has one JSON object a line: digest, request and the events of the stream. A request is found by
    model, messages and options; the metadata of messages does not count, no provider sees it. The same request
    always gets the same answer. A stream that fails or is given up is not recorded. Each recording replaces the
    file as a whole, so that a crash leaves the old file or the new one.

    Args:
        path: The file; need not exist if there is a client.
        client: The client for requests that are not recorded; without one they are a `NotRecordedError`.
        secrets: Values that must not be in the file, beside those of environment variables whose names end in
            KEY, TOKEN, SECRET, PASSWORD or CREDENTIALS. Options named like a login are left out too.
        model: The model's name, or None for the client's, or that of the first recording.
    """

    def __init__(
        self,
        path: Path | str,
        client: LLMClient | None = None,
        *,
        secrets: Sequence[str] = (),
        model: str | None = None,
    ) -> None:
        self._path, self._client = Path(path), client
        self._secrets = SecretFilter.of(os.environ, secrets)
        self._recordings = _read(self._path)
        self._model = model

    @property
    def model(self) -> str:
        """The model's name."""
        if self._model is not None:
            return self._model
        if self._client is not None:
            return self._client.model
        first = next(iter(self._recordings.values()), None)
        return "cassette" if first is None else first.model

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the whole answer to a request."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the recorded events of the answer to a request; without a recording ask the client and record.

        Raises:
            NotRecordedError: Nothing is recorded of this request, and there is no client.
        """
        request = self._request(messages, options)
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        recording = self._recordings.get(digest)
        if recording is not None:
            for event in recording.events:
                # As between two pieces from a network, other tasks run: else a whole answer would be one step.
                await asyncio.sleep(0)
                yield event
            return
        if self._client is None:
            raise NotRecordedError(str(self._path), self._diff(request))
        events: list[StreamEvent] = []
        async for event in self._client.generate_stream(messages, options=options):
            events.append(event)
            if isinstance(event, Completion):
                line = Recording(
                    digest=digest,
                    request=request,
                    events=self._secrets.cleaned([item.model_dump(mode="json") for item in events]),
                )
                # Read again: another process may have recorded meanwhile, and its lines would be lost.
                self._recordings = {**_read(self._path), digest: line}
                _write(self._path, self._recordings)
            yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the client's count; without a client the characters of the messages divided by 3."""
        if self._client is not None:
            return await self._client.count_tokens(messages)
        return ESTIMATE.total(messages)

    def _request(
        self, messages: Sequence[ChatMessage], options: GenerationOptions | None
    ) -> dict[str, Any]:
        fields = options.model_dump(mode="json", exclude_defaults=True) if options else {}
        request = {
            "model": self.model,
            "messages": [
                message.model_dump(mode="json", exclude={"metadata"}, exclude_none=True)
                for message in messages
            ],
            "options": self._secrets.without_logins(fields),
        }
        cleaned_request: dict[str, Any] = self._secrets.cleaned(request)
        return cleaned_request

    def _diff(self, request: dict[str, Any]) -> str:
        text = _pretty(request)
        recordings = [_pretty(line.request) for line in self._recordings.values()]
        if not recordings:
            return "Nothing is recorded there. The request:\n" + "\n".join(text[:_MAX_DIFF_LINES])
        nearest = max(
            recordings,
            key=lambda lines: difflib.SequenceMatcher(None, lines, text, autojunk=False).ratio(),
        )
        lines = [*difflib.unified_diff(nearest, text, "recorded", "asked", lineterm="", n=2)]
        more = len(lines) - _MAX_DIFF_LINES
        return "\n".join(lines[:_MAX_DIFF_LINES]) + (f"\n… {more} more lines" if more > 0 else "")


def _pretty(request: dict[str, Any]) -> list[str]:
    return json.dumps(request, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


def _read(path: Path) -> dict[str, Recording]:
    """Return the recordings of a file by digest; none, if there is no file.

    Raises:
        ContractError: A line is no recording.
    """
    recordings: dict[str, Recording] = {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        try:
            recording = Recording.model_validate(json.loads(line))
        except ValueError as exc:
            msg = f"line {number} of {path} is no recording of version 1: record it anew ({exc})"
            raise ContractError(msg) from exc
        recordings.setdefault(recording.digest, recording)
    return recordings


def _write(path: Path, recordings: dict[str, Recording]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="ascii") as file:
        for recording in recordings.values():
            file.write(json.dumps(recording.model_dump(mode="json")) + "\n")
        # Synced before the rename: else a crash may leave an empty file in place of the old one.
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass(frozen=True, slots=True)
class SecretFilter:
    """The values that are removed, longest first."""

    values: tuple[str, ...]

    @classmethod
    def of(cls, environment: Mapping[str, str], secrets: Sequence[str]) -> Self:
        """Return the filter of these secrets, and of those that an environment holds by its names."""
        from_environment = {
            value
            for name, value in environment.items()
            if _NAMED_SECRET.search(name) and len(value) >= MIN_LENGTH
        }
        values = {value for value in (*from_environment, *secrets) if value}
        return cls(tuple(sorted(values, key=lambda value: (-len(value), value))))

    def cleaned(self, data: Any) -> Any:
        """Return JSON data without the values, in keys as well as in texts."""
        match data:
            case str():
                for value in self.values:
                    data = data.replace(value, REMOVED)
                return data
            case dict():
                return {self.cleaned(key): self.cleaned(value) for key, value in data.items()}
            case list():
                return [self.cleaned(value) for value in data]
            case _:
                return data

    def without_logins(self, options: Any) -> Any:
        """Return options without the values of keys that are named like a login, such as ``authorization``."""
        match options:
            case dict():
                return {
                    key: REMOVED if _LOGIN.search(str(key)) else self.without_logins(value)
                    for key, value in options.items()
                }
            case list():
                return [self.without_logins(value) for value in options]
            case _:
                return options
