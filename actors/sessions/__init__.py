"""Sessions: durable conversations with a queue, branches, and events for many readers.

`AgentRuntime.start` writes a message and its run in one commit. `actors.runtime` calls the code of the agent as
for any run. `SessionAgent` selects the agent by the run's mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from actors.kernel.agent.agent import ROOT, ExpectedSession
    from actors.kernel.stores.errors import (
        SessionActiveError,
        SessionDeletingError,
        UnknownNodeError,
        UnknownSessionError,
    )
    from actors.sessions.agent import SessionAgent
    from actors.sessions.artifacts import (
        ArtifactKind,
        SessionArtifact,
        SessionArtifacts,
        UserMessage,
        project_folder,
        session_artifacts,
        user_home,
    )
    from actors.sessions.cleanup import (
        ArtifactCandidate,
        ArtifactCleanup,
        TaskCandidate,
        TaskCleanup,
    )
    from actors.sessions.errors import (
        ClosedError,
        ConsumedError,
        CursorError,
        ProjectError,
        UnknownArtifactError,
        UnknownChildError,
        UnknownModeError,
    )
    from actors.sessions.events import EVENT_TYPES, EVENTS, SessionEvent
    from actors.sessions.run import CancelResult, ChildInspection, SessionRun
    from actors.sessions.runtime import AgentRuntime
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors.kernel.agent.agent": ("ROOT", "ExpectedSession"),
            "actors.kernel.stores.errors": (
                "SessionActiveError",
                "SessionDeletingError",
                "UnknownNodeError",
                "UnknownSessionError",
            ),
            "actors.sessions.agent": ("SessionAgent",),
            "actors.sessions.artifacts": (
                "ArtifactKind",
                "SessionArtifact",
                "SessionArtifacts",
                "session_artifacts",
                "UserMessage",
                "project_folder",
                "user_home",
            ),
            "actors.sessions.cleanup": (
                "ArtifactCandidate",
                "ArtifactCleanup",
                "TaskCandidate",
                "TaskCleanup",
            ),
            "actors.sessions.errors": (
                "ClosedError",
                "ConsumedError",
                "CursorError",
                "ProjectError",
                "UnknownArtifactError",
                "UnknownChildError",
                "UnknownModeError",
            ),
            "actors.sessions.events": ("EVENTS", "EVENT_TYPES", "SessionEvent"),
            "actors.sessions.run": ("CancelResult", "ChildInspection", "SessionRun"),
            "actors.sessions.runtime": ("AgentRuntime",),
        },
    )

__all__ = [
    "EVENTS",
    "EVENT_TYPES",
    "ROOT",
    "AgentRuntime",
    "ArtifactCandidate",
    "ArtifactCleanup",
    "ArtifactKind",
    "CancelResult",
    "ChildInspection",
    "ClosedError",
    "ConsumedError",
    "CursorError",
    "ExpectedSession",
    "ProjectError",
    "SessionActiveError",
    "SessionAgent",
    "SessionArtifact",
    "SessionArtifacts",
    "SessionDeletingError",
    "SessionEvent",
    "SessionRun",
    "TaskCandidate",
    "TaskCleanup",
    "UnknownArtifactError",
    "UnknownChildError",
    "UnknownModeError",
    "UnknownNodeError",
    "UnknownSessionError",
    "UserMessage",
    "project_folder",
    "session_artifacts",
    "user_home",
]
