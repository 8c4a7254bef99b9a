"""Hints from other processes by LISTEN. They may be lost; facts are read from the tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from pydantic_core import from_json

from actors.errors import ContractError
from actors.kernel.backoff import Backoff
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, RunId, ShardId
from persistence.postgres.connection.link import Connection, connect
from persistence.postgres.connection.outage import ServerOutage
from persistence.postgres.connection.settings import StoreSettings

_log = logging.getLogger("callboard.postgres")


def nudge_of(kind: str, agent: str | None, name: str | None) -> Nudge:
    """Return the hint that says this; `name` is a run, or a shard for `fanout`."""
    agent_id = None if agent is None else AgentId.parse(agent)
    if kind == "fanout":
        return Nudge("fanout", agent_id, shard=None if name is None else ShardId(name))
    return Nudge(cast("Any", kind), agent_id, None if name is None else RunId(name))


class Listener:
    """Calls a hook for what other processes NOTIFY; listens again after every loss."""

    def __init__(self, settings: StoreSettings, outage: ServerOutage) -> None:
        self._settings, self._outage = settings, outage
        self.hook: Callable[[Nudge], None] | None = None
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled; to be run as a task."""
        backoff = Backoff()
        while True:
            connection: Connection | None = None
            try:
                connection = await connect(self._settings)
                await self._listen(connection)
            except Exception as exc:  # noqa: BLE001 - a host that is deaf from now on would be a silent loss
                self._outage.begins(exc)
            finally:
                if connection is not None:
                    connection.terminate()
                if self.listening.is_set():
                    self.listening.clear()
                    backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _listen(self, connection: Connection) -> None:
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        for channel in (self._settings.own_channel, self._settings.common_channel):
            await connection.add_listener(channel, self._on_notification)
        self._outage.ends()
        self.listening.set()
        # What was said while nobody listened is lost: let the host look for itself.
        self.publish(Nudge("shards"))
        while not gone.is_set():
            try:
                async with asyncio.timeout(self._settings.answer_s):
                    await gone.wait()
            except TimeoutError:
                # A route that drops everything looks like silence: ask now and then.
                await connection.execute("select 1", timeout=self._settings.answer_s)
        raise ConnectionError("the listening connection was closed")

    def _on_notification(
        self, _connection: object, _pid: int, _channel: str, payload: object
    ) -> None:
        try:
            for kind, agent, name in from_json(str(payload)):
                self.publish(nudge_of(kind, agent, name))
        except (ValueError, TypeError, ContractError) as exc:
            _log.warning("a hint could not be read", extra={"problem": str(exc)})

    def publish(self, nudge: Nudge) -> None:
        """Hand a hint to whoever wants it."""
        if self.hook is not None:
            self.hook(nudge)
