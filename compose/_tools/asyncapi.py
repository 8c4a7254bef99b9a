"""An application's agents as an AsyncAPI 3.0 document: the subjects, bodies and headers of the wire.

The module only converts a description of `actors._runtime.client.gateway_api` to the document. The operations
are those of the agents, which receive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT, token

Part = dict[str, Any]

ASYNCAPI: Final = "3.0.0"
PARAMETERS: Final[dict[str, str]] = {
    "tenant": "The agent's tenant; `default` unless the deployment has tenants.",
    "key": "The agent's key as a token, see docs/subjects.md.",
    "publisher": "Name of the external client, which the broker's permissions guarantee.",
    "run": "The run's id.",
    "name": "The signal's name.",
}


def _object(properties: Part, *required: str) -> Part:
    schema: Part = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


TEXT: Final[Part] = {"type": "string"}
HEADERS: Final = _object(
    {
        "Nats-Msg-Id": {
            **TEXT,
            "maxLength": 256,
            "description": "Id of the message. A message with the same id is processed once.",
        },
        "Content-Type": {"enum": ["application/json", "application/msgpack"]},
        "traceparent": {**TEXT, "description": "W3C trace context."},
    }
)
ASK_HEADERS: Final = _object(
    {
        **HEADERS["properties"],
        "Actor-Timeout": {
            **TEXT,
            "pattern": r"^[0-9]+(\.[0-9]+)?$",
            "description": "Seconds to wait for the answer, 30 by default, at most 3600.",
        },
        "Actor-On-Conflict": {"enum": ["queue", "join", "reject", "interrupt"]},
        "Actor-Priority": {**TEXT, "pattern": "^-?[0-9]+$"},
    }
)
ANSWER_HEADERS: Final = _object({"Actor-Run": TEXT, "Actor-Status": {"enum": ["COMPLETED"]}})
ERROR_CODES: Final = "400 403 404 408 409 413 422 429 499 503"
ERROR_HEADERS: Final = _object(
    {
        "Nats-Service-Error-Code": {"enum": ERROR_CODES.split()},
        "Nats-Service-Error": TEXT,
        "Actor-Run": TEXT,
    },
    "Nats-Service-Error-Code",
)
ERROR_FACTS: Final[Part] = {
    "code": {"type": "integer"},
    **dict.fromkeys(("type", "message", "remedy"), TEXT),
    "run": {"type": ["string", "null"]},
    "details": {},
}
ERROR: Final = _object(
    {"error": _object(ERROR_FACTS, "code", "type", "message", "remedy", "run")}, "error"
)


def asyncapi_document(
    description: JsonValue, *, title: str, version: str, namespace: str = ""
) -> Part:
    """Return the AsyncAPI document of a description.

    Args:
        description: Result of `describe`: ``{"callboard": 1, "agents": [...]}``.
        title: Title of the application.
        version: Version of the application.
        namespace: Prefix of every subject.
    """
    payload = {"$ref": "#/components/schemas/Error"}
    error = {"title": "Error", "headers": ERROR_HEADERS, "payload": payload}
    document: Part = {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": title,
            "version": version,
            "description": "Agents on Callboard. Any NATS client with the permissions can send them messages.",
        },
        "defaultContentType": "application/json",
        "channels": {},
        "operations": {},
        "components": {"schemas": {"Error": ERROR}, "messages": {"Error": error}},
    }
    assert isinstance(description, dict)
    agents = description["agents"]
    assert isinstance(agents, list)
    for agent in agents:
        assert isinstance(agent, dict)
        _AgentWriter(agent, document, f"{namespace}." if namespace else "").add()
    return document


class _AgentWriter:
    """A writer of one agent, or of all agents of a type, into the document."""

    def __init__(self, agent: Part, document: Part, prefix: str) -> None:
        self._agent, self._document, self._prefix = agent, document, prefix
        key = agent["key"]
        self._name = _identifier(agent["type"] if key is None else f"{agent['type']}-{key}")
        tenant = "{tenant}" if agent["tenant"] is None else token(agent["tenant"])
        if agent["tenant"] == DEFAULT_TENANT:
            self._name = self._name.removesuffix("-main")
        self._address = f"{tenant}.{token(agent['type'])}.{'{key}' if key is None else token(key)}"

    def add(self) -> None:
        """Add the agent's channels, operations and schemas to the document."""
        input_schema, output_schema = self._schema("input"), self._schema("output")
        message_ref = self._message("Message", input_schema, HEADERS)
        question_ref = self._message("Question", input_schema, ASK_HEADERS)
        answer_ref = self._message("Answer", output_schema, ANSWER_HEADERS)
        signal_ref = self._message("Signal", {}, HEADERS)
        self._channel("ask", "ask.v1.{address}.{publisher}", {"question": question_ref})
        self._channel(
            "answer", None, {"answer": answer_ref, "error": "#/components/messages/Error"}
        )
        self._channel("tell", "agent.v1.{address}.ext.{publisher}", {"message": message_ref})
        self._channel(
            "signal", "agent.v1.{address}.sig.{publisher}.{run}.{name}", {"signal": signal_ref}
        )
        self._operation("ask", "Start a run and wait for its output.", has_reply=True)
        self._operation(
            "tell", "Send a message, which is stored when acknowledged, and processed once."
        )
        self._operation("signal", "Send a signal to a run of the agent.")
        for topic in self._agent["follows"]:
            self._topic(topic, input_schema)

    def _schema(self, schema_key: str) -> Part:
        """Return the agent's schema `schema_key`, and move its definitions to the document's components."""
        schema: Part = dict(self._agent[schema_key])
        head = f"{self._name}-{schema_key}"
        for name, definition in schema.pop("$defs", {}).items():
            schemas = self._document["components"]["schemas"]
            schemas[f"{head}-{_identifier(name)}"] = _with_component_refs(definition, head)
        component: Part = _with_component_refs(schema, head)
        return component

    def _message(self, kind: str, schema: Part, headers: Part) -> str:
        name = f"{self._name}{kind}"
        self._document["components"]["messages"][name] = {
            "title": f"{kind} of {self._agent['type']}",
            "headers": headers,
            "payload": schema,
        }
        return f"#/components/messages/{name}"

    def _channel(self, kind: str, address: str | None, messages: dict[str, str]) -> str:
        channel: Part = {"messages": {name: {"$ref": ref} for name, ref in messages.items()}}
        if address is None:
            channel["address"] = None
        else:
            full_address = self._prefix + address.replace("{address}", self._address)
            channel["address"] = full_address
            names = re.findall(r"\{(\w+)\}", full_address)
            channel["parameters"] = {name: {"description": PARAMETERS[name]} for name in names}
        name = f"{self._name}-{kind}"
        self._document["channels"][name] = channel
        return name

    def _operation(self, kind: str, summary: str, *, has_reply: bool = False) -> None:
        channel = f"{self._name}-{kind}"
        operation: Part = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
            "description": self._agent["description"],
            "messages": list(self._refs(channel)),
        }
        if has_reply:
            answer_channel = f"{self._name}-answer"
            operation["reply"] = {
                "address": {
                    "location": "$message.header#/reply",
                    "description": "The reply subject of the NATS request.",
                },
                "channel": {"$ref": f"#/channels/{answer_channel}"},
                "messages": list(self._refs(answer_channel)),
            }
        self._document["operations"][channel] = operation

    def _refs(self, channel: str) -> Iterator[Part]:
        for name in self._document["channels"][channel]["messages"]:
            yield {"$ref": f"#/channels/{channel}/messages/{name}"}

    def _topic(self, topic: str, schema: Part) -> None:
        type_, _, source = topic.partition("/")
        kind = f"post-{_identifier(topic)}"
        post = self._message(f"Post{_identifier(topic)}", schema, HEADERS)
        tenant = self._address.partition(".")[0]
        address = f"topic.v1.{tenant}.{token(type_)}.{token(source or 'default')}.ext."
        self._channel(kind, address + "{publisher}", {"post": post})
        self._operation(kind, f"Publish to the topic {topic}, which the agent follows.")


def _identifier(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def _with_component_refs(schema: Any, head: str) -> Any:
    """Return the schema with references to the document's components in place of its own definitions."""
    if isinstance(schema, list):
        return [_with_component_refs(item, head) for item in schema]
    if not isinstance(schema, dict):
        return schema
    new_schema = {key: _with_component_refs(value, head) for key, value in schema.items()}
    ref = new_schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/$defs/"):
        name = _identifier(ref.removeprefix("#/$defs/"))
        new_schema["$ref"] = f"#/components/schemas/{head}-{name}"
    return new_schema
