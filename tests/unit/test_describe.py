"""What an application's agents are, as JSON Schemas and as an AsyncAPI document."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from actors import agent
from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import AgentId
from actors._runtime.client.gateway_api import describe
from actors._runtime.registry import Registry
from compose._cli import run
from compose._tools.asyncapi import asyncapi_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext


class Line(BaseModel):
    """One line of an order."""

    item: str
    count: int = 1


class Order(BaseModel):
    """What a customer wants."""

    lines: list[Line]


class Receipt(TypedDict):
    """What a customer gets."""

    total: float


async def pay(amount: float) -> None:
    """Never called here."""
    raise AssertionError(amount)


class Desk:
    """Takes orders.

    And more about it.
    """

    input = Order
    follows = ("prices/eu", "news")
    tools = (Tool("pay", "Moves money.", run=pay),)
    version = "3"

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Receipt:
        """Take an order."""
        raise AssertionError("an agent that is described is not run")


@agent("echo", "a.b")
async def echo(ctx: RunContext, inbox: list[Message]) -> Any:
    """Say it again."""


def broken(agent_id: AgentId) -> Any:
    """Make nothing."""
    raise OSError(str(agent_id))


@pytest.fixture
def registry() -> Registry:
    """A type, a single agent, and a factory that fails."""
    registry = Registry()
    registry.add_type("desk", Desk)
    registry.add_type("broken", broken)
    registry.add(echo)
    return registry


def agents_of(registry: Registry) -> dict[str, Any]:
    """The described agents by type."""
    document: Any = describe(registry)
    return {a["type"]: a for a in document["agents"]}


def test_an_agent_is_described_by_what_it_declares(registry: Registry) -> None:
    """Schemas come from its types, text from its docstring; it is not run."""
    desk = agents_of(registry)["desk"]

    assert (desk["key"], desk["tenant"], desk["version"]) == (None, None, "3")
    assert desk["description"].startswith("Takes orders.\n\nAnd more")
    assert desk["input"]["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert desk["output"]["properties"]["total"] == {"title": "Total", "type": "number"}
    assert desk["follows"] == ["prices/eu", "news"]
    assert [tool["name"] for tool in desk["tools"]] == ["pay"]
    assert desk["tools"][0]["idempotent"] is False


def test_what_an_agent_does_not_declare_is_left_open(registry: Registry) -> None:
    """Any object comes in, anything comes out; a factory that fails is no reason to fail."""
    agents = agents_of(registry)

    assert agents["echo"]["key"] == "a.b"
    assert agents["echo"]["description"] == "Say it again."
    assert agents["echo"]["input"] == {"type": "object"}
    assert agents["echo"]["output"] == {}
    assert agents["broken"]["input"] == {"type": "object"}


def test_the_agents_of_another_tenant_are_left_out(registry: Registry) -> None:
    """Whole types are everybody's; a single agent belongs to its tenant."""
    registry.add(Desk(AgentId("till", "1", "acme")))
    document: Any = describe(registry, tenant="acme")

    assert sorted(a["type"] for a in document["agents"]) == ["broken", "desk", "till"]


class Odd:
    """Has what nobody can describe."""

    def __init__(self, **declared: Any) -> None:
        self.id = AgentId("odd", "1")
        vars(self).update(declared)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Do nothing."""


class Refuses:
    """A type whose author made a mistake."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("no schema today")


class Lazy(Odd):
    """Connects when it is looked at."""

    @property
    def tools(self) -> Any:
        """Never there."""
        raise ConnectionError("no catalogue")


@pytest.mark.parametrize(
    "odd",
    [
        Odd(input=Refuses),
        Odd(output=Refuses),
        Odd(input={"enum": {1, 2}}),
        Odd(output={"maximum": float("inf")}),
        Odd(tools=["pay"]),
        Odd(follows=5),
        Lazy(),
    ],
    ids=["input", "output", "set", "infinity", "tools", "follows", "property"],
)
def test_what_cannot_be_described_is_left_open(odd: Odd, registry: Registry) -> None:
    """It is listed all the same, as JSON, and so are the others."""
    registry.add(odd)
    agents = agents_of(registry)

    assert json.loads(json.dumps(list(agents.values()), allow_nan=False)) == list(agents.values())
    assert (agents["odd"]["key"], agents["desk"]["version"]) == ("1", "3")
    assert set(agents["odd"]) == set(agents["desk"])


def refs(part: Any) -> Iterator[str]:
    """Every reference in a document."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from refs(value)
    elif isinstance(part, list):
        for value in part:
            yield from refs(value)


def test_the_asyncapi_document_holds_the_real_subjects(registry: Registry) -> None:
    """Each agent can be asked, told and signalled; every parameter of a subject is explained."""
    document = asyncapi_document(describe(registry), title="Shop", version="1", namespace="ns")
    channels = document["channels"]

    assert document["asyncapi"] == "3.0.0"
    assert channels["desk-ask"]["address"] == "ns.ask.v1.{tenant}.desk.{key}.{publisher}"
    assert channels["echo-a_b-tell"]["address"] == "ns.agent.v1.default.echo.a%2Eb.ext.{publisher}"
    assert channels["desk-answer"]["address"] is None
    assert channels["desk-post-prices_eu"]["address"].endswith(".prices.eu.ext.{publisher}")
    assert channels["desk-post-news"]["address"].endswith(".news.default.ext.{publisher}")
    for channel in channels.values():
        names = re.findall(r"\{(\w+)\}", channel["address"] or "")
        assert set(names) == set(channel.get("parameters", ()))


def test_every_reference_of_the_document_leads_somewhere(registry: Registry) -> None:
    """Also those of schemas to their own definitions, which become the document's."""
    document = asyncapi_document(describe(registry), title="Shop", version="1")
    lost = []
    for ref in refs(document):
        node: Any = document
        for name in ref.removeprefix("#/").split("/"):
            node = node.get(name) if isinstance(node, dict) else None
        if node is None:
            lost.append(ref)

    assert lost == []
    assert "desk-input-Line" in document["components"]["schemas"]
    reply = document["operations"]["desk-ask"]["reply"]
    assert {ref["$ref"].rpartition("/")[2] for ref in reply["messages"]} == {"answer", "error"}


def test_the_command_prints_a_table_schemas_or_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without any server; what it prints for programs is JSON."""
    spec = "compose.demo.desk:AGENTS"
    printed = []
    for words in ((), ("--json",), ("--format", "asyncapi", "--namespace", "shop")):
        assert run(["describe", spec, *words]) == 0
        printed.append(capsys.readouterr().out)

    assert "desk/main" in printed[0]
    assert json.loads(printed[1])["agents"][0]["type"] == "desk"
    assert json.loads(printed[2])["channels"]["desk-ask"]["address"].startswith("shop.ask.v1.")
