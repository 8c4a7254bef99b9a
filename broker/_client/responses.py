"""Responses of hosts and JetStream to an `ActorClient`, and what follows from them. No I/O.

An answer becomes a value or an error. An attempt without an answer is `MissedError`, and `Tries` decides
whether to try again or to raise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from actors._kernel.basics import Backoff
from broker import _client_errors as errors
from broker import _nats_client as nats_client
from broker._client.requests import TOO_LARGE_REMEDY, Event, Request, Result, Status
from broker._nats.requests import BodyTooLargeError, Reply
from broker._nats_client import ServerError
from broker._wire import headers as names

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue

TIMED_OUT: Final = 408
TOO_MANY: Final = 429
"""The host did nothing; another one, or the same one later, will."""
STOPPED: Final = 503
"""The host, or its database, went away, perhaps in the midst of it; ask again with the same id."""
_STREAM_TOO_LARGE: Final = 10054
_FAILURES: Final[Mapping[int, tuple[type[errors.ClientError], str]]] = {
    400: (errors.BadRequestError, "Correct the request."),
    403: (errors.NotPermittedError, "Ask for the permission, or address what you may."),
    404: (errors.UnknownRunError, "Look at the id; a run of another tenant is unknown, too."),
    409: (errors.ConflictError, "Wait until the run has ended, or choose another on_conflict."),
    413: (errors.TooLargeError, TOO_LARGE_REMEDY),
    422: (errors.RunFailedError, "Look at the run: `callboard runs show RUN`."),
    499: (errors.RunCancelledError, "Somebody cancelled the run; submit anew with another id."),
}

Why: TypeAlias = Literal["unreachable", "lost", "silent", "unserved", "busy", "closed"]
_WHY: Final[Mapping[type[ServerError], Why]] = {
    nats_client.UnreachableError: "unreachable",
    nats_client.NoAnswerError: "silent",
    nats_client.RefusedError: "unserved",
}
_SERVE: Final = "Start a host (`callboard host`), or look at this user's permissions and namespace."


class Response(NamedTuple):
    """A response to a request of this client."""

    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, reply: Reply) -> Response:
        """Return what came, with its headers read."""
        return cls(names.parse_headers(reply.headers), reply.data)

    @property
    def code(self) -> int:
        """The error's code, 0 if it is none."""
        text = self.headers.get(names.ERROR_CODE, "0")
        return int(text) if text.isdecimal() else 500


def failure(request: Request, answer: Response) -> errors.ClientError | None:
    """Return the error in an answer of the gateway, if it has one."""
    code = answer.code
    if not code:
        return None
    error = _error_of(answer)
    kind, remedy = _FAILURES.get(code, (errors.ClientError, "Look at the host's log."))
    if error.get("type") == "unserved":
        kind = errors.UnservedError
    details = error.get("details")
    busy_with = details.get("busy_with") if isinstance(details, dict) else None
    run = run_of(answer) or (str(busy_with) if busy_with else None)
    problem = str(error.get("message") or answer.headers.get(names.ERROR) or f"error {code}")
    return kind(
        request.doing,
        problem.rstrip("."),
        str(error.get("remedy") or remedy),
        run,
        request.id,
        details,
    )


def run_of(answer: Response) -> str | None:
    """Return the run that an error of the gateway names, if it names one."""
    run = _error_of(answer).get("run") or answer.headers.get(names.RUN)
    return str(run) if run else None


def not_in_time(request: Request, run_id: str | None, limit_s: float) -> errors.ClientError:
    """Return the error of a run that has not ended in time, or perhaps was not even begun."""
    if run_id is None:
        problem = f"no host has taken it within {limit_s:g} s; whether one takes it yet is unknown"
        return outcome_unknown(request, problem)
    problem = f"the run has not ended within {limit_s:g} s; it goes on"
    remedy = "Wait further with result(run_id)."
    return errors.AskTimeoutError(request.doing, problem, remedy, run_id, request.id)


def _error_of(answer: Response) -> dict[str, Any]:
    try:
        error = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return error if isinstance(error, dict) else {}


def stored_failure(request: Request, answer: Response) -> errors.ClientError | None:
    """Return the error in JetStream's acknowledgement, or None if the message is stored."""
    try:
        ack = json.loads(answer.body)
        if "error" not in ack and "seq" in ack:
            return None
        error = dict(ack["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        error = {"description": "the answer is no acknowledgement of JetStream"}
    problem = str(error.get("description", error))
    if error.get("err_code") == _STREAM_TOO_LARGE:
        return errors.TooLargeError(request.doing, problem, TOO_LARGE_REMEDY, None, request.id)
    if error.get("code") == 503:  # noqa: PLR2004 - JetStream is there, and cannot now
        remedy = "Look at the server's limits and log, or send again later."
        return errors.UnservedError(request.doing, problem, remedy, None, request.id)
    remedy = "Look at the headers and at the stream's limits (`callboard doctor`)."
    return errors.BadRequestError(request.doing, problem, remedy, None, request.id)


def read(request: Request, answer: Response) -> Any:
    """Return the JSON value of an answer.

    Raises:
        ClientError: The answer is an error, or is cut off or otherwise no JSON.
    """
    error = failure(request, answer)
    if error is not None:
        raise error
    try:
        return json.loads(answer.body) if answer.body else None
    except (ValueError, RecursionError) as exc:
        problem = f"the answer is no JSON ({len(answer.body)} bytes)"
        raise errors.ClientError(
            request.doing, problem, "Look for what else answers there.", None, request.id
        ) from exc


def read_object(request: Request, answer: Response, *fields: str) -> dict[str, Any]:
    """Return the JSON object of an answer, which has these fields. Raises what `read` does."""
    body: dict[str, Any] = read(request, answer)
    problem = ""
    if not isinstance(body, dict):
        problem = f"the answer is a {type(body).__name__}, not an object"
    elif missing_fields := [name for name in fields if name not in body]:
        problem = f"the answer tells no {missing_fields[0]!r}"
    if problem:
        remedy = "Look for what else answers there."
        raise errors.ClientError(request.doing, problem, remedy, None, request.id)
    return body


def result_of(run_id: str, body: Mapping[str, JsonValue]) -> Result:
    """Return how a run ended, by the gateway's answer."""
    status, output, error = str(body.get("status")), body.get("output"), body.get("error")
    return Result(run_id=str(body.get("run") or run_id), status=status, output=output, error=error)


def status_of(run_id: str, body: Mapping[str, Any]) -> Status:
    """Return how far a run is; unknown fields of newer hosts are left out."""
    return Status(
        run_id=str(body.get("run_id") or run_id),
        status=str(body.get("status")),
        last_seq=int(body.get("last_seq", -1)),
        last_milestone=body.get("last_milestone"),
        parked=body.get("parked"),
        updated_at=body.get("updated_at"),
    )


def event_of(run_id: str, answer: Response) -> Event | None:
    """Return an event; None for a kind that this version does not know."""
    try:
        body = json.loads(answer.body)
        if body["kind"] not in {"entry", "delta", "end"}:
            return None
        return Event(
            kind=body["kind"],
            run_id=run_id,
            seq=int(body["seq"]),
            attempt=int(body.get("attempt", 1)),
            name=str(body.get("name", "")),
            position=str(body.get("position", "")),
            data=body.get("data"),
            at=str(body.get("at", "")),
            is_truncated=bool(body.get("truncated", False)),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class MissedError(Exception):
    """An attempt brought no answer. The next one may."""

    def __init__(self, why: Why, problem: str) -> None:
        super().__init__(why, problem)
        self.why, self.problem = why, problem


def in_our_words(
    exc: ServerError,
    doing: str,
    id: str | None = None,  # noqa: A002
) -> MissedError | errors.ClientError:
    """Return what an error of the connection means for a call: the next attempt may do, or none will."""
    problem = exc.problem
    if isinstance(exc, BodyTooLargeError):
        return errors.TooLargeError(doing, problem, exc.remedy, None, id)
    if isinstance(exc, nats_client.NotPermittedError):
        remedy = "Grant it to this user in the server's configuration (docs/subjects.md)."
        return errors.NotPermittedError(doing, problem, remedy, None, id)
    if "permissions violation for subscription" in problem:
        remedy = "Set inbox_prefix to the prefix that this user may subscribe to."
        return errors.NotPermittedError(doing, problem, remedy, None, id)
    return MissedError(_WHY.get(type(exc), "lost"), problem)


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
        self._last = MissedError(
            "unreachable", "earlier requests still wait, for their answers or for a connection"
        )
        self._backoff = Backoff()
        self.is_under_way = False
        """True if the request was sent and nothing came back yet."""

    def pause_after(self, miss: MissedError) -> float:
        """Return how many seconds after an attempt that brought no answer the next one is due.

        Raises:
            UnservedError: Nobody has been there for some seconds, and none was before.
            MissedError: The client is closed.
        """
        if self.is_under_way and miss.why in {"lost", "silent"}:
            # It was sent, and no answer says whether it arrived.
            self._may_be_done = True
        self.is_under_way = False
        self._last = miss
        if miss.why == "closed":
            raise miss
        if miss.why != "unserved":
            self._unserved_since = None
        else:
            self._unserved_since = self._unserved_since or self._now()
            if not self._may_be_done and self._now() - self._unserved_since >= self._unserved_s:
                raise unserved(miss, self._request.doing, self._request.id)
        return self._backoff.next_s()

    def final_error(self, address: str, limit_s: float) -> errors.ClientError:
        """Return what to raise when the time is over, or the client was closed."""
        request, miss = self._request, self._last
        if self._may_be_done or self.is_under_way:
            outcome_text = "no answer came" if self.is_under_way else miss.problem
            problem = f"{outcome_text}, within {limit_s:g} s; whether it was done is unknown"
            return outcome_unknown(request, problem)
        if miss.why in {"unserved", "busy"}:
            return unserved(miss, request.doing, request.id)
        return unreachable(address, miss, request.doing, request.id)


def outcome_unknown(request: Request, problem: str) -> errors.OutcomeUnknownError:
    """Return the error of a request that a host may have taken."""
    if request.id is None:
        return errors.OutcomeUnknownError(request.doing, problem, "Ask again.")
    remedy = f"Do the same again with id={request.id!r}: it is not done twice."
    return errors.OutcomeUnknownError(request.doing, problem, remedy, None, request.id)


def unserved(miss: MissedError, doing: str, id: str | None = None) -> errors.UnservedError:  # noqa: A002
    """Return the error of a request that no host takes."""
    return errors.UnservedError(doing, miss.problem, _SERVE, None, id)


def unreachable(
    address: str,
    miss: MissedError,
    doing: str,
    id: str | None = None,  # noqa: A002
) -> errors.UnreachableError:
    """Return the error of a server that is away, or does not let us in, or of a closed client."""
    problem = f"NATS at {address}: {miss.problem}"
    remedy = "Start nats-server there, or set the right URL (nats://HOST:PORT)."
    if miss.why == "closed":
        problem, remedy = miss.problem, "Use it inside `async with`."
    elif "uthorization" in miss.problem or "uthentication" in miss.problem:
        remedy = "Check the user, password, credentials file or nkey."
    return errors.UnreachableError(doing, problem, remedy, None, id)
