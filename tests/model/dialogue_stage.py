"""The hosts of dialogues: one that is alive, and crashes, and another process beside it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from actors._kernel.runtime.scheduler import RetryPolicy
from actors.sessions import AgentRuntime
from tests.model.dialogue_agents import Kid, Speaker, modes_of

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from tests.behaviour.bed import Bed
    from tests.harness.faulty_store import Faults

LIMIT_S: Final = 20.0
RETRY: Final = RetryPolicy(max_retries=1, backoff_s=0.01, jitter=0)


@dataclass
class Stage:
    """The current host, and another process.

    Attributes: bed: Its rows. app: The type of the sessions. parties: Number of dialogues. faults:
    The place of the crash, while it is armed. dies_at: The act in which it crashes.
    """

    bed: Bed
    app: str
    parties: int = 1
    faults: Faults | None = None
    dies_at: int | None = None
    is_armed: bool = False
    died: asyncio.Event = field(default_factory=asyncio.Event)
    speaker: Speaker = field(default_factory=Speaker)
    _others: AsyncExitStack = field(default_factory=AsyncExitStack)
    _elsewhere: Runtime | None = None
    _hosted: AgentRuntime | None = None
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def kids(self) -> str:
        """The type of children."""
        return f"{self.app}.kid"

    async def open(self) -> None:
        """Serve the agents."""
        self._elsewhere = await self._others.enter_async_context(self.bed.client())
        if self.faults is not None:
            self.faults.wanted = lambda *_: self.is_armed
            self.bed.go_wrong(self.faults, self.died.set)
            await self.bed.restart()
        await self._serve()

    async def close(self) -> None:
        """End the other process."""
        await self._others.aclose()

    async def _serve(self) -> None:
        await self.bed.runtime.register_type(self.kids, Kid)
        modes = modes_of(self.speaker, self.kids)
        hosted = AgentRuntime(agents=modes, runtime=self.bed.runtime, app=self.app, retry=RETRY)
        await hosted.open()
        if self.bed.backend != "memory":
            await self._until_known()

    async def _until_known(self) -> None:
        """Return when the other process can know the host of the app."""
        assert self._elsewhere is not None
        async with asyncio.timeout(LIMIT_S):
            while not any(  # noqa: ASYNC110 - of another process
                self.app in host.serves for host in await self._elsewhere.store.insight.hosts()
            ):
                await asyncio.sleep(0.005)

    async def talks(self, who: int) -> AgentRuntime:
        """Return the sessions of a client."""
        runtime = self._elsewhere if who % 2 else self.bed.runtime
        talks = AgentRuntime(runtime=runtime, app=self.app, principal=f"c{who}")
        await talks.open()
        return talks

    async def crash(self) -> None:
        """Wait for all other dialogues; then crash the host, and start another one."""
        crashed = asyncio.get_running_loop().create_future()
        self._waiting.append(crashed)
        await self._crash_if_all()
        await crashed

    async def leave(self) -> None:
        """Count the end of a dialogue."""
        self.parties -= 1
        await self._crash_if_all()

    async def _crash_if_all(self) -> None:
        if self._waiting and len(self._waiting) == self.parties:
            waiting, self._waiting = self._waiting, []
            await self.bed.crash()
            if self.faults is not None and self._elsewhere is not None:
                await self._elsewhere.store.shards.release(self.faults.leases)
            await self.bed.start()
            await self._serve()
            for future in waiting:
                future.set_result(None)
