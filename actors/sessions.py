"""Sessions: durable conversations with a queue, branches, and events for many readers.

`AgentRuntime.start` writes a message and its run in one commit. A `SessionAgent` selects the agent by the run's
mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._kernel.agent.agent import ROOT, ExpectedSession
    from actors._kernel.stores.errors import (
        SessionActiveError,
        SessionDeletingError,
        UnknownNodeError,
        UnknownSessionError,
    )
    from actors._sessions.agent import SessionAgent
    from actors._sessions.artifacts import (
        ArtifactKind,
        SessionArtifact,
        SessionArtifacts,
        UserMessage,
        project_folder,
        session_artifacts,
        user_home,
    )
    from actors._sessions.cleanup import (
        ArtifactCandidate,
        ArtifactCleanup,
        TaskCandidate,
        TaskCleanup,
    )
    from actors._sessions.errors import (
        ClosedError,
        ConsumedError,
        CursorError,
        ProjectError,
        UnknownArtifactError,
        UnknownChildError,
        UnknownModeError,
    )
    from actors._sessions.events import EVENT_TYPES, EVENTS, SessionEvent
    from actors._sessions.run import CancelResult, ChildInspection, SessionRun
    from actors._sessions.runtime import AgentRuntime
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._kernel.agent.agent": ("ROOT", "ExpectedSession"),
            "actors._kernel.stores.errors": (
                "SessionActiveError",
                "SessionDeletingError",
                "UnknownNodeError",
                "UnknownSessionError",
            ),
            "actors._sessions.agent": ("SessionAgent",),
            "actors._sessions.artifacts": (
                "ArtifactKind",
                "SessionArtifact",
                "SessionArtifacts",
                "session_artifacts",
                "UserMessage",
                "project_folder",
                "user_home",
            ),
            "actors._sessions.cleanup": (
                "ArtifactCandidate",
                "ArtifactCleanup",
                "TaskCandidate",
                "TaskCleanup",
            ),
            "actors._sessions.errors": (
                "ClosedError",
                "ConsumedError",
                "CursorError",
                "ProjectError",
                "UnknownArtifactError",
                "UnknownChildError",
                "UnknownModeError",
            ),
            "actors._sessions.events": ("EVENTS", "EVENT_TYPES", "SessionEvent"),
            "actors._sessions.run": ("CancelResult", "ChildInspection", "SessionRun"),
            "actors._sessions.runtime": ("AgentRuntime",),
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
