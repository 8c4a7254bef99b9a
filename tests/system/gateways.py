"""A gateway with scripted answers: for behaviour that a real host shows only when broken."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg


class Request(NamedTuple):
    """A received request."""

    verb: str
    id: str | None
    body: Any
    headers: Mapping[str, str]


class Gateway:
    """Answers each request with the next of its answers, and repeats the last one."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.requests: list[Request] = []
        self.renewed: list[bytes] = []
        self.answers: list[Callable[[Msg], Awaitable[None]]] = []

    async def take(self, message: Msg) -> None:
        """Record a request, and answer it."""
        headers = message.headers or {}
        body = json.loads(message.data) if message.data else None
        message_id = headers.get("Nats-Msg-Id") or (
            body.get("id") if isinstance(body, dict) else None
        )
        verb = message.subject.rpartition(".")[2]
        if verb == "renew":
            self.renewed.append(message.data)
            return
        self.requests.append(
            Request(
                "ask" if ".ask.v1." in f".{message.subject}" else verb, message_id, body, headers
            )
        )
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await answer(message)


async def silent(_message: Msg) -> None:
    """Return no answer, like a crashed host."""


def saying(body: object, **headers: str) -> Callable[[Msg], Awaitable[None]]:
    """Return an answer of JSON, or of unchanged bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(message: Msg) -> None:
        await message._client.publish(message.reply, data, headers=headers or None)

    return answer


def refusing(
    code: int, words: str = "no", run: str | None = None
) -> Callable[[Msg], Awaitable[None]]:
    """Return an error."""
    error = {"code": code, "type": "x", "message": words, "remedy": "Do.", "run": run}
    headers = {"Nats-Service-Error-Code": str(code), "Nats-Service-Error": words}
    return saying({"error": error}, **headers)


def telling(*events: dict[str, Any], is_beating: bool = False) -> Callable[[Msg], Awaitable[None]]:
    """Return events, and then a heartbeat if asked for, and no more."""

    async def answer(message: Msg) -> None:
        client = message._client
        for event in events:
            headers = {"Actor-Event": event["kind"]}
            await client.publish(message.reply, json.dumps(event).encode(), headers=headers)
        if is_beating:
            beat_headers = {"Actor-Event": "beat", "Actor-Stream": "s-1"}
            await client.publish(message.reply, b"", headers=beat_headers)

    return answer


def event(kind: str, seq: int, **more: Any) -> dict[str, Any]:
    """Return an event in the format of hosts."""
    return {
        "kind": kind,
        "run": "r1",
        "seq": seq,
        "attempt": 1,
        "name": "x",
        "position": "1",
        **more,
    }


@asynccontextmanager
async def gateway(url: str, namespace: str = "") -> AsyncIterator[Gateway]:
    """Yield a gateway of this deployment; it reconnects as hosts do."""
    client = await nats.connect(url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    try:
        new_gateway = Gateway(client)
        prefix = f"{namespace}." if namespace else ""
        for subject in (f"{prefix}ask.v1.>", f"{prefix}api.v1.>"):
            await client.subscribe(subject, cb=new_gateway.take)
        await client.flush()
        yield new_gateway
    finally:
        await client.close()
