"""The application that the processes of these tests serve, and a client of their API."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx2

from actors import Risk, Tool, ToolCall
from actors._kernel.runtime.ids import AgentId
from actors.agents import ReActAgent
from actors.sessions import SessionAgent
from actors.testing import FunctionModel, ModelReply
from actors.workflow import Effect, EffectType, Flows, StepPlan, WorkflowSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors import ChatMessage, GenerationOptions
    from actors.workflow import RunState

APP_NAME: Final = "talk"
SPEC: Final = "tests.system.web.conversing:APP"
WITH_FLOWS: Final = "tests.system.web.conversing:ALL"
WORDS: Final = [f"{n} " for n in range(20)]
PAUSE_S: Final = 0.05


def answer(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Answer the last message, a long one in pieces with pauses; a refund calls a risky tool."""
    del options
    last = messages[-1]
    if last.role == "tool":
        block = last.content[0]
        is_color = (block.model_extra or {}).get("name") == "pick_color"
        return ModelReply(text=f"You chose {block.text}." if is_color else "It is paid.")
    if "pick_color" in last.text:
        return ModelReply(calls=[ToolCall(id="pick", name="pick_color")])
    if "refund" in last.text:
        return ModelReply(calls=[ToolCall(id="1", name="refund", arguments={"order": "7"})])
    if "long" in last.text:
        return ModelReply(text="".join(WORDS), pieces=WORDS, between=lambda: asyncio.sleep(PAUSE_S))
    return ModelReply(text=f"You said {last.text}.")


async def refund(order: str) -> str:
    """Pay a refund."""
    return f"refunded {order}"


DESK = ReActAgent(
    "desk",
    model=FunctionModel(answer),
    tools=[Tool("refund", "Give money back.", refund, risk=Risk.HIGH)],
)
APP = SessionAgent(AgentId(APP_NAME, "main"), {"normal": DESK, "loud": DESK})


def ask(_run: RunState, _ctx: object) -> StepPlan:
    """Ask a person."""
    effect = Effect(EffectType.ASK_USER, {"prompt": "Refund?", "wait_key": "ok"}, "answer")
    return StepPlan("ask", effect, next_node="pay")


def pay(run: RunState, _ctx: object) -> StepPlan:
    """Wait for the money."""
    payload = {"name": "paid", "session_id": run.session_id}
    return StepPlan("pay", Effect(EffectType.WAIT_EVENT, payload, "paid"), next_node="end")


def end(run: RunState, _ctx: object) -> StepPlan:
    """End."""
    return StepPlan("end", complete_output=f"order {run.vars['order']} is paid")


FLOWS = Flows("billing", [WorkflowSpec("refund", "ask", {"ask": ask, "pay": pay, "end": end})])
ALL = [APP, FLOWS]


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client of the API at this address."""
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        yield client


async def done(response: httpx2.Response) -> Any:
    """Return the JSON of an answer that has to be a success."""
    assert response.status_code < 300, response.text
    return response.json()


async def raw(url: str, *pieces: bytes) -> bytes:
    """Return a server's answer to these bytes, up to the end of the connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        while more := await reader.read(65_536):
            answer += more
    writer.close()
    return answer
