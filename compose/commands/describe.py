"""`callboard describe`: an application's agents as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from actors.runtime.describe import describe as describe_agents
from compose.asyncapi import asyncapi_document
from compose.commands.exits import Exit
from compose.commands.output import print_json, print_table
from compose.replay import Catalogue
from compose.serving import find_served, serve_all
from compose.settings import read_settings

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


async def describe(
    module_attr: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    form: Annotated[
        Literal["table", "asyncapi", "json-schema"] | None, Parameter(name="--format")
    ] = None,
    title: str | None = None,
    app_version: str = "0",
    namespace: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Describe agents for those who write to them: what they take, give, follow and may call.

    Needs no server: nothing is served, no agent runs. `--json` without a format is `json-schema`.

    Examples:
    `callboard describe shop.agents:app`;
    `callboard describe shop.agents:app --format asyncapi > asyncapi.json`;
    `callboard describe shop.agents:app --json`

    Parameters
    ----------
    module_attr
        MODULE:ATTR as of `callboard host`.
    form
        table: for people. json-schema: each agent with the JSON Schemas of payload and result.
        asyncapi: an AsyncAPI 3.0 document with the subjects.
    title
        Of the AsyncAPI document; the first MODULE:ATTR when left out.
    app_version
        Of the application, for the AsyncAPI document.
    namespace
        Goes before every subject. [env: CALLBOARD_NAMESPACE]
    json
        Print JSON for programs instead of a table for people.
    debug
        Show the traceback of an error, and every log line.
    """
    del debug  # read by `compose.cli`, for every command alike
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
                f"{one['type']}/{one['key'] or '*'}", one["description"].partition("\n")[0],
                _brief(one["input"]), _brief(one["output"]), ", ".join(one["follows"]),
                ", ".join(tool["name"] for tool in one["tools"]), one["version"] or "",
            )
            for one in agents
        ],
        empty="no agents",
    )  # fmt: skip


def _brief(schema: dict[str, Any]) -> str:
    """Return a schema in a few words: its title or type, and the names of its fields."""
    fields = schema.get("properties")
    if fields:
        needed = schema.get("required", ())
        names = (name if name in needed else f"{name}?" for name in fields)
        return f"{{{', '.join(names)}}}"
    return str(schema.get("title") or schema.get("type") or "anything")
