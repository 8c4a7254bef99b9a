"""`ActorClient`: the client of agents for other Python services, over NATS alone.

Importing it needs nats-py and none of the runtime's other libraries. See docs/clients.md.

A call is a `Request`, checked (`requests`), published until it is answered (`connection`), and its answer is
read (`responses`). A stream of events is the same question, asked again from where it broke off.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from actors._kernel.runtime.ids import AgentId, TopicId, token
from broker._client import responses as answers
from broker._client.connection import ClientConnection, EventWatch
from broker._client.requests import (
    Event,
    Patience,
    Request,
    RequestFactory,
    Result,
    RunRef,
    Status,
    bad,
    checked_run,
    checked_wait,
)
from broker._client_errors import BadRequestError, OutcomeUnknownError
from broker._nats.client import ConnectOptions
from broker._nats.permissions import may_be_answered

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue

OnConflict: TypeAlias = Literal["queue", "join", "reject", "interrupt"]
FollowMode: TypeAlias = Literal["eager", "lazy"]


class ActorClient:
    """A service's client for the agents of one tenant. An async context manager; for one event loop.

    Every call that changes something has an id, made once for the call and used for each of its
    attempts, so nothing is done twice, whatever is lost on the way. Attempts are repeated, also over
    new connections and other hosts, until `timeout`. Then `OutcomeUnknownError` says that it was sent
    and not answered; calling again with that id is safe. Payloads are JSON data, up to 256 KiB.

    Calls of one client that go to the same agent arrive in the order in which they were made: those of
    `send` and `signal` among each other, and those of `submit`. A call waits for the answer to the one
    before.

    Cancelling a call stops the waiting; whether it was done is then open, as after a time-out.

    Args:
        servers: ``nats://HOST:PORT``, or several of one cluster.
        publisher: This service's name. Agents see the sender ``ext:<publisher>``.
        tenant: The tenant of the agents.
        namespace: The namespace of the deployment.
        sees: ``own``: the runs that it started, by `submit` or `ask` or as the only sender of the messages that
            they began with. ``tenant``, with the grant of `callboard nats-config --sees`: all of the tenant;
            then it may also join and interrupt runs of others, and give priorities below 5.
        user_credentials: Path of a credentials file.
        nkeys_seed: Path of a file with an nkey seed.
        tls: Context for encrypted connections.
        inbox_prefix: First token of the subjects of answers, ``_INBOX_<publisher>`` if not given.
            Nobody else may subscribe to it.
        timeout: Seconds for a call, where it has none of its own.
        patience: The pauses between tries.

    Raises:
        BadRequestError: A name or the prefix is not valid.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Sequence[str],
        *,
        publisher: str,
        tenant: str = "default",
        namespace: str = "",
        sees: Literal["own", "tenant"] = "own",
        user_credentials: str | None = None,
        nkeys_seed: str | None = None,
        tls: ssl.SSLContext | None = None,
        inbox_prefix: str | None = None,
        timeout: float = 30.0,
        patience: Patience | None = None,
    ) -> None:
        self._factory = RequestFactory.of(
            namespace=namespace, tenant=tenant, publisher=publisher, sees=sees
        )
        self._timeout = checked_wait("ActorClient", timeout)
        self._patience = patience or Patience()
        server = ConnectOptions(
            urls=(servers,) if isinstance(servers, str) else tuple(servers),
            name=publisher,
            user_credentials=user_credentials,
            nkey_seed_file=nkeys_seed,
            tls=tls,
        )
        prefix = inbox_prefix or f"_INBOX_{token(publisher)}"
        if not may_be_answered(f"{prefix}."):
            problem = "hosts answer only to inboxes (_INBOX…), and not to their own"
            raise BadRequestError(f"inbox_prefix {prefix!r}", problem, "Choose another one.")
        self._line = ClientConnection(server, inbox_prefix=prefix, patience=self._patience)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            UnreachableError: No server could be used.
            NotPermittedError: This user may not have answers at `inbox_prefix`.
        """
        await self._line.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the connection. Calls that still wait fail."""
        await self._line.close()

    async def send(self, agent: AgentId | str, payload: JsonValue, *, id: str | None = None) -> str:  # noqa: A002
        """Send a message to an agent, and return its id once the broker has stored it.

        It needs no host: what is stored waits for one. The payload is an object.

        Args:
            agent: ``type/key``.
            payload: What the agent is given.
            id: The same one again is the same message; a fresh one if not given.

        Raises:
            BadRequestError, TooLargeError, NotPermittedError: It was not sent, or refused.
            UnservedError: The streams are not there: no host has ever run in this namespace.
            UnreachableError, OutcomeUnknownError: There was no acknowledgement in time.
        """
        return await self._store(self._factory.send(agent, payload, id))

    async def publish(
        self,
        topic: TopicId | str,
        payload: JsonValue,
        *,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Post to all agents that follow a topic, ``type/source``; else like `send`."""
        return await self._store(self._factory.publish(topic, payload, id))

    async def signal(
        self,
        run: RunRef | str,
        name: str,
        payload: JsonValue = None,
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Send a run a signal; one to a run that has ended is dropped.

        With a `RunRef` and `sees="tenant"` it is stored by the broker and needs no host, else a host takes it.

        Raises:
            UnknownRunError: No run has this id; raised where only the id is given.
            ClientError: As for `send`.
        """
        if isinstance(run, RunRef) and self._factory.sees == "tenant":
            await self._store(self._factory.signal(run, name, payload, id))
            return
        await self._read(self._factory.signal_by_id(_id_of(run), name, payload, id))

    async def submit(
        self,
        agent: AgentId | str,
        payload: JsonValue,
        *,
        id: str | None = None,  # noqa: A002
        on_conflict: OnConflict = "queue",
        priority: int = 5,
    ) -> RunRef:
        """Start a run, durably on return.

        Args:
            agent: ``type/key``.
            payload: What the agent is given.
            id: The same one again is the same run.
            on_conflict: When the agent is busy: wait behind it, join its run, be rejected, or
                interrupt it.
            priority: Lower goes first among the agents of the tenant; below 5 only with `sees="tenant"`.

        Raises:
            ConflictError: The agent is busy, and the call asked to be rejected then.
            UnservedError, UnreachableError, OutcomeUnknownError: There was no answer in time.
            BadRequestError, TooLargeError, NotPermittedError: It was refused.
        """
        request = self._factory.submit(
            agent, payload, message_id=id, on_conflict=on_conflict, priority=priority
        )
        answer = await self._read(request, "run")
        return RunRef(str(answer["run"]), str(self._factory.agent(agent)))

    async def ask(
        self,
        agent: AgentId | str,
        payload: JsonValue,
        *,
        id: str | None = None,  # noqa: A002
        timeout: float | None = None,
        on_conflict: OnConflict = "queue",
        priority: int = 5,
    ) -> JsonValue:
        """Start a run, wait for its end, and return its output. A host that dies meanwhile is no matter.

        Args:
            agent: ``type/key``.
            payload: What the agent is given.
            id: The same one again is the same run, and gives the same answer.
            timeout: Seconds, up to 3,600.
            on_conflict: See `submit`.
            priority: See `submit`.

        Raises:
            AskTimeoutError: The run goes on; the error has its `run_id`.
            RunFailedError, RunCancelledError: How it ended instead.
            ClientError: As for `submit`.
        """
        limit_s = checked_wait(f"ask {agent}", self._timeout if timeout is None else timeout)
        request = self._factory.ask(
            agent, payload, message_id=id, on_conflict=on_conflict, priority=priority
        )
        final_request, answer = await self._wait(request.waiting, limit_s)
        output: JsonValue = answers.read(final_request, answer)
        return output

    async def result(self, run: RunRef | str, *, timeout: float | None = None) -> Result:
        """Wait for a run's end and return how it ended; it raises nothing for one that failed.

        Args:
            run: What `submit` gave, or an id.
            timeout: Seconds; None waits as long as the run takes, while hosts answer.

        Raises:
            AskTimeoutError: It has not ended in time, and goes on.
            UnknownRunError: No run has this id.
            UnservedError, UnreachableError, OutcomeUnknownError: Nothing was heard in time.
        """
        run_id = _id_of(run)
        doing = f"result of run {run_id}"
        limit_s = None if timeout is None else checked_wait(doing, timeout)

        def request(wait_s: float) -> Request:
            facts = {"run": run_id, "timeout": round(wait_s, 3)}
            return self._factory.api("result", facts, doing=doing)

        final_request, answer = await self._wait(request, limit_s)
        return answers.result_of(run_id, answers.read_object(final_request, answer, "status"))

    async def status(self, run: RunRef | str) -> Status:
        """Return how far a run is.

        Raises:
            UnknownRunError: No run has this id.
            UnservedError, UnreachableError, OutcomeUnknownError: There was no answer in time.
        """
        run_id = _id_of(run)
        doing = f"status of run {run_id}"
        answer = await self._read(
            self._factory.api("status", {"run": run_id}, doing=doing), "status"
        )
        return answers.status_of(run_id, answer)

    async def cancel(self, run: RunRef | str, reason: str = "") -> bool:
        """Ask a run and its subtree to stop; False when it had ended. Raises what `status` does."""
        run_id = _id_of(run)
        facts = {"run": run_id, "reason": reason}
        answer = await self._read(self._factory.api("cancel", facts, doing=f"cancel run {run_id}"))
        return bool(answer.get("cancelled"))

    def events(self, run: RunRef | str, from_: int = 0) -> AsyncGenerator[Event]:
        """Yield what happens in a run, from an entry on, live, until its end mark.

        Entries come once each and in order, over lost connections and hosts that die; deltas may be
        lost then. Those of an attempt that is over are left out, and `Event.is_restart` marks where a
        model call begins anew. Close it when you leave early: ``async with aclosing(events)``.

        Args:
            run: What `submit` gave, or an id.
            from_: The first entry's number; after entry n, continue with n + 1.

        Raises:
            UnknownRunError: No run has this id.
            UnservedError, UnreachableError: Nothing was heard for the client's `timeout`.
        """
        run_id = _id_of(run)
        if type(from_) is not int or from_ < 0:
            doing, remedy = f"events of run {run_id}", "Give the number of an entry, from 0."
            raise bad(doing, f"from_={from_!r}", remedy)
        watch = EventWatch(
            self._line, self._factory, run_id, patience=self._patience, limit_s=self._timeout
        )
        return watch.events(from_)

    async def follow(
        self, agent: AgentId | str, topic: TopicId | str, mode: FollowMode = "eager"
    ) -> None:
        """Let an agent follow a topic, ``type/source``; again is no matter.

        Raises:
            ClientError: As for `status`; `BadRequestError` for a mode that is none.
        """
        facts, doing = self._following("follow", agent, topic)
        if mode not in {"eager", "lazy"}:
            raise bad(doing, f"mode={mode!r}", "Use eager or lazy.")
        await self._read(self._factory.api("follow", {**facts, "mode": mode}, doing=doing))

    async def unfollow(self, agent: AgentId | str, topic: TopicId | str) -> bool:
        """End that; False when it did not follow. Raises what `follow` does."""
        facts, doing = self._following("unfollow", agent, topic)
        answer = await self._read(self._factory.api("unfollow", facts, doing=doing))
        return bool(answer.get("followed"))

    async def describe(self) -> Any:
        """Return the document of the agents that are served: types, schemas, topics."""
        request = self._factory.api("describe", {}, doing="describe")
        return answers.read(request, await self._answer(request))

    def _following(
        self, verb: str, agent: AgentId | str, topic: TopicId | str
    ) -> tuple[dict[str, str], str]:
        follower, topic_id = self._factory.agent(agent), self._factory.topic(topic)
        facts = {"agent": str(follower), "topic": f"{topic_id.type}/{topic_id.source}"}
        return facts, f"{verb} {topic_id} by {follower}"

    async def _answer(self, request: Request) -> answers.Response:
        return await self._line.exchange(
            request, limit_s=self._timeout, attempt_s=self._patience.attempt_s
        )

    async def _read(self, request: Request, *fields: str) -> dict[str, Any]:
        return answers.read_object(request, await self._answer(request), *fields)

    async def _store(self, request: Request) -> str:
        error = answers.stored_failure(request, await self._answer(request))
        if error is not None:
            raise error
        assert request.id is not None
        return request.id

    async def _wait(
        self, request: Callable[[float], Request], limit_s: float | None
    ) -> tuple[Request, answers.Response]:
        """Ask for a run's end, a few seconds at a time: a host that died is noticed after them.

        Args:
            request: Function that makes a request in which a host waits for that many seconds.
            limit_s: Seconds for all requests together; None if there is no limit while hosts answer.
        """
        now, patience = asyncio.get_running_loop().time, self._patience
        until = now() + (math.inf if limit_s is None else limit_s)
        shown_limit_s = limit_s or self._timeout
        run_id, is_taken = None, False
        while True:
            # Never 0, which a host refuses as a time limit.
            remaining_s = self._timeout if limit_s is None else max(until - now(), 0.001)
            wait_s = min(patience.slice_s, remaining_s)
            current_request = request(wait_s)
            try:
                answer = await self._line.exchange(
                    current_request,
                    limit_s=remaining_s + patience.grace_s,
                    attempt_s=wait_s + patience.grace_s,
                    may_be_done=is_taken,
                )
            except OutcomeUnknownError as exc:
                if run_id is None:
                    raise
                raise answers.not_in_time(current_request, run_id, shown_limit_s) from exc
            if answer.code != answers.TIMED_OUT:
                return current_request, answer
            run_id, is_taken = answers.run_of(answer) or run_id, True
            if now() >= until:
                raise answers.not_in_time(current_request, run_id, shown_limit_s)


def _id_of(run: RunRef | str) -> str:
    return checked_run(run.run_id if isinstance(run, RunRef) else run)
