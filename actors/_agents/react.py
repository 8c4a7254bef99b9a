"""The think-act-observe agent: a model, its tools, and a conversation that outlives runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from pydantic import TypeAdapter

from actors._agents.tools import TaskManagerTool, settle_own_board
from actors._context.compaction.composed import TokenBudgetComposedStrategy
from actors._context.compaction.dropping import (
    SlidingWindowCompaction,
    ToolResultCompactionStrategy,
)
from actors._context.config import ContextConfig
from actors._context.history import StoreHistory
from actors._context.turns import turn_of
from actors._kernel.agent.hooks import Guard
from actors._kernel.agent.message import Message
from actors._kernel.agent.models import CompactionStrategy, GenerationOptions, LLMClient
from actors._kernel.agent.tools import ApprovalPolicy, Tool, check_tools
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import EmbeddingClient
from actors._runtime import RunContext
from actors.errors import BudgetExhaustedError, Facts

MAX_RESULT_CHARS: Final = 2_000
"""Maximum length of an older tool result in the default window, in characters."""
MAX_TURNS: Final = 20


class ReActAgent:
    """An agent that answers messages with a model. The model may call tools before it answers.

    A message becomes a user turn: its payload if that is a text, its ``text`` if it is a mapping, else the
    payload as JSON text. The run's output is the answer's text, or with `output` the typed answer as JSON data.
    One answer is given to all messages of a run.

    Args:
        name: The agent's type, or its whole id. A type alone means the agent ``name/main``.
        model: The model. See `compose.models`, or `actors.testing` for a model that needs no network.
        instructions: The text that is sent before every window.
        tools: The tools, which are called as recorded effects. Calls of risky tools wait for an approval, see
            `ApprovalPolicy`. With a `TaskManagerTool` a run that ends with an answer settles the agent's board,
            see there.
        context: History, window and retention. Default: turns stay in the runtime's store permanently, and the
            window is compacted at 80 % of the model's context down to 50 %. If nothing else helps, large turns
            are shortened with a mark, and the oldest ones are left out.
        session: The conversation of runs that name none.
        output: The type that answers must have.
        max_turns: Maximum number of model calls of one run. If the model calls tools in the last one, too, the
            run fails with `TurnsExhaustedError`, which has the last answer.
        options: The options of model calls.
        approval_policy: The policy that decides which tools need an approval.
        guards: Checks of the model's input and output, and of tool calls.
        embedder: The client with which memories are found by meaning, see `memory_tools`.
        blocks: Labels of the blocks that the model always sees, see `AgentMemory.set_block`.
        version: The version of the agent's code. It is recorded with each run.

    Raises:
        ContractError: Two tools have one name.
    """

    model: LLMClient
    instructions: str | None
    tools: tuple[Tool, ...]
    session: str | None
    version: str | None
    guards: tuple[Guard, ...]
    embedder: EmbeddingClient | None
    blocks: tuple[str, ...]

    def __init__(  # noqa: PLR0913 - an agent's attributes
        self,
        name: str | AgentId,
        *,
        model: LLMClient,
        instructions: str | None = None,
        tools: Sequence[Tool] = (),
        context: ContextConfig | None = None,
        session: str | None = "main",
        output: type[Any] | None = None,
        max_turns: int = MAX_TURNS,
        options: GenerationOptions | None = None,
        approval_policy: ApprovalPolicy | None = None,
        guards: Sequence[Guard] = (),
        embedder: EmbeddingClient | None = None,
        blocks: Sequence[str] = (),
        version: str | None = None,
    ) -> None:
        self.id: AgentId = name if isinstance(name, AgentId) else AgentId(name, "main")
        self.model, self.instructions, self.tools = model, instructions, tuple(tools)
        check_tools(self.tools, self.id)
        self._settles = any(
            isinstance(tool, TaskManagerTool) and tool.settles for tool in self.tools
        )
        self.context: ContextConfig = context or default_context(model)
        self.session, self.version = session, version
        self.approval_policy: ApprovalPolicy = approval_policy or ApprovalPolicy()
        self.guards, self.embedder, self.blocks = tuple(guards), embedder, tuple(blocks)
        self._output, self._max_turns, self._options = output, max_turns, options

    async def run(self, ctx: RunContext, inbox: list[Message]) -> JsonValue:
        """Answer the run's messages."""
        turns = [turn_of(message.payload) for message in inbox]
        reply = await ctx.chat(
            *turns, output=self._output, max_turns=self._max_turns, options=self._options
        )
        if reply.stopped == "max_turns":
            raise TurnsExhaustedError(reply.turns, reply.text)
        if reply.stopped == "end" and self._settles:
            await ctx.step("settle_tasks", settle_own_board)
        if self._output is None:
            return reply.text
        adapter: TypeAdapter[Any] = TypeAdapter(self._output)
        value: JsonValue = adapter.dump_python(reply.output, mode="json")
        return value


def default_context(model: LLMClient) -> ContextConfig:
    """Return the context of an agent for which none is given."""
    strategies: list[CompactionStrategy] = [
        ToolResultCompactionStrategy(max_chars=MAX_RESULT_CHARS),
        SlidingWindowCompaction(max_messages=200, slack=50),
    ]
    budget = TokenBudgetComposedStrategy.from_client(
        model, strategies, target_ratio=0.50, always_fits=True
    )
    return ContextConfig(StoreHistory(), budget)


class TurnsExhaustedError(Facts, BudgetExhaustedError):
    """The model used up its turns and still called tools. No retry follows, and messages count as handled.

    Attributes:
        turns: Number of model calls.
        answer: The last text that the model gave. Empty: it gave none.
    """

    status: ClassVar[str] = "turns_exhausted"
    text = (
        "the model used up its {turns} turns and still called tools; raise max_turns, or say in the agent's"
        " instructions when to stop. Its last answer: {answer!r}"
    )
    turns: int
    answer: str
