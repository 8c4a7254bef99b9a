"""Workflow graphs: explicit nodes, and runs that wait for days as checkpoints, without a Python stack.

The rules are in `machine`, which is pure; `embedded` drives runs in this process, over the stores that the
caller gives; `hosted` drives each run as an agent of a runtime, on any host. Some names of this package mean
something else in other packages of this project (`RunStore`, `Effect`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._kernel.runtime.effects import EffectMode
    from actors._kernel.workflow.artifacts import (
        Artifact,
        ArtifactMetadata,
        ArtifactStore,
        artifact_ref,
        compute_artifact_id,
        get_artifact_id,
        is_artifact_ref,
        plain_value,
        resolve_artifact,
    )
    from actors._kernel.workflow.descriptors import (
        ArtifactAccessStats,
        ArtifactDescriptor,
        build_artifact_descriptor_payload,
    )
    from actors._kernel.workflow.durable import normalize_utc_iso
    from actors._kernel.workflow.effects import (
        Effect,
        EffectOutcome,
        EffectType,
        RunStatus,
        StepPlan,
        StepStatus,
        WaitReason,
        WaitState,
    )
    from actors._kernel.workflow.errors import (
        GraphError,
        GraphRunFailedError,
        LedgerBrokenError,
        NoSuchRunError,
        RunIdentityConflict,
        SpecChangedError,
        StaleResumeError,
        StoreBusyError,
    )
    from actors._kernel.workflow.run_state import RunState, Snapshot, SnapshotStore, open_waits
    from actors._kernel.workflow.step_record import StepRecord, verify_ledger_chain
    from actors._kernel.workflow.stores import (
        CommandAppendResult,
        CommandCursorStore,
        CommandRecord,
        CommandStore,
        DeletableLedgerStore,
        DeletableRunStore,
        LedgerStore,
        ObservableLedgerStoreProtocol,
        QueryableRunIndexStore,
        QueryableRunStore,
        RunStore,
    )
    from actors._workflow.documents.findings import FlowError, FlowFinding
    from actors._workflow.embedded.held_run import run_mutation_lock
    from actors._workflow.embedded.histories import (
        RUN_HISTORY_BUNDLE_VERSION_V1,
        export_run_history_bundle,
        import_run_history_bundle,
        persist_workflow_snapshot,
        replay_run_history,
    )
    from actors._workflow.embedded.registry import (
        ActorFingerprint,
        WorkflowRegistry,
        restore_snapshot,
    )
    from actors._workflow.embedded.runtime import WorkflowRuntime
    from actors._workflow.embedded.scheduled import ScheduledRuntime, create_scheduled_runtime
    from actors._workflow.embedded.scheduler import Scheduler, SchedulerStats
    from actors._workflow.embedded.stores.in_memory import (
        InMemoryArtifactStore,
        InMemoryCommandCursorStore,
        InMemoryCommandStore,
        InMemoryLedgerStore,
        InMemoryRunStore,
        InMemorySnapshotStore,
    )
    from actors._workflow.embedded.stores.ledgers import (
        HashChainedLedgerStore,
        ObservableLedgerStore,
    )
    from actors._workflow.embedded.stores.offloading import (
        OffloadingLedgerStore,
        OffloadingRunStore,
        offload_large_values,
    )
    from actors._workflow.handlers import ReconciledHandler, tool_calls
    from actors._workflow.hosted.flows import Flows
    from actors._workflow.hosted.runs import FlowRuns
    from actors._workflow.hosted.starting import schedule_flow
    from actors._workflow.machine.spec import (
        DefaultEffectPolicy,
        EffectPolicy,
        NoRetryPolicy,
        RetryPolicy,
        WorkflowSpec,
        compute_idempotency_key,
    )
    from actors._workflow.machine.variables import (
        LimitWarning,
        RuntimeConfig,
        branch_of,
        ensure_namespaces,
    )
    from actors._workflow.notes.evidence import evidence_in, evidence_of
    from actors._workflow.visual.loading import (
        check_flow,
        compile_visualflow,
        compile_visualflow_tree,
        load_flow,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._kernel.runtime.effects": ("EffectMode",),
            "actors._kernel.workflow.artifacts": (
                "Artifact",
                "ArtifactMetadata",
                "ArtifactStore",
                "artifact_ref",
                "compile_visualflow",
                "compile_visualflow_tree",
                "compute_artifact_id",
                "get_artifact_id",
                "is_artifact_ref",
                "plain_value",
                "resolve_artifact",
            ),
            "actors._kernel.workflow.stores": (
                "CommandAppendResult",
                "CommandCursorStore",
                "CommandRecord",
                "CommandStore",
                "DeletableLedgerStore",
                "LedgerStore",
                "ObservableLedgerStoreProtocol",
                "DeletableRunStore",
                "QueryableRunIndexStore",
                "QueryableRunStore",
                "RunStore",
            ),
            "actors._kernel.workflow.descriptors": (
                "ArtifactAccessStats",
                "ArtifactDescriptor",
                "build_artifact_descriptor_payload",
            ),
            "actors._kernel.workflow.durable": ("normalize_utc_iso",),
            "actors._kernel.workflow.effects": (
                "Effect",
                "EffectOutcome",
                "EffectType",
                "RunStatus",
                "StepPlan",
                "StepStatus",
                "WaitReason",
                "WaitState",
            ),
            "actors._kernel.workflow.errors": (
                "GraphError",
                "GraphRunFailedError",
                "LedgerBrokenError",
                "NoSuchRunError",
                "RunIdentityConflict",
                "SpecChangedError",
                "StaleResumeError",
                "StoreBusyError",
            ),
            "actors._kernel.workflow.run_state": (
                "RunState",
                "open_waits",
                "Snapshot",
                "SnapshotStore",
            ),
            "actors._kernel.workflow.step_record": ("StepRecord", "verify_ledger_chain"),
            "actors._workflow.hosted.flows": ("Flows",),
            "actors._workflow.hosted.runs": ("FlowRuns",),
            "actors._workflow.hosted.starting": ("schedule_flow",),
            "actors._workflow.embedded.stores.in_memory": (
                "InMemoryArtifactStore",
                "InMemoryCommandCursorStore",
                "InMemoryCommandStore",
                "InMemoryLedgerStore",
                "InMemoryRunStore",
                "InMemorySnapshotStore",
            ),
            "actors._workflow.documents.findings": ("FlowError", "FlowFinding"),
            "actors._workflow.embedded.registry": (
                "ActorFingerprint",
                "WorkflowRegistry",
                "restore_snapshot",
            ),
            "actors._workflow.handlers": ("ReconciledHandler", "tool_calls"),
            "actors._workflow.embedded.histories": (
                "RUN_HISTORY_BUNDLE_VERSION_V1",
                "export_run_history_bundle",
                "import_run_history_bundle",
                "persist_workflow_snapshot",
                "replay_run_history",
            ),
            "actors._workflow.embedded.stores.ledgers": (
                "HashChainedLedgerStore",
                "ObservableLedgerStore",
            ),
            "actors._workflow.embedded.stores.offloading": (
                "OffloadingLedgerStore",
                "OffloadingRunStore",
                "offload_large_values",
            ),
            "actors._workflow.embedded.held_run": ("run_mutation_lock",),
            "actors._workflow.embedded.runtime": ("WorkflowRuntime",),
            "actors._workflow.embedded.scheduled": ("ScheduledRuntime", "create_scheduled_runtime"),
            "actors._workflow.embedded.scheduler": ("Scheduler", "SchedulerStats"),
            "actors._workflow.machine.variables": (
                "LimitWarning",
                "RuntimeConfig",
                "branch_of",
                "ensure_namespaces",
            ),
            "actors._workflow.machine.spec": (
                "DefaultEffectPolicy",
                "EffectPolicy",
                "NoRetryPolicy",
                "RetryPolicy",
                "compute_idempotency_key",
                "WorkflowSpec",
            ),
            "actors._workflow.notes.evidence": ("evidence_in", "evidence_of"),
            "actors._workflow.visual.loading": (
                "check_flow",
                "compile_visualflow",
                "compile_visualflow_tree",
                "load_flow",
            ),
        },
    )

__all__ = [
    "RUN_HISTORY_BUNDLE_VERSION_V1",
    "ActorFingerprint",
    "Artifact",
    "ArtifactAccessStats",
    "ArtifactDescriptor",
    "ArtifactMetadata",
    "ArtifactStore",
    "CommandAppendResult",
    "CommandCursorStore",
    "CommandRecord",
    "CommandStore",
    "DefaultEffectPolicy",
    "DeletableLedgerStore",
    "DeletableRunStore",
    "Effect",
    "EffectMode",
    "EffectOutcome",
    "EffectPolicy",
    "EffectType",
    "FlowError",
    "FlowFinding",
    "FlowRuns",
    "Flows",
    "GraphError",
    "GraphRunFailedError",
    "HashChainedLedgerStore",
    "InMemoryArtifactStore",
    "InMemoryCommandCursorStore",
    "InMemoryCommandStore",
    "InMemoryLedgerStore",
    "InMemoryRunStore",
    "InMemorySnapshotStore",
    "LedgerBrokenError",
    "LedgerStore",
    "LimitWarning",
    "NoRetryPolicy",
    "NoSuchRunError",
    "ObservableLedgerStore",
    "ObservableLedgerStoreProtocol",
    "OffloadingLedgerStore",
    "OffloadingRunStore",
    "QueryableRunIndexStore",
    "QueryableRunStore",
    "ReconciledHandler",
    "RetryPolicy",
    "RunIdentityConflict",
    "RunState",
    "RunStatus",
    "RunStore",
    "RuntimeConfig",
    "ScheduledRuntime",
    "Scheduler",
    "SchedulerStats",
    "Snapshot",
    "SnapshotStore",
    "SpecChangedError",
    "StaleResumeError",
    "StepPlan",
    "StepRecord",
    "StepStatus",
    "StoreBusyError",
    "WaitReason",
    "WaitState",
    "WorkflowRegistry",
    "WorkflowRuntime",
    "WorkflowSpec",
    "artifact_ref",
    "branch_of",
    "build_artifact_descriptor_payload",
    "check_flow",
    "compile_visualflow",
    "compile_visualflow_tree",
    "compute_artifact_id",
    "compute_idempotency_key",
    "create_scheduled_runtime",
    "ensure_namespaces",
    "evidence_in",
    "evidence_of",
    "export_run_history_bundle",
    "get_artifact_id",
    "import_run_history_bundle",
    "is_artifact_ref",
    "load_flow",
    "normalize_utc_iso",
    "offload_large_values",
    "open_waits",
    "persist_workflow_snapshot",
    "plain_value",
    "replay_run_history",
    "resolve_artifact",
    "restore_snapshot",
    "run_mutation_lock",
    "schedule_flow",
    "tool_calls",
    "verify_ledger_chain",
]
