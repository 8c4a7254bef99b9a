"""The outcomes of a request's attempts, and the decision to try again or to raise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from actors.kernel.basics import Backoff
from broker import client_errors as errors
from broker import nats_client
from broker.client.requests import Request
from broker.nats.requests import BodyTooLargeError
from broker.nats_client import ServerError

Why: TypeAlias = Literal["unreachable", "lost", "silent", "unserved", "busy", "closed"]
_WHY: Final[Mapping[type[ServerError], Why]] = {
    nats_client.UnreachableError: "unreachable",
    nats_client.NoAnswerError: "silent",
    nats_client.RefusedError: "unserved",
}
_SERVE: Final = "Start a host (`callboard host`), or look at this user's permissions and namespace."


class Missed(Exception):  # noqa: N818 - no error: the next attempt may do
    """An attempt brought no answer."""

    def __init__(self, why: Why, words: str) -> None:
        super().__init__(why, words)
        self.why, self.words = why, words


def in_our_words(
    exc: ServerError,
    doing: str,
    id: str | None = None,  # noqa: A002
) -> Missed | errors.ClientError:
    """Return what an error of the connection means for a call: the next attempt may do, or none will."""
    words = exc.problem
    if isinstance(exc, BodyTooLargeError):
        return errors.TooLargeError(doing, words, exc.remedy, None, id)
    if isinstance(exc, nats_client.NotPermittedError):
        remedy = "Grant it to this user in the server's configuration (docs/subjects.md)."
        return errors.NotPermittedError(doing, words, remedy, None, id)
    if "permissions violation for subscription" in words:
        remedy = "Set inbox_prefix to the prefix that this user may subscribe to."
        return errors.NotPermittedError(doing, words, remedy, None, id)
    return Missed(_WHY.get(type(exc), "lost"), words)


class Tries:
    """The outcomes of one request's attempts, and the decision to try again or to raise.

    Args:
        request: The same each time.
        may_be_done: A host is known to have taken it before.
        unserved_s: Seconds for which the request is repeated while no host serves it.
    """

    def __init__(self, request: Request, *, may_be_done: bool, unserved_s: float) -> None:
        self._request = request
        self._may_be_done = may_be_done
        self._unserved_s = unserved_s
        self._now = asyncio.get_running_loop().time
        self._unserved_since: float | None = None
        self._last = Missed(
            "unreachable", "earlier requests still wait, for their answers or for a connection"
        )
        self._backoff = Backoff()
        self.is_under_way = False
        """True if the request was sent and nothing came back yet."""

    def pause_after(self, missed: Missed) -> float:
        """Return how many seconds after an attempt that brought no answer the next one is due.

        Raises:
            UnservedError: Nobody has been there for some seconds, and none was before.
            Missed: The client is closed.
        """
        if self.is_under_way and missed.why in {"lost", "silent"}:
            self._may_be_done = True
        self.is_under_way = False
        self._last = missed
        if missed.why == "closed":
            raise missed
        if missed.why != "unserved":
            self._unserved_since = None
        else:
            self._unserved_since = self._unserved_since or self._now()
            if not self._may_be_done and self._now() - self._unserved_since >= self._unserved_s:
                raise unserved(missed, self._request.doing, self._request.id)
        return self._backoff.next_s()

    def given_up(self, address: str, limit_s: float) -> errors.ClientError:
        """Return what to raise when the time is over, or the client was closed."""
        request, missed = self._request, self._last
        if self._may_be_done or self.is_under_way:
            words = "no answer came" if self.is_under_way else missed.words
            problem = f"{words}, within {limit_s:g} s; whether it was done is unknown"
            return outcome_unknown(request, problem)
        if missed.why in {"unserved", "busy"}:
            return unserved(missed, request.doing, request.id)
        return unreachable(address, missed, request.doing, request.id)


def outcome_unknown(request: Request, problem: str) -> errors.OutcomeUnknownError:
    """Return the error of a request that a host may have taken."""
    if request.id is None:
        return errors.OutcomeUnknownError(request.doing, problem, "Ask again.")
    remedy = f"Do the same again with id={request.id!r}: it is not done twice."
    return errors.OutcomeUnknownError(request.doing, problem, remedy, None, request.id)


def unserved(missed: Missed, doing: str, id: str | None = None) -> errors.UnservedError:  # noqa: A002
    """Return the error of a request that no host takes."""
    return errors.UnservedError(doing, missed.words, _SERVE, None, id)


def unreachable(
    address: str,
    missed: Missed,
    doing: str,
    id: str | None = None,  # noqa: A002
) -> errors.UnreachableError:
    """Return the error of a server that is away, or does not let us in, or of a closed client."""
    problem = f"NATS at {address}: {missed.words}"
    remedy = "Start nats-server there, or set the right URL (nats://HOST:PORT)."
    if missed.why == "closed":
        problem, remedy = missed.words, "Use it inside `async with`."
    elif "uthorization" in missed.words or "uthentication" in missed.words:
        remedy = "Check the user, password, credentials file or nkey."
    return errors.UnreachableError(doing, problem, remedy, None, id)
