"""Evidence: data that tools got from outside, stored as artifacts. The index has a span for each call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from actors._kernel.json_data import clean_text
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.artifacts import ArtifactStore, artifact_ref
from actors._kernel.workflow.durable import json_digest
from actors._kernel.workflow.effects import EffectOutcome
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.attempts import sound
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.variables import RUNTIME
from actors._workflow.notes.spans import SPAN_ID, SPANS_PATH, Archive, Span, spans_of

EVIDENCE: Final = "evidence"
WARNINGS: Final = "evidence_warnings"
"""Name in `_runtime`. Its value has the calls whose evidence could not be stored, with the reasons."""
TOOLS: Final = frozenset({"web_search", "fetch_url", "execute_command"})
LONGEST_SHOWN: Final = 12_000
"""Maximum length of a tool's `rendered` text in its output, in characters. The whole text is an artifact."""
_MARK: Final = (
    "\n#TRUNCATION: rendered tool output compacted: the whole text is rendered_artifact\n"
)
_MOVED_TEXTS: Final = {
    "raw_text": ("raw", "raw_artifact"),
    "normalized_text": ("normalized_text", "normalized_artifact"),
    "rendered_dom": ("rendered_dom", "rendered_dom_artifact"),
    "stdout": ("stdout", "stdout_artifact"),
    "stderr": ("stderr", "stderr_artifact"),
}
"""The texts of an output that become artifacts, with their names in the evidence and in the output."""
_WITHHELD: Final = "_withheld"


class EvidenceRecorder:
    """The recorder of evidence of TOOL_CALLS.

    Args:
        artifact_store: The store of the evidence.
    """

    def __init__(self, artifact_store: ArtifactStore) -> None:
        self._store = artifact_store

    def record(
        self, outcome: EffectOutcome, run: RunState, open_step: OpenStep, at: str
    ) -> EffectOutcome:
        """Return an outcome with references in place of large texts, and with the spans of its evidence.

        Evidence that cannot be stored becomes a warning in `_runtime.evidence_warnings`, and the result stays
        as it is. A second execution of the effect with the same result stores no second evidence.
        """
        if not any(map(_is_external, _rows(outcome.result))):
            return outcome
        outcome = sound(outcome, open_step)
        rows = [*_rows(outcome.result)]
        puts = [*(outcome.changes or {}).get("put", ())]
        origin = {"created_at": at, "run_id": run.run_id, "node_id": open_step.node_id}
        for index, row in enumerate(rows):
            if not _is_external(row):
                continue
            name = derive_id(open_step.key, EVIDENCE, index)
            try:
                rows[index], span = self._store_evidence(
                    row, derive_id(name, json_digest(row)), origin
                )
                puts.append([SPANS_PATH, SPAN_ID, span])
            # The call has happened: if the store failed the effect, a retry would call the tool again.
            except Exception as exc:  # noqa: BLE001
                problem = clean_text(f"{type(exc).__name__}: {exc}")
                warning = {"id": name, "tool_name": row["name"], "at": at, "error": problem}
                puts.append([[RUNTIME, WARNINGS], "id", warning])
        if not puts:
            return outcome
        changes = {**(outcome.changes or {}), "put": puts}
        return replace(outcome, result={**outcome.result, "results": rows}, changes=changes)

    def _store_evidence(
        self, row: dict[str, Any], evidence_id: str, origin: dict[str, str]
    ) -> tuple[dict[str, Any], Span]:
        """Store the evidence of a call; return the call's row with references, and its span."""
        output, tool, run_id = row.get("output"), row["name"], origin["run_id"]
        content = {name: row.get(name) for name in ("call_id", "success", "error")}
        if isinstance(output, dict):
            output, texts = self._move_texts(output, run_id)
            content = texts | content
        else:
            content["artifacts"] = {"results": self._store_text(str(output), run_id)}
        content |= {"tool_name": tool, **origin}
        tags = {"kind": EVIDENCE, "tool": tool}
        archive = Archive(self._store, EVIDENCE)
        stored_content = archive.store_once(evidence_id, content, run_id=run_id, tags=tags)
        span: Span = {"kind": EVIDENCE, SPAN_ID: evidence_id, "tool_name": tool}
        span |= dict.fromkeys(
            ("created_at", "from_timestamp", "to_timestamp"), stored_content["created_at"]
        )
        row_meta = row.get("meta")
        meta = {**(row_meta if isinstance(row_meta, dict) else {}), "evidence_id": evidence_id}
        return {**row, "output": output, "meta": meta}, {**span, "tags": {"tool": tool}}

    def _move_texts(
        self, output: dict[str, Any], run_id: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an output with references in place of its texts, and the content of the evidence."""
        artifacts: dict[str, dict[str, str]] = {}
        short_output = dict(output)
        for field, (name, reference_name) in _MOVED_TEXTS.items():
            if isinstance(output.get(field), str):
                short_output[reference_name] = artifacts[name] = self._store_text(
                    short_output.pop(field), run_id
                )
        if isinstance(output.get("content"), str):
            short_output["content_artifact"] = artifacts["content"] = self._store_text(
                output["content"], run_id
            )
        rendered = output.get("rendered")
        if isinstance(rendered, str) and len(rendered) > LONGEST_SHOWN:
            artifacts["rendered"] = self._store_text(rendered, run_id)
            half = (LONGEST_SHOWN - len(_MARK)) // 2
            short_output["rendered"] = f"{rendered[:half]}{_MARK}{rendered[-half:]}"
            short_output |= {"rendered_truncated": True, "rendered_chars": len(rendered)}
            short_output["rendered_artifact"] = artifacts["rendered"]
        texts = {*_MOVED_TEXTS, "content", "rendered"}
        fields = {
            name: value
            for name, value in output.items()
            if name not in texts and not isinstance(value, dict | list)
        }
        withheld = {name: value for name, value in output.items() if name.endswith(_WITHHELD)}
        fields["artifacts"] = artifacts
        return short_output, fields | ({"withheld": withheld} if withheld else {})

    def _store_text(self, text: str, run_id: str) -> dict[str, str]:
        artifact = self._store.store(text.encode(), content_type="text/plain", run_id=run_id)
        return artifact_ref(artifact.artifact_id)


def _rows(result: Any) -> list[Any]:
    rows = result.get("results") if isinstance(result, dict) else None
    return rows if isinstance(rows, list) else []


def _is_external(row: Any) -> bool:
    name = row.get("name") if isinstance(row, dict) else None
    return isinstance(name, str) and name in TOOLS


def evidence_of(run: RunState) -> list[dict[str, Any]]:
    """Return the index of a run's evidence, the oldest first. Each item has its ``evidence_id``."""
    spans = [s for s in spans_of(run.vars) if s.get("kind") == EVIDENCE]
    return [{**s, "evidence_id": s[SPAN_ID]} for s in spans]


def evidence_in(artifact_store: ArtifactStore | None, evidence_id: str) -> dict[str, Any] | None:
    """Return the evidence of a call, or None if there is no evidence of this id.

    Raises:
        GraphError: The driver has no artifact store.
    """
    return Archive(artifact_store, EVIDENCE).load(evidence_id)
