"""Requests of an `ActorClient`, checked before they are sent, and the values that it returns. No I/O.

docs/subjects.md has the subjects, headers and bodies.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from actors._kernel.json_data import check_json
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, check_name, place_of, token
from actors._kernel.stores.outside import Sight
from actors.errors import InvalidNameError, NotSerializableError
from broker._client_errors import BadRequestError, TooLargeError
from broker._errors import SubjectError
from broker._wire import headers as names
from broker._wire.headers import MAX_BODY_BYTES, MAX_ID_BYTES, TEXT, header_value
from broker._wire.subjects import Subjects, has_hash

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue

EventKind: TypeAlias = Literal["entry", "delta", "end"]
MAX_TOKEN_BYTES: Final = 128
"""Largest name of a signal in a subject. A longer name would be a hash there, which hosts cannot read back."""
MAX_WAIT_S: Final = 3600.0
MAX_PRIORITY: Final = 1000
CONFLICTS: Final = ("queue", "join", "reject", "interrupt")
TOO_LARGE_REMEDY: Final = "Put the content into a store of yours and send its reference."
_RUN: Final = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The waiting times of an `ActorClient`, in seconds.

    Attributes:
        attempt_s: Seconds for the answer to one attempt.
        slice_s: Seconds to wait for a run's end in one request; a longer wait repeats the request.
        grace_s: Seconds to wait for an answer after the host's own time limit.
        silence_s: Seconds to wait for the next message of a stream of events.
        unserved_s: Seconds for which a request is repeated while no host serves it.
    """

    attempt_s: float = 5.0
    slice_s: float = 5.0
    grace_s: float = 2.0
    silence_s: float = 12.0
    unserved_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run that was submitted.

    Attributes:
        run_id: 32 hexadecimal digits; all that other calls need.
        agent: The run's agent, as ``type/key``.
    """

    run_id: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run that ended.

    Attributes:
        run_id: The run.
        status: ``COMPLETED``, ``FAILED`` or ``CANCELLED``.
        output: What the agent returned; None unless it completed.
        error: Why it failed, as the host says; None unless it did.
    """

    run_id: str
    status: str
    output: JsonValue = None
    error: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The progress of a run.

    Attributes:
        run_id: The run.
        status: ``PENDING``, ``RUNNING``, ``SUSPENDED``, or how it ended.
        last_seq: The last seq of its log; -1 when it is empty.
        last_milestone: Kind of the last entry about the run itself or one of its effects.
        parked: Why it waits for a person, if it does.
        updated_at: When the last entry was written, ISO 8601 UTC.
    """

    run_id: str
    status: str
    last_seq: int = -1
    last_milestone: str | None = None
    parked: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a run.

    Attributes:
        kind: An ``entry`` of its log, a ``delta`` (a piece of a model's answer, or what the agent shows
            by ``ctx.emit_delta``), or the ``end``, which comes last and once.
        run_id: The run.
        seq: Seq of the entry; for a delta that of the last entry before it; for the end that of the last entry.
        attempt: The attempt of the run, from 1. When it grows, deltas of smaller ones are void.
        name: The entry's kind, the delta's kind, or the run's final status.
        position: The position in the run; deltas of one model call share it.
        data: The entry's payload, ``{"n", "text"}`` of a delta (of a ``custom.delta`` that is no text
            also ``data``), or ``{"result", "error"}`` of the end.
        at: The instant, ISO 8601 UTC.
        is_truncated: The data is larger than a message may be, and None here.
        is_restart: A delta after which what came before at this position is void: the model is
            called anew.
    """

    kind: EventKind
    run_id: str
    seq: int
    attempt: int = 1
    name: str = ""
    position: str = ""
    data: JsonValue = None
    at: str = ""
    is_truncated: bool = False
    is_restart: bool = False

    @property
    def text(self) -> str:
        """The piece of a delta, else nothing."""
        if self.kind != "delta" or not isinstance(self.data, dict):
            return ""
        return str(self.data.get("text", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A message to publish, with a reply subject of the client's.

    Attributes:
        doing: The request in words, for errors.
        subject: The subject to publish to.
        body: Its bytes.
        headers: Headers of the message.
        id: What makes sending it again safe; None where nothing can happen twice.
        order_key: Requests with the same one go out one after another, in the order of the calls.
    """

    doing: str
    subject: str
    body: bytes = b""
    headers: Mapping[str, str]
    id: str | None = None
    order_key: str | None = None

    def waiting(self, wait_s: float) -> Request:
        """Return the same question, for whose answer a host waits so many seconds."""
        return replace(self, headers={**self.headers, names.TIMEOUT: f"{wait_s:.3f}"})


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """Makes the requests of one publisher of one tenant, which sees its own runs or all of the tenant.

    Raises:
        BadRequestError: Every method: something has not the form that it must have.
    """

    subjects: Subjects
    tenant: str
    publisher: str
    sees: Sight = "own"

    @classmethod
    def of(
        cls, *, namespace: str, tenant: str, publisher: str, sees: Sight = "own"
    ) -> RequestFactory:
        """Check the names and return a factory."""
        try:
            check_name("tenant", tenant)
            factory = cls(Subjects(namespace), tenant, publisher, sees)
            factory.subjects.external(AgentId("x", "x"), publisher)
        except (InvalidNameError, SubjectError) as exc:
            raise BadRequestError("ActorClient", str(exc), "Correct the name.") from exc
        return factory

    def agent(self, agent: AgentId | str) -> AgentId:
        """Return an agent of this tenant, given as ``type/key``."""
        try:
            agent_id = agent if isinstance(agent, AgentId) else AgentId.parse(agent)
            if isinstance(agent, str) and ":" not in agent.partition("/")[0]:
                agent_id = AgentId(agent_id.type, agent_id.key, self.tenant)
        except (InvalidNameError, TypeError, AttributeError) as exc:
            raise bad(f"agent {agent!r}", str(exc), "Write type/key.") from exc
        self._check_tenant(f"agent {agent!r}", agent_id)
        if agent_id.key.startswith("~"):
            problem = "keys that begin with '~' cannot be addressed from outside"
            raise bad(f"agent {agent!r}", problem, "Choose another key.")
        return agent_id

    def topic(self, topic: TopicId | str) -> TopicId:
        """Return a topic of this tenant, given as ``type/source``, or ``type`` alone."""
        try:
            if isinstance(topic, TopicId):
                topic_id = topic
            else:
                type_, _, source = topic.partition("/")
                topic_id = TopicId(type_, source or "default", self.tenant)
        except (InvalidNameError, AttributeError) as exc:
            raise bad(f"topic {topic!r}", str(exc), "Write type/source.") from exc
        self._check_tenant(f"topic {topic!r}", topic_id)
        return topic_id

    def _check_tenant(self, doing: str, target: AgentId | TopicId) -> None:
        if target.tenant != self.tenant:
            problem = f"it is of tenant {target.tenant!r}, this client of {self.tenant!r}"
            raise bad(doing, problem, "Make a client for that tenant.")

    def send(self, agent: AgentId | str, payload: object, message_id: str | None) -> Request:
        """Messages for an agent, over JetStream."""
        to = self.agent(agent)
        doing = f"send to {to}"
        subject = self.subjects.external(to, self.publisher)
        body = _encode(doing, payload, is_object=True)
        return self._stream_request(to, message_id, doing=doing, subject=subject, body=body)

    def publish(self, topic: TopicId | str, payload: object, message_id: str | None) -> Request:
        """A post to a topic, over JetStream."""
        to = self.topic(topic)
        doing = f"publish to {to}"
        try:
            subject = self.subjects.external_post(to, self.publisher)
            topic_agent = place_of(to)
        except (InvalidNameError, SubjectError) as exc:
            raise bad(doing, str(exc), "Choose another name.") from exc
        body = _encode(doing, payload, is_object=True)
        return self._stream_request(
            topic_agent, message_id, doing=doing, subject=subject, body=body
        )

    def signal(self, run: RunRef, name: str, payload: object, message_id: str | None) -> Request:
        """A signal for a run whose agent is known, over JetStream."""
        to, run_id = self.agent(run.agent), checked_run(run.run_id)
        doing = f"signal {name!r} for run {run_id}"
        _check_signal(doing, name)
        subject = self.subjects.signal(to, self.publisher, run_id, name)
        body = _encode(doing, payload)
        return self._stream_request(to, message_id, doing=doing, subject=subject, body=body)

    def signal_by_id(
        self, run_id: str, name: str, payload: object, message_id: str | None
    ) -> Request:
        """A signal for a run of which only the id is known, to the gateway."""
        doing = f"signal {name!r} for run {run_id}"
        run, request_id = checked_run(run_id), checked_id(doing, message_id)
        _check_signal(doing, name)
        _check_payload(doing, payload)
        facts = {"run": run, "name": name, "payload": payload, "id": request_id}
        return self.api(
            "signal", facts, doing=doing, message_id=request_id, order_key=f"signal {run}"
        )

    def ask(
        self,
        agent: AgentId | str,
        payload: object,
        *,
        message_id: str | None,
        on_conflict: str,
        priority: int,
    ) -> Request:
        """A question to the gateway; see `Request.waiting`."""
        to = self.agent(agent)
        doing = f"ask {to}"
        request_id = checked_id(doing, message_id)
        _check_conflict(doing, on_conflict, priority)
        headers = {
            names.MESSAGE_ID: request_id,
            names.ON_CONFLICT: on_conflict,
            names.PRIORITY: str(priority),
            **_target(to),
            **trace_headers(),
        }
        return Request(
            doing=doing,
            subject=self.subjects.ask(to, self.publisher, self.sees),
            body=_encode(doing, payload),
            headers=headers,
            id=request_id,
        )

    def submit(
        self,
        agent: AgentId | str,
        payload: object,
        *,
        message_id: str | None,
        on_conflict: str,
        priority: int,
    ) -> Request:
        """A run to be started."""
        to = self.agent(agent)
        doing = f"submit to {to}"
        request_id = checked_id(doing, message_id)
        _check_conflict(doing, on_conflict, priority)
        _check_payload(doing, payload)
        facts = {
            "agent": str(to),
            "payload": payload,
            "id": request_id,
            "on_conflict": on_conflict,
            "priority": priority,
        }
        return self.api(
            "submit", facts, doing=doing, message_id=request_id, order_key=f"submit {to}"
        )

    def api(
        self,
        verb: str,
        facts: Mapping[str, object],
        *,
        doing: str,
        message_id: str | None = None,
        order_key: str | None = None,
    ) -> Request:
        """A verb of the gateway."""
        sees: Sight = "own" if verb == "renew" else self.sees  # it names a stream, not a run
        return Request(
            doing=doing,
            subject=self.subjects.api(self.tenant, self.publisher, verb, sees),
            body=_text_of(doing, facts),
            headers=trace_headers(),
            id=message_id,
            order_key=order_key,
        )

    def _stream_request(
        self, to: AgentId, message_id: str | None, *, doing: str, subject: str, body: bytes
    ) -> Request:
        request_id = checked_id(doing, message_id)
        headers = {names.MESSAGE_ID: request_id, **_target(to), **trace_headers()}
        return Request(
            doing=doing,
            subject=subject,
            body=body,
            headers=headers,
            id=request_id,
            order_key=f"stored {to}",
        )


def _target(agent: AgentId) -> dict[str, str]:
    return {names.TARGET: header_value(str(agent))} if has_hash(agent) else {}


def bad(doing: str, problem: str, remedy: str) -> BadRequestError:
    """Return the error of a request that is not sent."""
    return BadRequestError(doing, problem, remedy)


def checked_id(doing: str, id: str | None) -> str:  # noqa: A002
    """Return the id of a message, a fresh one if there is none.

    Raises:
        BadRequestError: It is not 1 to 256 bytes of printable text.
    """
    if id is None:
        return secrets.token_hex(16)
    if not _is_printable(id) or id.strip() != id:
        problem = f"the id {id!r:.80} is no printable text"
    elif len(id.encode()) > MAX_ID_BYTES:
        problem = f"the id has {len(id.encode())} bytes"
    else:
        return id
    raise bad(doing, problem, f"Use 1 to {MAX_ID_BYTES} bytes without spaces at the ends.")


def checked_run(run_id: object) -> RunId:
    """Return the id of a run.

    Raises:
        BadRequestError: The text is not valid.
    """
    if not isinstance(run_id, str) or _RUN.fullmatch(run_id) is None:
        raise bad(f"run {run_id!r:.80}", "this is no id of a run", "Use what submit() gave.")
    return cast("RunId", run_id)


def checked_wait(doing: str, timeout: object) -> float:
    """Return a time limit in seconds.

    Raises:
        BadRequestError: It is not above 0 and up to an hour.
    """
    if not isinstance(timeout, (int, float)) or not 0 < timeout <= MAX_WAIT_S:
        raise bad(doing, f"timeout={timeout!r}", f"Give seconds above 0, up to {MAX_WAIT_S:g}.")
    return float(timeout)


def trace_headers() -> dict[str, str]:
    """Return the W3C headers of the current span, where OpenTelemetry is in use and there is one.

    A span can only be current where the program has imported OpenTelemetry, so nothing is imported
    for those that have not.
    """
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        TraceContextTextMapPropagator().inject(headers)
    return headers


def _encode(doing: str, payload: object, *, is_object: bool = False) -> bytes:
    if is_object and not isinstance(payload, dict):
        problem = f"the payload is a {type(payload).__name__}"
        raise bad(doing, problem, "Send a JSON object: a dict with str keys.")
    _check_payload(doing, payload)
    return _text_of(doing, payload)


def _check_payload(doing: str, payload: object) -> None:
    try:
        check_json(payload, where="payload")
    except NotSerializableError as exc:
        detail = f" ({exc.problem})" if exc.problem else ""
        remedy = "Send None, bool, int, float, str, list, or dict with str keys."
        raise bad(doing, f"a {exc.type_name} is no JSON data{detail}", remedy) from exc


def _text_of(doing: str, value: object) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as exc:  # an integer of more than 4,300 digits
        raise bad(doing, str(exc), "Send such a number as text.") from exc
    if len(text) > MAX_BODY_BYTES:
        problem = f"the body has {len(text)} bytes, {MAX_BODY_BYTES} are the limit"
        raise TooLargeError(doing, problem, TOO_LARGE_REMEDY)
    return text


def _check_conflict(doing: str, on_conflict: str, priority: int) -> None:
    if on_conflict not in CONFLICTS:
        raise bad(doing, f"on_conflict={on_conflict!r}", f"Use one of {', '.join(CONFLICTS)}.")
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        problem = f"priority={priority!r}"
        raise bad(doing, problem, f"Give an int from 0 to {MAX_PRIORITY}; lower goes first.")


def _check_signal(doing: str, name: str) -> None:
    if not _is_printable(name) or len(name) > MAX_ID_BYTES:
        raise bad(doing, "this is no name of a signal", "Use 1 to 256 printable characters.")
    if name.startswith("~") or len("".join(map(token, name))) > MAX_TOKEN_BYTES:
        problem = "it begins with '~', or is too long for a subject"
        raise bad(doing, problem, "Use another name, up to 128 bytes as a token.")


def _is_printable(text: object) -> bool:
    """Return True if the value is text without control characters, and not empty."""
    return isinstance(text, str) and TEXT.fullmatch(text) is not None
