"""The names of our error classes in logs, which stay when a class moves.

The name of a class is ``module:Class`` with the module in which it was when a log first named it, so that
hosts of all releases read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Module in logs, module now, classes. The first column and the classes never change, and no row goes.
_CLASSES: Final = (
    ("actors.agents.errors", "actors.agents.react", "TurnsExhaustedError"),
    ("actors.context.errors", "actors.context.errors", "WindowTooSmallError"),
    ("actors.context.paid_calls", "actors.context.calls", "ModelNotAskedError"),
    (
        "actors.errors",
        "actors.errors",
        (
            "AgentCrashError AlreadyRedrivenError BrokerError BudgetExhaustedError CallInEffectError "
            "CancellationError ConcurrentAppendError ConflictError ContractError DeadlineExceededError "
            "DecisionRefusedError EffectDidNotHappen EffectError EffectInDoubtError "
            "EffectOutsideScopeError ForeignCancellationError HistoryLostError IllegalTransitionError "
            "InvalidEntryError InvalidNameError InvalidScheduleError InvalidTextError LeaseLostError "
            "MessageTooLargeError MiddlewareTermination ModelError NonDeterminismError "
            "NotSerializableError OtherTenantError OutOfOrderError OutputError PersistenceError "
            "RegistrationError RecordedError RetryAfter RunConflictError RunError RunFailedError "
            "RunSweptError ScheduleExistsError SpawnDenied StoreRefusedError StoreUnreachableError "
            "SuspensionSwallowedError TerminalError UnknownApprovalError UnknownRunError "
            "UnknownScheduleError UnservedError WaitCycleError"
        ),
    ),
    ("actors.kernel.agent.guards", "actors.kernel.agent.hooks", "InputBlockedError"),
    ("actors.kernel.secrets", "actors.kernel.secrets", "UnknownSecretError"),
    (
        "actors.kernel.storage.errors",
        "actors.kernel.stores.errors",
        (
            "CypherError InvalidDocumentError OpenRunsError SessionActiveError SessionDeletingError "
            "SubGraphTooLargeError TokenExistsError UnknownNodeError UnknownSessionError"
        ),
    ),
    ("actors.kernel.storage.memory", "actors.kernel.stores.memory", "MemoryConflictError"),
    (
        "actors.kernel.workflow.errors",
        "actors.kernel.workflow.errors",
        (
            "FlowMissingError GraphError GraphRunFailedError LedgerBrokenError NoSuchRunError "
            "NoSuchSnapshotError NodeMissingError RunIdentityConflict SpecChangedError StaleResumeError "
            "StoreBusyError"
        ),
    ),
    (
        "actors.runtime.delivery.stream_guard",
        "actors.runtime.delivery.stream_guard",
        "StreamRolledBackError",
    ),
    (
        "actors.sessions.errors",
        "actors.sessions.errors",
        (
            "ClosedError ConsumedError CursorError ProjectError UnknownArtifactError UnknownChildError "
            "UnknownModeError"
        ),
    ),
    ("actors.testing.cassette", "actors.testing.cassette", "NotRecordedError"),
    ("actors.testing.scripted_model", "actors.testing.scripted_model", "ScriptEndedError"),
    ("actors.workflow.bundles.manifest", "actors.workflow.bundles.manifest", "WorkflowBundleError"),
    (
        "actors.workflow.bundles.registry",
        "actors.workflow.bundles.registry",
        "WorkflowBundleRegistryError",
    ),
    (
        "actors.workflow.documents.expressions",
        "actors.workflow.documents.expressions",
        "ExpressionError",
    ),
    ("actors.workflow.documents.findings", "actors.workflow.documents.findings", "FlowError"),
    ("actors.workflow.documents.sandbox", "actors.workflow.documents.sandbox", "SandboxError"),
    (
        "broker.client_errors",
        "broker.client_errors",
        (
            "AskTimeoutError BadRequestError ClientError ConflictError NotPermittedError "
            "OutcomeUnknownError RunCancelledError RunFailedError TooLargeError UnknownRunError "
            "UnreachableError UnservedError"
        ),
    ),
    (
        "broker.errors",
        "broker.errors",
        "BadMessageError SmallServerError StreamMismatchError SubjectError UnpublishableError",
    ),
    ("broker.gateway.responses", "broker.gateway.responses", "RequestError"),
    ("broker.nats.requests", "broker.nats.requests", "BodyTooLargeError"),
    (
        "broker.nats_client",
        "broker.nats_client",
        (
            "ConnectionLostError JetStreamOffError NoAnswerError NotPermittedError RefusedError "
            "ServerError UnreachableError"
        ),
    ),
    (
        "compose.commands.api",
        "compose.commands.api",
        "ApiFailedError ApiNotFoundError ApiRefusedError ApiUnreachableError",
    ),
    ("compose.commands.messages.send", "compose.commands.messages.send", "StillOpenError"),
    ("compose.commands.output", "compose.commands.output", "NoDataError"),
    ("compose.demo.director", "compose.demo.director", "DemoError"),
    (
        "compose.embedded.errors",
        "compose.embedded.errors",
        "DataDirInUseError EmbeddedServerMissingError ServerFailedError",
    ),
    ("compose.host.http", "compose.host.http", "AddressError"),
    ("compose.host.loader", "compose.host.loader", "ServeError"),
    ("compose.mcp.toolsets.folder", "compose.mcp.toolsets.folder", "PathRefusedError"),
    ("compose.mcp.toolsets.shell", "compose.mcp.toolsets.shell", "CommandLimitError"),
    ("compose.mcp.toolsets.web", "compose.mcp.toolsets.web", "FetchRefusedError"),
    ("compose.models.mcp.session", "compose.models.mcp.session", "McpServerError"),
    ("compose.models.mcp.toolset", "compose.models.mcp.toolset", "McpToolError"),
    ("compose.tools.export", "compose.tools.export", "ExportError"),
    ("compose.tools.graph_bundle", "compose.tools.graph_bundle", "BundleError RunBusyError"),
    ("compose.tools.graph_stores", "compose.tools.graph_stores", "NoGraphStoreError"),
    ("compose.web.agui.answers", "compose.web.agui.endpoint", "AnswerError"),
    ("compose.web.problems", "compose.web.problems", "ProblemError"),
    (
        "persistence.errors",
        "persistence.errors",
        (
            "AGEMissingError BytesElsewhereError DatabaseFullError DatabaseUnreachableError "
            "DatabaseUrlError IndexInUseError MigrationError TextRefusedError"
        ),
    ),
    (
        "persistence.objects.errors",
        "persistence.objects.errors",
        "BucketRefusedError BucketUnreachableError",
    ),
    ("persistence.objects.settings", "persistence.objects.settings", "BucketSettingsError"),
    ("persistence.redis.client", "persistence.redis.client", "RedisUrlError"),
    (
        "persistence.redis.errors",
        "persistence.redis.errors",
        "RedisRefusedError RedisUnreachableError",
    ),
    ("persistence.sqlite.errors", "persistence.sqlite.errors", "LedgerForkError"),
)
CLASS_PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {f"{then}:{cls}": f"{now}:{cls}" for then, now, names in _CLASSES for cls in names.split()}
)
"""``module:Class`` of each class now, by its name in logs."""
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {path: name for name, path in CLASS_PATHS.items()}
)


def name_of(cls: type[BaseException]) -> str:
    """Return the name of an error class in logs. For a class of others it is its ``module:Class``."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return _NAMES.get(path, path)


def path_of(name: str) -> str:
    """Return ``module:Class`` of the class that logs name so."""
    return CLASS_PATHS.get(name, name)
