"""Arrivals: what comes to agents and runs from outside a commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

from actors.errors import ContractError
from actors.kernel.agent.message import Message
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import Arrived, CancelReport, NewRun, SignalOutcome
from actors.kernel.runtime.waits import Answer

MOST_ANSWERED: Final = 2000
"""Runs whose waits one call of `emit` answers: it holds their rows."""
OnConflict: TypeAlias = Literal["queue", "join", "reject", "interrupt"]
CONFLICT_RULES: Final = get_args(OnConflict)


def check_on_conflict(rule: object) -> None:
    """Check that this is a rule for an agent that has an open run.

    Raises:
        ContractError: It is not.
    """
    if rule not in CONFLICT_RULES:
        rules = ", ".join(CONFLICT_RULES)
        raise ContractError(f"on_conflict is one of {rules}, not {str(rule)[:40]!r}")


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of `submit`.

    Attributes:
        run_id: The run of this message (the first one, for a message id that is known).
        arrived: The message's inbox row; None when the id was known.
        local: Whether this store's host owns the agent's shard, so no other process has to be notified.
    """

    run_id: RunId
    arrived: Arrived | None
    local: bool = True


def sender_of_message(message: Message) -> str:
    """Return who sent it.

    Raises:
        ContractError: It was not sent yet.
    """
    if message.sender is None:
        msg = f"message {message.id} has no sender: order and dedup are per sender"
        raise ContractError(msg)
    return message.sender


def ends_of(message: Message) -> tuple[str, AgentId]:
    """Return sender and receiver of messages.

    Raises:
        ContractError: It was not sent yet, or goes to a topic.
    """
    if not isinstance(message.target, AgentId):
        msg = f"message {message.id} goes to topic {message.target}: only agents have an inbox"
        raise ContractError(msg)
    return sender_of_message(message), message.target


class ArrivalStore(Protocol):
    """Writes that need no lease: new runs, messages, signals, answers and cancels."""

    async def submit(
        self,
        new_run: NewRun,
        message: Message,
        *,
        on_conflict: OnConflict = "queue",
        is_apart: bool = False,
    ) -> Submitted:
        """Write the message's inbox row and its run, PENDING, in one commit.

        `message.sender` is the run's own order domain (``submit:<client>``). A known
        (agent, sender, id) returns the first run and changes nothing.

        Args:
            new_run: The run.
            message: Its first message.
            on_conflict: The action if the agent has an open run.
            is_apart: Only a run that the message's sender started (`started_by`) is joined or
                interrupted.

        Raises:
            RunConflictError: The agent has an open run, and `on_conflict` is ``reject``, or ``join`` or
                ``interrupt`` and the run is not the sender's.
        """

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """Write pending inbox rows; return those that were not known. Each has sender and target set."""

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """Buffer a signal for a run. A known (run, sender, id) or an ended run is not accepted.

        A name that begins with ``~`` is an operator's decision (`actors.kernel.runtime.decisions`). It is
        accepted only while the run is at the entry that its id names, and one for each such entry.
        Without an id of that form it is about what the run is at now.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """Flag the run and its whole subtree; the owners write the ends.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def answer(self, answer: Answer) -> SignalOutcome:
        """Keep the answer to a wait of a run, and notify its owner; not accepted when the key has one.

        A person's decision is accepted only while the run waits for it.
        For those who are no run: a person who decides, a supervisor from outside.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def emit(
        self, event: str, payload: JsonValue, *, after: str = "", limit: int = MOST_ANSWERED
    ) -> list[tuple[RunId, AgentId]]:
        """Answer the open waits of some runs for an event, and notify their owners; return the waits by run.

        Waits that have an answer are left. Call again with `after` until none are answered: no run, which may
        wait for the same event again meanwhile, is then reached twice. Each call is whole or not at all.

        Args:
            event: See `event_id`.
            payload: The answer.
            after: Only runs with larger ids than this one.
            limit: Maximum number of runs.
        """


async def emit_to_all(
    store: ArrivalStore, event: str, payload: JsonValue
) -> AsyncIterator[list[tuple[RunId, AgentId]]]:
    """Answer all open waits for an event, each run once; yield the runs of each call of `emit`."""
    after = ""
    while found := await store.emit(event, payload, after=after):
        yield found
        after = found[-1][0]
