"""The verbs of a conversation, as an author calls them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar, overload

from actors.kernel.agent.agent import Agent
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMClient, LLMResponse, prepare
from actors.runtime.verbs.call import RunState
from actors.runtime.verbs.conversation.chat import ChatLoop, ChatResult, Output, ToolsOfChat
from actors.runtime.verbs.conversation.generation import Generation, GenerationRequest
from actors.runtime.verbs.conversation.history import ConversationHistory
from actors.runtime.verbs.conversation.sessions import Sessions
from actors.runtime.verbs.effects import Effects
from actors.runtime.verbs.host_services import HostServices
from actors.runtime.verbs.model_calls import Live, ToolCalls
from actors.runtime.verbs.question import Questions
from actors.runtime.verbs.scopes import Scopes

T = TypeVar("T")


class Conversations:
    """The conversations of one execution of a run.

    Attributes:
        sessions: Names and reads them.
        history: See `RunContext.history`.
        live: Live events of the run.
        model: The agent's; None: it has none.
    """

    def __init__(
        self,
        agent: Agent,
        sessions: Sessions,
        *,
        run: RunState,
        effects: Effects,
        env: HostServices,
        scopes: Scopes,
        tools: ToolCalls,
        questions: Questions,
    ) -> None:
        self.model: LLMClient | None = getattr(agent, "model", None)
        self.sessions, self._scopes = sessions, scopes
        self._tools = ToolsOfChat(run, questions, tools)
        self.history = ConversationHistory(run, effects, sessions, env.store.transcripts)
        self.live = Live(run, env, getattr(agent, "guards", None) or ())
        self.generation = Generation(run, effects, self.live, sessions, model=self.model)
        self._instructions: str | None = getattr(agent, "instructions", None)

    async def generate(
        self,
        new: Sequence[str | ChatMessage],
        session: str | None,
        options: GenerationOptions | None,
    ) -> LLMResponse:
        """See `RunContext.generate`."""
        request = GenerationRequest(options, (), self._instructions)
        return await self.generation.ask(new, session, request)

    def loop(
        self,
        output: Output[T],
        session: str | None,
        options: GenerationOptions | None,
        names: Collection[str] | None = None,
    ) -> ChatLoop[T]:
        """Return the loop of a chat that offers tools of these names. See `RunContext.chat`."""
        tools = self._tools.only(names)
        return ChatLoop(
            generate=self.generation.ask,
            together=self._scopes.gather,
            use=tools.call,
            keep=partial(self._keep, session),
            tools=GenerationRequest(None, tools.specs, self._instructions),
            output=output,
            session=session,
            options=options,
            name=self.sessions.name_of(session),
            open=self.sessions.calls,
        )

    async def _keep(self, session: str | None, messages: Sequence[ChatMessage]) -> None:
        if messages:
            await self.history.append(*messages, session=session)


class ConversationVerbs:
    """The part of `RunContext` that is about conversations with a model."""

    @cached_property
    def _conversations(self) -> Conversations:
        raise NotImplementedError

    async def llm(
        self, messages: Sequence[ChatMessage] | str, *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the model's answer; a replay never asks, and never bills, again.

        Deltas are live events while the call runs; the log keeps one ``llm.call`` with the text.

        Raises:
            RuntimeError: The agent has no `model`.
            BudgetExhaustedError: The tree has used up its execution budget.
        """
        return await self._conversations.generation.llm(messages, options)

    @property
    def session_id(self) -> str:
        """The conversation of `generate`, `chat` and `history` where they are given none.

        That of the start of the run (`submit(session_id=…)`, or the first message's metadata ``session``),
        else the agent's attribute `session`, else the run's id: a conversation of its own.
        """
        return self._conversations.sessions.name_of(None)

    @property
    def history(self) -> ConversationHistory:
        """The turns of the agent's sessions, for an author who keeps them by hand."""
        return self._conversations.history

    async def generate(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Add turns to a session, ask the model with a window of it, and add the answer.

        A replay returns the recorded answer: it reads no history, makes no window, and compares only what
        is given here. Turns and answer are durable together when it returns.

        Args:
            new: Turns; a plain text is the user's.
            session: The conversation, within the agent. By default `session_id`.
            options: For the model; compared on replay.

        Raises:
            ContractError: The agent has no `model`.
            BudgetExhaustedError: The tree has used up its execution budget.
        """
        return await self._conversations.generate(new, session, options)

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[str]: ...

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[T],
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[T]: ...

    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[Any] | None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[Any]:
        """Let the model answer, with the agent's tools, until it has nothing more to call.

        A loop of recorded verbs: `generate`, and `tool` for each call of an answer, at the same time.
        Their approvals are asked together. Every way in which a tool goes wrong is a result that the model
        reads. After a crash no recorded call is made, or billed, again.

        Args:
            new: Turns; a plain text is the user's.
            session: The conversation, within the agent. By default `session_id`.
            output: Type that the end has to fit: a pydantic model, a dataclass, or any type pydantic knows.
            max_turns: Model calls after which the chat stops with ``max_turns``.
            options: For the model; compared on replay.
            tools: Names of the tools that the model is offered; None: all of them. An empty one offers none,
                for example in a call that only classifies. Not compared on replay.

        Raises:
            OutputError: The model was asked twice more because its output did not fit, and it still does not.
        """
        if output is not None:
            await prepare(self._conversations.model)
        output_type = Output(output, self._conversations.model)
        loop = self._conversations.loop(output_type, session, options, tools)
        return await loop.run(new, max_turns)
