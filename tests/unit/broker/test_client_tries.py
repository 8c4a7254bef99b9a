"""What follows from attempts that brought no answer."""

from __future__ import annotations

import contextlib

import pytest

from broker._client.requests import Request
from broker._client.responses import MissedError, Tries, Why
from broker._client_errors import ClientError, OutcomeUnknownError, UnreachableError, UnservedError

ASKED = Request(doing="ask desk/a", subject="s", headers={}, id="m-1")


def tries(*, may_be_done: bool = False) -> Tries:
    """Those of a request."""
    return Tries(ASKED, may_be_done=may_be_done, unserved_s=60)


async def test_hosts_that_cannot_now_are_asked_less_and_less_often() -> None:
    """Thousands of calls that all came back at once would keep down what is down."""
    call_tries = tries()
    pauses = []
    for _ in range(7):
        call_tries.is_under_way = True
        pauses.append(call_tries.pause_after(MissedError("lost", "the database is away")))

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(
    ("whys", "kind"),
    [
        (["unreachable"], UnreachableError),
        (["unserved"], UnservedError),
        (["busy"], UnservedError),
        (["silent"], OutcomeUnknownError),
        (["lost", "unreachable"], OutcomeUnknownError),
        (["silent", "unserved"], OutcomeUnknownError),
        (["closed"], UnreachableError),
        (["lost", "closed"], OutcomeUnknownError),
    ],
)
async def test_nothing_was_done_only_if_no_attempt_got_through(
    whys: list[Why], kind: type[ClientError]
) -> None:
    """An attempt without an answer may have been done, whatever became of those after it."""
    call_tries = tries()
    for why in whys:
        call_tries.is_under_way = why not in {"unreachable", "closed"}
        with contextlib.suppress(MissedError):
            call_tries.pause_after(MissedError(why, "words"))
    error = call_tries.final_error("nats:4222", 5)

    assert type(error) is kind
    assert error.id == "m-1"


async def test_what_a_host_has_taken_before_is_not_called_undone() -> None:
    """A question is asked in slices: that nobody is there for the second says nothing of the first."""
    call_tries = tries(may_be_done=True)
    call_tries.pause_after(MissedError("unserved", "nobody is there"))

    assert type(call_tries.final_error("nats:4222", 5)) is OutcomeUnknownError
