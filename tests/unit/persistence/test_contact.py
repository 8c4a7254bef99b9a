"""Whether a host has its broker, as other hosts are told. Pure."""

from __future__ import annotations

from persistence._postgres.sharding.heartbeat import Contact

LEASE_S = 10.0


def states_after(*readings: tuple[float, bool]) -> list[str | None]:
    """What follows from what is seen at these times, one after the other."""
    contact = Contact(LEASE_S)
    return [contact.seen(is_connected, now) for now, is_connected in readings]


def test_a_loss_counts_once_it_has_lasted_for_a_lease() -> None:
    """Until then the host goes on, and others do not count on it."""
    assert states_after((0, True), (1, False), (10.9, False), (11, False), (60, False)) == [
        None,
        "unsure",
        "unsure",
        "broker",
        "broker",
    ]


def test_short_losses_never_add_up() -> None:
    """A connection that comes and goes is there."""
    readings = [(float(second), second % 9 == 0) for second in range(60)]
    assert set(states_after(*readings)) == {None, "unsure"}


def test_a_connection_that_is_back_counts_once_it_has_lasted_for_a_lease() -> None:
    """A short return moves nothing, either."""
    assert states_after(
        (0, False), (10, False), (11, True), (12, False), (13, True), (22.9, True), (23, True)
    ) == ["unsure", "broker", "returning", "broker", "returning", "returning", None]
