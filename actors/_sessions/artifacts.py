"""Bytes and paths of a session: its artifacts by name and kind, messages of users, and its project.

The session and the run that put an artifact pin it. A name is a pin. The owner of the session's pin is the
text ``session:NAME:KIND:RUN``, and of the run's pin ``run:RUN:NAME:KIND``. A name means the pin that was made
last. All artifacts of a session are in the scope of its agent, so they are deleted with the session and are
separate from other sessions.

A message of a user has text and blocks of other content. A project is a folder; the user has another folder
for own files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator
from typing_extensions import override

from actors._context.turns import NOT_OF_USERS
from actors._kernel.agent.message import ContentBlock
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.artifacts import ArtifactPin, ArtifactRef, ArtifactStore
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import agent_scope
from actors._kernel.text import check_text_of
from actors._runtime.verbs.call import RunState, executing_effect
from actors._sessions.errors import ProjectError, UnknownArtifactError
from actors.errors import ConflictError, ContractError

ArtifactKind: TypeAlias = Literal["ordinary", "debug", "raw"]
"""The kinds of artifacts. A clean-up removes ``debug`` and ``raw``, and ``ordinary`` ones only on request."""
KINDS: Final[tuple[ArtifactKind, ...]] = get_args(ArtifactKind)
MAX_NAME_BYTES: Final = 900
"""Maximum length of an artifact's name in bytes. The name is part of the text of a pin's owner."""
PIECE_BYTES: Final = 1024 * 1024
"""Size of the pieces in which an artifact is read, in bytes."""
PINS_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class SessionArtifact:
    """An artifact of a session.

    Attributes:
        name: Unique in its session.
        kind: See `ArtifactKind`.
        ref: The reference of its bytes: SHA-256, size and media type.
        run_id: The run that put it, or None if a program put it.
        at: The instant at which it was put, aware UTC.
    """

    name: str
    kind: ArtifactKind
    ref: ArtifactRef
    run_id: RunId | None
    at: datetime


@dataclass(frozen=True, slots=True)
class NamedPin:
    """A pin with the facts in the text of its owner.

    Attributes:
        pin: The pin.
        artifact: The artifact that the pin keeps.
        by_run: True if the run pins it, False if the session does.
    """

    pin: ArtifactPin
    artifact: SessionArtifact
    by_run: bool


_Artifacts: TypeAlias = "list[SessionArtifact]"
_Pins: TypeAlias = "list[NamedPin]"


class SessionArtifacts:
    """The artifacts of one session, by name.

    Calls are not recorded. Inside a run use this object in a step or a tool, see `session_artifacts`.

    Args:
        store: The store of the artifacts in the scope of the session's agent.
        run_id: The run that puts artifacts, if a call names none.
    """

    def __init__(self, store: ArtifactStore | None, run_id: RunId | None = None) -> None:
        self._store, self._run_id = store, run_id

    async def put(
        self,
        name: str,
        data: bytes | AsyncIterable[bytes],
        *,
        kind: ArtifactKind = "ordinary",
        content_type: str = "application/octet-stream",
        run_id: RunId | None = None,
    ) -> ArtifactRef:
        """Store bytes, or pieces of them, under a name.

        An artifact that has the name is replaced. Durable on return.

        Only a few pieces are in memory at once. If the process dies before the call returns, the earlier
        artifact stays. New bytes without a pin are garbage-collected. A repetition of the same call changes
        nothing.

        Args:
            name: 1 to 900 bytes of text, for example ``report.md``.
            data: The bytes.
            kind: The kind, by which a clean-up decides.
            content_type: The media type.
            run_id: The run that puts the artifact. It pins the bytes, too, so they stay when another run takes
                the name.

        Raises:
            ContractError: Name or kind is not valid.
            ConflictError: The bytes were removed during the call. Put them again.
        """
        _check_put(name, kind)
        store, run_id = await self._open_store(), run_id or self._run_id
        if isinstance(data, bytes):
            ref = await store.store(data, content_type=content_type)
        else:
            ref = await store.store_pieces(data, content_type=content_type)
        prefixes = {f"session:{name}:": f"{kind}:{run_id or ''}"}
        if run_id is not None:
            prefixes[f"run:{run_id}:{name}:"] = kind
        for prefix, rest in prefixes.items():
            try:
                await store.pin(ref, owner=prefix + rest)
            except KeyError:
                problem = f"the bytes of artifact {name!r} were removed while they came"
                raise ConflictError(f"{problem}: put them again") from None
            # Concurrent calls agree on the last pin of the name, which stays.
            pins = [pin for pin in await self.pins(prefix) if pin.artifact.name == name]
            await self.unpin(sorted(pins, key=_by_age)[:-1])
        return ref

    async def list(self, *, run_id: RunId | None = None) -> _Artifacts:
        """Return the session's artifacts by name. With `run_id` return those of a run, as it put them last."""
        prefix = "session:" if run_id is None else f"run:{run_id}:"
        pins_by_name = latest(await self.pins(prefix))
        return [pins_by_name[name].artifact for name in sorted(pins_by_name)]

    async def find(self, name: str) -> SessionArtifact:
        """Return the artifact with a name.

        Raises:
            UnknownArtifactError: No artifact has the name.
        """
        named_pin = latest(await self.pins(f"session:{name}:")).get(name)
        if named_pin is None:
            raise UnknownArtifactError(name[:MAX_NAME_BYTES])
        return named_pin.artifact

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an artifact in pieces of 1 MiB. The last piece may be shorter.

        The artifact that has the name at the first piece is read to its end, even if the name is taken by other
        bytes.

        Raises:
            UnknownArtifactError: No artifact has the name, or its bytes were erased during the read.
        """
        ref, store = (await self.find(name)).ref, await self._open_store()
        for offset in range(0, ref.size_bytes, PIECE_BYTES):
            try:
                piece = await store.read(ref.id, offset=offset, limit=PIECE_BYTES)
            except KeyError:
                raise UnknownArtifactError(name) from None
            yield piece

    async def delete(self, name: str) -> bool:
        """Remove a name from the session and its runs; return False if no artifact has the name.

        Bytes without a pin are garbage-collected a day later.
        """
        pins = [named_pin for named_pin in await self.pins() if named_pin.artifact.name == name]
        await self.unpin(pins)
        return bool(pins)

    async def unpin(self, pins: Iterable[NamedPin]) -> None:
        """Remove pins. A pin that was made again since it was read is removed, too."""
        store = await self._open_store()
        for named_pin in pins:
            await store.unpin(named_pin.pin.ref, owner=named_pin.pin.owner)

    async def pins(self, prefix: str = "") -> _Pins:
        """Return the pins that are names of artifacts and whose owners begin with `prefix`."""
        store, after = await self._open_store(), None
        named_pins: _Pins = []
        while page := await store.pins(prefix=prefix, after=after, limit=PINS_PAGE):
            named_pins += [named_pin for pin in page if (named_pin := parse_pin(pin)) is not None]
            after = page[-1]
            if len(page) < PINS_PAGE:
                break
        return named_pins

    async def _open_store(self) -> ArtifactStore:
        assert self._store is not None, "given, or looked up by those of a run"
        return self._store


class _ArtifactsOfRun(SessionArtifacts):
    """The artifacts of the session at the root of a run's tree. The root is looked up once."""

    def __init__(self, run: RunState) -> None:
        super().__init__(None, run.run_id)
        self._run = run

    @override
    async def _open_store(self) -> ArtifactStore:
        if self._store is None:
            run = self._run
            agent, root_id = run.agent_id, run.row.root
            if root_id not in (None, run.run_id):
                root_row = await run.store.reads.run(root_id)
                if root_row is None:
                    msg = f"run {root_id}, the root of this run's tree, does not exist any more"
                    raise ContractError(f"{msg}: its artifacts have no session")
                agent = root_row.agent_id
            self._store = _scope_of(run.store, agent)
        return self._store


def session_artifacts() -> SessionArtifacts:
    """Return the artifacts of the session whose step or tool is executing. The run puts them.

    For use inside a function given to `ctx.step`, or in a tool. A run below a session's run uses the artifacts
    of the same session, which is found at the root of the tree. An agent that is not a session has artifacts by
    name, too.

    Raises:
        ContractError: No effect is executing.
    """
    _, run = executing_effect("session_artifacts")
    return _ArtifactsOfRun(run)


def artifacts_of(store: RunStore, agent: AgentId) -> SessionArtifacts:
    """Return the artifacts of an agent's session."""
    return SessionArtifacts(_scope_of(store, agent))


def _scope_of(store: RunStore, agent: AgentId) -> ArtifactStore:
    return store.data.artifacts.of(agent.tenant, agent_scope(agent))


def parse_pin(pin: ArtifactPin) -> NamedPin | None:
    """Return a pin with the facts of its owner, or None if the pin is not an artifact's name."""
    first, _, rest = pin.owner.partition(":")
    if first == "session":
        name, kind, run = (["", "", *rest.rsplit(":", 2)])[-3:]
    elif first == "run":
        run, _, name_and_kind = rest.partition(":")
        name, _, kind = name_and_kind.rpartition(":")
    else:
        return None
    known_kind = next((k for k in KINDS if k == kind), None)
    if known_kind is None or not name:
        return None
    artifact = SessionArtifact(name, known_kind, pin.ref, RunId(run) if run else None, pin.at)
    return NamedPin(pin, artifact, by_run=first == "run")


def latest(pins: Iterable[NamedPin]) -> dict[str, NamedPin]:
    """Return for each name the pin that was made last."""
    return {named_pin.artifact.name: named_pin for named_pin in sorted(pins, key=_by_age)}


def _by_age(named_pin: NamedPin) -> tuple[datetime, str, str]:
    return named_pin.pin.at, named_pin.pin.ref.id, named_pin.pin.owner


def _check_put(name: str, kind: str) -> None:
    check_text_of("name of an artifact", name, limit_bytes=MAX_NAME_BYTES)
    if not name:
        raise ContractError("the name of an artifact is empty. Give a name, for example report.md")
    if kind not in KINDS:
        raise ContractError(
            f"there is no kind {kind!r} of artifacts. Use one of {', '.join(KINDS)}"
        )


def check_blocks_of_user(content: Sequence[ContentBlock]) -> None:
    """Check that a user may send these blocks.

    Raises:
        ValueError: A block is of a type that only models and tools make.
    """
    for block in content:
        if block.type in NOT_OF_USERS:
            msg = f"a user's message has no block of type {block.type!r}: send text, or media"
            raise ValueError(msg)


class UserMessage(BaseModel):
    """A message of a user, which starts a run of a session.

    Attributes:
        content: Text blocks, and blocks of any other type except `NOT_OF_USERS`, which stay as they are.
        id: The message's id. A second message with the same id in the same session means the same run.
        client: JSON data of the user's program for the agent's code. Its ``tools`` are offered to the model in
            this run, and the program executes their calls, see docs/sessions.md, "Tools of the client".
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    content: tuple[ContentBlock, ...] = Field(min_length=1)
    id: str = Field(default_factory=lambda: secrets.token_hex(16))
    client: dict[str, JsonValue] | None = None

    @field_validator("content")
    @classmethod
    def _is_of_user(cls, content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
        check_blocks_of_user(content)
        return content

    @classmethod
    def of(cls, message: Self | str | Sequence[ContentBlock]) -> Self:
        """Return a message. A text becomes a message with one text block."""
        if isinstance(message, cls):
            return message
        if isinstance(message, str):
            return cls(content=(ContentBlock(type="text", text=message),))
        return cls(content=tuple(message))

    @property
    def text(self) -> str:
        """The texts of its blocks, joined."""
        return "".join(block.text or "" for block in self.content if block.type == "text")

    def payload(self) -> dict[str, JsonValue]:
        """Return the payload for the agent: ``text``, ``content`` if there is other content, and ``client``."""
        first = self.content[0]
        payload: dict[str, JsonValue] = {"text": self.text}
        if len(self.content) > 1 or first.type != "text" or first.model_extra:
            payload["content"] = [
                block.model_dump(mode="json", exclude_none=True) for block in self.content
            ]
        if self.client is not None:
            payload["client"] = self.client
        return payload


HOME_VARIABLE: Final = "CALLBOARD_HOME"


def project_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a project. Default: the current folder. For a file return its folder.

    Raises:
        ProjectError: The folder does not exist or cannot be opened.
    """
    path = Path.cwd() if given is None else Path(given).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ProjectError(str(given), f"it cannot be opened ({exc})") from exc
    return path if path.is_dir() else path.parent


def project_label(project: str | os.PathLike[str]) -> str:
    """Return the label of a project's sessions: its folder, or `project` if that is not on this machine."""
    try:
        return str(project_folder(project))
    except ProjectError:
        return os.fspath(project)


def user_home() -> Path:
    """Return the folder of the user's own files: `CALLBOARD_HOME`, else ``~/.callboard``. It is not created."""
    home = os.environ.get(HOME_VARIABLE)
    return Path(home).expanduser() if home else Path.home() / ".callboard"
