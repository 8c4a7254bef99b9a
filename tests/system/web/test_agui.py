"""The real AG-UI client, under Node, against processes of a deployment."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.web.conversing import APP_NAME, SPEC
from tests.system.web.node import thread_of

if TYPE_CHECKING:
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

PICK = {
    "name": "pick_color",
    "description": "Ask for a color.",
    "parameters": {"type": "object", "properties": {}},
}


def types(answer: dict[str, Any]) -> list[str]:
    """Return the types of a run's events; consecutive equal types count once."""
    names = [event["type"] for event in answer["events"]]
    return [name for name, before in zip(names, [None, *names], strict=False) if name != before]


def resolved(answer: dict[str, Any], *, approved: bool = True) -> list[dict[str, Any]]:
    """Return the answers to the client's interrupts."""
    payload = {"approved": approved}
    return [
        {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
        for interrupt in answer["pending"]
    ]


@pytest.mark.costly
async def test_answers_tools_and_approvals_reach_the_real_client(fleet: Hosts) -> None:
    """It checks the order of all events itself, and refuses what does not fit the protocol."""
    _, url = await fleet.web(SPEC)
    async with thread_of(f"{url}/agui/{APP_NAME}", "t/1") as thread:
        long = await thread.ask("r1", "a long one")
        assert "error" not in long, long
        assert types(long) == [
            *("RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
            "RUN_FINISHED",
        ]
        assert sum(event["type"] == "TEXT_MESSAGE_CONTENT" for event in long["events"]) > 3
        assert thread.texts[-1] == long["result"] == "".join(f"{n} " for n in range(20))
        pending_answer = await thread.ask("r2", "refund")
        [interrupt] = pending_answer["pending"]
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "1")
        assert pending_answer["messages"][-1]["toolCalls"][0]["function"]["name"] == "refund"
        refused = await thread.do("run", runId="r3")
        assert "pending interrupt" in refused["error"], "the client does not even ask"
        done = await thread.do("run", runId="r3", resume=resolved(pending_answer))

        assert "error" not in done, done
        assert done["pending"] == []
        assert [message["role"] for message in done["messages"]] == [
            *("user", "assistant", "user", "assistant", "tool", "assistant")
        ]
        assert thread.texts[-2:] == ["refunded 7", "It is paid."]


@pytest.mark.costly
async def test_the_result_of_a_tool_arrives_after_the_host_was_killed(fleet: Hosts) -> None:
    """Another host, and another API process, continue the run."""
    first, url = await fleet.web(SPEC)
    async with thread_of(f"{url}/agui/{APP_NAME}", "t") as thread:
        pending_answer = await thread.ask("r1", "pick_color", tools=[PICK])
        assert pending_answer["events"][-1]["outcome"] == {
            "type": "success",
            "pendingToolCallIds": ["pick"],
        }
        assert pending_answer["messages"][-1]["toolCalls"][0]["id"] == "pick"
        messages = pending_answer["messages"]
    first.send(signal.SIGKILL)
    await first.exit_code()
    _, other_url = await fleet.web(SPEC)
    async with thread_of(f"{other_url}/agui/{APP_NAME}", "t") as thread:
        for message in messages:
            await thread.do("keep", message=message)
        await thread.do("give", id="m1", toolCallId="pick", content="red")
        done = await thread.do("run", runId="r2", tools=[PICK])

        assert "error" not in done, done
        assert thread.texts[-1] == "You chose red."


@pytest.mark.costly
async def test_another_tenant_finds_nothing(fleet: Hosts, cli: Cli) -> None:
    """The real client gets a 404."""
    _, url = await fleet.web(SPEC, "--auth", "tokens")
    tokens = []
    for name, tenant in (("ada", "default"), ("bob", "default"), ("eve", "acme")):
        words = "--tenant", tenant, "--scope", "sessions:own", "--principal", name
        output = await cli.call("tokens", "create", f"{name}-t", *words, "--json")
        tokens.append(output.data["token"])
    async with thread_of(f"{url}/agui/{APP_NAME}", "t", tokens[0]) as ada:
        pending_answer = await ada.ask("r1", "refund")
        assert pending_answer["pending"]
        for token in tokens[1:]:
            async with thread_of(f"{url}/agui/{APP_NAME}", "t", token) as other:
                stolen = await other.do("run", runId="r2", resume=resolved(pending_answer))
                assert (stolen["status"], stolen["events"]) == (404, [])
        done = await ada.do("run", runId="r2", resume=resolved(pending_answer, approved=False))
        assert "was not called" in ada.texts[-2]
        assert "error" not in done
