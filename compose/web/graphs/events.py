"""Events that end waits of flow runs."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, JsonValue, model_validator

from compose.web.endpoint import Done, NoQuery, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.graphs.graph_runs import runs_at


class GraphEventJson(StrictModel):
    """An event.

    Attributes:
        name: The event name that waits refer to.
        scope: The scope of waits that the event ends.
        key: Id of the scope's session, flow or run. A global event has none.
        id: Id of the event; by default a new one. An event of one id ends at most one wait of each run.
        payload: The event's data, which the waits receive.
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
    """The result of an event: how many waits it ended, and the ids of at most 1,000 resumed runs."""

    event_id: str
    wait_key: str
    delivered: int
    resumed: list[str]


async def emit(call: WebCall, _: NoQuery, body: GraphEventJson) -> Done:
    """End all waits of the tenant for an event."""
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
        says="Emit an event to all runs that wait for it.",
        body=GraphEventJson,
        answer=EmittedJson,
    ),
)
