"""Hints within one host."""

from __future__ import annotations

from actors._kernel.runtime.hints import Nudge
from actors._runtime.loop.notifications import Notifications


def test_no_subscriber_is_notified_before_the_host_executes() -> None:
    """What was published before is not kept: the host reads all that is durable when it begins."""
    nudges: list[Nudge] = []
    notifications = Notifications()
    notifications.subscribe(nudges.append, "mail")

    notifications.publish(Nudge("mail"))
    notifications.is_open = True

    assert nudges == []


def test_subscribers_of_a_kind_are_notified_in_their_order() -> None:
    """Others are not."""
    calls: list[str] = []
    notifications = Notifications()
    notifications.is_open = True
    notifications.subscribe(
        lambda nudge: calls.append(f"first {nudge.kind}"), "incarnation", "held"
    )
    notifications.subscribe(lambda nudge: calls.append(f"second {nudge.kind}"), "incarnation")

    notifications.publish_all([Nudge("held"), Nudge("incarnation"), Nudge("signal")])

    assert calls == ["first held", "first incarnation", "second incarnation"]
