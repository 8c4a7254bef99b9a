"""Artifacts of sessions: uploads as streams, lists, and downloads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from actors.kernel.stores.administration import Facts
from actors.sessions.artifacts import ArtifactKind, SessionArtifact, SessionArtifacts
from actors.sessions.errors import UnknownArtifactError
from compose.web.changes import thing_of_session
from compose.web.endpoint import Done, ShownModel, WebCall, WebEndpoint, json_response
from compose.web.limits import pieces_of
from compose.web.resources.pages import OfApp

BYTES: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(
    r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w-]{1,40})?", re.ASCII
)
NEVER_SHOWN: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "no-store",
}
"""Headers that make a browser save the bytes and never render them: models and strangers made them."""


class OfSession(OfApp):
    """The query that names an artifact's session."""

    session_id: str


class Upload(OfSession):
    """The query of an upload. The media type is the request's Content-Type."""

    name: str
    kind: ArtifactKind = "ordinary"


class ArtifactJson(ShownModel):
    """An artifact. `artifact_id` is the SHA-256 of its bytes."""

    name: str
    kind: ArtifactKind
    artifact_id: str
    size_bytes: int
    content_type: str
    run_id: str | None
    at: datetime


class ArtifactsJson(ShownModel):
    """The artifacts of a session, by name."""

    artifacts: list[ArtifactJson]


def _shown(one: SessionArtifact) -> ArtifactJson:
    return ArtifactJson(
        name=one.name,
        kind=one.kind,
        artifact_id=one.ref.id,
        size_bytes=one.ref.size_bytes,
        content_type=one.ref.content_type,
        run_id=one.run_id,
        at=one.at,
    )


async def _artifacts(
    call: WebCall, query: OfSession, *, before: Facts | None = None, after: Facts | None = None
) -> SessionArtifacts:
    """Return the artifacts of a session, which the request changes if it has facts for the audit."""
    found = await call.session(query.app, query.session_id)
    if before is not None or after is not None:
        thing = thing_of_session(found.agent)
        call.audit(thing, agent=found.agent, before=before, after=after)
    return found.agents.artifacts(found.agent.key)


async def upload(call: WebCall, query: Upload, _: None) -> Done:
    """Store the body as a named artifact, replacing one of that name. It is never in memory as a whole."""
    artifacts = await _artifacts(call, query, after={"artifact": query.name, "kind": query.kind})
    said = call.request.headers.get("content-type", BYTES)
    media_type = said if _MEDIA_TYPE.fullmatch(said) else BYTES
    body = pieces_of(call.request)
    await artifacts.put(query.name, body, kind=query.kind, content_type=media_type)
    return json_response(_shown(await artifacts.find(query.name)), 201)


async def list_artifacts(call: WebCall, query: OfSession, _: None) -> Done:
    """Return the artifacts of a session."""
    found = await (await _artifacts(call, query)).list()
    return ArtifactsJson(artifacts=[_shown(one) for one in found])


async def download(call: WebCall, query: OfSession, _: None) -> Done:
    """Return the bytes of an artifact as a download."""
    artifacts, name = await _artifacts(call, query), call.names["artifact"]
    ref = (await artifacts.find(name)).ref
    media_type = ref.content_type if _MEDIA_TYPE.fullmatch(ref.content_type) else BYTES
    file = quote(name.rpartition("/")[2] or "artifact", safe="")
    headers = {
        "content-length": str(ref.size_bytes),
        "content-type": media_type,
        "content-disposition": f"attachment; filename*=UTF-8''{file}",
        "etag": f'"{ref.id}"',
        **NEVER_SHOWN,
    }
    return StreamingResponse(_bytes(artifacts, name), headers=headers)


async def _bytes(artifacts: SessionArtifacts, name: str) -> AsyncGenerator[bytes, None]:
    async for piece in artifacts.read(name):
        yield piece


async def delete(call: WebCall, query: OfSession, _: None) -> Done:
    """Delete an artifact's name. Its bytes are collected a day later if nothing else pins them."""
    name = call.names["artifact"]
    artifacts = await _artifacts(call, query, before={"artifact": name})
    if not await artifacts.delete(name):
        raise UnknownArtifactError(name)
    return Response(status_code=204)


_ARTIFACTS: Final = "/v1/artifacts"
_ARTIFACT: Final = f"{_ARTIFACTS}/{{artifact}}"
ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path=_ARTIFACTS,
        call=upload,
        says="Store the body as an artifact of a session.",
        query=Upload,
        answer=ArtifactJson,
        status=201,
        takes=BYTES,
    ),
    WebEndpoint(
        method="GET",
        path=_ARTIFACTS,
        call=list_artifacts,
        says="List artifacts of a session, by name.",
        query=OfSession,
        answer=ArtifactsJson,
    ),
    WebEndpoint(
        method="GET",
        path=_ARTIFACT,
        call=download,
        says="Download an artifact.",
        query=OfSession,
        media_type=BYTES,
    ),
    WebEndpoint(
        method="DELETE",
        path=_ARTIFACT,
        call=delete,
        says="Delete the name of an artifact.",
        query=OfSession,
        status=204,
    ),
)
