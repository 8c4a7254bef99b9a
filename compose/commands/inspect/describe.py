"""`callboard describe`: describe an application's agents as a table or a document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from actors.kernel.json import JsonValue
from actors.runtime.client.gateway_api import describe as describe_agents
from compose.assembly.settings import read_settings
from compose.commands.options import DebugFlag, JsonFlag, NamespaceOpt, ServedArg
from compose.commands.output import Exit, print_json
from compose.commands.terminal import print_table
from compose.host.loader import find_served, serve_all
from compose.tools.asyncapi import asyncapi_document
from compose.tools.replay import Catalogue


async def describe(
    module_attr: ServedArg,
    /,
    *,
    form: Annotated[
        Literal["table", "asyncapi", "json-schema"] | None, Parameter(name="--format")
    ] = None,
    title: str | None = None,
    app_version: str = "0",
    namespace: NamespaceOpt = None,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> int:
    """Describe agents for their clients: payloads, results, followed topics and tools.

    The command needs no server and executes no agent. `--json` without a format means `json-schema`.

    Examples:
    `callboard describe shop.agents:app`;
    `callboard describe shop.agents:app --format asyncapi > asyncapi.json`;
    `callboard describe shop.agents:app --json`

    Parameters
    ----------
    form
        table: for people. json-schema: each agent with the JSON Schemas of payload and result.
        asyncapi: an AsyncAPI 3.0 document with the subjects.
    title
        Title of the AsyncAPI document. Default: the first MODULE:ATTR.
    app_version
        Version of the application in the AsyncAPI document.
    """
    del debug  # `compose.cli` reads this option for every command
    catalogue = Catalogue()
    await serve_all(catalogue, {spec: find_served(spec) for spec in module_attr})
    found = describe_agents(catalogue.agents)
    if form == "asyncapi":
        prefix = read_settings(namespace=namespace).namespace
        name = title or module_attr[0]
        print_json(asyncapi_document(found, title=name, version=app_version, namespace=prefix))
    elif form == "json-schema" or (json and form is None):
        print_json(found)
    else:
        _show(found)
    return Exit.OK


def _show(found: JsonValue) -> None:
    assert isinstance(found, dict)
    agents: Any = found["agents"]
    print_table(
        ("agent", "what", "takes", "gives", "follows", "tools", "version"),
        [
            (
                f"{one['type']}/{one['key'] or '*'}",
                one["description"].partition("\n")[0],
                _brief(one["input"]),
                _brief(one["output"]),
                ", ".join(one["follows"]),
                ", ".join(tool["name"] for tool in one["tools"]),
                one["version"] or "",
            )
            for one in agents
        ],
        empty="no agents",
    )


def _brief(schema: dict[str, Any]) -> str:
    """Return a short text of a schema: the names of its fields, else its title or type."""
    fields = schema.get("properties")
    if fields:
        needed = schema.get("required", ())
        names = (name if name in needed else f"{name}?" for name in fields)
        return f"{{{', '.join(names)}}}"
    return str(schema.get("title") or schema.get("type") or "anything")
