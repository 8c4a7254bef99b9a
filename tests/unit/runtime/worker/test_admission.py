"""Who may execute now: the pure decision, against a store that grants what the test says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.limits import Grant, Limit, LimitScope
from actors._runtime.worker.admission import LINGER_S, POLL_S, SHARE_S, Admission, ReadyQueue
from actors.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors._kernel.stores.limits import Claim
    from actors._runtime.worker.admission import Permit


@dataclass(eq=False)
class Item:
    """An agent that wants to execute."""

    agent_id: AgentId
    priority: int = 5
    run_id: RunId | None = None


DESK, TENANT_A, ALL = (LimitScope.parse(t) for t in ("type:desk", "tenant:a", "deployment"))


class Host:
    """The queue and the limiters of one host, on a clock that the test moves."""

    def __init__(self, *limits: Limit) -> None:
        self.now = 100.0
        self.ready: ReadyQueue[Item] = ReadyQueue()
        self.admission: Admission[Item] = Admission(self.ready, clock=lambda: self.now)
        self.admission.define(limits)

    def offer(self, *items: Item) -> None:
        """Make these ready."""
        for item in items:
            self.ready.offer(item, priority=item.priority, tenant=item.agent_id.tenant)

    def start(self) -> list[Permit[Item]]:
        """Let all enter that may."""
        permits = []
        while self.ready:
            [item] = self.ready.take(1)
            if (permit := self.admission.admit(item)) is not None:
                permits.append(permit)
        return permits

    def exchange(self, **grants: Grant | int) -> list[Claim]:
        """Claim; each claim is granted what it wants, or so many slots where the test says so."""
        claims = self.admission.claims()
        self.admission.apply(_granted(claim, grants) for claim in claims)
        return claims


def _granted(claim: Claim, grants: dict[str, Grant | int]) -> Grant:
    answer = grants.get(claim.scope.name or "deployment", claim.wanted)
    if isinstance(answer, Grant):
        return answer
    held_slots = max(claim.held, answer)
    starts = max(claim.starts, 0)
    return Grant(scope=claim.scope, held=held_slots, share=answer, contended=False, starts=starts)


def desks(count: int, tenant: str = "default", priority: int = 5) -> list[Item]:
    """So many agents of one type."""
    return [Item(AgentId("desk", f"{tenant}{n}", tenant), priority) for n in range(count)]


def items(permits: Iterable[Permit[Item]]) -> list[Item]:
    """Who has entered."""
    return [permit.item for permit in permits]


@pytest.mark.item(218)
def test_without_a_limit_nothing_is_asked() -> None:
    """Everybody enters at once, and no claim is ever due; so with limits that concern nobody here."""
    plain, other = Host(), Host(Limit(scope=LimitScope.parse("type:clerk"), max_concurrent=1))
    for host in (plain, other):
        host.offer(*desks(3))

        assert len(host.start()) == 3
        assert host.admission.due_at() is None
        assert host.admission.claims() == []


@pytest.mark.item(218)
def test_those_over_a_limit_wait_and_the_others_go_on() -> None:
    """Ten desks of which two may, and a clerk behind them: the clerk does not wait."""
    host = Host(Limit(scope=DESK, max_concurrent=2))
    clerk = Item(AgentId("clerk", "1"))
    waiting = desks(10)
    host.offer(*waiting, clerk)

    assert items(host.start()) == [clerk]
    [claim] = host.exchange(desk=2)
    assert (claim.held, claim.wanted) == (0, 10)
    first = host.start()
    assert items(first) == waiting[:2]
    host.admission.release(first[0])
    assert items(host.start()) == waiting[2:3], "a slot that is free again needs nobody's word"


def test_groups_ask_once() -> None:
    """A hundred who wait are one claim; there is nothing to ask again until the pause is over."""
    host = Host(Limit(scope=DESK, max_concurrent=2))
    host.offer(*desks(100))
    host.start()

    assert [claim.wanted for claim in host.exchange(desk=0)] == [100]
    assert host.admission.due_at() == host.now + POLL_S
    assert host.admission.claims() == []
    host.admission.refresh()  # somebody said that slots are free
    assert [claim.wanted for claim in host.exchange(desk=1)] == [100]


def test_slots_that_no_run_needs_are_released_after_a_moment() -> None:
    """At once when others want them."""
    host = Host(Limit(scope=DESK, max_concurrent=5))
    host.offer(*desks(3))
    host.start()
    host.exchange()
    inside = host.start()
    host.admission.release(inside[0])
    assert host.admission.claims() == []

    host.now += LINGER_S
    [claim] = host.exchange()
    assert (claim.held, claim.wanted) == (2, 2)
    host.admission.refresh()
    host.admission.release(inside[1])
    [claim] = host.exchange()
    assert (claim.held, claim.wanted) == (1, 1)


def test_what_is_above_the_share_is_not_used_again() -> None:
    """A host that holds four and may use two lets two run out, and gives each back as it does."""
    host = Host(Limit(scope=DESK, max_concurrent=4))
    host.offer(*desks(8))
    host.start()
    host.exchange(desk=4)
    inside = host.start()
    host.admission.refresh()
    grant = Grant(scope=DESK, held=4, share=2, contended=True)
    host.now += SHARE_S
    host.exchange(desk=grant)
    held_counts = []
    for permit in inside[:3]:
        host.admission.release(permit)
        inside += host.start()
        held_counts += [claim.held for claim in host.exchange(desk=2)]

    assert len(inside) == 4 + 1, "only the third freed a slot for another one"
    assert held_counts[:2] == [3, 2]


def test_a_lowered_limit_lets_run_out_what_executes_and_a_raised_one_is_asked_for_at_once() -> None:
    """Nobody is stopped."""
    host = Host(Limit(scope=DESK, max_concurrent=3))
    host.offer(*desks(9))
    host.start()
    host.exchange(desk=3)
    inside = host.start()
    host.admission.define([Limit(scope=DESK, max_concurrent=1)])
    host.exchange(desk=Grant(scope=DESK, held=3, share=1, contended=False))
    for permit in inside[:2]:
        host.admission.release(permit)
    assert host.start() == []

    host.exchange(desk=1)
    host.admission.define([Limit(scope=DESK, max_concurrent=4)])
    [claim] = host.exchange(desk=4)
    assert claim.wanted == 1 + 6
    assert len(host.start()) == 3


def test_a_limit_that_is_gone_lets_everybody_in() -> None:
    """Whoever waited is ready again, in order."""
    host = Host(Limit(scope=DESK, max_concurrent=1))
    waiting = desks(3)
    host.offer(*waiting)
    host.start()
    host.admission.define([])

    assert items(host.start()) == waiting
    assert host.admission.due_at() is None


def test_what_executes_counts_when_a_limit_is_new() -> None:
    """The first claim tells of three that execute already, and wants a fourth."""
    host = Host()
    host.offer(*desks(3))
    inside = host.start()
    host.admission.define([Limit(scope=DESK, max_concurrent=3)])
    host.offer(*desks(1, "a"))
    assert host.start() == []

    [claim] = host.exchange(desk=3)
    assert (claim.held, claim.wanted) == (3, 4)
    assert host.start() == []
    host.admission.release(inside[0])
    assert len(host.start()) == 1


@pytest.mark.item(218)
def test_who_waits_at_one_limit_keeps_nothing_of_another() -> None:
    """Tenant a has one slot; its nine others do not sit on slots of the type that b can use."""
    host = Host(Limit(scope=DESK, max_concurrent=4), Limit(scope=TENANT_A, max_concurrent=1))
    host.offer(*desks(9, "a"), *desks(3, "b"))
    host.start()
    for _ in range(4):
        host.exchange(desk=4, a=1)
        host.start()

    inside = [permit.item.agent_id.tenant for permit in host.admission._permits]
    assert sorted(inside) == ["a", "b", "b", "b"]


@pytest.mark.item(218)
def test_at_a_limit_tenants_take_turns_whatever_their_numbers() -> None:
    """A thousand of one tenant and one of each other, for one slot after the other; who comes last is last."""
    host = Host(Limit(scope=ALL, max_concurrent=1))
    host.offer(*desks(1000, "big"), *desks(1, "small"))
    host.start()
    host.exchange(deployment=1)
    host.offer(*desks(1, "late", priority=1))
    order: list[str] = []
    inside = host.start()
    while len(order) < 4:
        [permit] = inside
        order.append(permit.item.agent_id.tenant)
        host.admission.release(permit)
        inside = host.start()

    assert order == ["big", "small", "big", "late"]


def test_starts_are_for_runs_that_begin_and_slots_for_all() -> None:
    """A run that goes on needs no start, and does not wait behind those who do."""
    host = Host(Limit(scope=DESK, rate_per_s=1, burst=1))
    new = desks(2)
    resumed = Item(AgentId("desk", "r"), run_id=RunId("r"))
    host.offer(*new, resumed)

    assert items(host.start()) == [resumed]
    [claim] = host.exchange(
        desk=Grant(scope=DESK, held=0, share=0, contended=False, starts=1, next_start_s=0.7)
    )
    assert claim.starts == 2
    assert items(host.start()) == new[:1]
    assert host.admission.due_at() == pytest.approx(host.now + 0.7)


def test_starts_that_nobody_uses_are_given_back() -> None:
    """A run that was cancelled while it waited leaves no start for a later burst."""
    host = Host(Limit(scope=DESK, rate_per_s=5, burst=5))
    [item] = desks(1)
    host.offer(item)
    host.start()
    host.exchange()
    host.ready.discard(item)
    host.admission.forget(item)

    assert [claim.starts for claim in host.exchange()] == [-1]
    assert host.admission.due_at() is None


def test_after_a_lost_answer_what_may_be_held_is_given_back() -> None:
    """The store may have granted five: the host says what it has, and uses none of them unasked."""
    host = Host(Limit(scope=DESK, max_concurrent=5))
    waiting = desks(5)
    host.offer(*waiting)
    host.start()
    claims = host.admission.claims()
    host.admission.mark_unanswered(claims)
    assert host.start() == []

    [claim] = host.exchange(desk=5)
    assert (claim.held, claim.wanted) == (0, 5)
    assert len(host.start()) == 5


@pytest.mark.parametrize(
    "text", ["", "desk", "type:", "type", "deployment:x", "agent:desk", "host:a", "type:a b"]
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    """The error says how scopes are written, or which name is wrong."""
    with pytest.raises(ContractError):
        LimitScope.parse(text)


@pytest.mark.parametrize(
    "numbers",
    [
        {"max_concurrent": -1},
        {"rate_per_s": 0},
        {"burst": 3},
        {"rate_per_s": 1, "burst": 0},
        {"weight": 0},
        {"weight": 2},
    ],
)
def test_numbers_out_of_range_are_refused(numbers: dict[str, int]) -> None:
    """Each by name."""
    with pytest.raises(ContractError, match=next(reversed(numbers)).split("_")[0]):
        Limit(scope=DESK, **numbers)
