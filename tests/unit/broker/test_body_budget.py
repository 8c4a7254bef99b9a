"""Bodies that are no messages: a few reasons of each sender are told, all others are one."""

from __future__ import annotations

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.transport import Received, Undecodable
from broker._mail.backlog import MAX_SENDERS, PERIOD_S, REASONS_OF_ONE, TOO_MANY, BodyBudget

DESK = AgentId("desk", "1")
OTHER = AgentId("desk", "2")
MESSAGE = Received(1, DESK, "ext:crm", "m", Message("m", DESK, {}))


def garbage(
    sender: str, problem: str = "no JSON", data: bytes = b"bytes", agent: AgentId = DESK
) -> Received:
    """Bytes that are no message."""
    return Received(1, agent, sender, "g", Undecodable(problem, data))


def test_of_one_sender_so_many_reasons_are_reported_in_a_period() -> None:
    """All beyond have one reason and no bytes; other senders and messages are none the worse."""
    now = 0.0
    budget = BodyBudget(lambda: now)
    bad_messages = [garbage("ext:bad", f"no JSON at {n}") for n in range(REASONS_OF_ONE + 50)]
    first = [budget.spare(m) for m in bad_messages]
    other = [budget.spare(garbage("ext:crm")), budget.spare(MESSAGE)]
    now = PERIOD_S
    later = budget.spare(bad_messages[-1])

    assert first[:REASONS_OF_ONE] == bad_messages[:REASONS_OF_ONE]
    assert first[REASONS_OF_ONE:] == [garbage("ext:bad", TOO_MANY, b"")] * 50
    assert other == [garbage("ext:crm"), MESSAGE]
    assert later == bad_messages[-1]


def test_one_reason_is_reported_however_often_it_comes() -> None:
    """The first one of each agent brings its bytes: the letter that counts the others has them."""
    budget = BodyBudget(lambda: 0.0)
    spared_messages = [budget.spare(garbage("ext:bad")) for _ in range(REASONS_OF_ONE + 50)]
    others = [budget.spare(garbage("ext:bad", agent=OTHER)) for _ in range(2)]

    assert spared_messages == [garbage("ext:bad")] + [garbage("ext:bad", data=b"")] * (
        REASONS_OF_ONE + 49
    )
    assert others == [garbage("ext:bad", agent=OTHER), garbage("ext:bad", data=b"", agent=OTHER)]


def test_thousands_of_senders_cost_no_memory() -> None:
    """A period ends before its time when there are too many."""
    budget = BodyBudget(lambda: 0.0)
    for n in range(3 * MAX_SENDERS):
        budget.spare(garbage(f"ext:{n}"))

    assert len(budget._reported) <= MAX_SENDERS + 1
