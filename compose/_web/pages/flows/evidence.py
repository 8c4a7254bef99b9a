"""Evidence on the page of a flow run: what its tools fetched, and each text of it as a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from actors._kernel.runtime.rows import RunRow
from actors._kernel.workflow.artifacts import ArtifactStore, get_artifact_id, is_artifact_ref
from actors._kernel.workflow.run_state import RunState
from actors._workflow.notes.evidence import evidence_in, evidence_of
from compose._web.endpoint import Endpoints, WebCall
from compose._web.flows.flows import flows_of
from compose._web.flows.runs import graph_run, state_and_waits
from compose._web.pages.html import PageEndpoint
from compose._web.problems import HttpProblem, ProblemError
from compose._web.resources.artifacts import NEVER_SHOWN

endpoint: Final = Endpoints(PageEndpoint)

MOST_SHOWN: Final = 50
"""Maximum number of tool calls whose evidence is listed: the newest ones."""
_SOURCES: Final = ("url", "query", "command")
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceText:
    """A text of the evidence: its name, and its size in bytes, or None if the text was deleted."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvidence:
    """Evidence of one tool call.

    Attributes:
        id: The evidence's id.
        tool: The tool's name.
        at: When the evidence was stored (ISO 8601).
        node: The graph's node that called the tool.
        source: URL, query or command; empty if the tool reported none.
        error: The tool's error; empty if the call succeeded.
        lack: The reason why the evidence cannot be read; empty if it can.
        texts: The texts that the tool fetched, in the order of the evidence.
    """

    id: str
    tool: str
    at: str
    node: str
    source: str
    error: str
    lack: str
    texts: tuple[EvidenceText, ...]


def shown_evidence(call: WebCall, row: RunRow, run: RunState) -> list[ShownEvidence]:
    """Return the newest evidence of a run; empty if this process has no artifact store for the app.

    The store is read on the event loop, as effects of flows do.
    """
    store, spans = store_of(call, row), evidence_of(run)[-MOST_SHOWN:]
    if store is None or not spans:
        return []
    return [_read_evidence(store, span) for span in spans]


@endpoint.get("/graph-runs/{graph_run}/evidence/{evidence}/{text}", scope="flows:run")
async def download_evidence(call: WebCall) -> Response:
    """Return a text of a run's evidence as a download. It is never rendered, because strangers wrote it.

    Raises:
        ProblemError: The run has no such evidence, or the evidence has no such text.
    """
    row = await graph_run(call)
    run, _open = await state_and_waits(call, row)
    id_, name = call.names["evidence"], call.names["text"]
    store, artifact = store_of(call, row), None
    if store is not None and id_ in {span["evidence_id"] for span in evidence_of(run)}:
        artifact_id = _texts(evidence_in(store, id_) or {}).get(name)
        artifact = None if artifact_id is None else store.load(artifact_id)
    if artifact is None:
        what = f"{id_}/{name}"[:100]
        problem = f"run {row.run_id} has no evidence {what}, or it was deleted"
        remedy = "the run's page lists its evidence"
        raise ProblemError(HttpProblem(404, "unknown_evidence", problem, remedy, what))
    file = quote(f"{id_}-{name}.txt", safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{file}", **NEVER_SHOWN}
    return Response(artifact.content, headers=headers, media_type=_TEXT)


def store_of(call: WebCall, row: RunRow) -> ArtifactStore | None:
    """Return the artifact store of a run's app; None if this process has none for it."""
    app = flows_of(call.runtime).get(row.agent_id.type)
    return None if app is None else app.artifact_store


def _texts(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of an evidence's texts, by their names."""
    refs = evidence.get("artifacts")
    named_refs = refs.items() if isinstance(refs, dict) else ()
    return {name: get_artifact_id(ref) for name, ref in named_refs if is_artifact_ref(ref)}


def _read_evidence(store: ArtifactStore, span: Mapping[str, Any]) -> ShownEvidence:
    lack, texts = "", list[EvidenceText]()
    try:
        evidence = evidence_in(store, span["evidence_id"])
        if evidence is None:
            lack = "it was deleted"
        else:
            for name, artifact_id in _texts(evidence).items():
                metadata = store.get_metadata(artifact_id)
                size_bytes = None if metadata is None else metadata.size_bytes
                texts.append(EvidenceText(name=name, size_bytes=size_bytes))
    except Exception:  # noqa: BLE001 - a host's own store: the page shows everything else
        evidence, texts = None, []
        lack = "the store of artifacts does not answer"
    evidence = evidence or {}
    return ShownEvidence(
        id=span["evidence_id"],
        tool=span["tool_name"],
        at=span["created_at"],
        node=evidence.get("node_id") or "",
        source=next((text for key in _SOURCES if isinstance(text := evidence.get(key), str)), ""),
        error=str(evidence.get("error") or ""),
        lack=lack,
        texts=tuple(texts),
    )
