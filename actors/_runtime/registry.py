"""The agents this host can execute: single ones, and whole types made on first message."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

from actors._kernel.agent.agent import (
    MAX_MESSAGES,
    Agent,
    AgentRunContext,
    HistoryRetention,
    Supervision,
)
from actors._kernel.agent.message import Message
from actors._kernel.agent.models import LLMClient
from actors._kernel.agent.tools import Tool, check_tools
from actors._kernel.basics import is_length
from actors._kernel.runtime.ids import AgentId, RunId, check_name
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.stores.shards import Serves
from actors._kernel.text import check_policy
from actors.errors import AgentCrashError, ContractError, RegistrationError


class Registry:
    """Agents by id, factories by type. A type is one or the other.

    What is registered last serves new runs. Versions before it are kept for the runs that began with
    them; a factory's version is that of the agents it makes.
    """

    def __init__(self) -> None:
        self._agents: dict[AgentId, Agent] = {}
        self._factories: dict[str, Callable[[AgentId], Agent]] = {}
        self._older: dict[AgentId, list[Agent]] = {}
        self._older_factories: dict[str, list[Callable[[AgentId], Agent]]] = {}

    def add(self, agent: Agent) -> None:
        """Serve one agent; another object with the same id replaces the first for new executions.

        Raises:
            RegistrationError: Its type is registered with a factory, `run` is missing or no
                coroutine function, or an attribute is none that it may have.
        """
        check_attributes(agent)
        if agent.id.type in self._factories:
            msg = (
                f"agent {agent.id}: type {agent.id.type!r} is registered with register_type already"
            )
            raise RegistrationError(msg)
        previous = self._agents.get(agent.id)
        if previous is not None and version_of(previous) != version_of(agent):
            self._older.setdefault(agent.id, []).insert(0, previous)
        self._agents[agent.id] = agent

    def add_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        """Serve every key of a type; `factory` makes the agent when its first message comes.

        Raises:
            RegistrationError: Single agents of this type are registered, or the factory is a class whose
                `run` is no coroutine function.
        """
        check_name("agent type", type_)
        class_: object = factory
        while isinstance(class_, partial):
            class_ = class_.func
        run = getattr(class_, "run", None)
        if isinstance(class_, type) and callable(run):
            _check_run(run, class_)
        if any(agent_id.type == type_ for agent_id in self._agents):
            msg = f"type {type_!r} has single agents: use register or register_type, not both"
            raise RegistrationError(msg)
        previous = self._factories.get(type_)
        if previous is not None and previous is not factory:
            self._older_factories.setdefault(type_, []).insert(0, previous)
        self._factories[type_] = factory

    def find(self, agent_id: AgentId) -> Agent | None:
        """Return the agent that new runs get, or None when this host does not serve it.

        Raises:
            Exception: What its factory raised.
        """
        agent = self._agents.get(agent_id)
        if agent is None and (factory := self._factories.get(agent_id.type)):
            agent = _make_agent(factory, agent_id)
        return agent

    def fitting(
        self, agent_id: AgentId, newest: Agent, run_version: str | None
    ) -> tuple[Agent, str | None]:
        """Return the agent in the version that is wanted, or the newest and why it must not go on.

        A run goes on with the version of its agent that it began with. An agent that says by `unfit` why it can
        execute no run executes none.
        """
        unfit = getattr(newest, "unfit", None)
        if unfit is None and run_version in {None, version_of(newest)}:
            return newest, None
        able_agents = [
            candidate
            for candidate in self._versions(agent_id)
            if getattr(candidate, "unfit", None) is None
        ]
        for agent in able_agents:
            if run_version in {None, version_of(agent)}:
                return agent, None
        if not able_agents:
            return newest, f"{unfit}, then resolve the run with --retry"
        versions = dict.fromkeys(map(version_of, able_agents))
        served_versions = ", ".join(
            "one without a version" if version is None else f"version {version!r}"
            for version in versions
        )
        misfit = (
            f"the run began with version {run_version!r} of {agent_id}, the host that has it serves "
            f"{served_versions}: serve the old one too, then resolve the run with --retry"
        )
        return newest, misfit

    def _versions(self, agent_id: AgentId) -> list[Agent]:
        """Return the agent as all versions make it that were registered, the newest first."""
        newest = self.find(agent_id)
        agents: list[Agent] = [] if newest is None else [newest]
        agents += self._older.get(agent_id, [])
        agents += [
            _make_agent(factory, agent_id)
            for factory in self._older_factories.get(agent_id.type, [])
        ]
        return agents

    def is_served(self, agent_id: AgentId) -> bool:
        """Return True if `find` would return an agent."""
        return agent_id in self._agents or agent_id.type in self._factories

    @property
    def factories(self) -> Mapping[str, Callable[[AgentId], Agent]]:
        """The factories that new runs get their agents from, by type."""
        return MappingProxyType(self._factories)

    def serves(self) -> Serves:
        """Return everything this host can execute."""
        return Serves(tuple(sorted(self._factories)), tuple(sorted(self._agents)))


class FunctionAgent:
    """An agent made of one coroutine function ``(ctx, inbox)``. Made by `agent`."""

    def __init__(  # noqa: PLR0913 - as `agent`
        self,
        agent_id: AgentId,
        fn: Callable[[Any, list[Message]], Awaitable[Any]],
        *,
        model: LLMClient | None = None,
        tools: Sequence[Tool] = (),
        version: str | None = None,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        batch: int = MAX_MESSAGES,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = agent_id
        self.model = model
        self.tools = tuple(tools)
        self.version = version
        self.deadline_s = deadline_s
        self.retry = retry
        self.batch = batch
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        vars(self).update(schemas or {})
        self._fn = fn

    async def run(self, ctx: AgentRunContext, inbox: list[Message]) -> Any:
        """Call the function."""
        return await self._fn(ctx, inbox)


def _make_agent(factory: Callable[[AgentId], Agent], agent_id: AgentId) -> Agent:
    """Return the agent that a factory makes; one that asks the process to end has failed."""
    try:
        agent = factory(agent_id)
    # An ordinary error stays what it is: the run's retry policy decides by its class.
    except Exception:
        raise
    # A `SystemExit` in an author's factory would end the host.
    except BaseException as exc:
        msg = f"the factory of type {agent_id.type!r} raised {type(exc).__name__}: {exc}"
        raise AgentCrashError(msg) from exc
    check_attributes(agent)
    return agent


def version_of(agent: Agent) -> str | None:
    """Return the version of an agent's code, or None if it has none: then any code may go on with its runs."""
    version = getattr(agent, "version", None)
    return None if version is None else str(version)


def check_attributes(agent: Agent) -> None:
    """Check that what the agent says of itself is kept.

    Raises:
        RegistrationError: `run` is no coroutine function, `retry` is no RetryPolicy or cannot be kept, `batch`
            no number of messages, two tools have one name, `deadline_s` is no time, or `concurrency` is not
            ``serial``.
    """
    run = agent.__wrapped__ if isinstance(agent, FunctionAgent) else getattr(agent, "run", None)
    _check_run(run, type(agent))
    if (policy := retry_of(agent)) is not None:
        try:
            check_policy(policy)
        except ContractError as exc:
            raise RegistrationError(f"agent {agent.id}: `retry`: {exc}") from exc
    batch_of(agent)
    # As it is kept: a property is looked at by runs alone. `inspect.getattr_static` takes 10 µs.
    tools: object = getattr(type(agent), "tools", None)
    tools = getattr(agent, "__dict__", {}).get("tools", tools)
    if isinstance(tools, tuple | list) and all(isinstance(tool, Tool) for tool in tools):
        try:
            check_tools(tools, agent.id)
        except ContractError as exc:
            raise RegistrationError(str(exc)) from exc
    limit_s = getattr(agent, "deadline_s", None)
    if limit_s is not None and not (is_length(limit_s) and limit_s > 0):
        msg = f"agent {agent.id}: deadline_s is {limit_s!r}: give seconds above 0, up to ten years"
        raise RegistrationError(msg)
    concurrency = getattr(agent, "concurrency", "serial")
    if concurrency != "serial":
        msg = (
            f"agent {agent.id}: `concurrency` is {concurrency!r}: an agent does one thing at a time "
            "('serial'); for work at the same time use keys of a type, or spawn runs of other agents"
        )
        raise RegistrationError(msg)


def _check_run(run: object, class_: type) -> None:
    function = run.__func__ if isinstance(run, MethodType) else None
    is_function = isinstance(function, FunctionType)
    problem = _known_problem_of(function) if is_function else _inspect(run)
    if problem is not None:  # else it is a coroutine function, or cannot be looked at
        requirement = "it needs `id` and `async def run(self, ctx, inbox)`"
        raise RegistrationError(f"{class_.__name__} is not an agent: {requirement}{problem}")


def _inspect(run: object) -> str | None:
    if inspect.iscoroutinefunction(run):
        return None
    if not callable(run):
        return ""
    function: object = inspect.unwrap(run)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if inspect.iscoroutinefunction(function) or not inspect.isroutine(function):
        return None
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return ", and `run` is a generator" if is_generator else ", and `run` is a plain `def`"


# A factory makes an agent for each run, of a few classes.
_known_problem_of = lru_cache(maxsize=256)(_inspect)


def retry_of(agent: Agent) -> RetryPolicy | None:
    """Return the retry policy of an agent's runs, unless the call that starts a run gives one.

    Raises:
        RegistrationError: It is no RetryPolicy.
    """
    policy = getattr(agent, "retry", None)
    if policy is None or isinstance(policy, RetryPolicy):
        return policy
    msg = f"agent {agent.id}: `retry` is a {type(policy).__name__}, not a RetryPolicy"
    raise RegistrationError(msg)


def terms_of_mail(agent: Agent | None, run_id: RunId) -> Supervision | None:
    """Return the terms of a run that waiting messages start: its `retention`, or None for the default."""
    retention = getattr(agent, "retention", None)
    if not isinstance(retention, HistoryRetention):
        return None
    return Supervision(run_id=run_id, root_id=run_id, retention=retention)


def batch_of(agent: Agent) -> int:
    """Return how many waiting messages a run of the agent is given at most.

    Raises:
        RegistrationError: It is no such number.
    """
    batch = getattr(agent, "batch", MAX_MESSAGES)
    if type(batch) is int and 1 <= batch <= MAX_MESSAGES:
        return batch
    msg = f"agent {agent.id}: `batch` is {batch!r}: give 1 to {MAX_MESSAGES} messages"
    raise RegistrationError(msg)
