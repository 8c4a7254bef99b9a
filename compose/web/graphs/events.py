"""Events for waits of graphs."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, JsonValue, model_validator

from compose.web.endpoint import Done, NoQuery, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.graphs.graph_runs import runs_at


class GraphEventJson(StrictModel):
    """An event.

    Attributes:
        name: What waits name it.
        scope: How far it is heard.
        key: The session, the flow or the run of the scope; a global event has none.
        id: An event of one id answers one wait of each run at most; a new one by default.
        payload: What is heard.
    """

    name: str = Field(min_length=1)
    scope: Literal["session", "workflow", "run", "global"] = "global"
    key: str | None = Field(default=None, min_length=1)
    id: str | None = Field(default=None, min_length=1)
    payload: JsonValue = None

    @model_validator(mode="after")
    def _has_a_key(self) -> GraphEventJson:
        if (self.key is None) != (self.scope == "global"):
            raise ValueError(
                "give `key` with the scopes session, workflow and run, and with no other"
            )
        return self


class EmittedJson(ShownModel):
    """An event that was emitted: how many waits it answered, and, of 1,000 at most, the runs that go on."""

    event_id: str
    wait_key: str
    delivered: int
    resumed: list[str]


async def emit(call: WebCall, _: NoQuery, body: GraphEventJson) -> Done:
    """Answer all waits of the tenant for an event."""
    key = {} if body.key is None else {f"{body.scope}_id": body.key}
    told = await runs_at(call, "").emit(
        body.name, body.payload, event_id=body.id, scope=body.scope, **key
    )
    return EmittedJson.model_validate(told)


ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path="/v1/events",
        call=emit,
        says="Tell all runs that wait for an event of it.",
        body=GraphEventJson,
        answer=EmittedJson,
    ),
)
