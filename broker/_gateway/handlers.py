"""Handlers of external clients' requests: asks to agents, and the verbs of ``api.v1``."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias, get_args

from actors._kernel.agent.message import SET_BY_RUNTIME, sender_of
from actors._kernel.json import JsonValue
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, run_id_of_submit
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunResult
from actors._kernel.stores.outside import Caller, Front, Order
from actors._kernel.stores.runs import CONFLICT_RULES, OnConflict
from broker._gateway.responses import (
    GRANT,
    GatewayAnswer,
    GatewayRequest,
    Problem,
    RequestError,
    malformed,
    result,
)
from broker._wire import bodies
from broker._wire import headers as names
from broker._wire.subjects import ApiOrigin, Subjects, parse_ask

TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 3600.0
MIN_PRIORITY: Final = 5
"""The least priority of runs of external clients without a grant. Lower numbers go first in a tenant."""
MAX_PRIORITY: Final = 1000
MAX_METADATA: Final = 32
_MODES: Final = get_args(FollowMode)
_CLOUD_EVENT: Final = ("ce-id", "ce-specversion", "ce-type")

_Verb: TypeAlias = "Callable[[Caller, Fields], Awaitable[JsonValue]]"


class Verbs:
    """Executes requests, through the client API."""

    def __init__(self, front: Front, subjects: Subjects) -> None:
        self._front, self._subjects = front, subjects
        self._verbs: dict[str, _Verb] = {
            "submit": self._submit,
            "result": self._result,
            "status": self._status,
            "cancel": self._cancel,
            "signal": self._signal,
            "follow": self._follow,
            "unfollow": self._unfollow,
            "describe": self._describe,
        }

    async def ask(self, request: GatewayRequest) -> GatewayAnswer:
        """Submit a run, wait for its end and return its output.

        Raises:
            RequestError: It did not end in time, failed or was cancelled; or see `problem_of`.
        """
        headers = request.headers
        with _translate_errors("header Actor-Target"):
            claimed_agent = bodies.claimed_target(headers)
        origin = parse_ask(self._subjects, request.subject, claimed_agent)
        agent_id = _check_addressable(origin.agent)
        caller = Caller(agent_id.tenant, origin.publisher, origin.sees)
        timeout_s = _seconds(headers.get(names.TIMEOUT, TIMEOUT_S), f"header {names.TIMEOUT}")
        run_id: RunId | None = None
        try:
            async with asyncio.timeout(timeout_s):
                order = _order_of(request, agent_id, caller)
                sender = sender_of("ext", caller.publisher)
                own_run_id = run_id_of_submit(order.agent_id, sender, order.message_id)
                run_id = await self._front.submit(caller, order)
                del order  # a run may take an hour, and there may be many
                if run_id == own_run_id:  # its own run needs no check
                    caller = replace(caller, sees="tenant")
                run_result = await self._front.result(caller, run_id)
        except TimeoutError:
            raise _timed_out(timeout_s, run_id) from None
        return _answer_of(run_result, request, agent_id)

    async def api(self, request: GatewayRequest, origin: ApiOrigin) -> GatewayAnswer:
        """Execute a request `api.v1.….VERB` and return its result.

        Raises:
            RequestError: The verb is unknown, or it failed: see `problem_of`.
        """
        verb = self._verbs.get(origin.verb)
        if verb is None:
            verb_names = ", ".join(sorted((*self._verbs, "events")))
            raise malformed(f"there is no verb {origin.verb!r}; there are {verb_names}")
        fields = Fields.of(request)
        fields.trace = bodies.metadata_from_outside(request.headers)
        caller = Caller(origin.tenant, origin.publisher, origin.sees)
        return result(await verb(caller, fields), request)

    async def _submit(self, caller: Caller, fields: Fields) -> JsonValue:
        agent_id = _check_addressable(fields.agent("agent", caller))
        order = Order(
            agent_id=agent_id,
            payload=fields.take("payload"),
            message_id=_message_id(fields.text("id", None)),
            on_conflict=_on_conflict(fields.text("on_conflict", None)),
            priority=_priority(fields.take("priority", None), caller),
            metadata=fields.trace | fields.metadata("metadata"),
        )
        fields.refuse_others()
        return {"run": await self._front.submit(caller, order)}

    async def _result(self, caller: Caller, fields: Fields) -> JsonValue:
        run_id = fields.run()
        timeout_s = _seconds(fields.take("timeout", TIMEOUT_S), "timeout")
        fields.refuse_others()
        try:
            async with asyncio.timeout(timeout_s):
                run_result = await self._front.result(caller, run_id)
        except TimeoutError:
            raise _timed_out(timeout_s, run_id) from None
        return {
            "run": run_id,
            "status": str(run_result.status),
            "output": run_result.output,
            "error": run_result.error,
        }

    async def _status(self, caller: Caller, fields: Fields) -> JsonValue:
        run_id = fields.run()
        fields.refuse_others()
        summary = await self._front.status(caller, run_id)
        body: JsonValue = summary.model_dump(mode="json")
        return body

    async def _cancel(self, caller: Caller, fields: Fields) -> JsonValue:
        run_id = fields.run()
        reason = fields.text("reason", None) or f"ext:{caller.publisher}"
        fields.refuse_others()
        return {"cancelled": await self._front.cancel(caller, run_id, reason=reason)}

    async def _signal(self, caller: Caller, fields: Fields) -> JsonValue:
        run_id, name = fields.run(), fields.text("name")
        payload = fields.take("payload", None)
        message_id = _message_id(fields.text("id", None))
        fields.refuse_others()
        is_accepted = await self._front.signal(
            caller, run_id, str(name), payload, message_id=message_id
        )
        return {"accepted": is_accepted}

    async def _follow(self, caller: Caller, fields: Fields) -> JsonValue:
        agent_id, topic = (
            _check_addressable(fields.agent("agent", caller)),
            fields.topic("topic", caller),
        )
        mode = fields.text("mode", "eager")
        fields.refuse_others()
        if mode not in _MODES:
            raise malformed(f"mode is {mode!r}, not one of {', '.join(_MODES)}")
        await self._front.follow(caller, agent_id, topic, mode=mode)  # type: ignore[arg-type] # checked
        return {}

    async def _unfollow(self, caller: Caller, fields: Fields) -> JsonValue:
        agent_id, topic = (
            _check_addressable(fields.agent("agent", caller)),
            fields.topic("topic", caller),
        )
        fields.take("mode", None)
        fields.refuse_others()
        return {"followed": await self._front.unfollow(caller, agent_id, topic)}

    async def _describe(self, caller: Caller, fields: Fields) -> JsonValue:
        fields.refuse_others()
        return await self._front.describe(caller)


_REQUIRED: Final[Any] = object()


class Fields:
    """The fields of a request's body, each taken once."""

    def __init__(self, values: dict[str, JsonValue]) -> None:
        self._remaining = values
        self.trace: dict[str, str] = {}
        """Trace context of the request, from its headers."""

    @classmethod
    def of(cls, request: GatewayRequest) -> Fields:
        """Return the fields of a body, which is an object or empty."""
        body = _body_of(request, {})
        if not isinstance(body, dict):
            raise malformed(f"the body is a {type(body).__name__}, not a JSON object")
        return cls(dict(body))

    def take(self, name: str, default: JsonValue = _REQUIRED) -> JsonValue:
        """Return a field's value; without a default it has to be there.

        Clients of many languages send null for a field that they leave out.
        """
        value = self._remaining.pop(name, default)
        if value is _REQUIRED:
            raise malformed(f"field {name!r} is missing")
        return default if value is None and default is not _REQUIRED else value

    def text(self, name: str, default: str | None = _REQUIRED) -> str | None:
        """Return a field that is a text."""
        value = self.take(name, default)
        if value is not None and type(value) is not str:
            raise malformed(f"field {name!r} is {value!r}, not a text"[:500])
        if value is None and default is _REQUIRED:
            raise malformed(f"field {name!r} is null, not a text")
        return value

    def run(self) -> RunId:
        """Return the run that is asked about."""
        return RunId(str(self.text("run")))

    def number(self, name: str, default: int) -> int:
        """Return a field that is a whole number from 0."""
        value = self.take(name, default)
        if type(value) is not int or not 0 <= value < 2**53:
            raise malformed(f"field {name!r} is {value!r}, not a whole number from 0"[:500])
        return value

    def agent(self, name: str, caller: Caller) -> AgentId:
        """Return an agent, ``type/key``, of the caller's tenant where the text names none."""
        text = str(self.text(name))
        agent_id = AgentId.parse(text)
        if ":" not in text.partition("/")[0]:
            return AgentId(agent_id.type, agent_id.key, caller.tenant)
        return agent_id

    def topic(self, name: str, caller: Caller) -> TopicId:
        """Return a topic of the caller's tenant, ``type/source`` or ``type``."""
        type_, _, source = str(self.text(name)).partition("/")
        return TopicId(type_, source or "default", caller.tenant)

    def metadata(self, name: str) -> dict[str, str]:
        """Return small text values."""
        value = self.take(name, None) or {}
        is_small = isinstance(value, dict) and len(value) <= MAX_METADATA
        if not is_small or not all(type(v) is str for v in value.values()):  # type: ignore[union-attr] # checked
            raise malformed(f"field {name!r} is not an object of at most {MAX_METADATA} texts")
        if reserved_keys := SET_BY_RUNTIME.intersection(value):  # type: ignore[arg-type] # checked
            raise malformed(
                f"{name}: {min(reserved_keys)!r} is set by the runtime: choose another key"
            )
        return {key: str(text)[:1024] for key, text in value.items()}  # type: ignore[union-attr] # checked

    def refuse_others(self) -> None:
        """Check that every field was taken: one that is misspelt shall not be ignored."""
        if self._remaining:
            raise malformed(f"unknown field {min(self._remaining)!r}")


def _order_of(request: GatewayRequest, agent_id: AgentId, caller: Caller) -> Order:
    headers = request.headers
    return Order(
        agent_id=agent_id,
        payload=_body_of(request, None),
        message_id=_message_id(headers.get(names.MESSAGE_ID) or headers.get("ce-id")),
        on_conflict=_on_conflict(headers.get(names.ON_CONFLICT)),
        priority=_priority(headers.get(names.PRIORITY), caller),
        metadata=bodies.metadata_from_outside(headers),
    )


def _body_of(request: GatewayRequest, default: JsonValue) -> JsonValue:
    """Return the body as JSON data; where there is none, the default."""
    with _translate_errors("the body"):
        return (
            bodies.json_data(bodies.parse_body(request.data, request.headers))
            if request.data
            else default
        )


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Let whatever decoders raise about bytes be the sender's mistake."""
    try:
        yield
    except (ValueError, RecursionError, OverflowError) as exc:
        raise malformed(f"{what} cannot be read: {str(exc)[:200]}") from exc


def _check_addressable(agent_id: AgentId) -> AgentId:
    if agent_id.key.startswith("~"):
        message = "a key that begins with '~' cannot be addressed from outside"
        remedy = "Choose another key."
        raise RequestError(Problem(403, "forbidden", message, remedy))
    return agent_id


def _message_id(text: str | None) -> str:
    return bodies.external_id(text) if text else secrets.token_hex(16)


def _seconds(value: JsonValue, what: str) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type] # whatever it is
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 < seconds <= MAX_TIMEOUT_S:
        raise malformed(f"{what} is {value!r}, not seconds up to {MAX_TIMEOUT_S:g}"[:500])
    return seconds


def _on_conflict(value: str | None) -> OnConflict:
    if value is None:
        return "queue"
    if value not in CONFLICT_RULES:
        raise malformed(f"on_conflict is {value!r}, not one of {', '.join(CONFLICT_RULES)}"[:500])
    return value  # type: ignore[return-value] # checked


def _priority(value: JsonValue, caller: Caller) -> int:
    if value is None:
        return MIN_PRIORITY
    text = str(value)
    if (
        isinstance(value, bool | float)
        or not text.isdecimal()
        or len(text) > len(str(MAX_PRIORITY))
    ):
        raise malformed(f"priority is {value!r}, not a whole number from 0 to {MAX_PRIORITY}"[:500])
    if int(text) < MIN_PRIORITY and caller.sees == "own":
        message = f"priority {text} is below {MIN_PRIORITY}, the lowest without a grant"
        remedy = f"Give {MIN_PRIORITY} to {MAX_PRIORITY}, or have {GRANT} granted."
        raise RequestError(Problem(403, "forbidden", message, remedy))
    return min(int(text), MAX_PRIORITY)


def _timed_out(timeout_s: float, run_id: RunId | None) -> RequestError:
    message = f"the run has not ended within {timeout_s:g} s; it goes on"
    remedy = "Ask for its result (api.v1.….result), or ask again with the same id."
    if run_id is None:
        message = f"the request was not accepted within {timeout_s:g} s, or is being accepted now"
        remedy = "Ask again with the same id: it becomes one run."
    return RequestError(Problem(408, "timeout", message, remedy, run_id))


def _answer_of(run_result: RunResult, request: GatewayRequest, agent_id: AgentId) -> GatewayAnswer:
    """Return a run's output as the answer.

    Raises:
        RequestError: It failed or was cancelled.
    """
    text = str((run_result.error or {}).get("message") or "")
    details: JsonValue = run_result.error
    if run_result.status is RunStatus.COMPLETED:
        more = {"Actor_Run": run_result.run_id, "Actor_Status": str(run_result.status)}
        event = _cloud_event(request.headers, run_result, agent_id)
        return result(run_result.output, request, **more, **event)
    code, type_ = 422, "run_failed"
    message = f"the run failed: {text}"
    remedy = "Correct what it complains about, and ask again with another id."
    if run_result.status is RunStatus.CANCELLED:
        code, type_ = 499, "run_cancelled"
        message, remedy = f"the run was cancelled: {text}", "Ask again with another id."
    raise RequestError(Problem(code, type_, message, remedy, run_result.run_id, details))


def _cloud_event(
    headers: Mapping[str, str], run_result: RunResult, agent_id: AgentId
) -> dict[str, str]:
    """Return the `ce_` headers of the answer, if the request was a CloudEvent; else none."""
    if not any(name in headers for name in _CLOUD_EVENT):
        return {}
    source = names.header_value(f"/agents/{agent_id}")
    return {
        "ce_id": run_result.run_id,
        "ce_source": source,
        "ce_type": "callboard.run.completed",
        "ce_specversion": "1.0",
    }
