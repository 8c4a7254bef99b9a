"""The verbs of a conversation, as an author calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from actors.kernel.agent.agent import Agent
from actors.kernel.agent.llm import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.tools import InvocationResult, Tool
from actors.kernel.storage.transcript import TranscriptStore
from actors.runtime.context.call import RunState
from actors.runtime.context.conversation.chat import ChatLoop, ChatResult, Output
from actors.runtime.context.conversation.generation import Generation, Request
from actors.runtime.context.conversation.history import ConversationHistory
from actors.runtime.context.conversation.sessions import Sessions
from actors.runtime.context.effects import Effects
from actors.runtime.context.model_calls import Live
from actors.runtime.context.scopes import Scopes

T = TypeVar("T")
CallTool = Callable[..., Awaitable[InvocationResult]]
"""See `RunContext.tool`."""


class Conversation:
    """The conversations of one execution of a run.

    Attributes:
        sessions: Names and reads them.
        history: See `RunContext.history`.
        model: The agent's; None: it has none.
    """

    def __init__(  # noqa: PLR0917 - a room of the context's
        self,
        run: RunState,
        effects: Effects,
        live: Live,
        scopes: Scopes,
        sessions: Sessions,
        agent: Agent,
        store: TranscriptStore,
    ) -> None:
        self.model: LLMClient | None = getattr(agent, "model", None)
        self.sessions = sessions
        self.history = ConversationHistory(run, effects, self.sessions, store)
        self._generation = Generation(run, effects, live, self.sessions, model=self.model)
        self._scopes, self._agent = scopes, agent

    async def generate(
        self,
        new: Sequence[str | ChatMessage],
        session: str | None,
        options: GenerationOptions | None,
    ) -> LLMResponse:
        """See `RunContext.generate`."""
        return await self._generation.ask(new, session, self._request(options))

    def loop(
        self,
        call_tool: CallTool,
        output: Output[T],
        session: str | None,
        options: GenerationOptions | None,
    ) -> ChatLoop[T]:
        """Return the loop of a chat. See `RunContext.chat`."""
        tools: tuple[Tool, ...] = tuple(getattr(self._agent, "tools", None) or ())
        return ChatLoop(
            generate=self._generation.ask,
            gather=self._scopes.gather,
            use=partial(_use, call_tool),
            keep=partial(self._keep, session),
            tools=Request(None, tuple(tool.spec() for tool in tools), self._instructions),
            output=output,
            session=session,
            options=options,
        )

    def _request(self, options: GenerationOptions | None) -> Request:
        return Request(options, (), self._instructions)

    @property
    def _instructions(self) -> str | None:
        return getattr(self._agent, "instructions", None)

    async def _keep(self, session: str | None, messages: Sequence[ChatMessage]) -> None:
        if messages:
            await self.history.append(*messages, session=session)


class ConversationVerbs:
    """What `RunContext` offers for conversations with a model."""

    _conversation: Conversation

    async def tool(self, name: str, /, **arguments: Any) -> InvocationResult:
        """See `RunContext.tool`."""
        raise NotImplementedError(name, arguments)

    @property
    def session_id(self) -> str:
        """The conversation of `generate`, `chat` and `history` where they are given none.

        That of who started the run (`submit(session_id=…)`, or the first message's metadata ``session``),
        else the agent's attribute `session`, else the run's id: a conversation of its own.
        """
        return self._conversation.sessions.name_of(None)

    @property
    def history(self) -> ConversationHistory:
        """The turns of the agent's sessions, for an author who keeps them by hand."""
        return self._conversation.history

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
        return await self._conversation.generate(new, session, options)

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
    ) -> ChatResult[str]: ...

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[T],
        max_turns: int = 20,
        options: GenerationOptions | None = None,
    ) -> ChatResult[T]: ...

    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[Any] | None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
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

        Raises:
            OutputError: The model was told twice that its output does not fit, and it still does not.
        """
        loop = self._conversation.loop(
            self.tool, Output(output, self._conversation.model), session, options
        )
        return await loop.run(new, max_turns)


async def _use(call_tool: CallTool, name: str, arguments: dict[str, Any]) -> InvocationResult:
    """Call a tool for a model. Arguments that no tool can be called with are an error it reads."""
    try:
        return await call_tool(name, **arguments)
    except TypeError as exc:
        return InvocationResult(status="error", text=str(exc))
