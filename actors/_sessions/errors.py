"""The errors of sessions. Each text names the problem and the remedy."""

from __future__ import annotations

from actors.errors import ActorsError, ContractError, Facts


class UnknownModeError(Facts, ContractError):
    """No agent serves this mode."""

    text = "there is no mode {mode!r}: this runtime has the modes {modes}"
    mode: str
    modes: str


class ProjectError(Facts, ContractError):
    """The project's folder cannot be used. Nothing was created."""

    text = "project {path}: {problem}. Name a folder that is there, or leave project_dir out"
    path: str
    problem: str


class CursorError(Facts, ContractError):
    """A cursor does not belong to the session, or is not valid."""

    text = "cursor {cursor!r} of session {session}: {problem}. Leave the cursor out to read from the start"
    cursor: str
    session: str
    problem: str


class ConsumedError(Facts, ContractError):
    """The events of a run already have a reader."""

    text = (
        "the events of run {run_id} have a reader already: `tail_session` allows any number of readers, "
        "`replay_run` returns past events"
    )
    run_id: str


class UnknownChildError(Facts, ContractError):
    """A run is not below the other run."""

    text = (
        "run {child} is not a child of run {run_id}: its `child_started` events name its children"
    )
    run_id: str
    child: str


class UnknownArtifactError(Facts, ContractError):
    """A session has no artifact of this name."""

    text = (
        "there is no artifact {name!r}: `artifacts(session).list()` has the names of all artifacts"
    )
    name: str


class ClosedError(ActorsError):
    """The runtime of sessions was closed."""
