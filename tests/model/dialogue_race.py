"""Concurrent acts of two processes upon one session: the outcome equals that of some order."""

from __future__ import annotations

import asyncio
import itertools
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ActorsError
from actors.sessions import CancelResult
from tests.model.dialogue import Told
from tests.model.dialogue_play import PATIENCE_S, Play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from tests.model.dialogue import Dialogue

GONE: Final = "gone"
BEFORE: Final = {"idle": ("say", "say"), "open": ("say", "hold"), "queue": ("say", "hold", "hold")}
"""The messages before the race; the second one is cancelled."""


@dataclass
class Race(Play):
    """A race in a session of its own."""

    messages: dict[int, Told] = field(default_factory=dict)
    victim: str = ""

    async def run(self, before: str, acts: Sequence[str]) -> list[str]:
        """Return the differences from every order."""
        session = self.session(0)
        dialogue = self.model[session]
        for n, kind in enumerate(BEFORE[before]):
            client_message = Told(f"{self.name}.{n}", kind, "c0")
            dialogue.start(client_message, "queue")
            await self._send(session, client_message, "queue", None)
            await self._rest()
        self.victim = f"{self.name}.1"
        await self._learn(session)
        node = await self._node(session, 0)
        performs = [self._perform(session, n, act, node) for n, act in enumerate(acts)]
        outcomes = await asyncio.gather(*performs)
        candidates = list(self._orders(acts, dialogue, outcomes))
        limit = asyncio.get_running_loop().time() + PATIENCE_S
        wrong: list[str] = []
        while candidates and asyncio.get_running_loop().time() < limit:
            problems: list[list[str]] = []
            for candidate in candidates:
                self.wrong, self.model[session] = [], candidate
                await self._learn(session)
                await self._look_at(session, candidate)
                if not self.wrong:
                    return []
                problems.append(self.wrong)
            wrong = min(problems, key=len)
            await asyncio.sleep(0.02)
        wrong = wrong or ["no order has these outcomes"]
        return [f"{before}, {acts}: {outcomes}", *wrong]

    async def _perform(self, session: str, n: int, act: str, node: str) -> Any:
        talks = await self.stage.talks(n)
        work: Awaitable[Any]
        match act:
            case "start":
                client_message = self.messages[n] = Told(f"{self.name}.r{n}", "hold", f"c{n}")
                return await self._send(session, client_message, "queue", None)
            case "cancel":
                work = self._stop(n)
            case "switch":
                work = talks.switch_context(session, node)
            case _:
                work = talks.delete_session(session)
        try:
            done = await work
        except ActorsError as exc:
            return type(exc).__name__
        if isinstance(done, CancelResult):
            return done.status
        return GONE if act == "delete" else "ok"

    async def _stop(self, n: int) -> CancelResult:
        """Cancel it by its known id: a list of runs may have it before its starter does."""
        run_id = next(id_ for id_, label in self.labels.items() if label == self.victim)
        handle = await (await self.stage.talks(n)).run(run_id)
        return await handle.cancel(timeout_s=PATIENCE_S)

    def _orders(
        self, acts: Sequence[str], base: Dialogue, outcomes: Sequence[Any]
    ) -> Iterator[Dialogue]:
        """Yield the sessions of the orders that have these outcomes.

        A cancel is requested, and then executed. The host starts the next run at once, or after all
        acts. Then the runs of two clients may be in another order than their facts, because a host
        that gets both hints at once takes either first.
        """
        cancels = [n for n, act in enumerate(acts) if act == "cancel"]
        steps = [*enumerate(acts), *((n, "ask") for n in cancels)]
        for order, is_late in itertools.product(itertools.permutations(steps), (False, True)):
            if any(order.index((n, "ask")) > order.index((n, "cancel")) for n in cancels):
                continue
            dialogue, is_gone = deepcopy(base), False
            dialogue.is_held = is_late
            for n, act in order:
                if act == "ask":
                    if (run := dialogue.runs.get(self.victim)) is not None:
                        dialogue.ask_to_stop(run, "")
                    continue
                predicted = self._predicted(acts[n], n, dialogue, outcomes[n], is_gone=is_gone)
                if acts[n] == "cancel" and outcomes[n] == "UnknownRunError" and GONE in outcomes:
                    predicted = outcomes[n]  # it has ended, and did so before the caller read that
                is_gone = is_gone or predicted == GONE
                if predicted != outcomes[n]:
                    break
            else:
                yield from _begun(dialogue, base) if is_late else (dialogue,)

    def _predicted(
        self, act: str, n: int, dialogue: Dialogue, outcome: Any, *, is_gone: bool
    ) -> str:
        if is_gone and (outcome, act) in _WHILE_IT_GOES:
            return str(outcome)  # the deletion has started, and is not complete
        match act:
            case "start":
                return dialogue.start(self.messages[n], "queue")
            case "cancel":
                run = dialogue.runs.get(self.victim)
                return "UnknownRunError" if run is None else dialogue.cancel(run)
            case "switch":
                return dialogue.switch(0)
        answer = dialogue.delete()
        return answer if answer.endswith("Error") else GONE


def _begun(dialogue: Dialogue, before: Dialogue) -> Iterator[Dialogue]:
    """Yield the dialogue's continuations, with each order of the runs that were not queued before the race."""
    old = {item.label for item in before.queue}
    for order in itertools.permutations(
        item.label for item in dialogue.queue if item.label not in old
    ):
        other = deepcopy(dialogue)
        other.queue.sort(key=lambda item: order.index(item.label) if item.label in order else -1)
        other.release()
        yield other


_WHILE_IT_GOES: Final = {
    ("SessionDeletingError", "start"),
    ("SessionActiveError", "switch"),
    (GONE, "delete"),
    ("completed", "cancel"),
}


async def races(stage: Any, program: Any, count: int) -> list[str]:
    """Run all pairs of acts, and this many triples, each in a session of its own; return the differences."""
    acts = ("start", "cancel", "switch", "delete")
    pairs = list(itertools.combinations_with_replacement(acts, 2))
    triples = [*list(itertools.combinations(acts, 3))[:count], ("delete", "delete", "start")]
    wrong: list[str] = []
    numbers = itertools.count()
    make = partial(Race, program, stage)
    for before in BEFORE:
        for some in (*pairs, *triples):
            wrong += await make(f"r{next(numbers)}.").run(before, some)
    return wrong
