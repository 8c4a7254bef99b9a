"""Operators that decide from another process at any time, and the laws for their decisions."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import ActorsError
from tests.harness.checks import broken_laws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import Runtime
    from tests.model.agent import Execution

VERBS: Final = (
    *("value", "retry", "retry", "fail"),
    *("again", "cancel", "fork", "sweep", "approve", "deny"),
    *("redrive letters", "redrive letters", "redrive runs", "redrive runs"),
)
Order = tuple[float, str]
"""Operators' orders and their times."""


@dataclass(frozen=True, slots=True)
class Act:
    """An act of an operator.

    Attributes: run_id: Its run. doubt: Position and seq of the intent in doubt that the operator
    read. new: Ids of resulting messages and runs.
    """

    verb: str
    run_id: str
    doubt: tuple[str, int] = ("", -1)
    value: Any = None
    new: tuple[str, ...] = ()


@dataclass
class Operator:
    """One operator; remembers its last doubt, and may decide about it again, too late.

    Attributes: accepted: Its accepted acts.
    """

    runtime: Runtime
    accepted: list[Act] = field(default_factory=list)
    _doubt: tuple[RunId, str, int] | None = None

    async def work(self, orders: Sequence[Order]) -> None:
        """Execute all orders, each at its time."""
        loop = asyncio.get_running_loop()
        for n, (at, verb) in enumerate(sorted(orders)):
            await asyncio.sleep(at - loop.time())
            try:
                await self._do(verb, n)
            except ActorsError:
                continue  # refused

    async def _do(self, verb: str, n: int) -> None:
        store, runtime = self.runtime.store, self.runtime
        runs = sorted(await store.lists.runs(limit=1000), key=lambda row: row.arrival)
        ends = [row for row in runs if row.status.is_terminal and not row.swept]
        parked = [row for row in runs if row.parked is not None]
        match verb:
            case "value" | "retry" | "fail":
                await self._resolve(verb, n, parked)
            case "again" if parked:
                await runtime.resolve(parked[0].run_id)
            case "cancel" if len(ends) < len(runs):
                row = next(row for row in runs if not row.status.is_terminal)
                await runtime.cancel(row.run_id, reason="an operator's")
            case "fork" if ends:
                row = ends[n % len(ends)]
                await runtime.fork_run(row.run_id, at_seq=row.last_seq // 2, copy=n)
            case "sweep":
                await store.retention.sweep(older_than_s=1.0)
            case "approve" | "deny":
                for approval in await runtime.approvals.open():
                    await runtime.approvals.decide(
                        approval.id, approve=verb == "approve", by=f"{n}"
                    )
                    self.accepted.append(Act(verb, approval.run_id, (approval.id, -1)))
            case "redrive letters":
                for letter in await store.lists.dead_letters(limit=1000):
                    new = tuple(
                        arrived.message.id for arrived in await store.operators.redrive([letter.id])
                    )
                    self.accepted += [Act(verb, str(letter.run_id), new=new)] if new else []
            case "redrive runs":
                for row in [row for row in ends if row.status is RunStatus.FAILED]:
                    new_id = await runtime.redrive_run(row.run_id)
                    self.accepted.append(Act(verb, row.run_id, new=(new_id,)))
            case _:
                pass

    async def _resolve(
        self, action: Literal["value", "retry", "fail"], n: int, parked: Sequence[RunRow]
    ) -> None:
        doubts = [row for row in parked if row.parked == "in_doubt"]
        if doubts:
            log = [entry async for entry in self.runtime.store.reads.entries(doubts[0].run_id)]
            position = str(log[-1].payload["at"])
            self._doubt = (doubts[0].run_id, position, last_intent(log, position))
        if self._doubt is None:
            return
        run_id, position, seq = self._doubt
        value = f"{action} {n}"
        if await self.runtime.resolve(run_id, position, action=action, value=value, error=value):
            self.accepted.append(Act(action, run_id, (position, seq), value))


def last_intent(log: Sequence[RunLogEntry], position: str) -> int:
    """Return the seq of the last intent at a position."""
    kinds = ("effect.intent", "tool.called")
    return max((e.seq for e in log if e.kind in kinds and e.position == position), default=-1)


def broken_orders(
    logs: Sequence[list[RunLogEntry]], begun: Sequence[Execution], accepted: Sequence[Act]
) -> list[str]:
    """Return the violations by an operator's work, as text."""
    problems = [law for log in logs for law in broken_laws(log)]
    problems += _decided_once(accepted)
    problems += [text for log in logs for text in _decisions(log, accepted)]
    problems += [text for log in logs for text in _executed(log, begun)]
    return problems


def _decided_once(accepted: Sequence[Act]) -> list[str]:
    """Check that each doubt and request is decided once, and each message and run redriven once."""
    decided = Counter((act.run_id, act.doubt) for act in accepted if act.doubt[0])
    problems = [f"{what} was decided {n} times" for what, n in decided.items() if n > 1]
    redriven: dict[str, set[str]] = {}
    for act in accepted:
        if act.verb.startswith("redrive"):
            redriven.setdefault(act.run_id, set()).add(act.verb)
    return problems + [
        f"{run} was redriven by {how}" for run, how in redriven.items() if len(how) > 1
    ]


def _decisions(log: Sequence[RunLogEntry], accepted: Sequence[Act]) -> list[str]:
    """Check that each decision in a log is an operator's decision about this doubt."""
    problems: list[str] = []
    for entry in log:
        if entry.kind != "in_doubt.resolved":
            continue
        before = [earlier for earlier in log if earlier.seq < entry.seq]
        doubt = (entry.position, last_intent(before, entry.position))
        action = str(entry.payload["action"])
        recorded_answers = {"value": entry.payload.get("value"), "fail": entry.payload.get("error")}
        if not any(
            act.doubt == doubt
            and act.verb == action
            and recorded_answers.get(action, act.value) == act.value
            for act in accepted
        ):
            problems.append(f"run {entry.run_id}: {entry.payload} was not decided of {doubt}")
    return problems


def _executed(log: Sequence[RunLogEntry], begun: Sequence[Execution]) -> list[str]:
    """Check that an at-most-once effect executes once for each of its intents."""
    intents = Counter(
        str(e.payload["name"]) for e in log if e.payload.get("mode") == "at_most_once"
    )
    run_id = log[0].run_id if log else ""
    times = Counter(execution.name for execution in begun if execution.run_id == run_id)
    return [
        f"run {run_id}: {name} executed {times[name]} times, {n} intents"
        for name, n in intents.items()
        if times[name] > n
    ]
