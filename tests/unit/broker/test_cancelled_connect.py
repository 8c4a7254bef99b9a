"""Cancelling a connect: Python 3.11's `wait_for` may drop it, and nobody may wait for that for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

from broker._nats.client import ConnectOptions, open_client

SERVER = ConnectOptions(urls=("nats://127.0.0.1:4222",))


@pytest.mark.parametrize("outcome", [None, ConnectionRefusedError()], ids=["accepted", "refused"])
async def test_a_connect_whose_outcome_arrives_with_its_cancellation_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, outcome: OSError | None
) -> None:
    """The server accepts or refuses in the instant in which the caller is cancelled."""
    is_waiting = asyncio.Event()

    async def connect(_client: NatsClient, **_options: Any) -> None:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as `wait_for` of Python 3.11: the outcome, not the error
            if outcome is not None:
                raise outcome from None

    monkeypatch.setattr(NatsClient, "connect", connect)
    opening = asyncio.create_task(open_client(SERVER, inbox_prefix="_INBOX"))
    await is_waiting.wait()
    opening.cancel()
    await asyncio.wait([opening])

    assert opening.cancelled()
