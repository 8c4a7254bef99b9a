"""Answers to one run: read when somebody says there are some, or when a replay needs a first look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.lookout import Lookout

if TYPE_CHECKING:
    from actors.kernel.runtime.commit import Answer
    from actors.kernel.runtime.ids import RunId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.run_log import RunLog


class Answers:
    """What ends the asks, joins and approvals of a run. Taking one rides with the next flush."""

    def __init__(self, store: RunStore, run_id: RunId, log: RunLog) -> None:
        self._store = store
        self._run_id = run_id
        self._log = log
        self._waiting: dict[str, Answer] = {}
        self._taken: dict[str, Answer] = {}
        self._lookout = Lookout(is_current=True)

    def poke(self) -> None:
        """There may be new ones, or some from before this execution."""
        self._lookout.poke()

    async def refresh(self) -> None:
        """Read what has come. A second branch waits for what the first one reads."""
        await self._lookout.refresh(self._read)

    async def _read(self) -> None:
        found = await self._log.reading(lambda: self._store.answers(self._run_id))
        self._waiting = {a.key: a for a in found if a.key not in self._taken}

    def is_there(self, key: str) -> bool:
        """Whether `take_now` would return an answer."""
        return key in self._waiting or key in self._taken

    def take_now(self, key: str, *, keep: bool = False) -> Answer | None:
        """Consume and return the answer with this key, or None.

        Branches that wait for the same get the same. With `keep` it stays for whoever waits for it
        again, in a later generation of the run too.
        """
        answer = self._taken.get(key)
        if answer is None:
            answer = self._waiting.pop(key, None)
            if answer is None:
                return None
            self._taken[key] = answer
            if not keep:
                self._log.take_answer(key)
        return answer
