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
    ("actors.agents.errors", "actors._agents.react", "TurnsExhaustedError"),
    ("actors.context.errors", "actors._context.errors", "WindowTooSmallError"),
    ("actors.context.paid_calls", "actors._context.calls", "ModelNotAskedError"),
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
    ("actors.kernel.agent.guards", "actors._kernel.agent.hooks", "InputBlockedError"),
    ("actors.kernel.secrets", "actors._kernel.secrets", "UnknownSecretError"),
    (
        "actors.kernel.storage.errors",
        "actors._kernel.stores.errors",
        (
            "CypherError InvalidDocumentError OpenRunsError SessionActiveError SessionDeletingError "
            "SubGraphTooLargeError TokenExistsError UnknownNodeError UnknownSessionError"
        ),
    ),
    ("actors.kernel.storage.memory", "actors._kernel.stores.memory", "MemoryConflictError"),
    (
        "actors.kernel.workflow.errors",
        "actors._kernel.workflow.errors",
        (
            "FlowMissingError GraphError GraphRunFailedError LedgerBrokenError NoSuchRunError "
            "NoSuchSnapshotError NodeMissingError RunIdentityConflict SpecChangedError StaleResumeError "
            "StoreBusyError"
        ),
    ),
    (
        "actors.runtime.delivery.stream_guard",
        "actors._runtime.delivery.stream_guard",
        "StreamRolledBackError",
    ),
    (
        "actors.sessions.errors",
        "actors._sessions.errors",
        (
            "ClosedError ConsumedError CursorError ProjectError UnknownArtifactError UnknownChildError "
            "UnknownModeError"
        ),
    ),
    ("actors.testing.cassette", "actors._testing.cassette", "NotRecordedError"),
    ("actors.testing.scripted_model", "actors._testing.scripted_model", "ScriptEndedError"),
    (
        "actors.workflow.bundles.manifest",
        "actors._workflow.bundles.manifest",
        "WorkflowBundleError",
    ),
    (
        "actors.workflow.bundles.registry",
        "actors._workflow.bundles.registry",
        "WorkflowBundleRegistryError",
    ),
    (
        "actors.workflow.documents.expressions",
        "actors._workflow.documents.expressions",
        "ExpressionError",
    ),
    ("actors.workflow.documents.findings", "actors._workflow.documents.findings", "FlowError"),
    ("actors.workflow.documents.sandbox", "actors._workflow.documents.sandbox", "SandboxError"),
    (
        "broker.client_errors",
        "broker._client_errors",
        (
            "AskTimeoutError BadRequestError ClientError ConflictError NotPermittedError "
            "OutcomeUnknownError RunCancelledError RunFailedError TooLargeError UnknownRunError "
            "UnreachableError UnservedError"
        ),
    ),
    (
        "broker.errors",
        "broker._errors",
        "BadMessageError SmallServerError StreamMismatchError SubjectError UnpublishableError",
    ),
    ("broker.gateway.responses", "broker._gateway.responses", "RequestError"),
    ("broker.nats.requests", "broker._nats.requests", "BodyTooLargeError"),
    (
        "broker.nats_client",
        "broker._nats_client",
        (
            "ConnectionLostError JetStreamOffError NoAnswerError NotPermittedError RefusedError "
            "ServerError UnreachableError"
        ),
    ),
    (
        "compose.commands.api",
        "compose._client.http",
        "ApiFailedError ApiNotFoundError ApiRefusedError ApiUnreachableError",
    ),
    ("compose.commands.messages.send", "compose._commands.messages.send", "StillOpenError"),
    ("compose.commands.output", "compose._commands.output", "NoDataError"),
    ("compose.demo.director", "compose.demo.director", "DemoError"),
    (
        "compose.embedded.errors",
        "compose._embedded.errors",
        "DataDirInUseError EmbeddedServerMissingError ServerFailedError",
    ),
    ("compose.host.http", "compose._host.http", "AddressError"),
    ("compose.host.loader", "compose._host.loader", "ServeError"),
    ("compose.mcp.toolsets.folder", "compose._mcp.toolsets.folder", "PathRefusedError"),
    ("compose.mcp.toolsets.shell", "compose._mcp.toolsets.shell", "CommandLimitError"),
    ("compose.mcp.toolsets.web", "compose._mcp.toolsets.web", "FetchRefusedError"),
    ("compose.models.mcp.session", "compose._models.mcp.session", "McpServerError"),
    ("compose.models.mcp.toolset", "compose._models.mcp.toolset", "McpToolError"),
    ("compose.tools.export", "compose._tools.export", "ExportError"),
    ("compose.tools.graph_bundle", "compose._tools.graph_bundle", "BundleError RunBusyError"),
    ("compose.tools.graph_stores", "compose._tools.graph_stores", "NoGraphStoreError"),
    ("compose.web.agui.answers", "compose._web.agui.endpoint", "AnswerError"),
    ("compose.web.problems", "compose._web.problems", "ProblemError"),
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
        "persistence._objects.errors",
        "BucketRefusedError BucketUnreachableError",
    ),
    ("persistence.objects.settings", "persistence._objects.settings", "BucketSettingsError"),
    ("persistence.redis.client", "persistence._redis.client", "RedisUrlError"),
    (
        "persistence.redis.errors",
        "persistence._redis.errors",
        "RedisRefusedError RedisUnreachableError",
    ),
    ("persistence.sqlite.errors", "persistence._sqlite.errors", "LedgerForkError"),
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
